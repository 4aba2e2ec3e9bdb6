"""Finds out early that ranks have gone different ways: lengths, logged metrics, what checkpoints are chosen by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..distributed.agreement import StreamLengths, by_rank, gathered
from ..distributed.collectives import world_size
from ..distributed.faults import NamedError


class Agreement(Callback):
    """Compares, at the borders of epochs, what ranks must have in common. Costs some milliseconds an epoch."""

    def __init__(self) -> None:
        self._lengths = StreamLengths()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse loaders of different lengths: the longer ones would wait for the shorter ones at the epoch's end."""
        lengths = gathered(trainer.num_training_batches)
        if len(set(lengths)) > 1:
            raise NamedError(
                "batches-differ", f"The training loader has {by_rank(f'{length} batches' for length in lengths)}."
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the batches of a loader without a length, which Lightning fetches one batch ahead."""
        if self._streams(trainer):
            self._lengths.got(trainer.current_epoch, batch_idx + (1 if trainer.is_last_batch else 2))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Compare lengths that were not known before; a validation may follow at once."""
        if self._streams(trainer) and trainer.is_last_batch:
            self._lengths.ended(trainer.current_epoch, args[-1] + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare names, then values."""
        _check_names(trainer)
        _check_monitored(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare names."""
        _check_names(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare values, before a checkpoint is chosen by them."""
        if not trainer.sanity_checking:
            _check_monitored(trainer)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare names."""
        _check_names(trainer)

    def _streams(self, trainer: Trainer) -> bool:
        return world_size() > 1 and math.isinf(trainer.num_training_batches)


def _check_names(trainer: Trainer) -> None:
    logged = getattr(trainer.strategy, "logged", None)
    if logged is not None:
        logged.check(trainer)


def _check_monitored(trainer: Trainer) -> None:
    if world_size() == 1:
        return
    metrics = trainer.callback_metrics
    asked = dict(_monitors(trainer))
    here = {name: float(metrics[name]) if name in metrics else None for name in asked}
    everywhere = gathered(here)
    for name, owner in asked.items():
        values = [there.get(name) for there in everywhere]
        if not all(_same(value, values[0]) for value in values):
            shown = by_rank("missing" if value is None else value for value in values)
            raise NamedError("monitor-differs", f"The metric {name}, which {owner} goes by, is {shown}.")


def _monitors(trainer: Trainer) -> Iterator[tuple[str, str]]:
    owners: list[Any] = [*trainer.early_stopping_callbacks, *trainer.checkpoint_callbacks]
    for owner in owners:
        if getattr(owner, "monitor", None):
            yield owner.monitor, type(owner).__name__
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor:
            yield config.monitor, type(config.scheduler).__name__


def _same(value: float | None, other: float | None) -> bool:
    if value is None or other is None or math.isnan(value) or math.isnan(other):
        return str(value) == str(other)
    return math.isclose(value, other, rel_tol=1e-6)
