"""When checkpoints are written: only where a run that resumes from one is the run that was never stopped."""

from __future__ import annotations

import signal
import time
import warnings
from pathlib import Path
from typing import Any, Literal
from weakref import proxy

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from ..distributed.faults import NamedError
from ..distributed.heartbeat import short
from ..distributed.stop import Stopped
from ..runs import LAST
from .checkpoint_io import AtomicCheckpointIO, Plan, check_room
from .heartbeats import Heartbeats
from .history import log_now


class RankZeroCheckpoint(ModelCheckpoint):
    """Keeps ``last.ckpt`` and the best checkpoints by the monitored metric in the run's folder.

    Checkpoints inside of an epoch are ``last.ckpt`` alone. Where one cannot be resumed exactly (inside an accumulation
    window, at an epoch's last batch, before a validation that is due), it waits for the next place where it can.

    Args:
        monitor: Metric that decides which is best.
        mode: Whether more (``max``) or less (``min``) is better.
        save_top_k: How many of the best to keep.
        every_n_epochs: Epochs between two checkpoints.
        every_n_train_steps: Optimizer steps between two checkpoints; 0: at the end of epochs alone.
        every_n_minutes: Minutes of rank 0's clock between two checkpoints; 0: at the end of epochs alone.
        background: Let the training go on while a checkpoint is written; takes as much memory as one is large.

    The command line sets ``dirpath`` to the run's ``checkpoints``.

    Attributes:
        background: Whether the training goes on while a checkpoint is written.
        save_soon: Save at the next place that allows it; the same on all ranks.
        stop_signal: Save at the next place that allows it and stop, as this signal asks; the same on all ranks.
        validation_is_due: Whether the checkpoint that is being written is of the inside of a validation.
    """

    def __init__(
        self,
        monitor: str = "val/dice",
        mode: Literal["max", "min"] = "max",
        save_top_k: int = 1,
        every_n_epochs: int = 1,
        every_n_train_steps: int = 0,
        every_n_minutes: float = 0.0,  # a whole number would be saved as another text
        background: bool = True,
    ) -> None:
        self._io: AtomicCheckpointIO | None = None
        super().__init__(
            filename=f"best-{{epoch:03d}}-{monitor.replace('/', '_')}={{{monitor}:.4f}}",
            auto_insert_metric_name=False,
            monitor=monitor,
            mode=mode,
            save_top_k=save_top_k,
            every_n_epochs=every_n_epochs,
            # Not at the end of the validation: Lightning would resume from there an epoch too late.
            save_on_train_epoch_end=True,
            # A run that was killed between its best and its last checkpoint writes the same best again.
            enable_version_counter=False,
        )
        self.save_soon = False
        self.stop_signal: int | None = None
        self._every = every_n_epochs
        self._steps = every_n_train_steps
        self._minutes = every_n_minutes
        self._saved_at = time.monotonic()
        self._saved_step = 0
        self.validation_is_due = False
        self.background = background
        #: What goes with the next last.ckpt: files written before it, and deleted after it.
        self._first: list[str] = []
        self._outdated: list[str] = []
        #: Whether there is a best checkpoint that the loggers have not been told of.
        self._untold = False
        self._has_room = False
        #: Whether this epoch has scores; else those of an earlier one would be taken for its own.
        self._validated = False

    def is_time(self) -> bool:
        """Whether a checkpoint is due by the clock of this process."""
        return self._minutes > 0 and time.monotonic() - self._saved_at >= 60 * self._minutes

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Without validation cases there is no best: keep the last checkpoint alone."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage == "fit" and data is not None and hasattr(data, "num_samples") and not data.num_samples("val"):
            self.monitor, self.filename = None, "{epoch:03d}"
        super().setup(trainer, pl_module, stage)
        io = trainer.strategy.checkpoint_io
        # A strategy with a way of its own to save, such as one of parts, writes when it is told to.
        usual = type(trainer.strategy).save_checkpoint is Strategy.save_checkpoint
        self._io = io if isinstance(io, AtomicCheckpointIO) and usual else None
        if self._io is not None:
            beats = (one for one in trainer.callbacks if isinstance(one, Heartbeats))  # type: ignore[attr-defined]
            self._io.writer.moving = next((one.writing for one in beats), self._io.writer.moving)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out that there is no room before an hour of training is lost."""
        super().on_train_start(trainer, pl_module)
        self._saved_at, self._saved_step, self._has_room = time.monotonic(), trainer.global_step, False
        if trainer.is_global_zero and not getattr(trainer, "fast_dev_run", False):
            check_room(Path(str(self.dirpath)), pl_module, copies=max(0, self.save_top_k) + 2)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Inside an epoch."""
        step = trainer.global_step
        self._look(trainer)
        self._make_room(trainer, pl_module)
        if self._steps and step % self._steps == 0 and step != self._saved_step:
            self.save_soon = True
        if self._wanted(trainer) and _between_steps(trainer, batch_idx) and not _validation_due(trainer, batch_idx):
            self._save_last(trainer)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After a validation inside an epoch."""
        self._validated = self._validated or not trainer.sanity_checking
        batch_idx = trainer.fit_loop.epoch_loop.batch_idx
        inside = not trainer.sanity_checking and not trainer.is_last_batch
        if inside and self._wanted(trainer) and _between_steps(trainer, batch_idx):
            self._save_last(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the best, and then the last, whatever its score: ``save_last`` would write it with a new best alone."""
        log_now(trainer)
        if self._validated or self.monitor is None or not self.monitor.startswith("val/"):
            super().on_train_epoch_end(trainer, pl_module)
        self._validated = False
        done = trainer.current_epoch + 1
        at_end = done % self._every == 0 or done == trainer.max_epochs
        if self._wanted(trainer) or (at_end and not getattr(trainer, "fast_dev_run", False)):
            self._save_last(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the fit with all files in place, on all ranks."""
        super().on_train_end(trainer, pl_module)
        self._settle(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Finish the checkpoint that is being written, whatever ends the fit."""
        super().on_exception(trainer, pl_module, exception)
        try:
            self._drain()
        except NamedError as error:
            if isinstance(exception, KeyboardInterrupt):  # an end that tells the user to resume
                trainer._teardown()  # Lightning does not come to it
                raise
            warnings.warn(str(error), stacklevel=2)  # what ended the fit is told as its end

    def stop_in_validation(self, trainer: Trainer) -> None:
        """Save on all ranks, inside of a validation that the resumed run begins anew, and stop.

        Raises:
            Stopped: Always.
        """
        if _between_steps(trainer, trainer.fit_loop.epoch_loop.batch_idx):
            self.validation_is_due = True
            self._save_last(trainer)
        else:
            self._settle(trainer)
        rank_zero_info(self._stopped(trainer, " in the validation"))
        raise Stopped(self.stop_signal or 0)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let a run that resumes from the inside of a validation begin with it.

        Lightning takes counters where a batch is begun and not done for an interrupted validation. Its scores live in
        memory, so it starts at its first batch.
        """
        if self.validation_is_due:
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            done = progress["total"]["completed"] - progress["current"]["completed"]
            progress["total"] |= {"ready": done + 1, "started": done + 1, "processed": done, "completed": done}
            progress["current"] |= dict.fromkeys(progress["current"], 0)
            progress["is_last_batch"] = False

    @override
    def state_dict(self) -> dict[str, Any]:
        """Lightning's own, and whether the epoch has scores."""
        return {**super().state_dict(), "validated": self._validated}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take both back."""
        super().load_state_dict(state_dict)
        self._validated = state_dict.get("validated", False)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Know the best ones again in a run's folder that was moved, and forget those of another run."""
        state = checkpoint["callbacks"].get(self.state_key)
        if state is None or state["dirpath"] == self.dirpath:
            return
        here = Path(str(self.dirpath))
        if Path(str(trainer.ckpt_path)).resolve().parent == here.resolve():
            for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
                state[name] = str(here / Path(state[name]).name) if state[name] else ""
            state["best_k_models"] = {str(here / Path(path).name): k for path, k in state["best_k_models"].items()}
            state["dirpath"] = self.dirpath
        else:
            del checkpoint["callbacks"][self.state_key]

    @property
    def best_model_path(self) -> str:
        """Path of the best checkpoint; whoever asks on rank 0 finds the file there."""
        self._drain()
        return self._best_model_path

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        self._best_model_path = path

    @override
    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        if self._io is None:
            super()._save_checkpoint(trainer, filepath)
            return
        # One state for this file and the last.ckpt that follows at once, instead of a wait between them.
        self._first.append(filepath)
        self._last_global_step_saved, self._last_checkpoint_saved = trainer.global_step, filepath

    @override
    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        # Not before a last.ckpt is written that no longer names it as the best.
        self._outdated.append(filepath)

    def _stopped(self, trainer: Trainer, where: str) -> str:
        by = f" by {signal.Signals(self.stop_signal).name}" if self.stop_signal else ""
        file = short(str(Path(str(self.dirpath)) / LAST))
        return f"Stopped{by}{where} after step {trainer.global_step}; '{file}' holds it. Resume with --ckpt_path last."

    def _wanted(self, trainer: Trainer) -> bool:
        return (self.save_soon or self.stop_signal is not None) and not getattr(trainer, "fast_dev_run", False)

    def _save_last(self, trainer: Trainer) -> None:
        """Save, on all ranks; and stop, if that was asked for."""
        log_now(trainer)
        last = str(Path(str(self.dirpath)) / LAST)
        first, outdated = tuple(self._first), tuple(self._outdated)
        self._first.clear()
        self._outdated.clear()
        if self._io is None:
            trainer.save_checkpoint(last)
            for path in outdated:
                super()._remove_checkpoint(trainer, path)
        else:
            self._look(trainer, wait=True)
            # A rank that stops waits for the file: once one of them has ended, a launcher ends the others.
            background = self.background and self.stop_signal is None
            trainer.save_checkpoint(last, storage_options=Plan(background, first, outdated))
            self._untold = bool(first)
            self._look(trainer)
        self.save_soon, self._saved_at, self._saved_step = False, time.monotonic(), trainer.global_step
        if self.stop_signal is not None and not self.validation_is_due:
            rank_zero_info(self._stopped(trainer, ""))
            raise Stopped(self.stop_signal)

    def _make_room(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Once the optimizer has a state, on rank 0, which writes."""
        if self._has_room or not trainer.global_step or getattr(trainer, "fast_dev_run", False):
            return
        self._has_room = True
        if self._io is not None and self.background and trainer.is_global_zero:
            states = [dict(optimizer.state) for optimizer in trainer.optimizers]
            self._io.make_room({"state_dict": pl_module.state_dict(), "optimizer_states": states})

    def _drain(self) -> None:
        if self._io is not None:
            self._io.writer.drain()

    def _look(self, trainer: Trainer, wait: bool = False) -> None:
        """Learn of a failed write, and tell loggers of a best checkpoint as soon as it is there."""
        if self._io is None:
            return
        if wait:
            self._io.writer.drain()
        self._io.writer.check()
        if self._untold and not self._io.writer.busy:
            self._untold = False
            if trainer.is_global_zero:
                for logger in trainer.loggers:
                    logger.after_save_checkpoint(proxy(self))

    def _settle(self, trainer: Trainer) -> None:
        """Wait on all ranks until rank 0 has written."""
        self._look(trainer, wait=True)
        trainer.strategy.barrier("checkpoint")


def _between_steps(trainer: Trainer, batch_idx: int) -> bool:
    """Whether no gradients are accumulated: they are in no checkpoint."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def _validation_due(trainer: Trainer, batch_idx: int) -> bool:
    """Whether Lightning would resume after a validation that has not taken place, or an epoch later."""
    every: Any = trainer.val_check_batch  # set by the fit loop
    if trainer.is_last_batch:
        return True
    if trainer.check_val_every_n_epoch is None:
        batch_idx = trainer.fit_loop.epoch_loop.total_batch_idx
    return isinstance(every, int) and (batch_idx + 1) % every == 0


def keeper_of(trainer: Trainer) -> ModelCheckpoint | None:
    """The callback whose best is the run's best: ours, wherever a user's own stand, or else the trainer's first."""
    ours = (one for one in trainer.checkpoint_callbacks if isinstance(one, RankZeroCheckpoint))
    first = next(ours, trainer.checkpoint_callback)
    return first if isinstance(first, ModelCheckpoint) else None
