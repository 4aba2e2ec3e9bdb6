"""The user's own configuration, changed so far that a few steps of it can be run and watched."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from ..callbacks.accurate_batchnorm import AccurateBatchNorm
from ..callbacks.checkpoint import RankZeroCheckpoint
from ..callbacks.thawed import ThawedLayers
from ..cli import SegmentationCLI
from ..data.module import SegmentationData
from ..distributed.world import STARTUP_TIMEOUT, open_store, read_world
from ..models.segmenter import Segmenter
from ..runs import Place
from .options import Options


@dataclass(frozen=True)
class Rehearsal:
    """A run that is about to take its first step: set up, on its device, with loaders and optimizers.

    Attributes:
        trainer: Of the rehearsal, which is shorter than the run that was asked for.
        module: The user's network, loss and optimizer.
        data: The user's data set.
        options: Of the doctor.
        asked: Section ``trainer`` of the configuration, as ``fit`` would take it.
        config: The whole configuration.
        folder: For files, removed afterwards.
        environ: Variables that the doctor was started with; its processes have a launcher's own in place of some.
        measured: Numbers that a check leaves for others, by name.
        alive: Called within checks that take long: a sign of life.
    """

    trainer: Trainer
    module: Segmenter
    data: SegmentationData
    options: Options
    asked: dict[str, Any]
    config: Any
    folder: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    measured: dict[str, Any] = field(default_factory=dict)
    alive: Callable[[], object] = field(default=lambda: None)


class AtStart(Callback):
    """Calls a function when everything is set up and nothing has been trained.

    Args:
        look: Called with the trainer and the module.
        stop: Whether nothing shall be trained at all.
    """

    def __init__(self, look: Callable[[Trainer, Any], None], stop: bool = False) -> None:
        self.look = look
        self.stop = stop

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look."""
        self.look(trainer, pl_module)
        trainer.should_stop = trainer.should_stop or self.stop

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave before the first batch."""
        if self.stop:
            raise StopIteration


class RehearsalCLI(SegmentationCLI):
    """``fit``, made short, away from the user's runs, and without its own checks where those of the doctor stand.

    Args:
        arguments: What follows the verb.
        options: Of the doctor.
        folder: For all files.
        processes: Of this rehearsal.
        steps: Optimizer steps.
        callbacks: Of the doctor; they come before all others.
        whole: With all that a run has: its strategy, its own checks, its logs and checkpoints. Else the steps alone.
        precision: In place of the user's.
        look: Called when everything is set up and nothing has been trained.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        options: Options,
        folder: Path,
        *,
        processes: int,
        steps: int,
        callbacks: Sequence[Callback],
        whole: bool,
        precision: Any = None,
        look: Callable[[RehearsalCLI], None] | None = None,
    ) -> None:
        self.options = options
        self.folder = folder
        self.processes = processes
        self.steps = steps
        self.own_callbacks = list(callbacks)
        self.whole = whole
        self.precision = precision
        self.look = look
        self.asked: dict[str, Any] = {}
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        super().__init__(["fit", *arguments])

    @override
    def _join_world(self) -> None:
        config = self.config[self.config.subcommand]
        trainer = config.trainer
        self.asked = trainer.as_dict() if hasattr(trainer, "as_dict") else dict(trainer)
        accumulation = trainer.accumulate_grad_batches
        changes: dict[str, Any] = {
            "accelerator": self.options.accelerator,
            "devices": self.processes,
            "num_nodes": 1,
            "max_epochs": 1,
            "min_epochs": None,
            "max_steps": -1,
            "min_steps": None,
            "max_time": None,
            "limit_train_batches": self.steps * accumulation,
            "limit_val_batches": 2 if self.whole else 1,
            "num_sanity_val_steps": 0,
            "val_check_interval": None,
            "check_val_every_n_epoch": 1,
            "fast_dev_run": False,
            "overfit_batches": 0.0,
            "profiler": None,
            # Callbacks may ask for one; those of the user's own might send this somewhere.
            "logger": False if config.trainer.logger is False else None,
            "log_every_n_steps": 1,
            "enable_progress_bar": False,
            "barebones": False,
        }
        if self.processes == 1:
            changes["strategy"] = "auto"
        if self.precision is not None:
            changes["precision"] = self.precision
        for key, value in changes.items():
            setattr(trainer, key, value)
        if config.seed_everything is True:
            config.seed_everything = 0
        config.ckpt_path = None
        if "compile" in config.model:  # hooks would see nothing of the layers
            config.model.compile = False
        world = read_world()
        if world.size > 1:
            # A file needs no port, which another program might take before it is used.
            open_store(world, (self.folder.resolve() / "meeting").as_uri())
        super()._join_world()

    @override
    def _watch(self, timeout: timedelta, startup: timedelta = STARTUP_TIMEOUT) -> None:
        # The start as well: the strategy's first, discarded step may hang like any other.
        asked = timedelta(seconds=self.options.timeout)
        super()._watch(asked, asked)

    @override
    def _reason(self, error: BaseException) -> BaseException:
        self.rank_folder = None  # it will be gone when the reason is read
        return super()._reason(error)

    @override
    def before_instantiate_classes(self) -> None:
        """Write into the doctor's folder alone."""
        self.place = Place(self.folder, self.folder, None)
        self.rank_folder = self.folder / f"rank_{self.world.rank}"
        self.rank_folder.mkdir(parents=True, exist_ok=True)
        assert self.watchdog is not None
        self.watchdog.use_folder(self.rank_folder)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer: Any = super().instantiate_trainer(**kwargs)
        own = [*self.own_callbacks, *([AtStart(lambda *_: look(self))] if (look := self.look) else [])]
        for one in trainer.callbacks:
            if isinstance(one, ModelCheckpoint) and not isinstance(one, RankZeroCheckpoint):
                one.dirpath = str(self.folder / "checkpoints_of_the_user")
        users = [one for one in trainer.callbacks if self.whole or not isinstance(one, RankZeroCheckpoint)]
        trainer.callbacks = [*own, *users]
        return trainer  # type: ignore[no-any-return]

    @override
    def _callbacks(self, config: Any, user: list[Callback]) -> list[Callback]:
        return super()._callbacks(config, user) if self.whole else [AccurateBatchNorm(), ThawedLayers()]
