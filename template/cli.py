"""The command line: LightningCLI with short class names, one run's folder, and errors for people."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from . import callbacks, data, models
from .build_errors import unbuildable
from .callbacks.checkpoint import AtomicCheckpointIO, RankZeroCheckpoint
from .callbacks.history import loggers
from .callbacks.pictures import PicturesCallback
from .callbacks.predictions import PredictionWriter
from .callbacks.probe import ProbeStep
from .callbacks.progress import progress_bar
from .callbacks.rank_logs import RankLogs, kept_output, write_error
from .callbacks.stop import StopOnSignal
from .callbacks.summary import ScoreTable, StartSummary
from .config_errors import Checker, refuse_strategy_name, refuse_unlogged
from .config_parser import ConfigParser, own_names_first
from .config_sources import read_given, refusal
from .config_types import Parameters, one_line
from .data.module import SegmentationData
from .devices import check_devices
from .distributed.faults import NamedError
from .distributed.launch import processes_asked
from .distributed.stop import Stopped
from .distributed.strategy import LIGHTNING_NAMES, SafeDDPStrategy
from .distributed.world import World, agree, open_store, read_world
from .models.segmenter import Segmenter
from .quiet import silence_known
from .runs import CHECKPOINTS, claim_folder, find_checkpoint, run_of

_PACKAGE = (__package__ or "").partition(".")[0]
#: Keys of one verb alone, which another verb would refuse in a saved configuration.
_VERB_KEYS = ("config", "ckpt_path", "weights_only", "verbose", "return_predictions", "out")
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
    version_folder: Path
    verb_folder: Path
    rank_folder: Path | None = None

    def __init__(self, args: Sequence[str]) -> None:
        silence_known()
        self._stop = StopOnSignal()
        self._verb = args[0]
        with ExitStack() as self._until_the_end:
            try:
                super().__init__(
                    Segmenter,
                    SegmentationData,
                    subclass_mode_data=True,
                    save_config_callback=_SaveConfig,
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
            except Exception as error:
                if self._stop.asked and not isinstance(error, Stopped):
                    # Another rank has stopped already, and a collective with it failed.
                    raise Stopped(signal.SIGTERM) from error
                # Before anything else: the failure of another rank may end this process any moment.
                if self.rank_folder is not None:
                    write_error(self.rank_folder, error)
                raise

    @override
    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # the base's needs no instance
        """The verb that was asked for alone: each has a parser of its own, and making it takes a moment."""
        return {self._verb: LightningCLI.subcommands()[self._verb]}

    @override
    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_default_arguments_to_parser(parser)
        parser.add_argument("--runs", type=str, default="runs", help="Folder of all runs.")
        parser.add_argument(
            "--experiment", type=str, default="default", help="Runs of one experiment share runs/<experiment>/."
        )

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
        parser.usage = f"python -m {_PACKAGE} {subcommand} --config FILE [--config FILE …] [--KEY VALUE …]"
        parser.description = (
            f"Arguments of a class: {subcommand} --model.net.help UNet, {subcommand} --data.help Folder. "
            "Later files and options win."
        )
        if subcommand != "fit":
            # Scores of random weights are of no use to anyone.
            parser.set_defaults({"ckpt_path": "best"})
        if subcommand == "predict":
            parser.set_defaults({"return_predictions": False})
            parser.add_argument(
                "--out", type=str | None, default=None, help="Folder for masks and overlays; default: the run's folder."
            )
        return parser

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        given = read_given(args)
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
        decided = json.loads(agree(self.world, "folders", lambda: json.dumps(self._decide_folders())))
        self.version_folder, self.verb_folder = Path(decided["version"]), Path(decided["verb"])
        config.ckpt_path = decided["checkpoint"]
        self.rank_folder = self.verb_folder / f"rank_{self.world.rank}"
        self._until_the_end.enter_context(kept_output(self.rank_folder, self.world.rank))

    @override
    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except Exception as error:
            raise unbuildable(error) from error

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        self._get(self.config_init, "checkpoint").dirpath = str((self.version_folder / CHECKPOINTS).resolve())
        user = config.callbacks or []
        user = user if isinstance(user, list) else [user]
        kwargs |= {
            "callbacks": [*user, *self._callbacks(config, user)],
            "default_root_dir": str(self.verb_folder),
            # Batches are dealt by the data module's own samplers.
            "use_distributed_sampler": False,
            "plugins": [*_as_list(config.plugins), AtomicCheckpointIO()],
        }
        if config.logger is None or config.logger is True:
            kwargs["logger"] = loggers(self.verb_folder)
        if isinstance(config.strategy, str) and config.strategy in LIGHTNING_NAMES:
            kwargs["strategy"] = SafeDDPStrategy(**LIGHTNING_NAMES[config.strategy])
        elif config.strategy == "auto" and self.world.size > 1:
            kwargs["strategy"] = SafeDDPStrategy()
        refuse_strategy_name(config.strategy)
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
        except MisconfigurationException as error:
            raise refusal(f"The trainer refuses its settings: {one_line(error)}", "--help lists them.") from error

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        return {key: value for key, value in kwargs.items() if key != "out"}

    def _callbacks(self, config: Any, user: list[Callback]) -> list[Callback]:
        """Callbacks that are always there; a user's own list adds to them."""
        assert self.rank_folder is not None
        callbacks: list[Callback] = [RankLogs(self.rank_folder), PicturesCallback()]
        if self.subcommand == "fit":
            callbacks += [StartSummary(self.version_folder), ProbeStep(), self._stop]
            if config.logger is not False and not config.fast_dev_run:
                callbacks += [LearningRateMonitor()]
        if self.subcommand == "predict":
            out = self._get(self.config, "out")
            callbacks += [PredictionWriter(Path(out) if out else self.verb_folder)]
        else:
            callbacks += [ScoreTable(self.verb_folder)]
        if config.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in user):
            callbacks += [progress_bar()]
        return callbacks

    def _join_world(self) -> None:
        """Hold the launcher's number of processes against the configuration, and meet the other processes."""
        config = self.config[self.config.subcommand]
        self.world, trainer = read_world(), config.trainer
        check_devices(trainer.as_dict())
        asked = processes_asked(trainer.as_dict())
        if self.world.launcher is None:
            if trainer.num_nodes > 1:
                raise NamedError(
                    "world-size",
                    f"trainer.num_nodes is {trainer.num_nodes}, but this process was started by hand.",
                    cause="A program started by hand can start processes on its own machine alone.",
                    fix="Start it with torchrun or srun on every machine.",
                )
            if asked > 1:
                raise LaunchNeeded(asked)
            return
        if trainer.devices in ("auto", -1, "-1"):
            trainer.devices, trainer.num_nodes = self.world.local_size, self.world.nodes
        elif (asked, trainer.num_nodes) != (self.world.local_size, self.world.nodes):
            raise NamedError(
                "world-size",
                f"{self.world.launcher} started {self.world.size} processes on {self.world.nodes} machines, but "
                f"trainer.devices is {trainer.devices} and trainer.num_nodes {trainer.num_nodes}.",
            )
        strategy = trainer.strategy
        init_args = strategy.get("init_args") or {} if hasattr(strategy, "get") else {}
        open_store(self.world, init_args.get("init_method", "env://"))

    def _decide_folders(self) -> dict[str, str | None]:
        """Choose, on rank 0, the run's folder, the verb's folder in it, and the checkpoint."""
        config = self.config[self.subcommand]
        experiment = Path(config.runs) / config.experiment
        checkpoint, fit = config.ckpt_path, self.subcommand == "fit"
        if checkpoint in ("last", "best"):
            found = find_checkpoint(experiment, checkpoint)
            if found is None and not fit:
                raise NamedError("no-checkpoint", f"No run in '{experiment}' holds a checkpoint.", cause="")
            checkpoint = str(found) if found else None
        elif checkpoint and "://" not in checkpoint and not Path(checkpoint).is_file():
            raise NamedError("no-checkpoint", f"The checkpoint '{checkpoint}' does not exist.", cause="")
        run = run_of(Path(checkpoint)) if checkpoint else None
        if fit and (run is None or run.parent != experiment.resolve()):
            run = None
        version = _relative(run) if run else claim_folder(experiment, "version")
        verb = version if fit else claim_folder(version, str(self.subcommand))
        return {"version": str(version), "verb": str(verb), "checkpoint": checkpoint}


class _SaveConfig(SaveConfigCallback):
    """Writes ``config.yaml`` with short class names, so that any verb and any copy of the package accepts it."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.already_saved or not trainer.is_global_zero:
            return
        self.already_saved = True
        # By position: nulls are kept by `skip_none` before jsonargparse 4.49 and by `skip_unset` since.
        text = self.parser.dump(self.config, "yaml", False)
        config = {key: value for key, value in yaml.safe_load(text).items() if key not in _VERB_KEYS}
        file = Path(trainer.default_root_dir) / self.config_filename
        content = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        if file.exists() and file.read_text(encoding="utf-8") != content:
            # A resumed run under other settings: what ran before stays readable.
            file.rename(claim_name(file))
        file.write_text(content, encoding="utf-8")


def claim_name(file: Path) -> Path:
    """First free name ``<stem>_<n><suffix>`` beside a file."""
    number = 0
    while (free := file.with_name(f"{file.stem}_{number}{file.suffix}")).exists():
        number += 1
    return free


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _relative(path: Path) -> Path:
    """The path as seen from here, if it lies below: shorter to read."""
    here = Path.cwd().resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path
