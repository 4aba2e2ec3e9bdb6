"""Callbacks through which the doctor watches a few steps of training."""

from __future__ import annotations

import contextlib
import copy
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer

from ..callbacks.sentinel import checksum
from ..distributed.faults import NamedError
from ..distributed.probe import Unused, find_unused, probe_batch, probe_loss
from .events import Teller

#: Where Lightning's callbacks keep that they look at the end of an epoch, and not of its validation.
_AT_END = ("_check_on_train_epoch_end", "_save_on_train_epoch_end")


class StepTimes(Callback):
    """Takes the time of each step, and gives a sign of life in each phase of it.

    Args:
        teller: Told which step it is.
    """

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._started = self._ended = 0.0
        self.seconds: list[float] = []
        self.waits: list[float] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell."""
        self._teller.begin("steps: start of the fit")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on the loader is waited for."""
        self._ended = time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Tell, and take the time."""
        self._teller.begin(f"steps: training step {trainer.global_step}")
        self._started = _now(trainer)
        self.waits.append(self._started - self._ended)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the time."""
        self._ended = _now(trainer)
        self.seconds.append(self._ended - self._started)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Tell."""
        self._teller.begin("steps: validation")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Tell."""
        self._teller.begin("steps: checkpoint")

    def median(self, accumulation: int) -> float:
        """Seconds of an optimizer step, the first one left out, in which much is done for the first time."""
        return statistics.median(self.seconds[accumulation:] or self.seconds) * accumulation


class Exchange(Callback):
    """Takes checksums of gradients and weights of the first step, and the metrics of the validation.

    Attributes:
        gradients: Checksum of each gradient after the exchange, by name.
        weights: Of each parameter after the step.
        metrics: What the validation has logged.
        unused: Parameters that get no gradient, over all ranks.
        fresh: The network before anything is trained, on the CPU; None where it cannot be copied.
        memory: Bytes: the largest of the GPU, or by which the process has grown since the start of the fit.
    """

    def __init__(self) -> None:
        self.gradients: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.metrics: dict[str, float] = {}
        self.unused: list[Unused] = []
        self.memory = 0
        self.fresh: nn.Module | None = None
        self._at_start = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the memory before, and on rank 0 a copy of the network: the strategy has not changed it yet."""
        if trainer.is_global_zero:
            with contextlib.suppress(Exception):  # a lock, an open file, whatever a network may hold
                self.fresh = copy.deepcopy(getattr(pl_module, "net", pl_module)).cpu()
        self._at_start = _held()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look on all ranks for parameters that get no gradient."""
        batch = probe_batch(trainer)
        if batch is not None:
            self.unused = find_unused(pl_module, lambda: probe_loss(trainer, batch))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Take the gradients of the first step."""
        if not self.gradients:
            self.gradients = {
                name: int(checksum(p.grad)) for name, p in pl_module.named_parameters() if p.grad is not None
            }

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Take the weights after the first step."""
        if not self.weights and trainer.global_step == 1:
            self.weights = {name: int(checksum(p)) for name, p in pl_module.named_parameters()}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the metrics; see that those are there that something waits for.

        Raises:
            NamedError: ``monitor-missing``.
        """
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        _check_monitors(trainer, at_end=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the memory after."""
        _check_monitors(trainer, at_end=True)
        cuda = trainer.strategy.root_device.type == "cuda"
        self.memory = torch.cuda.max_memory_allocated() if cuda else _peak() - self._at_start


def _check_monitors(trainer: Trainer, at_end: bool) -> None:
    """Refuse a metric that something watches and nothing logs, before Lightning does.

    Args:
        trainer: At the end of its validation, or of its training.
        at_end: At the end of the training, when what is logged of a whole epoch is there as well.

    Raises:
        NamedError: ``monitor-missing``.
    """
    known = trainer.callback_metrics
    for place, monitor in _monitors(trainer, at_end):
        if monitor not in known:
            what = f"{place} watches '{monitor}', which nothing logs; there are {', '.join(known) or 'none'}."
            raise NamedError("monitor-missing", what)


def _monitors(trainer: Trainer, at_end: bool) -> list[tuple[str, str]]:
    """Who watches a metric, and which; those that look at the end of an epoch only then."""
    callbacks: list[Any] = [
        one
        for one in trainer.callbacks  # type: ignore[attr-defined]
        if at_end or not any(getattr(one, name, False) for name in _AT_END)
    ]
    found = [(type(one).__name__, one.monitor) for one in callbacks if isinstance(getattr(one, "monitor", None), str)]
    found += [
        (type(one.scheduler).__name__, one.monitor)
        for one in trainer.lr_scheduler_configs
        if one.reduce_on_plateau and one.monitor
    ]
    return found


def _now(trainer: Trainer) -> float:
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _held() -> int:
    """Bytes that this process holds now; where there is no /proc, that it has held at most."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return _peak()


def _peak() -> int:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
