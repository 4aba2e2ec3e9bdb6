"""One metrics.csv for a run, also when it is resumed."""

from __future__ import annotations

import csv
from pathlib import Path

from template.callbacks.history import HistoryCSVLogger, loggers


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def log(folder: Path, **metrics: float) -> None:
    logger = HistoryCSVLogger(save_dir=str(folder.parent), name="", version=folder.name)
    logger.log_metrics(metrics, step=int(metrics["a"]))
    logger.save()


def test_a_resumed_run_adds_to_its_rows(tmp_path: Path) -> None:
    folder = tmp_path / "version_3"
    log(folder, a=1)
    log(folder, a=2, b=5)
    assert [(row["step"], row["a"], row["b"]) for row in rows(folder)] == [("1", "1", ""), ("2", "2", "5")]


def test_loggers_write_straight_into_the_run_s_folder(tmp_path: Path) -> None:
    folder = tmp_path / "phantom" / "version_0"
    for logger in loggers(folder):
        logger.log_metrics({"a": 1.0}, step=0)
        logger.save()
        logger.finalize("success")
        assert logger.log_dir == str(folder)
    assert sorted(path.name.split(".")[0] for path in folder.iterdir()) == ["events", "metrics"]
