"""SIGTERM in the middle of an epoch: one checkpoint, all ranks after the same step, and the same end after a resume."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer, seed_everything

from template.callbacks.checkpoint import RankZeroCheckpoint
from template.callbacks.checkpoint_io import AtomicCheckpointIO
from template.callbacks.resume import ExactResume
from template.callbacks.stop import StopOnSignal
from template.data.phantom import Phantom
from template.data.transforms import RandomWarp
from template.distributed import world
from template.distributed.stop import Stopped
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.ranks import run_ranks


class Terminate(Callback):
    """Sends this process SIGTERM at one place of one rank."""

    def __init__(self, step: int | None, rank: int = 0, in_validation: bool = False) -> None:
        self.step, self.rank, self.in_validation = step, rank, in_validation

    def on_before_zero_grad(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and trainer.global_rank == self.rank and not self.in_validation:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if self.in_validation and trainer.global_rank == self.rank:
            os.kill(os.getpid(), signal.SIGTERM)


class Count(Callback):
    """Counts training steps, and batches of each validation."""

    def __init__(self) -> None:
        self.trained = 0
        self.validated: list[int] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.trained += 1

    def on_validation_start(self, *args: Any) -> None:
        self.validated.append(0)

    def on_validation_batch_end(self, *args: Any) -> None:
        self.validated[-1] += 1


def train(
    folder: str,
    terminate: Terminate,
    ckpt_path: str | None = None,
    more: Sequence[Callback] = (),
    monitor: str = "val/dice",
    **settings: Any,
) -> dict[str, torch.Tensor]:
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    checkpoint = RankZeroCheckpoint(monitor)
    checkpoint.dirpath = folder
    trainer = Trainer(
        accelerator="cpu",
        precision="64-true",
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[terminate, *more, ExactResume(), StopOnSignal(interval=0.001), checkpoint],
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
        **{"devices": 1, "max_epochs": 2, **settings},
    )
    augment = [RandomWarp(degrees=20)]
    data = Phantom(train_cases=20, val_cases=6, size=32, batch_size=4, num_workers=0, augment=augment)
    module = Segmenter(UNet(width=4, depth=2), 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_stopped_run_ends_as_the_one_that_was_not(tmp_path: Path) -> None:
    undisturbed = train(str(tmp_path / "a"), Terminate(None))
    with pytest.raises(Stopped) as caught:
        train(str(tmp_path / "b"), Terminate(step=7))  # 5 steps an epoch
    assert caught.value.exit_code == 143
    stored = torch.load(tmp_path / "b" / "last.ckpt", weights_only=True)
    assert (stored["epoch"], stored["global_step"]) == (1, 8)  # the step in which the signal came is finished
    resumed = train(str(tmp_path / "b"), Terminate(None), str(tmp_path / "b" / "last.ckpt"))
    for name, value in undisturbed.items():
        assert torch.equal(resumed[name], value), name


@pytest.mark.parametrize("settings", [{}, {"val_check_interval": 2}], ids=["end of epoch", "inside"])
def test_from_a_validation_a_run_begins_with_it_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    undisturbed = train(str(tmp_path / "a"), Terminate(None), **settings)
    with pytest.raises(Stopped) as caught:
        train(str(tmp_path / "b"), Terminate(None, in_validation=True), **settings)
    assert caught.value.exit_code == 143
    last = tmp_path / "b" / "last.ckpt"
    stored = torch.load(last, weights_only=True)
    assert (stored["epoch"], stored["global_step"]) == (0, settings.get("val_check_interval", 5))
    counter = Count()
    resumed = train(str(tmp_path / "b"), Terminate(None), str(last), more=[counter], **settings)
    # Not a batch of training too many, and every validation whole: 2 batches of the 6 cases.
    assert counter.trained == 10 - stored["global_step"]
    assert counter.validated == [2] * (4 if settings else 2)
    for name, value in undisturbed.items():
        assert torch.equal(resumed[name], value), name


def test_the_signal_is_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    train(str(tmp_path), Terminate(None))
    assert signal.getsignal(signal.SIGTERM) is before


def _on_ranks(rank: int, world_size: int, folder: str, terminate: Terminate, ckpt_path: str | None) -> Any:
    world._store = dist.distributed_c10d._get_default_store()
    try:
        return train(folder, terminate, ckpt_path, devices=world_size, strategy=SafeDDPStrategy())
    except Stopped as stopped:
        return stopped.exit_code


@pytest.mark.parametrize(
    "terminate", [Terminate(1, rank=1), Terminate(None, rank=1, in_validation=True)], ids=["training", "validation"]
)
def test_a_signal_to_one_rank_stops_all_at_one_place(tmp_path: Path, terminate: Terminate) -> None:
    undisturbed = run_ranks(2, _on_ranks, 2, str(tmp_path / "a"), Terminate(None), None)
    codes = run_ranks(2, _on_ranks, 2, str(tmp_path / "b"), terminate, None)
    assert codes == [143, 143]
    last = str(tmp_path / "b" / "last.ckpt")
    step = torch.load(last, weights_only=True)["global_step"]
    assert step == 5 if terminate.in_validation else 1 < step < 10
    resumed = run_ranks(2, _on_ranks, 2, str(tmp_path / "b"), Terminate(None), last)
    for rank in (0, 1):
        for name, value in undisturbed[0].items():
            assert torch.equal(resumed[rank][name], value), name


class Worse(Callback):
    """Lets every validation score less than the one before."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module.log("score", -float(trainer.current_epoch))


def test_the_last_checkpoint_is_the_last_whatever_its_score(tmp_path: Path) -> None:
    train(str(tmp_path), Terminate(None), more=[Worse()], monitor="score", max_epochs=3)
    stored = {path.name: torch.load(path, weights_only=True)["epoch"] for path in tmp_path.glob("*.ckpt")}
    assert stored == {"best-000-score=0.0000.ckpt": 0, "last.ckpt": 2}


def test_from_the_end_of_an_epoch_a_run_goes_on_with_the_next(tmp_path: Path) -> None:
    undisturbed = train(str(tmp_path / "a"), Terminate(None), max_epochs=3)
    train(str(tmp_path / "b"), Terminate(None), max_epochs=2)
    resumed = train(str(tmp_path / "b"), Terminate(None), str(tmp_path / "b" / "last.ckpt"), max_epochs=3)
    for name, value in undisturbed.items():
        assert torch.equal(resumed[name], value), name
