"""Exceptions that DDP really raises become sentences with names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from template.distributed.diagnose import diagnose
from template.distributed.recognize import recognize
from tests.ranks import run_ranks


class Two(nn.Module):
    """Uses its second layer only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor, second: bool) -> Tensor:
        x = self.first(x)
        return self.second(x) if second else x


def _unused(rank: int) -> Any:
    net = Two()
    ddp = DistributedDataParallel(net)
    try:
        for _ in range(2):
            ddp(torch.ones(1, 2), second=False).sum().backward()
    except RuntimeError as error:
        found = diagnose(error, net, rank)
        return found and (found.identifier, found.what)
    return None


def test_numbers_of_unused_parameters_become_names() -> None:
    results = run_ranks(2, _unused)
    for rank, (identifier, what) in enumerate(results):
        assert identifier == "unused-parameters"
        assert f"second.weight, second.bias got no gradient on rank {rank}" in what


class Twice(nn.Module):
    """Reentrant checkpointing of a layer that is used again: its gradient is ready twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, checkpoint(self.layer, x, use_reentrant=True), use_reentrant=True)


def _twice(rank: int) -> Any:
    net = Twice()
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    try:
        ddp(torch.ones(1, 2, requires_grad=True)).sum().backward()
    except RuntimeError as error:
        found = diagnose(error, net, rank)
        return found and (found.identifier, found.what)
    return None


@pytest.mark.case("A7")
def test_a_gradient_that_is_ready_twice_is_named() -> None:
    for rank, (identifier, what) in enumerate(run_ranks(2, _twice)):
        assert identifier == "ready-twice"
        assert what.startswith("The gradient of layer.")
        assert what.endswith(f"on rank {rank}.")


@pytest.mark.case("notes/in-place")
def test_a_buffer_that_was_changed_in_place_is_named_by_its_shape() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    weight = torch.ones(5, requires_grad=True)
    loss = (weight * net[1].running_mean).sum()
    net[1].running_mean.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        loss.backward()
    found = diagnose(caught.value, net, 0)
    assert found is not None
    assert found.identifier == "changed-in-place"
    assert "shape [5]" in found.what
    assert "1.running_mean, 1.running_var, 0.bias" in found.what


def test_other_exceptions_are_left_alone() -> None:
    assert diagnose(RuntimeError("CUDA out of memory"), Two(), 0) is None


@pytest.mark.parametrize(("option", "value"), [("sampler", [0]), ("batch_sampler", [[0]])])
def test_a_sampler_beside_shuffle(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match="mutually exclusive") as caught:
        DataLoader([0], shuffle=True, **{option: value})  # type: ignore[arg-type]
    finding = recognize(caught.value)
    assert finding is not None
    assert finding.fault.identifier == "sampler-and-shuffle"
