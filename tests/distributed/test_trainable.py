"""What changes in what is trained, in words."""

from __future__ import annotations

import torch
from torch import nn

from template.distributed.trainable import Trainable, listed


def test_each_kind_of_change_is_told() -> None:
    net = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in "abc"})
    for name in "ab":
        net[name].requires_grad_(False)
    optimizer = torch.optim.SGD([*net["a"].parameters(), *net["c"].parameters()], lr=0.1)
    trainable = Trainable(net)
    assert not trainable.changed()
    for name in "abc":
        net[name].requires_grad_(name != "c")
    assert trainable.changed()
    assert list(trainable.told([optimizer], 2, 30)) == [
        "a.weight became trainable at epoch 2, step 30: gradients are averaged over the ranks from now on.",
        "b.weight became trainable at epoch 2, step 30, but no optimizer has them: their values stay as they are.",
        "c.weight frozen at epoch 2, step 30: DDP waits for these gradients no longer.",
    ]


def test_parameters_without_a_gradient() -> None:
    net = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in "abc"})
    net["c"].requires_grad_(False)
    trainable = Trainable(net)
    net["a"](torch.ones(1, 1)).backward()
    assert trainable.without_gradient() == ["b.weight"]


def test_long_lists_are_cut() -> None:
    assert listed([str(n) for n in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
