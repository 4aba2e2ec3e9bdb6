"""SIGTERM: a checkpoint at the next place from which a run resumes exactly, then the exit code of the signal."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..distributed.stop import Orders, Stopped
from ..distributed.world import current_store
from .checkpoint import RankZeroCheckpoint


class StopOnSignal(Callback):
    """Lets all ranks save ``last.ckpt`` and end together when one of them is told to stop.

    :class:`RankZeroCheckpoint` saves; this callback brings the ranks to do so at one place, also where it is time for
    a checkpoint by rank 0's clock.

    Args:
        interval: Seconds of training from one agreement of the ranks to the next.
    """

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self._signum: int | None = None
        self._in_loop = False
        self._orders: Orders | None = None
        self._before: Any = None
        self._step_seconds = 0.0
        self._ended = 0.0
        self._last_step = -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the handler of before: Lightning's own is set after this."""
        self._before = signal.getsignal(signal.SIGTERM)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen from the first loop on."""
        self._listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signal over from Lightning, which would broadcast inside its handler."""
        self._listen()
        self._orders = Orders(current_store(), trainer.global_rank, trainer.world_size, self.interval)
        self._ended = time.monotonic()
        self._last_step = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """From here on a signal waits for a place at which all ranks can stop."""
        self._in_loop = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Learn what all ranks do after this step."""
        if self._orders is None or trainer.global_step == self._last_step:  # inside an accumulation window
            return
        now = time.monotonic()
        seconds = now - self._ended
        self._step_seconds = 0.9 * self._step_seconds + 0.1 * seconds if self._step_seconds else seconds
        self._ended, self._last_step = now, trainer.global_step
        if self._signum is not None:
            self._orders.ask()
        keeper = _keeper(trainer)
        order = self._orders.after(
            trainer.global_step, self._step_seconds, lambda: keeper is not None and keeper.is_time()
        )
        if order == "stop":
            self._stop(trainer)
        elif order == "save" and keeper is not None:
            keeper.save_soon = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ranks are not in step from here on, but all of them know what they have agreed on before."""
        if trainer.sanity_checking or self._orders is None:
            return
        self._in_loop = True
        self._orders.open_vote()
        keeper = _keeper(trainer)
        if keeper is not None and keeper.stop_signal is not None:
            keeper.stop_in_validation(trainer)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Stop if some rank was asked to."""
        if trainer.sanity_checking or self._orders is None:
            return
        if self._signum is not None:
            self._orders.ask()
        if self._orders.vote_during():
            self._stop(trainer, in_validation=True)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the scores are summed over all ranks: the last chance to stop inside the validation."""
        if trainer.sanity_checking or self._orders is None:
            return
        if self._orders.vote_at_end(lambda: self._signum is not None):
            self._stop(trainer, in_validation=True)
        # The next batch may be slow to come: orders are timed by training steps alone.
        self._ended = time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether this rank, or another one as far as it knows, was asked to stop."""
        return self._signum is not None or (self._orders is not None and self._orders.asked)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the signal back."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let other ranks know, whom this one's end would look like a failure to, and give the signal back."""
        if self._signum is not None and self._orders is not None:
            with contextlib.suppress(RuntimeError):  # the store is gone already
                self._orders.ask()
        self.teardown(trainer, pl_module, "fit")

    def _listen(self) -> None:
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
        if not self._in_loop:  # nothing has been trained yet
            raise Stopped(signum)

    def _stop(self, trainer: Trainer, in_validation: bool = False) -> None:
        signum = self._signum or signal.SIGTERM
        keeper = _keeper(trainer)
        if keeper is None:
            raise Stopped(signum)
        keeper.stop_signal = signum
        if in_validation:
            keeper.stop_in_validation(trainer)


def _keeper(trainer: Trainer) -> RankZeroCheckpoint | None:
    """The callback that writes checkpoints; a ``fast_dev_run`` has none."""
    found = (one for one in trainer.checkpoint_callbacks if isinstance(one, RankZeroCheckpoint))
    return next(found, None) if not getattr(trainer, "fast_dev_run", False) else None
