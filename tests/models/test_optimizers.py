"""An optimizer is fused on GPUs alone, and only where nobody has chosen another form."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from template.models import optimizers
from template.models.optimizers import fused
from template.models.resumed import Settings
from template.models.segmenter import Segmenter


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's fused optimizers run on the CPU as well."""
    monkeypatch.setattr(optimizers, "_suits", lambda parameter: parameter.is_floating_point())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def trained(optimizer: torch.optim.Optimizer, layer: nn.Module) -> torch.Tensor:
    for step in range(3):
        optimizer.zero_grad()
        layer(torch.full((1, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in layer.parameters()])


MAKERS = [
    partial(torch.optim.AdamW, lr=0.1, weight_decay=0.2, betas=(0.8, 0.9)),
    partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.func.__name__)
def test_it_trains_as_the_one_that_was_asked_for(make: Any) -> None:
    plain, other = net(), net()
    optimizer = fused(make(other.parameters()), clips=False)
    assert type(optimizer) is make.func
    assert all(group["fused"] is True for group in optimizer.param_groups)
    torch.testing.assert_close(trained(optimizer, other), trained(make(plain.parameters()), plain))


@pytest.mark.usefixtures("gpu")
def test_groups_keep_their_settings() -> None:
    layer = cast(nn.Linear, net())
    groups = [{"params": [layer.weight], "lr": 0.5}, {"params": [layer.bias], "weight_decay": 0.0}]
    found = fused(torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3), clips=False).param_groups
    assert [(group["lr"], group["weight_decay"]) for group in found] == [(0.5, 0.3), (0.1, 0.0)]
    assert [group["params"] for group in found] == [[layer.weight], [layer.bias]]


class Own(torch.optim.SGD):
    """A class of the user's own."""


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.AdamW, fused=False),
        partial(torch.optim.AdamW, foreach=False),
        partial(torch.optim.AdamW, foreach=True),
        partial(torch.optim.SGD, differentiable=True),
        partial(torch.optim.SGD, fused=True),
        torch.optim.RMSprop,
        Own,
    ],
)
def test_what_the_user_has_chosen_stays(make: Any) -> None:
    optimizer = make(net().parameters(), lr=0.1)
    assert fused(optimizer, clips=False) is optimizer


@pytest.mark.usefixtures("gpu")
def test_clipping_in_mixed_precision_forbids_it() -> None:
    optimizer = torch.optim.AdamW(net().parameters())
    assert fused(optimizer, clips=True) is optimizer


def test_nothing_changes_on_the_cpu() -> None:
    optimizer = torch.optim.AdamW(net().parameters())
    assert fused(optimizer, clips=False) is optimizer


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("clip", "precision", "expected"),
    [(None, "bf16-mixed", True), (1.0, "32-true", True), (1.0, "bf16-mixed", None)],
)
def test_the_segmenter_asks_for_it(clip: float | None, precision: str, expected: bool | None) -> None:
    module = Segmenter(nn.Conv2d(1, 3, 1), 3, 1)
    module._trainer = cast(Any, SimpleNamespace(gradient_clip_val=clip, precision=precision))
    assert module.configure_optimizers().param_groups[0]["fused"] is expected


@pytest.mark.usefixtures("gpu")
def test_a_checkpoint_of_another_device_changes_the_form_without_a_word() -> None:
    layer = net()
    optimizer = fused(torch.optim.AdamW(layer.parameters()), clips=False)
    settings = Settings(optimizer)
    plain = torch.optim.AdamW(net().parameters())
    optimizer.load_state_dict(plain.state_dict())
    assert settings.restore(optimizer) == []
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.gpu
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.func.__name__)
def test_a_gpu_trains_alike(make: Any) -> None:
    plain, other = net(), net().cuda()
    optimizer = fused(make(other.parameters()), clips=False)
    assert optimizer.param_groups[0]["fused"] is True
    found = []
    for layer, one in ((plain, make(plain.parameters())), (other, optimizer)):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        one.step()
        found.append([parameter.detach().cpu() for parameter in layer.parameters()])
    torch.testing.assert_close(found[1], found[0])
