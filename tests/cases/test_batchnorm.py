"""Failure reports about BatchNorm, as a run meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from template.data.phantom import Phantom
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from tests.ranks import run_ranks

from .toy import trainer, weights


def data() -> Phantom:
    return Phantom(train_cases=8, val_cases=4, test_cases=1, size=32, batch_size=4, num_workers=0)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


class Twice(nn.Module):
    """Runs its layers twice in one step, as a network that compares two views of an image does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small()

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image) + self.layers(image.flip(-1)).flip(-1)


def _twice(rank: int, world_size: int, folder: str, frozen: bool, knobs: dict[str, Any]) -> dict[str, Tensor]:
    net = Twice()
    if frozen:
        net.layers[1].eval()
        net.layers[1].train = lambda mode=True: net.layers[1]
    module = Segmenter(net, 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    run = trainer(world_size, folder, strategy=SafeDDPStrategy(**knobs), precision="64-true")
    run.fit(module, datamodule=data())
    return weights(module)


@pytest.mark.case("B1")
@pytest.mark.parametrize("frozen", [False, True])
def test_two_forward_passes_in_a_step(frozen: bool, tmp_path: Path) -> None:
    # Once, DDP's broadcast of buffers changed what the first pass had kept for its backward pass.
    (alone,) = run_ranks(1, _twice, 1, str(tmp_path), frozen, {})
    for knobs in ({"broadcast_buffers": True}, {"broadcast_buffers": False}):
        for found in run_ranks(2, _twice, 2, str(tmp_path), frozen, knobs):
            for name in alone:
                torch.testing.assert_close(found[name], alone[name], rtol=1e-9, atol=1e-9, msg=name)


class Statistics(Callback):
    """Takes note of running statistics before and after the batch of each validation, and of the layers' class."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []
        self.classes: set[str] = set()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.classes = {type(layer).__name__ for layer in pl_module.modules() if "BatchNorm" in type(layer).__name__}

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.note(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.note(pl_module)

    def note(self, module: LightningModule) -> None:
        self.seen.append(torch.cat([b.flatten().double() for name, b in module.named_buffers() if "running" in name]))


def _statistics(rank: int, world_size: int, folder: str, knob: bool, flag: bool) -> dict[str, Any]:
    look = Statistics()
    module = Segmenter(small(), 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    run = trainer(
        world_size,
        folder,
        look,
        strategy=SafeDDPStrategy(sync_batchnorm=knob),
        sync_batchnorm=flag,
        precision="64-true",
    )
    run.fit(module, datamodule=data())
    run.save_checkpoint(f"{folder}/end.ckpt")
    scores = {name: float(value) for name, value in run.callback_metrics.items() if name.startswith("val/")}
    return {"seen": look.seen, "classes": look.classes, "scores": scores, "weights": weights(module)}


@pytest.mark.case("B2")
@pytest.mark.parametrize(("knob", "flag"), [(True, False), (False, True)])
def test_synchronised_on_the_cpu_by_either_switch(knob: bool, flag: bool, tmp_path: Path) -> None:
    (alone,) = run_ranks(1, _statistics, 1, str(tmp_path), knob, flag)
    for found in run_ranks(2, _statistics, 2, str(tmp_path), knob, flag):
        assert found["classes"] == {"SyncBatchNorm2d"}
        for name, value in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.case("B5")
@pytest.mark.parametrize("synchronised", [True, False])
def test_statistics_are_the_same_on_all_ranks_when_they_are_used_and_saved(synchronised: bool, tmp_path: Path) -> None:
    one, other = run_ranks(2, _statistics, 2, str(tmp_path), synchronised, False)
    assert ("SyncBatchNorm2d" in one["classes"]) == synchronised
    assert len(one["seen"]) == 4
    for here, there in zip(one["seen"], other["seen"], strict=True):
        assert torch.equal(here, there)
    assert one["scores"] == other["scores"]
    saved = torch.load(tmp_path / "end.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(saved["net.1.running_var"], other["weights"]["net.1.running_var"])


def _shares(rank: int) -> tuple[Tensor, Tensor]:
    from template.distributed.sync_batchnorm import average_statistics

    layer = nn.BatchNorm1d(2)
    layer(torch.tensor([[0.0, rank], [2.0, rank + 4.0]]))
    mean, var = layer.running_mean, layer.running_var
    assert mean is not None
    assert var is not None
    average_statistics(layer)
    before = mean.clone()
    average_statistics(layer)
    assert torch.equal(mean, before)
    return mean, var


@pytest.mark.case("B5")
def test_statistics_of_shares_are_averaged() -> None:
    # Means of the batch (1, 2), (1, 3), (1, 4); variances 2 and 8; momentum 0.1 from 0 and 1.
    for mean, var in run_ranks(3, _shares):
        torch.testing.assert_close(mean, torch.tensor([0.1, 0.3]))
        torch.testing.assert_close(var, torch.tensor([0.9 + 0.2, 0.9 + 0.8]))


def _saved(rank: int, folder: str) -> Tensor:
    module = Segmenter(UNet(width=4, depth=1), 3, 1)
    run = trainer(2, folder, max_epochs=1)
    run.fit(module, datamodule=data())
    run.save_checkpoint(f"{folder}/two.ckpt")
    module.eval()
    with torch.no_grad():
        return module.net(torch.linspace(-1, 1, 256).view(1, 1, 16, 16))


@pytest.mark.case("B4")
def test_a_checkpoint_of_two_ranks_serves_plain_batchnorm_in_one_process(tmp_path: Path) -> None:
    expected, _ = run_ranks(2, _saved, str(tmp_path))
    state = torch.load(tmp_path / "two.ckpt", weights_only=True)["state_dict"]
    net = UNet(1, 3, width=4, depth=1)  # without Lightning, strategy or conversion
    net.load_state_dict({name.removeprefix("net."): value for name, value in state.items() if name.startswith("net.")})
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(net(torch.linspace(-1, 1, 256).view(1, 1, 16, 16)), expected)
    assert {type(layer) for layer in net.modules() if "Norm" in type(layer).__name__} == {nn.BatchNorm2d}
