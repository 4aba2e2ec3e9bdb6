"""A discarded step leaves no trace: not in parameters, attributes or generators, and not in the result of a run."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from template.distributed.undo import nothing_happened
from tests.distributed.test_strategy import fit
from tests.ranks import run_ranks


class Remembers(nn.Module):
    """Changes in its forward pass whatever a module can change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.calls = 0
        self.seen: list[int] = [7]
        self.named = {"a": 1}
        self.plain = torch.zeros(3)
        self.generator = torch.Generator().manual_seed(1)
        self.numbers = np.random.default_rng(1)
        self.dice = random.Random(1)
        self.hidden = [nn.Linear(3, 3).requires_grad_(False)]
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.named["b"] = self.calls
        self.new = x
        self.mean = 0.9 * self.mean + 1  # another tensor, in the place of the buffer
        with torch.no_grad():
            self.plain += 1
            self.layer.weight += 1
            self.hidden[0].weight += 1
        x = x + torch.rand(3, generator=self.generator) + self.numbers.random() + self.dice.random()
        x = x + torch.rand(3) + np.random.random() + random.random()
        result: Tensor = self.hidden[0](self.layer(self.norm(x)))
        return result


def test_everything_is_as_before() -> None:
    module = Remembers()
    twin = copy.deepcopy(module)
    seen, named, weight = module.seen, module.named, module.layer.weight
    x = torch.rand(4, 3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with nothing_happened(module):
        module(x).sum().backward()
        assert module.calls == 1
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert module.layer.weight is weight
    assert weight.grad is None
    assert (module.calls, module.seen, module.named) == (0, [7], {"a": 1})
    assert module.seen is seen
    assert module.named is named
    assert not hasattr(module, "new")
    for name, value in twin.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
    # The next pass draws what the first would have drawn.
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    one = module(x)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    assert torch.equal(one, twin(x))
    assert torch.equal(module.hidden[0].weight, twin.hidden[0].weight)


def test_a_failing_step_leaves_no_trace_either() -> None:
    module = Remembers()
    with pytest.raises(RuntimeError, match="size"), nothing_happened(module):
        module(torch.rand(4, 5))
    assert module.calls == 0
    assert torch.equal(module.plain, torch.zeros(3))


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_modules_of_other_kinds() -> None:
    for module in (torch.jit.script(nn.Sequential(nn.Linear(3, 3))), nn.Sequential(nn.LazyLinear(3))):
        with nothing_happened(module):
            module(torch.rand(2, 3))


class WarmUp(nn.Module):
    """Counts its training steps, and moves a teacher after its student, both in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Conv2d(1, 3, 3, padding=1)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.steps = 0

    def forward(self, image: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            with torch.no_grad():
                for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    mine.lerp_(theirs + 0.1, 0.3)
        return (self.student(image) + self.teacher(image)) * min(1.0, self.steps / 10)


def _fit(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    return fit(rank, world_size, folder, net=WarmUp())


def test_a_network_that_counts_its_steps_trains_the_same_on_two_processes(tmp_path: Path) -> None:
    alone = run_ranks(1, _fit, 1, str(tmp_path))[0]
    for found in run_ranks(2, _fit, 2, str(tmp_path)):
        for name, value in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], value, rtol=1e-9, atol=1e-9, msg=name)
