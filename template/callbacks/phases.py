"""What runs and how far it is: the part that all displays of progress share."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar


class PhaseDisplay(ProgressBar):
    """Turns Lightning's hooks into phases (train, validate, test, predict) of so many batches."""

    #: Seconds from one state shown to the next. Reading a loss makes the CPU wait for the GPU, so the display goes by
    #: the clock and not, as Lightning's own do, by the step.
    interval = 0.2

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._phase = ""
        self._done = 0
        self._total: int | None = None
        self._loss: Any = None
        self._scores: dict[str, float] = {}
        self._run_start = self._phase_start = self._drawn = time.monotonic()
        self._first_step = self._first_epoch = 0
        self._steps = math.inf

    # What a display does -------------------------------------------------------------------------------------------

    @abstractmethod
    def _open(self) -> None:
        """A phase begins: show :meth:`_title` at no batches."""

    @abstractmethod
    def _draw(self) -> None:
        """Show the state; called every ``interval`` seconds at most, and for the last batch of a phase."""

    @abstractmethod
    def _shut(self) -> None:
        """Remove what would not make sense to keep."""

    # What it can show ----------------------------------------------------------------------------------------------

    def _title(self) -> str:
        if self.trainer.state.fn != "fit":
            return self._phase
        last = self.trainer.max_epochs
        epoch = f"epoch {self.trainer.current_epoch + 1}" + (f"/{last}" if last and last > 0 else "")
        return epoch if self._phase == "train" else f"{epoch} {self._phase}"

    def _count(self) -> str:
        return f"{self._done}/{'?' if self._total is None else self._total}"

    def _values(self) -> str:
        """In a fit, the loss of the last step and the scores of the last validation. Waits for the GPU."""
        values = dict(self._scores) if self.trainer.state.fn == "fit" else {}
        if self._loss is not None:
            values = {"loss": float(self._loss) * self.trainer.accumulate_grad_batches, **values}
        return "  ".join(f"{name} {value:.3f}" for name, value in values.items())

    def _left(self) -> str:
        """Time to the end of the fit (of the phase elsewhere), by the mean so far."""
        if self.trainer.state.fn == "fit":
            done, remaining = self.trainer.global_step - self._first_step, self._steps - self.trainer.global_step
            elapsed = time.monotonic() - self._run_start
        else:
            done, remaining = self._done, (math.inf if self._total is None else self._total) - self._done
            elapsed = time.monotonic() - self._phase_start
        return f"left {clock(elapsed / done * remaining)}" if done and 0 < remaining < math.inf else ""

    # Lightning's hooks ---------------------------------------------------------------------------------------------

    def disable(self) -> None:
        """Show nothing from now on."""
        self._enabled = False

    def enable(self) -> None:
        """Undo :meth:`disable`."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of the fit."""
        self._run_start, self._scores, self._loss = time.monotonic(), {}, None
        self._first_step, self._first_epoch = trainer.global_step, trainer.current_epoch
        # Once, here: reading it may make a loader, for which all processes must meet.
        self._steps = trainer.estimated_stepping_batches

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch."""
        self._enter("train", self.total_train_batches)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a training batch."""
        if self._phase != "train":  # after a validation inside the epoch, or a resume
            self._enter("train", self.total_train_batches)
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        self._advance(batch_idx + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how long the fit took."""
        epochs = _counted(trainer.current_epoch - self._first_epoch, "epoch", "epochs")
        self._close(f"fit: {epochs} in {clock(time.monotonic() - self._run_start)}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a validation."""
        if not trainer.sanity_checking:
            self._enter("validate", sum(trainer.num_val_batches))

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Count a validation batch."""
        if not trainer.sanity_checking:
            self._advance(self._done + 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the new scores."""
        if trainer.sanity_checking:
            return
        names = {"val/loss": "val loss", "val/dice": "val Dice"}
        metrics = trainer.callback_metrics
        self._scores = {name: float(metrics[key]) for key, name in names.items() if key in metrics}
        if trainer.state.fn == "fit":
            self._advance(self._done)
        else:
            self._close(self._phase_report())

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a test."""
        self._enter("test", sum(trainer.num_test_batches))

    def on_test_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Count a test batch."""
        self._advance(self._done + 1)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how long it took."""
        self._close(self._phase_report())

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a prediction."""
        self._enter("predict", sum(trainer.num_predict_batches))

    def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Count a prediction batch."""
        self._advance(self._done + 1)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how long it took."""
        self._close(self._phase_report())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the screen clean for the message."""
        self._close("")

    def _enter(self, phase: str, total: float) -> None:
        self._phase, self._done, self._total = phase, 0, int(total) if math.isfinite(total) else None
        self._phase_start = self._drawn = time.monotonic()
        if self._enabled:
            self._open()

    def _advance(self, done: int) -> None:
        self._done = done
        now = time.monotonic()
        if self._enabled and (now - self._drawn >= self.interval or done == self._total):
            self._drawn = now
            self._draw()

    def _close(self, report: str) -> None:
        self._phase, self._loss = "", None
        if self._enabled:
            self._shut()
            if report:
                print(report, flush=True)

    def _phase_report(self) -> str:
        batches = _counted(self._done, "batch", "batches")
        return f"{self._phase}: {batches} in {clock(time.monotonic() - self._phase_start)}"


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def clock(seconds: float) -> str:
    """``m:ss``, or ``h:mm:ss`` from an hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
