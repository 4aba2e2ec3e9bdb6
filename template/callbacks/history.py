"""The run's history on disk: one ``metrics.csv`` and one series of TensorBoard events, resumed or not."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from typing_extensions import override

from .events import rewind

#: Columns that every row may have.
_OF_ROWS = ("step", "epoch")
#: Events are written to disk this often, and with each checkpoint.
SECONDS_TO_WRITE = 1.0


class Ledger:
    """The last step at which each metric was logged: it decides what is new, and what a resumed run takes back.

    Attributes:
        last: Step by the name of the metric.
        others: Last step of what is logged past the ledger, such as pictures.
        known: Whether all metrics are in it; a checkpoint of another program has none, and ``others`` counts.
    """

    def __init__(self, last: Mapping[str, int] | None = None, others: int = -1) -> None:
        self.last = dict(last or {})
        self.others = others
        self.known = last is not None

    def enter(self, metrics: Mapping[str, Any], step: int | None) -> dict[str, Any]:
        """Metrics that were not logged at this step or later; a checkpoint makes Lightning log some earlier."""
        if step is None:
            return dict(metrics)
        new = {name: value for name, value in metrics.items() if step > self.last.get(name, -1)}
        self.last.update(dict.fromkeys(new, step))
        return new

    def holds(self, name: str, step: int, is_metric: bool = True) -> bool:
        """Whether an entry was there when this ledger was written."""
        return step <= self.last.get(name, -1 if is_metric and self.known else self.others)


class _KeepingWriter(ExperimentWriter):
    """Lightning's writer deletes the rows of a folder that is used again; a resumed run adds to them."""

    @override
    def _check_log_dir_exists(self) -> None:
        file = Path(self.metrics_file_path)
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as rows:
                self.metrics_keys = next(csv.reader(rows), [])

    @override
    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        file = Path(self.metrics_file_path)
        _write_rows(file, fieldnames, _read_rows(file))


class HistoryCSVLogger(CSVLogger):
    """``metrics.csv`` in the run's folder."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ledger = Ledger()

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _KeepingWriter(log_dir=self.log_dir)
        return self._experiment

    @override
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        new = self.ledger.enter({name: value for name, value in metrics.items() if name not in _OF_ROWS}, step)
        if new:
            super().log_metrics({**{name: metrics[name] for name in _OF_ROWS if name in metrics}, **new}, step)

    def take_back(self, ledger: Ledger) -> None:
        """Drop the cells, and rows without any, that are not in a ledger."""
        self.ledger = Ledger(ledger.last, ledger.others)
        file = Path(self.log_dir) / ExperimentWriter.NAME_METRICS_FILE
        if not file.is_file():
            return
        rows = _read_rows(file)
        for row in rows:
            dropped = [n for n in row if n not in _OF_ROWS and not ledger.holds(n, int(row["step"]))]
            row.update(dict.fromkeys(dropped, ""))
        kept = [row for row in rows if any(value for name, value in row.items() if name not in _OF_ROWS)]
        _write_rows(file, list(rows[0]) if rows else [], kept)


class HistoryTensorBoardLogger(TensorBoardLogger):
    """TensorBoard events in the run's folder, without an empty ``hparams.yaml``: ``config.yaml`` says it all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ledger = Ledger()
        self._saved = 0.0

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        super().log_metrics(self.ledger.enter(metrics, step), step)

    @override
    @rank_zero_only
    def save(self) -> None:
        """Write out what is logged, where a second has passed: Lightning asks for it at each step that is logged."""
        if time.monotonic() - self._saved > SECONDS_TO_WRITE:
            self.flush()

    @rank_zero_only
    def flush(self) -> None:
        """Write out what is logged; this waits for the writer's thread."""
        self.experiment.flush()
        self._saved = time.monotonic()

    def take_back(self, ledger: Ledger) -> None:
        """Drop the events that are not in a ledger."""
        self.ledger = Ledger(ledger.last, ledger.others)
        rewind(Path(self.log_dir), ledger.holds)


_OWN = (HistoryCSVLogger, HistoryTensorBoardLogger)


def loggers(folder: Path) -> list[Logger]:
    """Loggers that write straight into a run's folder."""
    place: dict[str, Any] = {"save_dir": str(folder.parent), "name": "", "version": folder.name}
    return [HistoryTensorBoardLogger(**place, default_hp_metric=False), HistoryCSVLogger(**place)]


def log_now(trainer: Trainer) -> None:
    """Log what Lightning would log right after its hooks, and flush: a kill after a checkpoint leaves no gap then.

    Lightning's own call comes later and brings nothing new to the run's history. Loggers of the user's own, which would
    show it twice, are left to that.
    """
    connector, loop, everyone = trainer._logger_connector, trainer.fit_loop.epoch_loop, trainer.loggers
    trainer.loggers = [logger for logger in everyone if isinstance(logger, _OWN)]
    try:
        if trainer.training and connector._first_loop_iter is not None:
            connector.update_train_step_metrics()
        elif trainer.training:
            # As the fit loop does: an epoch's metrics stand at its last step.
            loop._batches_that_stepped -= 1
            connector.log_metrics(connector.metrics["log"])
            loop._batches_that_stepped += 1
    finally:
        trainer.loggers = everyone
    for logger in everyone:
        if isinstance(logger, HistoryTensorBoardLogger):
            logger.flush()
        else:
            logger.save()


def entered(trainer: Trainer) -> dict[str, int]:
    """Last step of each metric in the run's history."""
    last: dict[str, int] = {}
    for logger in trainer.loggers:
        if isinstance(logger, _OWN):
            for name, step in logger.ledger.last.items():
                last[name] = max(step, last.get(name, -1))
    return last


def take_back(trainer: Trainer, ledger: Ledger) -> None:
    """Drop from the run's history what came after a checkpoint; rank 0 alone has it."""
    for logger in trainer.loggers:
        if trainer.is_global_zero and isinstance(logger, _OWN):
            logger.take_back(ledger)


def _read_rows(file: Path) -> list[dict[str, str]]:
    """Rows of a table, without one that a kill has cut off."""
    with file.open(encoding="utf-8", newline="") as text:
        lines = text.read().splitlines(keepends=True)
    whole = lines if not lines or lines[-1].endswith("\n") else lines[:-1]
    return list(csv.DictReader(whole))


def _write_rows(file: Path, names: list[str], rows: list[dict[str, str]]) -> None:
    """Write a table beside the old one, and put it in its place: a kill leaves one of them."""
    part = file.with_name(f".{file.name}.part")
    with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as text:
        writer = csv.DictWriter(text, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(file)
