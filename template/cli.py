"""The command line: LightningCLI with short class names, one run's folder, and errors for people."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from . import callbacks, data, models
from .callbacks.accurate_batchnorm import AccurateBatchNorm
from .callbacks.agreement import Agreement
from .callbacks.case_scores import CaseScores
from .callbacks.checkpoint import RankZeroCheckpoint
from .callbacks.checkpoint_io import AtomicCheckpointIO, continues
from .callbacks.heartbeats import Heartbeats
from .callbacks.history import loggers
from .callbacks.idle_hooks import IdleHooks
from .callbacks.on_cpu import OnCpu
from .callbacks.pictures import PicturesCallback
from .callbacks.predictions import PredictionWriter
from .callbacks.probe import ProbeStep
from .callbacks.progress import progress_bar
from .callbacks.rank_logs import RankLogs, kept_output, write_error
from .callbacks.resume import ExactResume
from .callbacks.sentinel import DivergenceSentinel
from .callbacks.stop import StopOnSignal
from .callbacks.summary import ScoreTable, StartSummary
from .callbacks.thawed import ThawedLayers
from .config.build_errors import unbuildable
from .config.callbacks import users_callbacks
from .config.errors import Checker, refuse_strategy, refuse_unlogged
from .config.parser import ConfigParser, own_names_first
from .config.saved import SaveConfig
from .config.sources import read_given, refusal
from .config.value_types import Parameters, one_line
from .config.verbs import complete, default_strategy, named_strategy
from .data.module import SegmentationData
from .distributed.environment import check_processes, plugins
from .distributed.faults import NamedError
from .distributed.knobs import DEFAULT_TIMEOUT, parse_timeout
from .distributed.launch import FOLDER, beside_error, leave_message
from .distributed.phase_file import PHASE_FILE
from .distributed.raised import named, own_frames
from .distributed.stop import CtrlC, Stopped
from .distributed.watchdog import Watchdog
from .distributed.world import STARTUP_TIMEOUT, World, agree, current_store, open_store, read_world
from .models.segmenter import Segmenter
from .quiet import silence_known
from .run_lock import run_lock
from .runs import CHECKPOINTS, LAST, Place, decide_place, experiment_folder, remove_parts

_PACKAGE = (__package__ or "").partition(".")[0]
#: Said once, in the data, and where.
_LINKED = {"model.num_classes": "data.classes", "model.in_channels": "data.in_channels"}

# Every class in these folders can be named by its short name; a new file there needs no entry anywhere.
for _folder in (callbacks, data, models):
    for _module in pkgutil.iter_modules(_folder.__path__, f"{_folder.__name__}."):
        importlib.import_module(_module.name)


class LaunchNeeded(Exception):  # noqa: N818  # a request, not an error
    """The configuration asks for several processes and this one was started by hand.

    Attributes:
        processes: Processes on this machine.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        self.processes = processes


class SegmentationCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` of a :class:`Segmenter` on a :class:`SegmentationData`.

    Args:
        args: Command-line arguments, the verb first.
    """

    world: World
    place: Place
    watchdog: Watchdog | None = None
    rank_folder: Path | None = None

    def __init__(self, args: Sequence[str]) -> None:
        silence_known()
        self._stop, self._ctrl_c = StopOnSignal(), CtrlC()
        self._verb = args[0]
        with ExitStack() as self._until_the_end:
            self._until_the_end.enter_context(self._ctrl_c)
            try:
                super().__init__(
                    Segmenter,
                    SegmentationData,
                    subclass_mode_data=True,
                    save_config_callback=SaveConfig,
                    seed_everything_default=0,
                    auto_configure_optimizers=False,
                    # Checkpoints hold no class path of the package, so that they load under any name of it.
                    load_from_checkpoint_support=False,
                    trainer_defaults={"enable_model_summary": False, "log_every_n_steps": 5},
                    parser_class=ConfigParser,
                    # An abbreviated key would pass on the command line and be refused in a file.
                    parser_kwargs={"allow_abbrev": False, "prog": _PACKAGE},
                    args=list(args),
                )
            except (Stopped, LaunchNeeded):
                raise
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                if isinstance(error, SystemExit) and self.watchdog is None and not own_frames(error):
                    raise  # of the parser, after --help and the like
                if isinstance(error, KeyboardInterrupt) and self._ctrl_c.came:
                    raise self._interrupted() from error
                raise self._reason(error) from error

    def _interrupted(self) -> Stopped:
        last = self.place.run / CHECKPOINTS / LAST if self._verb == "fit" and hasattr(self, "place") else None
        resume = " Resume from the last checkpoint with --ckpt_path last." if last and last.exists() else ""
        print(f"Stopped by Ctrl-C.{resume}", file=sys.stderr)
        return Stopped(signal.SIGINT)

    def _reason(self, error: BaseException) -> BaseException:
        """What an exception is in truth: another rank's stop, another rank's failure, or itself."""
        if self._stop.asked:
            # Another rank has stopped already, and a collective with it failed.
            return Stopped(signal.SIGTERM)
        reason = error
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            reason = named(error)
        # First of all: once the others know, this process may be ended any moment.
        if self.rank_folder is not None:
            with suppress(OSError):  # a folder that cannot be written is no reason to lose the error itself
                file = write_error(self.rank_folder, error)
                reason = error if isinstance(error, NamedError) else named(error, file)
        if self.watchdog is not None:
            self.watchdog.on_exception(error)
            of_a_peer = self.watchdog.explain_peer_failure(error)
            if of_a_peer is not None:
                return of_a_peer
        return reason

    @override
    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # the base's needs no instance
        """The verb that was asked for alone: each has a parser of its own, and making it takes a moment."""
        return {self._verb: LightningCLI.subcommands()[self._verb]}

    @override
    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_default_arguments_to_parser(parser)
        parser.add_argument("--runs", type=str, default="runs", help="Folder of all runs.")
        parser.add_argument("--experiment", type=str, default="default", help="Its runs share runs/<experiment>/.")
        parser.add_argument("--keep_memory", type=bool, default=True, help="On the CPU, keep what a step has freed.")

    @override
    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        # Lightning's own order has the Trainer's fifty keys before what a reader looks for.
        parser.add_lightning_class_args(SegmentationData, "data", subclass_mode=True)
        parser.add_lightning_class_args(Segmenter, "model")
        parser.add_lightning_class_args(RankZeroCheckpoint, "checkpoint")
        parser.add_lightning_class_args(Trainer, "trainer")
        parser.set_defaults({f"trainer.{key}": value for key, value in self.trainer_defaults.items()})

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for key in _LINKED:
            parser.link_arguments(key.replace("model.", "data."), key, apply_on="instantiate")

    @override
    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        complete(parser, subcommand)
        return parser

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        given = read_given(args)
        default_strategy(self._subcommand_parsers[args[0]], given)
        checker = Checker(Parameters(self._subcommand_parsers[args[0]]), _LINKED)
        checker.check_linked(given)
        with own_names_first():
            try:
                self.config = parser.parse_args(args)
            except Exception as error:  # what the parser refuses, and what importing a class raises
                raise checker.explain(given, str(error)) from error
            checker.check_nulls(given)
            replaced = checker.replaced(given)
        self._join_world()
        if self.world.rank == 0:
            for line in replaced:
                print(line, file=sys.stderr)

    @override
    def _parse_ckpt_path(self) -> None:
        """Not needed: checkpoints hold no hyper-parameters, and the configuration alone says what is run."""

    @override
    def _set_seed(self) -> None:
        config = self.config[self.subcommand]
        if config.seed_everything is True:
            config.seed_everything = int(agree(self.world, "seed", lambda: str(int.from_bytes(os.urandom(4), "big"))))
        super()._set_seed()

    @override
    def before_instantiate_classes(self) -> None:
        """Agree on the run's folder and the checkpoint, before anything is written."""
        config = self.config[self.subcommand]
        experiment, verb = experiment_folder(config.runs, config.experiment), str(self.subcommand)

        def decide() -> str:
            place = decide_place(experiment, verb, config.ckpt_path)
            if verb == "fit":
                self._until_the_end.enter_context(run_lock(place.run))
                remove_parts(place.run)
            return str(place)

        self.place = Place.parse(agree(self.world, "place", decide))
        config.ckpt_path = self.place.checkpoint
        self.rank_folder = self.place.verb / f"rank_{self.world.rank}"
        assert self.watchdog is not None
        self.watchdog.use_folder(self.rank_folder)
        leave_message(self.world, str(self.rank_folder), FOLDER)
        self._until_the_end.enter_context(kept_output(self.rank_folder, self.world.rank))

    @override
    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except Exception as error:
            raise unbuildable(error) from error

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        assert self.watchdog is not None
        config = self._get(self.config_init, "trainer")
        self._get(self.config_init, "checkpoint").dirpath = str((self.place.run / CHECKPOINTS).resolve())
        user = users_callbacks(config.callbacks)
        kwargs |= {
            "callbacks": [
                Heartbeats(self.watchdog),
                # Before any that waits for other ranks: there they agree to stop.
                *([self._stop, ExactResume()] if self.subcommand == "fit" else []),
                *user,
                *self._callbacks(config, user),
            ],
            "default_root_dir": str(self.place.verb),
            "use_distributed_sampler": False,  # batches are dealt by the data module's own samplers
            "plugins": [*plugins(config.plugins, self.world), AtomicCheckpointIO()],
        }
        if config.logger is None or config.logger is True:
            kwargs["logger"] = loggers(self.place.verb)
        kwargs |= named_strategy(config.strategy, self.world.size)
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError, TypeError) as error:
            raise refusal(f"The trainer refuses its settings: {one_line(error)}", "--help lists them.") from error

    @override
    def after_instantiate_classes(self) -> None:
        """Refuse the name of a metric that nothing logs before it is missed at the end of an epoch."""
        config = self.config[self.subcommand]
        if self.subcommand != "fit" or config.trainer.callbacks:  # a user's own callback may log anything
            return
        asked = {"checkpoint.monitor": config.checkpoint.monitor}
        if config.model.lr_scheduler:
            asked["model.monitor"] = config.model.monitor
        refuse_unlogged(asked, self.datamodule.regions)

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except SystemExit as error:  # Lightning's way to end after Ctrl-C
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise
        except ValueError as error:
            if "val_check_interval" not in str(error):
                raise
            raise refusal(f"trainer.val_check_interval does not fit: {one_line(error)}", "Lower it.") from error
        except MisconfigurationException as error:
            raise refusal(f"The trainer refuses its settings: {one_line(error)}", "--help lists them.") from error

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "fit" and kwargs.get("ckpt_path") and not continues(kwargs["ckpt_path"], self.model):
            kwargs["ckpt_path"] = None
        return {key: value for key, value in kwargs.items() if key != "out"}

    def _callbacks(self, config: Any, user: list[Callback]) -> list[Callback]:
        """Callbacks that are always there; a user's own list adds to them."""
        assert self.rank_folder is not None
        callbacks: list[Callback] = [RankLogs(self.rank_folder), PicturesCallback(), Agreement()]
        if self.subcommand == "fit":
            callbacks += [OnCpu(self._get(self.config, "keep_memory")), IdleHooks()]
            callbacks += [StartSummary(self.place.run), AccurateBatchNorm(), ProbeStep(), ThawedLayers(), self._stop]
            callbacks += [DivergenceSentinel(0)] if not any(isinstance(c, DivergenceSentinel) for c in user) else []
            callbacks += [LearningRateMonitor()] if config.logger is not False and not config.fast_dev_run else []
        if self.subcommand == "predict":
            callbacks += [PredictionWriter(Path(self._get(self.config, "out") or self.place.verb))]
        else:
            scores = [CaseScores(self.place.verb)] if self.subcommand != "fit" else []
            callbacks += [*scores, ScoreTable(self.place.verb)]
        if config.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in user):
            callbacks += [progress_bar()]
        return callbacks

    def _watch(self, timeout: timedelta, startup: timedelta = STARTUP_TIMEOUT) -> None:
        """Start the hang explainer; with one process it watches nothing."""
        self.watchdog = Watchdog(
            current_store(),
            self.world.rank,
            self.world.size,
            timeout,
            max(timeout, startup),
            leave=lambda text: leave_message(self.world, text),
            phase_file=beside_error(self.world, PHASE_FILE),
        )
        self.watchdog.start()
        self._until_the_end.callback(self.watchdog.stop)

    def _join_world(self) -> None:
        """Hold the launcher's number of processes against the configuration, and meet the other processes."""
        self.world, trainer = read_world(), self.config[self.config.subcommand].trainer
        refuse_strategy(strategy := trainer.strategy)
        asked = check_processes(self.world, trainer)
        if self.world.launcher is None:
            if asked > 1:
                raise LaunchNeeded(asked)
            self._watch(STARTUP_TIMEOUT)
            return
        knobs = strategy.get("init_args") or {} if hasattr(strategy, "get") else {}
        open_store(self.world, knobs.get("init_method", "env://"))
        self._watch(parse_timeout(knobs.get("timeout", DEFAULT_TIMEOUT)))
