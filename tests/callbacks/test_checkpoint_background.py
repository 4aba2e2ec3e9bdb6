"""A checkpoint that is written in the background holds the moment it was asked for, or the run ends by name."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from template.callbacks.checkpoint import RankZeroCheckpoint
from template.callbacks.checkpoint_io import AtomicCheckpointIO
from template.callbacks.heartbeats import Heartbeats
from template.callbacks.resume import ExactResume
from template.callbacks.stop import StopOnSignal
from template.distributed.faults import NamedError
from template.distributed.stop import Stopped
from template.models.segmenter import Segmenter
from tests import restarts

from .conftest import Bright, Stripes, trainer
from .slow_disk import Slow, full


def fit(
    folder: Path,
    io: AtomicCheckpointIO | None = None,
    *callbacks: Callback,
    keeper: RankZeroCheckpoint | None = None,
    **settings: Any,
) -> tuple[Trainer, RankZeroCheckpoint]:
    """Three epochs of three steps, a checkpoint after each step."""
    seed_everything(0, verbose=False)
    keeper = keeper or RankZeroCheckpoint(every_n_train_steps=1)
    keeper.dirpath = str(folder)
    made = trainer(
        ExactResume(),
        *callbacks,
        keeper,
        enable_checkpointing=True,
        plugins=[io or AtomicCheckpointIO()],
        default_root_dir=folder,
        **{"max_epochs": 3, **settings},
    )
    module = Segmenter(Bright(), 2, 1, optimizer=partial(torch.optim.AdamW, lr=0.1), channels_last=False)
    made.fit(module, datamodule=Stripes(train=6))
    return made, keeper


class Kept(AtomicCheckpointIO):
    """Keeps all that is written, in the order of its writing."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, Any]] = []

    def write(self, checkpoint: dict[str, Any], target: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)  # a few steps of training
        super().write(checkpoint, target)
        self.written.append((target.name, torch.load(target, weights_only=True)))


def test_files_are_those_that_are_written_while_the_training_stands(tmp_path: Path) -> None:
    one, two = Kept(), Kept()
    fit(tmp_path / "run", one, keeper=RankZeroCheckpoint(every_n_train_steps=1, background=False))
    os.rename(tmp_path / "run", tmp_path / "other")  # noqa: PTH104  # the path is in the files
    fit(tmp_path / "run", two)
    assert [name for name, _ in one.written] == [name for name, _ in two.written]
    assert len(two.written) > 9  # 9 steps, and a best one
    for (name, expected), (_, found) in zip(one.written, two.written, strict=True):
        assert restarts.equal(found, expected), name
    for folder in ("run", "other"):
        assert len(list((tmp_path / folder).glob("*"))) == 2


class Ends(Callback):
    """Raises after a number of steps."""

    def __init__(self, error: BaseException, step: int = 2) -> None:
        self.error, self.step = error, step

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise self.error


class Opens(Callback):
    """Lets the writer write half a second after the training has ended, however."""

    def __init__(self, io: Slow) -> None:
        self.io = io

    def on_exception(self, *args: Any) -> None:
        assert self.io.writer.busy
        threading.Timer(0.5, self.io.may.set).start()

    on_train_end = on_exception


@pytest.mark.parametrize(
    ("error", "raised"),
    [(None, None), (KeyboardInterrupt(), SystemExit), (NamedError("config", "x"), NamedError), (Stopped(15), Stopped)],
)
def test_the_file_is_there_when_the_fit_is_over(
    error: BaseException | None, raised: type[BaseException] | None, tmp_path: Path
) -> None:
    io = Slow()
    # The only save, at the end of the only epoch or after the second step.
    keeper = RankZeroCheckpoint(every_n_train_steps=2 if error else 0)
    more = [Opens(io), *([Ends(error)] if error else [])]
    if raised is None:
        fit(tmp_path, io, *more, keeper=keeper, max_epochs=1)
    else:
        with pytest.raises(raised):
            fit(tmp_path, io, *more, keeper=keeper, max_epochs=1)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == (2 if error else 3)
    assert not list(tmp_path.glob(".*.part"))


class Fails(Slow):
    """Has no room for the n-th file."""

    def __init__(self, number: int, at_once: bool = True) -> None:
        super().__init__()
        self.number = number
        if at_once:
            self.may.set()

    def write(self, checkpoint: dict[str, Any], target: Path) -> None:
        super().write(checkpoint, target.with_name("other") if len(self.steps) + 1 == self.number else target)
        if len(self.steps) == self.number:
            raise NamedError("disk-full", f"The checkpoint '{target}' cannot be written: none is left.")


class Waits(Callback):
    """Lets each write end before the next step."""

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        io: Any = trainer.strategy.checkpoint_io
        while io.writer.busy:
            time.sleep(0.01)


def test_a_failed_write_ends_the_fit_at_the_next_step(tmp_path: Path) -> None:
    keeper = RankZeroCheckpoint(every_n_train_steps=1)
    with pytest.raises(NamedError, match="none is left") as caught:
        fit(tmp_path, Fails(2), Waits(), keeper=keeper, max_epochs=1)
    assert caught.value.identifier == "disk-full"
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 1


@pytest.mark.parametrize("number", [1, 2])
def test_a_failed_write_at_the_end_ends_the_fit(number: int, tmp_path: Path) -> None:
    with pytest.raises(NamedError, match="none is left"):  # of the best one, or of the last
        fit(tmp_path, Fails(number), keeper=RankZeroCheckpoint(), max_epochs=1)


def test_ctrl_c_does_not_hide_a_failed_write(tmp_path: Path) -> None:
    keeper = RankZeroCheckpoint(every_n_train_steps=2)
    io = Fails(1, at_once=False)
    with pytest.raises(NamedError, match="none is left"):
        fit(tmp_path, io, Opens(io), Ends(KeyboardInterrupt()), keeper=keeper)


def test_what_ends_the_fit_first_is_its_end_and_a_failed_write_is_told(tmp_path: Path) -> None:
    keeper = RankZeroCheckpoint(every_n_train_steps=2)
    io = Fails(1, at_once=False)
    with pytest.warns(UserWarning, match="none is left"), pytest.raises(NamedError, match="first"):
        fit(tmp_path, io, Opens(io), Ends(NamedError("config", "first")), keeper=keeper)


class Asks(Callback):
    """Acts at the start of the second epoch, while the checkpoint of the first is not written."""

    def __init__(self, io: Slow, act: Callable[[Trainer], None]) -> None:
        self.io, self.act = io, act

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        if trainer.current_epoch == 1:
            assert self.io.writer.busy
            threading.Timer(0.3, self.io.may.set).start()
            self.act(trainer)


def test_whoever_asks_for_the_best_finds_it(tmp_path: Path) -> None:
    io, found = Slow(), []
    keeper = RankZeroCheckpoint()
    fit(tmp_path, io, Asks(io, lambda _: found.append(Path(keeper.best_model_path).is_file())), keeper=keeper)
    assert found == [True]


def test_a_user_s_own_save_is_there_at_once(tmp_path: Path) -> None:
    io, mine = Slow(), tmp_path / "mine.ckpt"
    seen: list[bool] = []

    def save(trainer: Trainer) -> None:
        trainer.save_checkpoint(mine)
        seen.append(mine.is_file())

    fit(tmp_path, io, Asks(io, save), keeper=RankZeroCheckpoint())
    assert seen == [True]
    assert io.steps.index("write mine.ckpt") == 2  # after the best and the last


def test_the_best_is_tested_after_the_fit_in_the_same_process(tmp_path: Path) -> None:
    made, _ = fit(tmp_path, Kept(), max_epochs=1)
    made.test(datamodule=Stripes(), ckpt_path="best", verbose=False)
    assert Path(str(made.ckpt_path)).name.startswith("best-000")


def test_a_stopped_run_has_its_file_before_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    last = tmp_path / "last.ckpt"
    monkeypatch.setattr("template.callbacks.checkpoint.rank_zero_info", lambda text: told.append(last.exists()))
    keeper = RankZeroCheckpoint()

    class Stop(Callback):
        def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
            keeper.stop_signal = 15

    with pytest.raises(Stopped):
        fit(tmp_path, Kept(), StopOnSignal(), Stop(), keeper=keeper)
    assert told == [True]


def test_loggers_learn_of_a_best_checkpoint_that_is_there(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    told: list[bool] = []

    class Log(CSVLogger):
        def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
            told.append(Path(checkpoint_callback.best_model_path).is_file())

    fit(tmp_path, Kept(), keeper=RankZeroCheckpoint(), max_epochs=1, logger=Log(tmp_path))
    assert told == [True]


def test_heartbeats_hear_of_a_long_write(tmp_path: Path) -> None:
    notes: list[Any] = []

    class Dog:
        def note(self, *args: Any) -> None:
            notes.append(args)

        def underway(self) -> None:
            pass

        def on_exception(self, error: BaseException) -> None:
            pass

    io = AtomicCheckpointIO()
    fit(tmp_path, io, Heartbeats(Dog()), max_epochs=1)  # type: ignore[arg-type]
    notes.clear()
    io.writer.moving()
    assert notes == [("checkpoint",)]


class FullDisk(Callback):
    """Lets every write but the first fail."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        flushed, flush = [0], os.fsync

        def fsync(descriptor: Any) -> None:
            flushed[0] += 1
            if flushed[0] > 2:  # of a file and of its folder
                full()
            flush(descriptor)

        os.fsync = fsync


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_ends_all_ranks_by_name(ranks: int, tmp_path: Path) -> None:
    more = ["--trainer.callbacks", "tests.callbacks.test_checkpoint_background.FullDisk", "--trainer.max_epochs", "9"]
    codes = restarts.wait(restarts.start(ranks, restarts.command(tmp_path, *more), tmp_path), 120)
    said = (tmp_path / "output_0.txt").read_text()
    assert codes == [1] * ranks, said
    assert said.count("error: ") == 1
    assert "last.ckpt' cannot be written: [Errno 28] No space left on device" in said
    assert "[disk-full]" in said
    run = restarts.newest(tmp_path)
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] < 6
    assert not list(tmp_path.rglob("*.part"))
