"""Tells the watchdog what the training does."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from ..distributed.stop import Stopped
from ..distributed.watchdog import Watchdog


class Heartbeats(Callback):
    """Takes note of phase and step in memory: nothing is sent, and no GPU is waited for, in the main thread.

    Put it before all other callbacks, so that their work counts to the phase that it is done in.

    Args:
        watchdog: Of this process.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self._note = watchdog.note
        self._underway = watchdog.underway
        self._failed = watchdog.on_exception

    def writing(self) -> None:
        """Say that what the training waits for, a checkpoint on its way to the disk, gets on."""
        self._note("checkpoint")

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._note("set-up")

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note("start of the fit")

    @override
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note("sanity check")

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note("loading data", trainer.global_step)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._note("training step", trainer.global_step)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        self._note("backward")

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._note("optimizer")

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self._note("loading data", trainer.global_step)
        self._underway()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note(f"end of epoch {trainer.current_epoch}")

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._note("checkpoint")

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note("sanity check" if trainer.sanity_checking else "validation")

    @override
    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self._note("sanity check" if trainer.sanity_checking else "validation")

    @override
    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._note("loading data")
        if not trainer.sanity_checking:
            self._underway()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note("end of the validation")

    @override
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        self._note("test", batch_idx)

    @override
    def on_test_batch_end(self, *args: Any) -> None:
        self._note("loading data")
        self._underway()

    @override
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        self._note("prediction", batch_idx)

    @override
    def on_predict_batch_end(self, *args: Any) -> None:
        self._note("loading data")
        self._underway()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note("end of the training")

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._note("end")

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, Stopped):  # that is no failure
            self._failed(exception)
