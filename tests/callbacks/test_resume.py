"""From every checkpoint of a run, wherever it was written, the run ends as it did, in weights and in its history."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from torch import Tensor

from template.callbacks.checkpoint import RankZeroCheckpoint
from template.callbacks.checkpoint_io import AtomicCheckpointIO
from template.callbacks.history import loggers
from template.callbacks.rank_logs import RankLogs
from template.callbacks.resume import ExactResume
from template.callbacks.stop import StopOnSignal
from template.data.phantom import Phantom
from template.distributed import world
from template.distributed.stop import Stopped
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.ranks import run_ranks
from tests.restarts import events, table

STEPS = 5  # an epoch


class Copies(AtomicCheckpointIO):
    """Keeps every checkpoint that is written as the last one."""

    def write(self, checkpoint: dict[str, Any], target: Path) -> None:
        super().write(checkpoint, target)
        if target.name == "last.ckpt":
            shutil.copy(target, target.with_name(f"at-{checkpoint['global_step']:02d}.ckpt"))


def cosine(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)


def plateau(optimizer: Any) -> Any:
    # Each epoch without a new best halves the learning rate, so that losing count of one shows.
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)


def train(
    run: Path,
    ckpt_path: Path | None = None,
    schedule: Any = cosine,
    interval: str = "epoch",
    more: tuple[Callback, ...] = (),
    checkpoint: RankZeroCheckpoint | None = None,
    rank: int = 0,
    **settings: Any,
) -> tuple[dict[str, Tensor], Trainer]:
    silence_known()
    seed_everything(0, workers=True, verbose=False)
    keeper = checkpoint or RankZeroCheckpoint(every_n_train_steps=1)
    keeper.dirpath = str(run / "checkpoints")
    monitor = [LearningRateMonitor()]
    trainer = Trainer(
        accelerator="cpu",
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=loggers(run),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[StopOnSignal(0.001), ExactResume(), RankLogs(run / f"rank_{rank}"), *monitor, *more, keeper],
        plugins=[Copies()],
        default_root_dir=run,
        **{"devices": 1, "max_epochs": 3, **settings},
    )
    data = Phantom(train_cases=21, val_cases=3, size=32, batch_size=4, num_workers=0)
    module = Segmenter(
        UNet(width=4, depth=2, dropout=0.3),
        3,
        1,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lr_scheduler=schedule,
        lr_interval=interval,  # type: ignore[arg-type]
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items()}, trainer


PLACES = {
    "epochs": ({}, (1, 4, 5, 12)),
    "plateau": ({"schedule": plateau}, (3, 5, 10)),
    "schedule by steps": ({"interval": "step"}, (3, 5)),
    "steps": ({"max_epochs": -1, "max_steps": 13}, (4, 5, 10)),
    "validation inside": ({"val_check_interval": 2, "max_epochs": 2}, (1, 2, 4, 5, 7)),
    "validation every second epoch": ({"check_val_every_n_epoch": 2, "max_epochs": 4}, (5, 7, 10, 15)),
    "accumulation": ({"accumulate_grad_batches": 2, "val_check_interval": 4}, (1, 2, 3, 5, 7)),
}


@pytest.mark.case("G7", "F1")
@pytest.mark.parametrize("name", PLACES)
def test_a_run_ends_the_same_from_every_checkpoint(name: str, tmp_path: Path) -> None:
    settings, steps = PLACES[name]
    run = tmp_path / "version_0"
    undisturbed, _ = train(run, **settings)
    history = table(run), events(run), set(events(run / "rank_0"))
    assert {len(values) for values in (*history[0].values(), *history[1].values())} == {1}
    for step in steps:
        # In the folder of the finished run: what came after the checkpoint is dropped and made again.
        resumed, _ = train(run, run / "checkpoints" / f"at-{step:02d}.ckpt", **settings)
        for key, value in undisturbed.items():
            assert torch.equal(resumed[key], value), (step, key)
        assert table(run) == history[0], step
        assert events(run) == history[1], step
        again = events(run / "rank_0")
        assert set(again) == history[2], step
        assert {len(values) for values in again.values()} == {1}, step
    assert {path.name for path in (run / "checkpoints").glob("at-*")} >= {f"at-{step:02d}.ckpt" for step in steps}


def test_without_the_stored_random_state_dropout_draws_other_numbers(tmp_path: Path) -> None:
    undisturbed, _ = train(tmp_path / "version_0", max_epochs=2)
    last = tmp_path / "version_0" / "checkpoints" / "at-07.ckpt"
    stored = torch.load(last, weights_only=True)
    del stored["resume"]
    torch.save(stored, last)
    resumed, _ = train(tmp_path / "version_1", last, max_epochs=2)
    assert not all(torch.equal(resumed[name], value) for name, value in undisturbed.items())


def test_a_run_that_has_stopped_early_does_not_go_on(tmp_path: Path) -> None:
    def patience() -> EarlyStopping:
        return EarlyStopping("val/dice", min_delta=2, patience=1, mode="max")

    weights, trainer = train(tmp_path / "version_0", more=(patience(),), max_epochs=6)
    assert trainer.global_step == 2 * STEPS
    last = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    resumed, trainer = train(tmp_path / "version_0", last, more=(patience(),), max_epochs=6)
    assert trainer.global_step == 2 * STEPS
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())


class TerminateInValidation(Callback):
    """Sends this process SIGTERM in the n-th validation of the process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_validation_start(self, *args: Any) -> None:
        self.number -= 1
        if self.number == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("settings", [{}, {"val_check_interval": 2}], ids=["end of epoch", "inside"])
def test_stopped_again_and_again_in_the_same_validation(settings: dict[str, Any], tmp_path: Path) -> None:
    undisturbed, _ = train(tmp_path / "version_0", max_epochs=2, **settings)
    run, last = tmp_path / "version_1", None
    for number in (2, 1, 1):
        with pytest.raises(Stopped):
            train(run, last, more=(TerminateInValidation(number),), max_epochs=2, **settings)
        last = run / "checkpoints" / "last.ckpt"
    resumed, _ = train(run, last, max_epochs=2, **settings)
    assert all(torch.equal(resumed[name], value) for name, value in undisturbed.items())
    assert table(run) == table(tmp_path / "version_0")
    assert events(run) == events(tmp_path / "version_0")


def _on_ranks(rank: int, world_size: int, run: Path, ckpt_path: Path | None) -> Any:
    world._store = dist.distributed_c10d._get_default_store()
    keeper = RankZeroCheckpoint(every_n_minutes=1e-6)
    more = {"devices": world_size, "strategy": SafeDDPStrategy(), "checkpoint": keeper, "max_epochs": 2}
    weights, trainer = train(run, ckpt_path, rank=rank, **more)
    return weights, trainer.global_step


def test_ranks_save_together_by_rank_0_s_clock_and_go_on_with_their_own_numbers(tmp_path: Path) -> None:
    run = tmp_path / "version_0"
    undisturbed = run_ranks(2, _on_ranks, 2, run, None)
    written = sorted(path.name for path in (run / "checkpoints").glob("at-*"))
    assert set(written) - {"at-05.ckpt", "at-10.ckpt"}
    stored = torch.load(run / "checkpoints" / written[0], weights_only=True)
    assert len(stored["resume"]["ranks"]) == 2
    resumed = run_ranks(2, _on_ranks, 2, run, run / "checkpoints" / written[0])
    for rank in (0, 1):
        assert resumed[rank][1] == 10
        for name, value in undisturbed[0][0].items():
            assert torch.equal(resumed[rank][0][name], value), name


def test_with_another_number_of_processes_dropout_begins_anew_and_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "version_0", max_epochs=1)
    last = tmp_path / "version_0" / "checkpoints" / "at-03.ckpt"
    stored = torch.load(last, weights_only=True)
    stored["resume"]["ranks"] *= 2
    torch.save(stored, last)
    with caplog.at_level("INFO"):
        one, _ = train(tmp_path / "version_1", last, max_epochs=1)
        two, _ = train(tmp_path / "version_2", last, max_epochs=1)
    assert "The checkpoint is of 2 processes, and this run has 1: random numbers" in caplog.text
    assert all(torch.equal(one[name], value) for name, value in two.items())
