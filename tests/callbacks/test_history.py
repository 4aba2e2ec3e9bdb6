"""One metrics.csv for a run, also when it is resumed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from template.callbacks.events import rewind
from template.callbacks.history import HistoryCSVLogger, HistoryTensorBoardLogger, Ledger, loggers
from tests.restarts import events, table


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


def write_history(folder: Path) -> None:
    for logger in loggers(folder):
        for step in range(4):
            logger.log_metrics({"loss": 1.0 + step, "epoch": 0}, step)
        logger.log_metrics({"dice": 0.5, "epoch": 0}, 3)
        logger.log_metrics({"later": 9.0}, 3)
        logger.save()


def test_each_step_once_however_often_it_is_logged(tmp_path: Path) -> None:
    folder = tmp_path / "version_0"
    for logger in loggers(folder):
        logger.log_metrics({"loss": 1.0, "epoch": 0}, 2)
        logger.log_metrics({"loss": 1.0, "epoch": 0, "late": 3.0}, 2)  # Lightning's own, with what a hook has added
        logger.log_metrics({"loss": 1.0, "epoch": 0}, 2)
        logger.save()
    assert table(folder) == {("loss", 2): ["1.0"], ("late", 2): ["3.0"]}
    assert events(folder) == {("loss", 2): [1], ("epoch", 2): [0], ("late", 2): [3]}


def test_a_history_is_taken_back_metric_by_metric(tmp_path: Path) -> None:
    folder = tmp_path / "version_0"
    write_history(folder)
    again = loggers(folder)
    for logger in again:
        assert isinstance(logger, (HistoryCSVLogger, HistoryTensorBoardLogger))
        _ = logger.experiment
        logger.take_back(Ledger({"loss": 2, "dice": 3, "epoch": 2}, others=3))
    assert table(folder) == {("loss", 0): ["1.0"], ("loss", 1): ["2.0"], ("loss", 2): ["3.0"], ("dice", 3): ["0.5"]}
    assert set(events(folder)) == {*table(folder), *(("epoch", step) for step in range(3))}
    for logger in again:
        logger.log_metrics({"dice": 0.7, "loss": 8.0, "epoch": 0}, 3)
        logger.save()
    assert table(folder)[("loss", 3)] == ["8.0"]
    assert table(folder)[("dice", 3)] == ["0.5"]
    assert events(folder)[("dice", 3)] == [0.5]
    assert set(events(folder)) == {*table(folder), *(("epoch", step) for step in range(4))}


def test_without_a_ledger_what_comes_after_the_checkpoint_s_step_goes(tmp_path: Path) -> None:
    folder = tmp_path / "version_0"
    write_history(folder)
    for logger in loggers(folder):
        logger.take_back(Ledger(None, others=1))  # type: ignore[attr-defined]
    assert set(table(folder)) == {("loss", 0), ("loss", 1)}


@pytest.mark.parametrize("cut", [1, 5])
def test_a_row_and_an_event_that_a_kill_has_cut_off_are_dropped(cut: int, tmp_path: Path) -> None:
    folder = tmp_path / "version_0"
    write_history(folder)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-cut])
    for logger in loggers(folder):
        logger.take_back(Ledger({"loss": 3, "dice": 3, "epoch": 3, "later": 3}))  # type: ignore[attr-defined]
        logger.log_metrics({"loss": 5.0}, 4)
        logger.save()
    for found in (table(folder), events(folder)):
        assert [step for name, step in sorted(found) if name == "loss"] == [0, 1, 2, 3, 4]
        assert ("later", 3) not in found


def test_a_new_column_never_leaves_half_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "version_0"
    logger = HistoryCSVLogger(save_dir=str(tmp_path), name="", version="version_0")
    logger.log_metrics({"loss": 1.0}, 0)
    logger.save()
    before = table(folder)

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(csv.DictWriter, "writerows", killed)
    logger.log_metrics({"dice": 1.0}, 1)
    with pytest.raises(KeyboardInterrupt):
        logger.save()
    assert table(folder) == before


def test_pictures_of_a_validation_that_comes_again_are_dropped(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    for step in (5, 10):
        writer.add_scalar("loss", step, step)
        writer.add_image("pictures", torch.zeros(3, 4, 4, dtype=torch.uint8), step)
    writer.close()
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    rewind(tmp_path, Ledger({"loss": 10}, others=10).holds)
    assert file.read_bytes() == before
    rewind(tmp_path, Ledger({"loss": 10}, others=9).holds)
    assert set(events(tmp_path)) == {("loss", 5), ("loss", 10)}
    assert b"pictures" in file.read_bytes()
    assert len(file.read_bytes()) < len(before)
