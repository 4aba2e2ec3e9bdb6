"""SIGTERM: a checkpoint at the next step from which a run resumes exactly, then the exit code of the signal."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from ..distributed.stop import StopAgreement, Stopped
from ..distributed.world import current_store
from ..runs import LAST


class StopOnSignal(Callback):
    """Saves ``last.ckpt`` on all ranks after the same step when one of them is told to stop.

    In validation ranks are not in step, and there is nothing to save that the last checkpoint does not lead to: each
    ends at once.

    Args:
        notice: Seconds of training between the announcement and the stop, in which it reaches every rank.
    """

    def __init__(self, notice: float = 0.5) -> None:
        self.notice = notice
        self._signum: int | None = None
        self._training = False
        self._agreement: StopAgreement | None = None
        self._before: Any = None
        self._step_seconds = 0.0
        self._started = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the handler of before: Lightning's own is set after this."""
        self._before = signal.getsignal(signal.SIGTERM)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen from the first loop on."""
        self._listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signal over from Lightning, which would broadcast inside its handler."""
        self._listen()
        self._agreement = StopAgreement(current_store())

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """From here on the rank is in step with the others."""
        self._training = True
        self._started = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here if it is time and a run can resume from here."""
        if self._agreement is None:
            return
        seconds = time.monotonic() - self._started
        self._step_seconds = 0.9 * self._step_seconds + 0.1 * seconds if self._step_seconds else seconds
        if self._signum is not None:
            margin = 2 + int(self.notice / max(self._step_seconds, 1e-3)) if trainer.world_size > 1 else 0
            self._agreement.announce(trainer.global_step, margin)
        if self._agreement.due(trainer.global_step) and _resumes_from_here(trainer, batch_idx):
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The end of an epoch is a place to resume from as well."""
        if self._agreement is not None and self._agreement.due(trainer.global_step):
            self._stop(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ranks are not in step from here on."""
        self._training = False

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """End if some rank was asked to."""
        if self.asked:
            raise Stopped(self._signum or signal.SIGTERM)

    @property
    def asked(self) -> bool:
        """Whether this rank, or another one as far as it knows, was asked to stop."""
        return self._signum is not None or (self._agreement is not None and self._agreement.announced)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the signal back."""
        if self._agreement is not None:
            self._agreement.close()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the signal back."""
        self.teardown(trainer, pl_module, "fit")

    def _listen(self) -> None:
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
        if not self._training:
            raise Stopped(signum)

    def _stop(self, trainer: Trainer) -> None:
        folder = getattr(trainer.checkpoint_callback, "dirpath", None)
        if folder:
            trainer.save_checkpoint(f"{folder}/{LAST}")
        rank_zero_info(f"Stopped after step {trainer.global_step}. Resume with --ckpt_path last.")
        raise Stopped(self._signum or signal.SIGTERM)


def _resumes_from_here(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a checkpoint written now leads to the very run that goes on.

    Not inside an accumulation window; not at a batch with a validation due, and not at the last one of an epoch:
    Lightning would resume after the validation, or an epoch later.
    """
    done = batch_idx + 1
    every: Any = trainer.val_check_batch  # set by the fit loop
    return (
        done % trainer.accumulate_grad_batches == 0
        and not trainer.is_last_batch
        and (not isinstance(every, int) or done % every != 0)
    )
