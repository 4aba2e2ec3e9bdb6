"""The run's history on disk: one ``metrics.csv`` and one series of TensorBoard events, resumed or not."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.loggers.logger import Logger
from typing_extensions import override


class _KeepingWriter(ExperimentWriter):
    """Lightning's writer deletes the rows of a folder that is used again; a resumed run adds to them."""

    @override
    def _check_log_dir_exists(self) -> None:
        file = Path(self.metrics_file_path)
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as rows:
                self.metrics_keys = next(csv.reader(rows), [])


class HistoryCSVLogger(CSVLogger):
    """``metrics.csv`` in the run's folder."""

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _KeepingWriter(log_dir=self.log_dir)
        return self._experiment


class HistoryTensorBoardLogger(TensorBoardLogger):
    """TensorBoard events in the run's folder, without an empty ``hparams.yaml``: ``config.yaml`` says it all."""

    @override
    def save(self) -> None:
        self.experiment.flush()


def loggers(folder: Path) -> list[Logger]:
    """Loggers that write straight into a run's folder."""
    place: dict[str, Any] = {"save_dir": str(folder.parent), "name": "", "version": folder.name}
    return [HistoryTensorBoardLogger(**place, default_hp_metric=False), HistoryCSVLogger(**place)]
