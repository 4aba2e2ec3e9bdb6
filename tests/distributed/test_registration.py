"""What a network holds without knowing it, and what its optimizer does not: found by name, and nothing else."""

from __future__ import annotations

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
from tests.cases.toy import messages

COPY = "A copy that is kept beside on purpose, such as a teacher: freeze it with requires_grad_(False)."


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
    ("attributes", "told", "fix"),
    [
        (
            {"heads": [conv(), conv()]},
            "net.heads is a plain list of 2 layers (Conv2d): they are neither moved nor trained. ",
            "Use nn.ModuleList.",
        ),
        (
            {"heads": (nn.ReLU(), conv())},
            "net.heads is a plain tuple of 1 layer (Conv2d): it is neither moved nor trained. ",
            "Use nn.ModuleList.",
        ),
        (
            {"heads": {"a": conv(), "b": nn.Linear(1, 1)}},
            "net.heads is a plain dict of 2 layers (Conv2d, Linear): they are",
            "Use nn.ModuleDict.",
        ),
        (
            {"heads": [{"a": [conv()]}]},
            "net.heads[0]['a'] is a plain list of 1 layer (Conv2d): it is",
            "Use nn.ModuleList.",
        ),
        (
            {"heads": [conv()], "tails": [conv(), conv()]},
            "net.heads is a plain list of 1 layer (Conv2d): it is neither moved nor trained; net.tails is a plain list",
            "Use nn.ModuleList.",
        ),
        (
            {"scales": [nn.Parameter(torch.ones(3))]},
            "net.scales is a plain list of 1 parameter (parameter of shape [3]): it is",
            "Use nn.ParameterList.",
        ),
        (
            {"scale": torch.ones(2, requires_grad=True)},
            "net.scale (tensor of shape [2]) is in a plain attribute: it is neither moved nor trained. ",
            "Use an attribute that is an nn.Parameter, assigned after super().__init__().",
        ),
        (
            {"parts": SimpleNamespace(head=conv())},
            "net.parts.head (Conv2d) is in an object (SimpleNamespace) that is no nn.Module: it is",
            "Use an attribute of the network.",
        ),
    ],
    ids=["list", "tuple", "dict", "nested", "two lists", "parameters", "tensor", "object"],
)
def test_layers_that_no_module_knows_are_refused_by_name(attributes: dict[str, Any], told: str, fix: str) -> None:
    error = refusal(**attributes)
    assert str(error).startswith(told)
    assert error.fix == f"{fix} {COPY}"


@pytest.mark.case("C10")
def test_a_metric_in_a_plain_dict_is_refused_by_name() -> None:
    error = refusal(scores={"m": torchmetrics.MeanMetric()})
    assert error.what == "net.scores is a plain dict of 1 metric (MeanMetric): it is neither moved nor reduced."
    assert error.fix == "Use nn.ModuleDict."


def test_many_are_told_in_short() -> None:
    assert refusal(**{f"heads_{n}": [conv()] for n in range(8)}).what.endswith("; and 3 more such places.")


def test_each_is_told_once() -> None:
    shared = conv()
    assert [one.path for one in find_loose(Holder(one=[shared], two={"a": shared}))] == ["net.one[0]"]


@pytest.mark.parametrize("what", [conv().requires_grad_(False), nn.CrossEntropyLoss(torch.ones(2)), nn.Dropout()])
def test_what_is_not_trained_is_told(what: nn.Module) -> None:
    told = messages()
    check_registered(Holder(held=[what]))
    name = type(what).__name__
    assert told[0].startswith(f"net.held is a plain list of 1 layer ({name}): it is neither moved nor saved. ")
    assert told[0].endswith("Use nn.ModuleList. [unregistered-module]")


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
    told = messages()
    check_optimizers(net, [torch.optim.SGD(net[1].parameters(), lr=1)])
    assert told[0].startswith("No optimizer has these trainable parameters, which therefore stay as they are: 0.weight")


def test_optimizers_in_order_are_not_accused() -> None:
    net = nn.Sequential(conv(), conv(), conv().requires_grad_(False))
    groups = [{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 2}]
    told = messages()
    check_optimizers(net, [torch.optim.SGD(groups, lr=1)])
    check_optimizers(net, [torch.optim.SGD(net.parameters(), lr=1)])  # frozen ones are no matter
    check_optimizers(net, [torch.optim.SGD(part.parameters(), lr=1) for part in net])
    check_optimizers(net, [])
    assert not told


def test_averaged_weights_are_no_forgotten_layer() -> None:
    """They ask for gradients as copies of layers that do; nothing is to train them."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    net.__dict__["average"] = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    (loose,) = find_loose(net)
    assert (loose.path, loose.trained) == ("average", False)


def test_a_copy_on_purpose_is_told_how_to_say_so() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    net.__dict__["teacher"] = nn.Linear(2, 2)
    with pytest.raises(NamedError, match=r"requires_grad_\(False\)"):
        check_registered(net)
    net.teacher.requires_grad_(False)  # type: ignore[union-attr]
    check_registered(net)
