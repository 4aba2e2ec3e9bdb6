"""What a network holds without knowing it, and what its optimizer does not: found by name, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchmetrics
import torchvision
from torch import nn

from template.distributed.faults import NamedError
from template.distributed.registration import check_optimizers, check_registered, find_loose
from template.models.losses import CrossEntropyDice
from template.models.unet import UNet


def conv() -> nn.Conv2d:
    return nn.Conv2d(1, 1, 1)


class Holder(nn.Module):
    """A network with a layer, and whatever is put into its ``net``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(conv())
        for name, value in attributes.items():
            setattr(self.net, name, value)


def refusal(**attributes: Any) -> NamedError:
    with pytest.raises(NamedError) as caught:
        check_registered(Holder(**attributes))
    assert caught.value.identifier == "unregistered-module"
    return caught.value


@pytest.mark.case("D1", "notes/second-cuda")
@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (
            {"heads": [conv(), conv()]},
            "net.heads[0] (Conv2d) is in a plain list; use nn.ModuleList; net.heads[1] (Conv2d) is in a plain list",
        ),
        ({"heads": (nn.ReLU(), conv())}, "net.heads[1] (Conv2d) is in a plain tuple; use nn.ModuleList."),
        ({"heads": {"a": conv()}}, "net.heads['a'] (Conv2d) is in a plain dict; use nn.ModuleDict."),
        ({"heads": [{"a": [conv()]}]}, "net.heads[0]['a'][0] (Conv2d) is in a plain list; use nn.ModuleList."),
        (
            {"scales": [nn.Parameter(torch.ones(3))]},
            "net.scales[0] (a parameter of shape [3]) is in a plain list; use nn.ParameterList.",
        ),
        (
            {"scale": torch.ones(2, requires_grad=True)},
            "net.scale (a tensor of shape [2]) is a plain attribute; assign an nn.Parameter after super().__init__().",
        ),
        (
            {"parts": SimpleNamespace(head=conv())},
            "net.parts.head (Conv2d) is in an object (SimpleNamespace) that is no nn.Module; make it an attribute of",
        ),
    ],
    ids=["list", "tuple", "dict", "nested", "parameters", "tensor", "object"],
)
def test_layers_that_no_module_knows_are_refused_by_name(attributes: dict[str, Any], told: str) -> None:
    assert refusal(**attributes).what.startswith(told)


@pytest.mark.case("C10")
def test_a_metric_in_a_plain_dict_is_refused_by_name() -> None:
    error = refusal(scores={"m": torchmetrics.MeanMetric()})
    assert error.what == "net.scores['m'] (MeanMetric) is in a plain dict; use nn.ModuleDict."


def test_many_are_told_in_short() -> None:
    assert refusal(heads=[conv() for _ in range(8)]).what.endswith("; and 3 more.")


def test_each_is_told_once() -> None:
    shared = conv()
    assert [one.path for one in find_loose(Holder(one=[shared], two={"a": shared}))] == ["net.one[0]"]


@pytest.mark.parametrize("what", [conv().requires_grad_(False), nn.CrossEntropyLoss(torch.ones(2)), nn.Dropout()])
def test_what_is_not_trained_is_warned_of(what: nn.Module) -> None:
    with pytest.warns(
        UserWarning, match=r"net\.held\[0\] .* is in a plain list; use nn\.ModuleList\..*\[unregistered-mod"
    ):
        check_registered(Holder(held=[what]))


def references() -> nn.Module:
    """Layers that are registered, and held once more in every other way."""
    net = Holder()
    layer = net.net[0]
    net.order, net.by_name, net.pair = [layer], {"a": layer}, (layer.weight, [layer.bias])
    net.around = [nn.Sequential(layer, nn.ReLU())]
    net.me = [net]
    net.__dict__["parent"] = net
    return net


def used() -> nn.Module:
    """A network that keeps an output, and has a history."""
    net = Holder(activations=[nn.ReLU(), nn.CrossEntropyLoss()], names=["a"], loops=[])
    net.output = net.net(torch.ones(1, 1, 2, 2))
    net.net.loops.append(net.net.loops)
    net.optimizer = torch.optim.SGD(conv().parameters(), lr=1)  # check_optimizers looks at those that are used
    return net


def scored() -> nn.Module:
    net = Holder()
    net.scores = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.SumMetric()])
    net.tracker = torchmetrics.MetricTracker(torchmetrics.MeanSquaredError())
    return net


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "references": references,
    "used": used,
    "metrics": scored,
    "this U-Net": lambda: UNet(1, 2, width=4, deep_supervision=True),
    "this loss": lambda: CrossEntropyDice(class_weights=[1, 2]),
    "torchvision": lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None),
    "torchvision deeplab": lambda: torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights_backbone=None, aux_loss=True
    ),
    "smp": lambda: smp.Unet("resnet18", encoder_weights=None),
    "smp loss": lambda: smp.losses.DiceLoss("multiclass"),
    "timm": lambda: timm.create_model("resnet18", features_only=True),
    "timm transformer": lambda: timm.create_model("vit_tiny_patch16_224"),
    "recurrent": lambda: nn.LSTM(2, 3, 2),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(conv()),
    "traced": lambda: torch.fx.symbolic_trace(nn.Sequential(conv())),
    "scripted": lambda: torch.jit.trace(conv(), torch.ones(1, 1, 2, 2)),
    "average": lambda: torch.optim.swa_utils.AveragedModel(conv()),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_a_network_in_order_is_not_accused(make: Callable[[], nn.Module]) -> None:
    assert list(find_loose(make())) == []


# Optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.case("D4")
def test_a_layer_that_was_replaced_after_the_optimizer_was_made() -> None:
    net = nn.Sequential(conv(), nn.Conv2d(1, 3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    net[1] = nn.Conv2d(1, 5, 1)
    with pytest.raises(NamedError) as caught:
        check_optimizers(net, [optimizer])
    assert caught.value.identifier == "optimizer-parameters"
    assert caught.value.what == (
        "Group 0 of SGD holds parameters that are not the network's, of shape [3, 1, 1, 1], [3]; the network has "
        "1.weight, 1.bias, which no optimizer has."
    )
    assert "configure_optimizers" in caught.value.fix


@pytest.mark.case("D4")
def test_training_a_part_alone_is_a_choice_that_is_told() -> None:
    net = nn.Sequential(conv(), conv())
    with pytest.warns(UserWarning, match=r"No optimizer has .*: 0\.weight, 0\.bias\. If .*\[optimizer-parameters\]"):
        check_optimizers(net, [torch.optim.SGD(net[1].parameters(), lr=1)])


def test_optimizers_in_order_are_not_accused() -> None:
    net = nn.Sequential(conv(), conv(), conv().requires_grad_(False))
    groups = [{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 2}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_optimizers(net, [torch.optim.SGD(groups, lr=1)])
        check_optimizers(net, [torch.optim.SGD(net.parameters(), lr=1)])  # frozen ones are no matter
        check_optimizers(net, [torch.optim.SGD(part.parameters(), lr=1) for part in net])
        check_optimizers(net, [])
