"""Rows of the notes that the project started from which no other test covers."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from template.data.phantom import Phantom
from template.distributed.faults import NamedError
from template.models.unet import UNet
from tests import tiny
from tests.distributed.test_strategy import LeftOver, fit
from tests.ranks import run_ranks


def _fit_left_over(rank: int, folder: str) -> str:
    assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ
    try:
        fit(rank, 2, folder, {"find_unused_parameters": False}, LeftOver())
    except NamedError as error:
        return error.what
    raise AssertionError


@pytest.mark.case("notes/debug-levels", "notes/unused")
def test_parameters_are_named_without_a_debug_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    for what in run_ranks(2, _fit_left_over, str(tmp_path)):
        assert "net.extra.weight, net.extra.bias" in what


class Siamese(nn.Module):
    """One encoder with BatchNorm over two pictures in turn: two forward passes in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(torch.cat([self.encoder(image), self.encoder(image.flip(-1))], dim=1))


def _fit_siamese(rank: int, world_size: int, folder: str, broadcast: bool) -> Any:
    return fit(rank, world_size, folder, {"broadcast_buffers": broadcast}, Siamese())


@pytest.mark.case("notes/networks", "notes/in-place", "B1")
@pytest.mark.parametrize("broadcast", [False, True])
def test_a_siamese_network_trains_to_the_same_on_one_process_and_two(broadcast: bool, tmp_path: Path) -> None:
    (alone,) = run_ranks(1, _fit_siamese, 1, str(tmp_path), broadcast)
    for found in run_ranks(2, _fit_siamese, 2, str(tmp_path), broadcast):
        assert found["broadcast_buffers"] is broadcast
        for name, value in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.case("notes/networks")
def test_a_unet_of_one_channel_and_two_classes() -> None:
    assert UNet(1, 2, width=4)(torch.zeros(1, 1, 32, 48)).shape == (1, 2, 32, 48)


@pytest.mark.case("notes/sampler")
@pytest.mark.parametrize(("device", "pinned", "workers"), [("cpu", False, 1), ("cuda", True, 3)])
def test_loaders_fit_the_device_and_the_share_of_the_cores(
    device: str, pinned: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    strategy = SimpleNamespace(root_device=torch.device(device))
    four = SimpleNamespace(
        world_size=4, num_devices=4, global_rank=0, accumulate_grad_batches=1, current_epoch=0, strategy=strategy
    )
    data = Phantom(train_cases=8, val_cases=1, test_cases=1, size=32, batch_size=4, num_workers="auto")
    monkeypatch.setattr(data, "trainer", four)
    loader = data.train_dataloader()
    assert (loader.pin_memory, loader.num_workers) == (pinned, workers)


@pytest.mark.case("notes/save-every")
def test_a_checkpoint_every_n_steps_has_the_names_of_the_network_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    tiny.write()
    extra = ["--trainer.callbacks", "ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "2"]
    extra += ["--trainer.callbacks.save_top_k", "-1", "--trainer.callbacks.filename", "{step}"]
    assert tiny.run(*extra, "--trainer.max_epochs", "3") == 0
    files = sorted(path.name for path in Path("runs/tiny/version_0").rglob("step=*.ckpt"))
    assert files == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]
    names = torch.load(next(Path("runs").rglob("step=2.ckpt")), weights_only=True)["state_dict"]
    assert names
    assert not [name for name in names if "module." in name]
    with Path("runs/tiny/version_0/metrics.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["step"] == "0"
