"""What the parser of one verb has beside Lightning's keys."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from ..distributed.strategy import LIGHTNING_NAMES, SafeDDPStrategy
from .sources import SPEC_KEYS, Given
from .value_types import full_path

_PACKAGE = (__package__ or "").partition(".")[0]


def complete(parser: LightningArgumentParser, verb: str) -> None:
    """Add a verb's own keys, defaults and help to its parser."""
    parser.usage = f"python -m {_PACKAGE} {verb} --config FILE [--config FILE …] [--KEY VALUE …]"
    parser.description = (
        f"Arguments of a class: {verb} --model.net.help UNet, {verb} --data.help Folder. Later files and options win."
    )
    if verb != "fit":
        # Scores of random weights are of no use to anyone.
        parser.set_defaults({"ckpt_path": "best"})
    if verb in ("validate", "test"):
        # ScoreTable shows the scores.
        parser.set_defaults({"verbose": False})
    if verb == "export":
        parser.add_argument(
            "--out", type=str | None, default=None, help="Folder for the exported network; default: the run's folder."
        )
    if verb == "predict":
        parser.set_defaults({"return_predictions": False})
        parser.add_argument(
            "--out", type=str | None, default=None, help="Folder for masks and overlays; default: the run's folder."
        )


def default_strategy(parser: LightningArgumentParser, given: Given) -> None:
    """Let knobs of the strategy that are given without a class be :class:`SafeDDPStrategy`'s.

    Args:
        parser: The verb's.
        given: The configuration.
    """
    trainer = given.value.get("trainer", Given()).value
    strategy = trainer.get("strategy", Given()).value if isinstance(trainer, dict) else None
    if isinstance(strategy, dict) and strategy and "class_path" not in strategy:
        knobs = strategy["init_args"].value if set(strategy) <= set(SPEC_KEYS) else strategy
        if isinstance(knobs, dict):
            parser.set_defaults({"trainer.strategy": {"class_path": full_path(SafeDDPStrategy)}})


def named_strategy(strategy: Any, processes: int) -> dict[str, SafeDDPStrategy]:
    """The Trainer's argument where a strategy is given by Lightning's name of DDP, or left to the number of processes.

    Args:
        strategy: ``trainer.strategy``.
        processes: Of the run.
    """
    if isinstance(strategy, str) and strategy in LIGHTNING_NAMES:
        return {"strategy": SafeDDPStrategy(**LIGHTNING_NAMES[strategy])}
    return {"strategy": SafeDDPStrategy()} if strategy == "auto" and processes > 1 else {}
