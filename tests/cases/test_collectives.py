"""Failure reports about ranks that wait for each other, or mix what they send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from template.distributed.faults import NamedError
from tests.ranks import run_ranks

from .toy import Toy, batches, failure, trainer


def _uneven(rank: int, folder: str) -> NamedError:
    run = trainer(2, folder)
    return failure(lambda: run.fit(Toy(), batches(8 if rank == 0 else 5)))


@pytest.mark.case("C1")
def test_loaders_of_different_lengths_are_refused_before_the_epoch(tmp_path: Path) -> None:
    for error in run_ranks(2, _uneven, str(tmp_path)):
        assert error.identifier == "batches-differ"
        assert "8 batches on rank 0, 5 batches on rank 1" in error.what
        assert "the same number of batches" in error.fix


class Logs(Toy):
    """Logs names in training (or in validation) that depend on the rank, as the numbers 1 and 100."""

    def __init__(self, names: list[str], stage: str, on_step: bool = False) -> None:
        super().__init__()
        self.names, self.stage, self.on_step = names, stage, on_step

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.tell("train")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.tell("val")

    def on_validation_epoch_end(self) -> None:
        self.tell("val end")

    def tell(self, stage: str) -> None:
        for name in self.names if stage == self.stage else ():
            value = 100.0 if name == "y" else 1.0
            self.log(name, value, sync_dist=True, on_step=self.on_step, on_epoch=not self.on_step, batch_size=1)


def _logs(rank: int, folder: str, names: list[list[str]], stage: str, on_step: bool) -> Any:
    run = trainer(2, folder)
    module = Logs(names[rank], stage, on_step)
    try:
        run.fit(module, batches(2), batches(1))
    except NamedError as error:
        return error
    return {name: float(value) for name, value in run.callback_metrics.items()}


@pytest.mark.case("C6")
@pytest.mark.parametrize(("stage", "on_step"), [("train", False), ("train", True), ("val", False), ("val end", False)])
def test_metrics_in_another_order_are_not_mixed(tmp_path: Path, stage: str, on_step: bool) -> None:
    for error in run_ranks(2, _logs, str(tmp_path), [["x", "y"], ["y", "x"]], stage, on_step):
        assert error.identifier == "metrics-differ"
        assert "[x, y] on rank 0, [y, x] on rank 1" in error.what
        assert "in the same order" in error.fix


@pytest.mark.case("C6")
@pytest.mark.parametrize("stage", ["train", "val"])
@pytest.mark.parametrize("other", [["val_b"], [], ["val_a", "val_b"]])
def test_metrics_of_another_name_are_not_mixed(tmp_path: Path, stage: str, other: list[str]) -> None:
    for error in run_ranks(2, _logs, str(tmp_path), [["val_a"], other], stage, False):
        assert error.identifier == "metrics-differ"
        assert f"[val_a] on rank 0, [{', '.join(other)}] on rank 1" in error.what


@pytest.mark.case("C6")
def test_equal_names_are_reduced(tmp_path: Path) -> None:
    for metrics in run_ranks(2, _logs, str(tmp_path), [["x", "y"], ["x", "y"]], "val", False):
        assert (metrics["x"], metrics["y"]) == (1, 100)


class Monitored(Toy):
    """Logs a validation loss of each rank's own."""

    def __init__(self, values: list[float], **how: Any) -> None:
        super().__init__()
        self.values, self.how = values, how

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.values[self.current_epoch], batch_size=1, **self.how)


def _monitored(rank: int, folder: str, how: dict[str, Any], stopping: bool) -> Any:
    owner: Any = ModelCheckpoint(folder, monitor="val_loss", save_top_k=1)
    if stopping:
        owner = EarlyStopping("val_loss", patience=5)
    run = trainer(2, folder, owner, enable_checkpointing=not stopping, max_epochs=3)
    module = Monitored([[3, 1, 2], [1, 2, 3]][rank], **how)
    try:
        run.fit(module, batches(1), batches(1))
    except NamedError as error:
        return error
    return getattr(owner, "best_model_path", ""), float(run.callback_metrics["val_loss"])


@pytest.mark.case("C7")
@pytest.mark.parametrize(
    ("how", "stopping", "shown"),
    [
        ({}, False, "3.0 on rank 0, 1.0 on rank 1"),
        ({}, True, "3.0 on rank 0, 1.0 on rank 1"),
        ({"rank_zero_only": True}, False, "3.0 on rank 0, 1.0 on rank 1"),
    ],
)
def test_a_monitored_metric_that_is_not_reduced_ends_the_run(
    tmp_path: Path, how: dict[str, Any], stopping: bool, shown: str
) -> None:
    for error in run_ranks(2, _monitored, str(tmp_path), how, stopping):
        assert error.identifier == "monitor-differs"
        owner = "EarlyStopping" if stopping else "ModelCheckpoint"
        assert error.what == f"The metric val_loss, which {owner} goes by, is {shown}."
        assert "sync_dist=True" in error.fix


@pytest.mark.case("C7")
def test_a_reduced_one_gives_all_ranks_the_same_best(tmp_path: Path) -> None:
    (path, last), other = run_ranks(2, _monitored, str(tmp_path), {"sync_dist": True}, False)
    assert other == (path, last)
    assert last == 2.5
    assert torch.load(path, weights_only=True)["epoch"] == 1  # 2, 1.5, 2.5
