"""Each check of the network finds its fault by name, and nothing in healthy networks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
import torchmetrics
import torchvision
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from template.doctor.finding import Finding
from template.doctor.layers import batchnorm_has_values, buffers_stay
from template.doctor.model import CHECKS, everything_is_registered, loss_falls, output_fits, parameters_get_gradients
from template.doctor.options import Options
from template.models.unet import UNet
from tests.doctor.rehearsed import examine, of_status, phantom


def conv(channels: int = 3) -> nn.Conv2d:
    return nn.Conv2d(1, channels, 3, padding=1)


class Changed(nn.Module):
    """A convolution, what is set as attributes, and what a function makes of the output."""

    def __init__(self, change: Callable[[Any, Tensor], Any] = lambda _, x: x, **attributes: Any) -> None:
        super().__init__()
        self.main = conv()
        self.change = change
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.change(self, self.main(x))


class Loss(nn.Module):
    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.compute(logits, labels)


def only(found: list[Finding], identifier: str, check: str, status: str = "fail") -> Finding:
    [one] = found
    assert (one.id, one.check, one.status) == (identifier, check, status)
    return one


def healthy(found: list[Finding]) -> None:
    assert [one for one in found if one.status != "pass" or len(one.subject) > 60] == []


# All of them -----------------------------------------------------------------------------------------------------


def deeplab(**settings: Any) -> nn.Module:
    net = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, aux_loss=True, num_classes=3, **settings
    )
    net.backbone.conv1 = nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)
    return net


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "this U-Net": lambda: UNet(width=4, depth=2, dropout=0.1),
    "deep supervision": lambda: UNet(width=4, depth=3, deep_supervision=True, normalization="instance"),
    "deeplab": deeplab,
    "smp": lambda: smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=3),
    "transformer": lambda: smp.Segformer("mit_b0", encoder_weights=None, in_channels=1, classes=3),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_healthy_network_only_passes(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    found = examine(list(CHECKS), tmp_path, net=make(), data=phantom(size=64))
    healthy(found)
    assert len(found) == len(CHECKS)


def test_a_network_that_raises_is_told_once(tmp_path: Path) -> None:
    def broken(net: Any, x: Tensor) -> Tensor:
        raise ValueError("no liver here")

    found = of_status(examine(list(CHECKS), tmp_path, net=Changed(broken)))
    one = only(found, "network-output", "model: output")
    assert "ValueError: no liver here, at tests/doctor/test_model.py" in one.subject


def test_a_network_that_leaves_the_program_is_told(tmp_path: Path) -> None:
    def leaving(net: Any, x: Tensor) -> Tensor:
        raise SystemExit(3)

    one = only(of_status(examine(list(CHECKS), tmp_path, net=Changed(leaving))), "exception", "model: output")
    assert "sys.exit(3)" in one.subject


def test_the_network_is_trained_from_where_it_was(tmp_path: Path) -> None:
    net = UNet(1, 3, width=4, depth=2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    examine(list(CHECKS), tmp_path, net=net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_network_that_cannot_be_copied_is_examined(tmp_path: Path) -> None:
    found = examine(list(CHECKS), tmp_path, net=Changed(lock=threading.Lock()))
    healthy(found)
    assert len(found) == len(CHECKS)


# Output and loss -------------------------------------------------------------------------------------------------


def test_another_number_of_classes_is_told(tmp_path: Path) -> None:
    net = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=5)
    one = only(of_status(examine(list(CHECKS), tmp_path, net=net)), "network-output", "model: output")
    assert one.subject.startswith("The network Unet returns [2, 5, 32, 32] for images [2, 1, 32, 32]; expected are")


def test_one_channel_is_told(tmp_path: Path) -> None:
    one = only(examine(output_fits, tmp_path, net=nn.Sequential(conv(1))), "network-output", "model: output")
    assert "no choice between classes" in one.cause


def test_a_loss_that_takes_no_labels_is_told(tmp_path: Path) -> None:
    one = only(of_status(examine(list(CHECKS), tmp_path, loss=nn.BCEWithLogitsLoss())), "exception", "model: output")
    assert one.subject.startswith(
        "The loss BCEWithLogitsLoss fails on logits and masks of [2, 3, 32, 32] and [2, 32, 32]: ValueError: Target"
    )


def test_a_loss_that_knows_fewer_classes_is_told(tmp_path: Path) -> None:
    loss = Loss(lambda logits, labels: nn.functional.cross_entropy(logits, labels + 2))
    one = only(examine(output_fits, tmp_path, loss=loss), "label-out-of-range", "model: output")
    assert one.subject.startswith("The loss Loss fails on logits and masks of [2, 3, 32, 32] and [2, 32, 32]: ")


def test_a_loss_that_is_not_finite_is_told(tmp_path: Path) -> None:
    found = of_status(examine(output_fits, tmp_path, loss=Loss(lambda logits, _: logits.mean() / 0)))
    one = only(found, "loss-not-finite", "model: output")
    assert "on batch 0 of untrained weights, of case" in one.subject or "on batch 0" in one.subject


def test_a_loss_of_zero_is_told(tmp_path: Path) -> None:
    one = only(examine(output_fits, tmp_path, loss=Loss(lambda x, _: x.sum() * 0)), "loss-value", "model: output")
    assert one.subject == "The loss Loss is exactly 0 on the first 2 batches."


def test_a_negative_loss_is_a_warning(tmp_path: Path) -> None:
    found = examine(
        output_fits, tmp_path, loss=Loss(lambda x, y: nn.functional.cross_entropy(x, y, ignore_index=255) - 9)
    )
    only(found, "loss-value", "model: output", "warn")


# Gradients -------------------------------------------------------------------------------------------------------


class Main(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)["out"]
        return out


class TwoHeads(nn.Module):
    """The auxiliary head is computed, and left out of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.aux_classifier = conv(), nn.ModuleList([conv()])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.main(x), "aux": self.aux_classifier[0](x)}


def test_the_auxiliary_head_of_deeplab_out_of_the_loss_is_named(tmp_path: Path) -> None:
    found = examine(parameters_get_gradients, tmp_path, net=Main(deeplab()), data=phantom(size=64))
    one = only(found, "unused-parameters", "model: gradients", "warn")
    assert "net.inner.aux_classifier.0.weight" in one.subject


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, "warn"),
        ({"strategy": "ddp_find_unused_parameters_false"}, "fail"),
        ({"strategy": {"class_path": "SafeDDPStrategy", "init_args": {"find_unused_parameters": False}}}, "fail"),
        ({"strategy": SimpleNamespace(init_args=SimpleNamespace(find_unused_parameters="auto"))}, "warn"),
        ({"strategy": SimpleNamespace(init_args=SimpleNamespace(find_unused_parameters=True))}, "pass"),
        ({"strategy": "ddp_find_unused_parameters_true"}, "pass"),
    ],
)
def test_an_auxiliary_head_out_of_the_loss_is_named(asked: dict[str, Any], status: str, tmp_path: Path) -> None:
    found = examine(parameters_get_gradients, tmp_path, net=Main(TwoHeads()), asked=asked)
    one = only(found, "unused-parameters", "model: gradients", status)
    if status != "pass":
        assert "net.inner.aux_classifier.0.weight" in one.subject
        assert "a head that is left out, or a detach" in one.subject
        assert "freeze it with requires_grad_(False)" in one.fix


def test_a_layer_that_is_not_called_is_named(tmp_path: Path) -> None:
    found = examine(parameters_get_gradients, tmp_path, net=Changed(spare=conv()))
    one = only(found, "unused-parameters", "model: gradients", "warn")
    assert "net.spare.weight, net.spare.bias (its module is not called in forward" in one.subject


def test_a_loss_without_a_graph_is_told_once(tmp_path: Path) -> None:
    found = examine(list(CHECKS), tmp_path, net=Changed(lambda _, x: x.detach().requires_grad_()))
    one = only([one for one in found if one.status != "pass"], "loss-without-graph", "model: gradients")
    assert one.subject == "None of the 2 trainable parameters gets a gradient."


def test_a_buffer_that_backward_needs_is_named(tmp_path: Path) -> None:
    def moving(net: Any, x: Tensor) -> Tensor:
        y = x * net.center
        net.center.mul_(0.9)
        return y

    net = Changed(moving)
    net.register_buffer("center", torch.ones(3, 1, 1))
    found = of_status(examine(list(CHECKS), tmp_path, net=net))
    one = only(found, "changed-in-place", "model: gradients")
    assert one.subject.startswith("The backward pass fails (net.center changed in forward): ")


# Registered ------------------------------------------------------------------------------------------------------

GLOBAL = nn.Conv2d(3, 3, 1)


class Global(Changed):
    def forward(self, x: Tensor) -> Tensor:
        return GLOBAL(self.main(x))


def remembering() -> nn.Module:
    head = nn.Conv2d(3, 3, 1)
    return Changed(head=lambda x: head(x).relu())


def in_forward() -> nn.Module:
    head = nn.Conv2d(3, 3, 1)

    class Net(Changed):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = head(self.main(x))
            return out

    return Net()


LOOSE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "list": (lambda: Changed(heads=[conv(), conv()]), "net.heads is a plain list of 2 layers (Conv2d)"),
    "dict": (lambda: Changed(heads={"a": conv()}), "net.heads is a plain dict of 1 layer (Conv2d)"),
    "parameters": (
        lambda: Changed(scales=[nn.Parameter(torch.ones(3))]),
        "net.scales is a plain list of 1 parameter (parameter of shape [3])",
    ),
    "tensor": (
        lambda: Changed(scale=torch.ones(2, requires_grad=True)),
        "net.scale (tensor of shape [2]) is in a plain attribute",
    ),
    "metric": (lambda: Changed(scores={"m": torchmetrics.MeanMetric()}), "net.scores is a plain dict of 1 metric"),
    "closure": (remembering, "net.head, variable head (Conv2d) is in a function that remembers it"),
    "partial": (
        lambda: Changed(head=functools.partial(nn.functional.conv2d, weight=nn.Parameter(torch.ones(3, 3, 1, 1)))),
        "net.head, argument weight (parameter of shape [3, 3, 1, 1]) is in a functools.partial",
    ),
    "method": (lambda: Changed(head=conv().forward), "net.head, the object of this method (Conv2d) is in"),
    "forward": (in_forward, "net.forward, variable head (Conv2d) is in a function that remembers it"),
    "global": (Global, "net.forward, variable GLOBAL (Conv2d) is in a global variable"),
}


@pytest.mark.parametrize(("make", "told"), LOOSE.values(), ids=LOOSE)
def test_what_is_not_registered_is_named(make: Callable[[], nn.Module], told: str, tmp_path: Path) -> None:
    one = only(examine(everything_is_registered, tmp_path, net=make()), "unregistered-module", "model: registered")
    assert one.subject.startswith(told)


def test_all_is_found_at_once(tmp_path: Path) -> None:
    net = Changed(heads=[conv()], teacher=[conv().requires_grad_(False)])
    trained, frozen = examine(everything_is_registered, tmp_path, net=net)
    assert (trained.status, frozen.status) == ("fail", "warn")
    assert frozen.subject == "net.teacher is a plain list of 1 layer (Conv2d): it is neither moved nor saved."


def test_layers_that_are_registered_may_be_remembered_as_well(tmp_path: Path) -> None:
    net = Changed()
    net.again = lambda x: net.main(x).relu()
    net.part = functools.partial(net.main.forward)
    healthy(examine(everything_is_registered, tmp_path, net=net))


def test_an_optimizer_of_other_parameters_is_told(tmp_path: Path) -> None:
    def stranger(parameters: Any) -> torch.optim.Optimizer:
        return SGD([*parameters, nn.Parameter(torch.ones(7))], lr=1e-3)

    found = examine(everything_is_registered, tmp_path, optimizer=stranger)
    one = only(found, "optimizer-parameters", "model: registered")
    assert "of shape [7]" in one.subject


# Buffers and BatchNorm -------------------------------------------------------------------------------------------


def running(net: Any, x: Tensor) -> Tensor:
    net.center = 0.9 * net.center + 0.1 * x.detach().mean((0, 2, 3), keepdim=True)[0]
    return x - net.center


def with_buffer(change: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    net = Changed(change)
    net.register_buffer("center", torch.zeros(3, 1, 1))
    return net


def test_a_buffer_that_follows_the_data_is_named(tmp_path: Path) -> None:
    found = examine(buffers_stay, tmp_path, net=with_buffer(running))
    one = only(found, "buffer-changed", "model: buffers", "warn")
    assert one.subject == ("net.center, a buffer of shape [3, 1, 1], is changed in forward by what is in the batch.")


def counting(net: Any, x: Tensor) -> Tensor:
    net.center.add_(1)
    return x


def test_a_buffer_that_counts_is_no_matter(tmp_path: Path) -> None:
    healthy(examine(buffers_stay, tmp_path, net=with_buffer(counting)))
    healthy(examine(buffers_stay, tmp_path, net=nn.utils.spectral_norm(conv())))


class Siamese(nn.Module):
    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.joined = joined

    def forward(self, x: Tensor) -> Tensor:
        if self.joined:
            a, b = self.encoder(torch.cat([x, x.flip(-1)])).chunk(2)
        else:
            a, b = self.encoder(x), self.encoder(x.flip(-1))
        both: Tensor = a + b
        return both


def test_a_siamese_network_is_told_of_its_batchnorm(tmp_path: Path) -> None:
    found = examine(buffers_stay, tmp_path, net=Siamese(joined=False))
    one = only(found, "batchnorm-twice", "model: buffers", "warn")
    assert one.subject == (
        "net.encoder.1 (BatchNorm2d), net.encoder.4 (BatchNorm2d) are called 2 times in one training step."
    )
    assert "the running statistics, which evaluation uses, move with each" in one.cause
    assert "torch.cat" in one.fix
    healthy(examine(buffers_stay, tmp_path, net=Siamese(joined=True)))


class Pooled(nn.Module):
    """BatchNorm over one pixel, as in the pooling branch of DeepLab."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.main, self.pool, self.norm = conv(), nn.AdaptiveAvgPool2d(size), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.main(x)
        return y + self.norm(self.pool(y)).mean((2, 3), keepdim=True)


OFF = {"strategy": {"init_args": {"sync_batchnorm": False}}}


@pytest.mark.parametrize(
    ("asked", "size", "processes", "status", "values"),
    [
        ({}, 1, 4, "pass", 4),  # synchronised: 4 processes x 1 sample x 1 pixel
        (OFF, 1, 4, "fail", 1),
        (OFF, 1, 2, "warn", 2),
        (OFF, 3, 4, "warn", 9),
        (OFF, 4, 4, "pass", 16),
        ({**OFF, "accumulate_grad_batches": 2}, 3, 2, "warn", 9),
        ({"strategy": "safe_ddp_no_sync_batchnorm", "devices": 4}, 1, 2, "fail", 1),
        ({"accumulate_grad_batches": 4}, 1, 1, "fail", 1),
        ({**OFF, "sync_batchnorm": True}, 1, 4, "pass", 4),
    ],
)
def test_values_of_a_batchnorm_are_counted(
    asked: dict[str, Any], size: int, processes: int, status: str, values: int, tmp_path: Path
) -> None:
    options = Options(processes=processes)
    found = examine(batchnorm_has_values, tmp_path, net=Pooled(size), asked=asked, options=options)
    one = only(found, "few-values", "model: batchnorm", status)
    if status == "pass":
        assert one.subject == f"{values} values per channel or more"
    else:
        assert one.subject.startswith(f"net.norm (BatchNorm2d): {values} value{'s' * (values > 1)} per channel, with ")


def test_one_sample_of_one_pixel_in_one_process_is_told(tmp_path: Path) -> None:
    data = phantom(batch_size=1)
    found = of_status(examine(list(CHECKS), tmp_path, net=Pooled(1), data=data, options=Options(processes=1)))
    assert [one.id for one in found] == ["network-output", "few-values"]
    assert "net.norm (BatchNorm2d): 1 value per channel, with 1 sample in each of 1 process" in found[1].subject


# Learning --------------------------------------------------------------------------------------------------------


def warmup(optimizer: Any) -> Any:
    return LambdaLR(optimizer, lambda step: min(1.0, step / 1000))


@pytest.mark.parametrize(
    "optimizer",
    [functools.partial(kind, lr=lr) for kind in (AdamW, Adam, SGD) for lr in (1e-4, 1e-3, 1e-2, 1e-1)],
    ids=lambda made: f"{made.func.__name__} {made.keywords['lr']}",
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: UNet(width=4, depth=2, dropout=0.3),
        lambda: UNet(width=4, depth=3, deep_supervision=True),
        lambda: UNet(width=4, depth=2, normalization="none"),
    ],
    ids=["dropout", "deep", "plain"],
)
def test_networks_that_learn_are_not_accused(make: Callable[[], nn.Module], optimizer: Any, tmp_path: Path) -> None:
    healthy(examine(loss_falls, tmp_path, net=make(), optimizer=optimizer))


@pytest.mark.parametrize("schedule", [warmup, lambda optimizer: OneCycleLR(optimizer, max_lr=1e-2, total_steps=10_000)])
def test_a_schedule_that_begins_near_zero_is_no_matter(schedule: Any, tmp_path: Path) -> None:
    optimizer = functools.partial(AdamW, lr=1e-2)
    healthy(examine(loss_falls, tmp_path, optimizer=optimizer, lr_scheduler=schedule, lr_interval="step"))


@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        (lambda _, x: x.sign(), functools.partial(AdamW, lr=1e-3)),
        (lambda _, x: -x.abs().relu().neg().relu(), functools.partial(AdamW, lr=1e-3)),
        (lambda _, x: x, functools.partial(SGD, lr=0.0)),
    ],
    ids=["sign", "dead", "rate of 0"],
)
def test_a_loss_that_does_not_fall_is_told(change: Any, optimizer: Any, tmp_path: Path) -> None:
    found = examine(loss_falls, tmp_path, net=Changed(change), optimizer=optimizer)
    one = only(found, "not-learning", "model: learns", "warn")
    assert one.subject.startswith("The loss does not fall: from ")
    assert " in 8 steps on one batch (lr " in one.subject


def test_a_loss_that_becomes_nan_is_told_with_its_step(tmp_path: Path) -> None:
    loss = Loss(lambda x, y: (nn.functional.cross_entropy(x, y, ignore_index=255) + x.square().sum()).exp())
    found = examine(
        loss_falls, tmp_path, net=nn.Sequential(conv()), loss=loss, optimizer=functools.partial(SGD, lr=1e3)
    )
    one = only(found, "loss-not-finite", "model: learns")
    assert one.subject.endswith(" steps on one batch (lr 1e+03).")
