"""What Lightning's checkpoints lack for a resumed run to be the run that was never stopped."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from .history import Ledger, entered, take_back
from .random_state import random_state, seed_from, set_random_state

_KEY = "resume"


class ExactResume(Callback):
    """Stores and brings back random states of all ranks, running means, pending schedules, and the history's end.

    Put it before all other callbacks, so that they find the resumed run as it was.
    """

    def __init__(self) -> None:
        self._stored: dict[str, Any] | None = None
        self._random: dict[str, Any] | None = None
        self._means: dict[str, Any] = {}
        self._step: int | None = None
        self._epoch_metrics: dict[str, float] = {}

    # Saving --------------------------------------------------------------------------------------------------------

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called on all ranks; each has random numbers of its own."""
        loop = trainer.fit_loop.epoch_loop
        ended = _epoch_ended(checkpoint)
        # What was taken from a checkpoint and has not found its place yet goes into the next one.
        means = {} if ended else self._means or _means(loop._results)
        mine = {"random": random_state(trainer.strategy.root_device), "means": means}
        in_validation = any(getattr(c, "validation_is_due", False) for c in trainer.checkpoint_callbacks)
        checkpoint[_KEY] = {
            "ranks": _gathered(trainer, mine),
            "step": trainer.global_step,
            "logged": entered(trainer),
            # Pictures of a validation that is begun anew are drawn anew.
            "others": trainer.global_step - int(in_validation),
            "metrics": {
                name: value.detach().cpu() for name, value in trainer._logger_connector._callback_metrics.items()
            },
            "plateaus": _pending_plateaus(trainer, "epoch" if ended else "" if trainer.validating else "step"),
            "epoch_metrics": self._epoch_metrics
            or (_epoch_metrics(loop._results) if in_validation and trainer.is_last_batch else {}),
        }

    # Resuming ------------------------------------------------------------------------------------------------------

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take the history back to the checkpoint, and the rest at the start of the training."""
        self._stored = checkpoint.get(_KEY) or {}
        step = checkpoint["global_step"]
        take_back(trainer, Ledger(self._stored.get("logged"), self._stored.get("others", step - 1)))
        if trainer.max_steps != -1 and _epoch_ended(checkpoint):
            _begin_next_epoch(checkpoint["loops"]["fit_loop"])

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring back metrics and schedules."""
        if not self._stored:
            return
        stored, self._stored = self._stored, None
        self._step = stored["step"]
        metrics = {name: value.to(trainer.strategy.root_device) for name, value in stored["metrics"].items()}
        trainer._logger_connector._callback_metrics.update(metrics)
        self._epoch_metrics = stored["epoch_metrics"]
        ranks = stored["ranks"]
        self._means = ranks[min(trainer.global_rank, len(ranks) - 1)]["means"]
        if len(ranks) == trainer.world_size:
            self._random = ranks[trainer.global_rank]["random"]
        else:
            self._random = {}
            rank_zero_info(
                f"The checkpoint is of {len(ranks)} process{'es' * (len(ranks) > 1)}, and this run has "
                f"{trainer.world_size}: random numbers of the network, such as dropout's, begin anew from the seed and "
                "the step."
            )
        for number, value in stored["plateaus"]:
            if number < len(trainer.lr_scheduler_configs):
                trainer.lr_scheduler_configs[number].scheduler.step(value)
        if any(isinstance(c, EarlyStopping) and c.wait_count >= c.patience for c in trainer.callbacks):  # type: ignore[attr-defined]
            trainer.should_stop = True

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first hook of an epoch."""
        self._draw_on(trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The first hook inside an epoch."""
        self._draw_on(trainer)
        if self._step is not None:
            # Lightning counts one too many where it skips a validation that was done, with max_steps.
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._step
            self._step = None

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first hook inside a validation."""
        if not trainer.sanity_checking:
            self._draw_on(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Let the epoch's means count what came before the checkpoint; what is logged exists from now on."""
        for name, (before, count) in self._means.items():
            result = trainer.fit_loop.epoch_loop._results.get(name)
            if result is not None and result.is_tensor:
                value = before.to(result.value)
                if count is not None or result.meta.is_sum_reduction:
                    result.value = value + result.value
                else:
                    result.value = result.meta.reduce_fx(torch.stack([value, result.value]))
                if count is not None:
                    result.cumulated_batch_size = count.to(value.device) + result.cumulated_batch_size
        self._means = {}

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the means of an epoch whose training was over at the checkpoint, and let its schedules advance."""
        # Lightning passes over ReduceLROnPlateau in a resumed epoch, for want of the metrics that are here now.
        trainer.fit_loop._restarting = False
        metrics, self._epoch_metrics = self._epoch_metrics, {}
        self._means = {}
        if metrics:
            values = {name: torch.tensor(value) for name, value in metrics.items()}
            trainer._logger_connector._callback_metrics.update(values)
            step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
            for logger in trainer.loggers:
                logger.log_metrics({"epoch": trainer.current_epoch, **metrics}, step)

    def _draw_on(self, trainer: Trainer) -> None:
        """Restore the random numbers, as late as can be: the probe step and other callbacks draw some."""
        if self._random:
            set_random_state(self._random, trainer.strategy.root_device)
        elif self._random is not None:
            seed_from(int(os.environ.get("PL_GLOBAL_SEED", "0")), trainer.global_step)
        self._random = None


def _gathered(trainer: Trainer, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank has, on rank 0, which writes the checkpoint."""
    if trainer.world_size == 1 or not dist.is_initialized():
        return [mine]
    ranks: list[Any] | None = [None] * trainer.world_size if trainer.is_global_zero else None
    dist.gather_object(mine, ranks, dst=0)
    return ranks or []


def _epoch_ended(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint is of an epoch's end."""
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["total"]
    return bool(epochs["processed"] > epochs["completed"])


def _begin_next_epoch(loops: dict[str, Any]) -> None:
    """With ``max_steps`` Lightning takes a finished epoch for one to go on with, and skips the next."""
    for progress in loops["epoch_progress"].values():
        progress["completed"] = progress["processed"]
    batches = loops["epoch_loop.batch_progress"]
    batches["is_last_batch"] = False
    optimizer = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for progress in (batches, loops["epoch_loop.scheduler_progress"], optimizer["step"], optimizer["zero_grad"]):
        progress["current"] |= dict.fromkeys(progress["current"], 0)
    validation = loops["epoch_loop.val_loop.batch_progress"]["total"]
    validation |= dict.fromkeys(validation, 0)


def _means(results: Any) -> dict[str, Any]:
    """Sums and counts of what is logged as an epoch's value."""
    return {
        name: (result.value.detach().clone().cpu(), getattr(result, "cumulated_batch_size", None))
        for name, result in results.items()
        if result.is_tensor and result.meta.on_epoch and result.update_called
    }


def _epoch_metrics(results: Any) -> dict[str, float]:
    """Values of an epoch whose last batch is done."""
    return {
        result.meta.forked_name(on_step=False): float(result.compute())
        for result in results.values()
        if result.is_tensor and result.meta.on_epoch and result.update_called
    }


def _pending_plateaus(trainer: Trainer, interval: str) -> list[tuple[int, float]]:
    """Schedules that Lightning advances only after the hook in which this checkpoint is written, with their metric."""
    pending = []
    for number, config in enumerate(trainer.lr_scheduler_configs):
        done = trainer.fit_loop.epoch_loop.batch_idx if interval == "step" else trainer.current_epoch
        if config.reduce_on_plateau and config.interval == interval and (done + 1) % config.frequency == 0:
            value = trainer.callback_metrics.get(config.monitor or "")
            if value is not None:
                pending.append((number, float(value)))
    return pending
