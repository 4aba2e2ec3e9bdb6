"""Tensors on a device of their own are named with the user's line, on a machine without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
from torch import Tensor, nn

from template.data.phantom import Phantom
from template.doctor.devices import one_device
from template.doctor.model import output_fits
from template.models.losses import CrossEntropyDice
from template.models.unet import UNet
from tests.doctor.rehearsed import examine, of_status, phantom

HERE = "tests/doctor/test_devices.py:"


class Own(nn.Module):
    """A convolution, and what a function makes of its output."""

    def __init__(self, change: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.main = nn.Conv2d(1, 3, 3, padding=1)
        self.register_buffer("scale", torch.ones(3, 1, 1))
        self.weight = torch.ones(3, 1, 1)
        self.layers = [nn.Conv2d(3, 3, 1)]
        self.frozen = [nn.Conv2d(3, 3, 1).requires_grad_(False)]
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self, self.main(x))


BROKEN: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "cuda": (lambda net, x: x.cuda() * net.scale, "has a tensor of shape [2, 3, 32, 32] on cuda:0"),
    "cuda, alone": (lambda net, x: x.cuda(), "has a tensor of shape [2, 3, 32, 32] on cuda:0"),
    "to cuda": (lambda net, x: x.to("cuda"), "has a tensor of shape [2, 3, 32, 32] on cuda:0"),
    "cpu": (lambda net, x: x.to("cpu") * net.scale, "has a tensor of shape [2, 3, 32, 32] on the CPU"),
    "cpu, alone": (lambda net, x: x.cpu(), "has a tensor of shape [2, 3, 32, 32] on the CPU"),
    "zeros": (lambda net, x: x + torch.zeros(3, 1, 1), "has a tensor of shape [3, 1, 1] on the CPU"),
    "views": (lambda net, x: x + torch.arange(3.0).view(3, 1, 1), "has a tensor of shape [3, 1, 1] on the CPU"),
    "list": (lambda net, x: x + torch.tensor([[[1.0]]] * 3), "has a tensor of shape [3, 1, 1] on the CPU"),
}


def number(found: Any) -> int:
    return int(found.subject.removeprefix(HERE).split()[0])


@pytest.mark.parametrize(("change", "told"), BROKEN.values(), ids=BROKEN)
def test_a_tensor_elsewhere_is_named_by_its_line(
    change: Callable[[Any, Tensor], Tensor], told: str, tmp_path: Path
) -> None:
    found = examine([output_fits, one_device], tmp_path, net=Own(change))
    [failed] = of_status(found)
    assert (failed.id, failed.check) == ("fixed-device", "model: devices")
    assert failed.subject.startswith(HERE)
    assert number(failed) == change.__code__.co_firstlineno
    assert told in failed.subject
    assert "The strategy places the network" in failed.cause


def test_a_tensor_that_is_no_buffer_is_named(tmp_path: Path) -> None:
    found = examine(one_device, tmp_path, net=Own(lambda net, x: x * net.weight.abs()))
    [failed] = of_status(found)
    assert failed.subject == "net.weight, a tensor of shape [3, 1, 1], stays on the CPU, used in net (Own)."
    assert "register_buffer" in failed.fix


def test_a_frozen_layer_in_a_list_is_named_by_its_parameters(tmp_path: Path) -> None:
    found = of_status(examine(one_device, tmp_path, net=Own(lambda net, x: net.frozen[0](x))))
    assert [one.subject.partition(",")[0] for one in found] == ["net.frozen[0].weight", "net.frozen[0].bias"]


def test_all_are_found(tmp_path: Path) -> None:
    def change(net: Any, x: Tensor) -> Tensor:
        x = x + torch.zeros(3, 1, 1)
        x = x * net.weight
        x = x + torch.ones(3, 1, 1)
        x = x + torch.full((3, 1, 1), 2.0)
        return x * torch.rand(3, 1, 1)

    found = examine(one_device, tmp_path, net=Own(change))
    first = change.__code__.co_firstlineno
    assert number(found[0]) == first + 1
    assert found[1].subject.startswith("net.weight")
    assert found[-1].subject == f"So have 2 more places: {HERE}{first + 4} change, {HERE}{first + 5} change."


def test_a_network_that_cannot_be_copied_is_followed_as_well(tmp_path: Path) -> None:
    net = Own(lambda net, x: x + torch.zeros(3, 1, 1) * net.scale)
    net.lock = threading.Lock()
    before = [*net.parameters(), *net.buffers()]
    [failed] = of_status(examine(one_device, tmp_path, net=net))
    assert failed.subject.startswith(HERE)
    assert all(one is other for one, other in zip([*net.parameters(), *net.buffers()], before, strict=True))


def guarded(net: Any, x: Tensor) -> Tensor:
    return x.cuda() if x.is_cuda else x


def test_the_current_gpu_is_a_warning_where_the_cpu_is_served_as_well(tmp_path: Path) -> None:
    [found] = examine([one_device], tmp_path, net=Own(guarded))
    assert (found.id, found.status) == ("fixed-device", "warn")


def branch(net: Any, x: Tensor) -> Tensor:
    return x * 2 if x.mean() > 0 else x - x.max().item()


def endless(net: Any, x: Tensor) -> Tensor:
    while x.abs().max() > 0.5:
        x = x / 2
    return x


HEALTHY: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "device of another": lambda net, x: x + torch.zeros(3, 1, 1, device=x.device),
    "new_zeros": lambda net, x: x + x.new_zeros(3, 1, 1) + torch.zeros_like(x),
    "moved along": lambda net, x: x * net.weight.to(x) + torch.ones(3, 1, 1).to(x.device),
    "number": lambda net, x: x * torch.tensor(2.0),
    "index": lambda net, x: x[:, torch.tensor([2, 1, 0])],
    "a layer that another check names": lambda net, x: net.layers[0](x),
    "branch": branch,
    "loop": endless,
    "numpy": lambda net, x: x * float(x.detach().cpu().numpy().mean()),
    "chosen": lambda net, x: x * (1 + x[x > 0].mean()),
}


@pytest.mark.parametrize("change", HEALTHY.values(), ids=HEALTHY)
def test_what_goes_along_is_not_accused(change: Callable[[Any, Tensor], Tensor], tmp_path: Path) -> None:
    [found] = examine(one_device, tmp_path, net=Own(change))
    assert found.status == "pass"
    assert len(found.subject) <= 60


class Colour(nn.Module):
    """A network of a library, given grey pictures."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = net

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.repeat(1, 3, 1, 1))


def deeplab() -> nn.Module:
    return torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, aux_loss=True, num_classes=3
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "this U-Net": lambda: UNet(width=4, depth=3, deep_supervision=True),
    "torchvision": lambda: Colour(deeplab()),
    "smp": lambda: Colour(smp.Unet(encoder_weights=None, classes=3)),
    "smp transformer": lambda: Colour(smp.Segformer("mit_b0", encoder_weights=None, classes=3)),
    "timm": lambda: nn.Sequential(
        Colour(timm.create_model("resnet18", features_only=True, out_indices=[1])), First(), nn.Conv2d(64, 3, 1)
    ),
}


class First(nn.Module):
    def forward(self, features: list[Tensor]) -> Tensor:
        return features[0]


@pytest.mark.slow
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_networks_of_libraries_are_not_accused(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    [found] = examine(one_device, tmp_path, net=make(), data=phantom(size=64))
    assert (found.status, found.subject) == ("pass", "one device for all tensors, on an imaginary GPU")


LOSSES = [
    CrossEntropyDice(class_weights=[1, 2, 3]),
    nn.CrossEntropyLoss(torch.ones(3), ignore_index=255),
    smp.losses.DiceLoss("multiclass"),
    smp.losses.FocalLoss("multiclass", ignore_index=255),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_losses_are_not_accused(loss: nn.Module, tmp_path: Path) -> None:
    [found] = examine(one_device, tmp_path, loss=loss)
    assert (found.status, found.subject) == ("pass", "one device for all tensors, on an imaginary GPU")


def test_weights_of_a_loss_that_stay_behind_are_named(tmp_path: Path) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.ones(3)

        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, labels, self.weights, ignore_index=255)

    [failed] = of_status(examine(one_device, tmp_path, loss=Weighted()))
    assert failed.subject == "loss.weights, a tensor of shape [3], stays on the CPU, used in loss (Weighted)."


def test_the_network_stays_what_it_is(tmp_path: Path) -> None:
    net = UNet(width=4, depth=2)
    data = phantom()
    assert isinstance(data, Phantom)
    examine(one_device, tmp_path, net=net, data=data)
    assert {(type(one), one.device.type) for one in net.parameters()} == {(nn.Parameter, "cpu")}
    assert net.training
