"""What a person reads first and last: what is about to run, and how well it did."""

from __future__ import annotations

import contextlib
import json
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from rich import box
from rich.table import Table
from rich.text import Text

from ..console import make_console
from ..distributed.differences import differences
from ..distributed.faults import NamedError
from ..distributed.heartbeat import short
from .case_scores import CaseSummary, summary_of
from .checkpoint import keeper_of
from .speed import speed_notes

SCORES_FILE = "scores.json"
_MISSING = "–"


class StartSummary(Callback):
    """Prints once, on rank 0, what a fit is about to do.

    Args:
        run_folder: The run's folder.
    """

    def __init__(self, run_folder: Path) -> None:
        self.run_folder = Path(run_folder)
        self._trains = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the summary."""
        self._trains = True
        if not trainer.is_global_zero:
            return
        console = make_console()
        for label, text in self._lines(trainer, pl_module):
            # Paths and the line of the batch stay in one piece, to be copied and searched.
            console.print(Text.assemble((f"{label:<9}" if label else "", "bold"), text), soft_wrap=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say why a fit that goes on from the end of a training has done nothing."""
        if self._trains or not trainer.is_global_zero:
            return
        knob, unit, done, most = "max_steps", "steps", trainer.global_step, trainer.max_steps
        if trainer.max_epochs is not None and 0 < trainer.max_epochs <= trainer.current_epoch:
            knob, unit, done, most = "max_epochs", "epochs", trainer.current_epoch, trainer.max_epochs
        if 0 < most <= done:
            make_console().print(f"nothing to do: {done} of {most} {unit} are done; raise trainer.{knob}")

    def _lines(self, trainer: Trainer, pl_module: LightningModule) -> list[tuple[str, str]]:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=…)
        total = sum(p.numel() for p in pl_module.parameters())
        trainable = sum(p.numel() for p in pl_module.parameters() if p.requires_grad)
        share = "all" if trainable == total else _many(trainable)
        network = type(getattr(pl_module, "net", pl_module)).__name__
        classes = textwrap.shorten(", ".join(data.classes), 48, placeholder=", …")
        lines = [
            ("run", str(self.run_folder)),
            *_resumed(trainer),
            ("network", f"{network}, {_many(total)} parameter{'s' * (total != 1)}, {share} trainable"),
            ("data", f"{type(data).__name__}, {len(data.classes)} classes: {classes}"),
            ("samples", ", ".join(_samples(data))),
            ("hardware", f"{_hardware(trainer)}, precision {trainer.precision}, {type(trainer.strategy).__name__}"),
            *(("", line) for line in _batches(trainer, data)),
        ]
        for label, notes in (("speed", speed_notes(trainer, pl_module)), ("differs", differences(trainer, pl_module))):
            lines += [("" if number else label, note) for number, note in enumerate(notes)]
        return lines


class _Report(NamedTuple):
    """Scores of one evaluation, by the names of their metrics without the split, such as ``dice_liver``."""

    split: str
    scores: dict[str, float]
    epochs: int | None = None  # trained when the scores were taken
    baseline: Mapping[str, float] | None = None
    cases: CaseSummary | None = None
    checkpoint: str = ""


class ScoreTable(Callback):
    """Prints scores as a table when a verb ends, and writes them to ``scores.json``; on rank 0.

    A fit ends with the scores of its best validation and the path of the best checkpoint, a test with the data
    set's baseline beside the network's Dice, and the means over its cases.

    Args:
        folder: The verb's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._best: dict[str, float] = {}
        self._best_epochs: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """The best validation so far, so that a resumed fit knows it."""
        return {"best": self._best, "epochs": self._best_epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up :meth:`state_dict`."""
        self._best, self._best_epochs = state_dict["best"], state_dict["epochs"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the scores if they are the best so far by the metric that the checkpoints go by."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        checkpoint = keeper_of(trainer)
        monitor = checkpoint.monitor if checkpoint is not None else None
        metric = (monitor or "val/dice").removeprefix("val/")
        sign = -1.0 if monitor and checkpoint is not None and checkpoint.mode == "min" else 1.0
        scores = _scores_of(trainer, "val")
        value, best = (sign * found.get(metric, math.nan) for found in (scores, self._best))
        if not self._best or value > best or (math.isnan(best) and not math.isnan(value)):
            self._best, self._best_epochs = scores, trainer.current_epoch + 1

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Report, when everything else that a verb prints has been printed.

        Raises:
            NamedError: The scores cannot be written.
        """
        report = self._report(trainer, stage) if trainer.is_global_zero else None
        if report is None:
            return
        console = make_console()
        if report.scores:
            console.print(_title(report, trainer.datamodule), style="bold")  # type: ignore[attr-defined]  # set by the verb
            console.print(_table(report))
            self._write(report)
        if found := summary_of(trainer) if stage != "fit" else None:
            for line in found[0].told(found[1]):
                console.print(Text(line), soft_wrap=True)
        if report.checkpoint:
            label = "best checkpoint" if stage == "fit" else "checkpoint"
            console.print(Text.assemble((f"{label}  ", "bold"), report.checkpoint), soft_wrap=True)

    def _report(self, trainer: Trainer, stage: str) -> _Report | None:
        if stage == "fit":
            checkpoint = keeper_of(trainer)
            best = checkpoint.best_model_path if checkpoint is not None else ""
            return _Report("val", self._best, epochs=self._best_epochs, checkpoint=best)
        split = {"validate": "val", "test": "test"}.get(stage)
        if split is None:
            return None
        baseline = getattr(trainer.datamodule, "baseline", None) if split == "test" else None  # type: ignore[attr-defined]
        found = summary_of(trainer)
        return _Report(
            split,
            _scores_of(trainer, split),
            baseline=baseline() if baseline else None,
            cases=found[0] if found else None,
            checkpoint=str(trainer.ckpt_path or ""),
        )

    def _write(self, report: _Report) -> None:
        content = {key: _plain(value) for key, value in report._asdict().items() if value not in (None, "")}
        if report.cases is not None:
            content["cases"] = _plain(report.cases.plain())
        file = self.folder / SCORES_FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace"
            )
        except OSError as error:
            raise NamedError(
                "folder-not-writable", f"'{file}' cannot be written: {error.strerror or error}."
            ) from error


def _title(report: _Report, data: Any) -> str:
    title = {"val": "validation"}.get(report.split, report.split)
    if report.epochs is not None:
        title = f"best {title}, after {report.epochs} epoch{'s' * (report.epochs > 1)}"
    title += f": {data.num_samples(report.split)} samples"
    return f"{title}, loss {_number(report.scores['loss'])}" if "loss" in report.scores else title


def _table(report: _Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("region")
    cases = report.cases
    of_cases = ("case Dice", "case IoU", f"HD95 {cases.length}", f"volume error {cases.size}") if cases else ()
    for name in ("Dice", "IoU", *(["baseline Dice"] if report.baseline else []), *of_cases):
        table.add_column(name.rstrip(), justify="right")

    regions = [name.removeprefix("dice_") for name in report.scores if name.startswith("dice_")]
    rows = [(region, f"_{region}") for region in regions] + [("mean", "")]
    baseline = dict(report.baseline or {})
    known = [baseline[region] for region in regions if not math.isnan(baseline.get(region, math.nan))]
    baseline["mean"] = sum(known) / len(known) if known else math.nan
    for label, suffix in rows:
        values = [report.scores.get(f"dice{suffix}"), report.scores.get(f"iou{suffix}")]
        if report.baseline:
            values.append(baseline.get(label))
        if cases:
            values += [cases.means.get(f"{measure}{suffix}") for measure in ("dice", "iou")]
        cells = [_number(value) for value in values]
        if cases:
            cells += [_number(cases.means.get(f"{measure}{suffix}"), 2) for measure in ("hd95", "volume_error")]
        table.add_row(label, *cells, style="bold" if label == "mean" else None)
    return table


def _scores_of(trainer: Trainer, split: str) -> dict[str, float]:
    metrics = trainer.callback_metrics
    return {key.removeprefix(f"{split}/"): float(metrics[key]) for key in metrics if key.startswith(f"{split}/")}


def _number(value: float | None, digits: int = 4) -> str:
    return _MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _plain(value: Any) -> Any:
    """JSON has no NaN: a region that is neither in truth nor in prediction is null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _resumed(trainer: Trainer) -> list[tuple[str, str]]:
    """What a fit goes on with, if it does."""
    if not trainer.ckpt_path:
        return []
    at = f"epoch {trainer.current_epoch + 1}, after step {trainer.global_step}"
    return [("goes on", f"with {at}, of {short(str(Path(trainer.ckpt_path).resolve()))}")]


def _many(count: int) -> str:
    """``0.27 M``, ``4.1 k`` or ``305``."""
    if count < 1000:
        return str(count)
    return f"{count / 1e6:.2f} M" if count >= 1e5 else f"{count / 1e3:.1f} k"


def _batches(trainer: Trainer, data: Any) -> list[str]:
    told: list[str] | None = data.told_of_batches()
    if told is not None:
        return told
    plan = data.plan()
    # Fewer than the data allow where trainer.limit_train_batches says so.
    plan = plan._replace(steps=-(-int(trainer.num_training_batches) // plan.accumulation))
    lines = [str(plan)]
    if plan.dropped:
        samples = data.num_samples("train")
        lines.append(f"smaller last batch: {plan.dropped} of {samples} samples left out of each epoch")
    for scheduler in (one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)):  # type: ignore[attr-defined]
        batches = [
            f"{plan.batch_size * scheduler.scheduling[epoch]} from epoch {epoch + 1} on" for epoch in scheduler.epochs
        ]
        lines.append(f"GradientAccumulationScheduler: global batch {', '.join(batches)}")
    return lines


def _samples(data: Any) -> list[str]:
    counts = [f"{data.num_samples(split)} {split}" for split in ("train", "val")]
    # A fit does not need the test cases, and shall not fail where they are missing.
    with contextlib.suppress(NamedError):
        counts.append(f"{data.num_samples('test')} test")
    return counts


def _hardware(trainer: Trainer) -> str:
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{trainer.world_size} × {name}"
