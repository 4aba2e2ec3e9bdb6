"""The probe step: names, causes and ranks of parameters without a gradient, and nothing changed by it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from template.distributed.probe import NOT_CALLED, NOT_IN_LOSS, describe, find_unused, trainable_names, unused_error
from tests.ranks import run_ranks


class Branches(nn.Module):
    """A trunk, a head that the loss leaves out, a layer that is never called, and one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5))
        self.aux = nn.Conv2d(2, 2, 1)
        self.left_over = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def loss(self, image: Tensor, with_aux: bool = False) -> Tensor:
        features = self.trunk(image)
        aux = self.aux(features)
        return features.sum() + (aux.sum() if with_aux else 0)


def test_unused_parameters_are_named_with_their_cause() -> None:
    net = Branches()
    unused = find_unused(net, lambda: net.loss(torch.ones(2, 1, 3, 3)))
    assert [(one.name, one.cause, one.ranks) for one in unused] == [
        ("aux.weight", NOT_IN_LOSS, (0,)),
        ("aux.bias", NOT_IN_LOSS, (0,)),
        ("left_over.weight", NOT_CALLED, (0,)),
        ("left_over.bias", NOT_CALLED, (0,)),
    ]


def test_the_step_leaves_no_trace() -> None:
    net = Branches()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.trunk[0].weight.grad = torch.full((2, 1, 1, 1), 7.0)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    find_unused(net, lambda: net.loss(torch.randn(2, 1, 3, 3) * np.random.rand() * random.random()))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert net.trunk[0].weight.grad.unique().tolist() == [7]
    assert net.aux.weight.grad is None
    assert not net.trunk[0]._forward_hooks


def test_a_loss_that_fails_leaves_no_trace_either() -> None:
    net = Branches()

    def fail() -> Tensor:
        net.loss(torch.ones(2, 1, 3, 3))
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        find_unused(net, fail)
    assert net.trunk[1].num_batches_tracked == 0
    assert not net.aux._forward_hooks


def test_names_stand_in_the_order_of_ddp_s_numbers() -> None:
    net: Any = nn.parallel.DataParallel(Branches()).module
    net.aux.weight = net.trunk[0].weight  # shared: counted once, where it comes first
    assert trainable_names(net) == [
        "trunk.0.weight",
        "trunk.0.bias",
        "trunk.1.weight",
        "trunk.1.bias",
        "aux.bias",
        "left_over.weight",
        "left_over.bias",
    ]


def _find(rank: int) -> list[Any]:
    net = Branches()
    return find_unused(net, lambda: net.loss(torch.ones(2, 1, 3, 3), with_aux=rank != 1))


def test_a_branch_not_taken_on_one_rank_names_the_rank() -> None:
    results = run_ranks(3, _find)
    assert results[0] == results[1] == results[2]
    by_name = {one.name: one for one in results[0]}
    assert by_name["aux.weight"].ranks == (1,)
    assert by_name["left_over.weight"].ranks == (0, 1, 2)
    text = describe(results[0], 3)
    assert text == (
        "aux.weight, aux.bias on rank 1 alone (a branch that is taken on other ranks only; " + NOT_IN_LOSS + "); "
        "left_over.weight, left_over.bias (" + NOT_CALLED + ")"
    )
    error = unused_error(results[0], 3)
    assert error.identifier == "unused-parameters"
    assert "aux.weight, aux.bias on rank 1 alone" in error.what
    assert "is false" in error.cause
    assert error.fix == (
        "Remove the layer, or call it in forward, or use its output in the loss (return it from forward, without "
        "detach), or take the branch on all ranks (with weight 0 where it does not count: loss + 0 * out.sum()), or "
        "freeze it with requires_grad_(False). Where it is unused on purpose, set "
        "trainer.strategy.init_args.find_unused_parameters to auto."
    )


def test_long_lists_are_cut() -> None:
    net = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(14)])
    weight = torch.ones(1, requires_grad=True)
    text = describe(find_unused(net, weight.sum), 1)
    assert text.startswith("0.weight, 1.weight,")
    assert " and 4 more (" in text
