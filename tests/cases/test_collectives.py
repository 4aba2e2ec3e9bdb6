"""Failure reports about ranks that wait for each other, or mix what they send."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, IterableDataset

import template
from template.callbacks.heartbeats import Heartbeats
from template.distributed import hang_report
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from template.distributed.watchdog import Watchdog
from tests.distributed.test_watchdog import TIMEOUT, Outcome, Run, check_all_ended, last_line, line_of, row
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


class Plateau(Monitored):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def _plateau(rank: int, folder: str) -> NamedError:
    return failure(lambda: trainer(2, folder).fit(Plateau([[3], [float("nan")]][rank]), batches(1), batches(1)))


@pytest.mark.case("C7")
def test_a_schedule_goes_by_one_value_as_well(tmp_path: Path) -> None:
    for error in run_ranks(2, _plateau, str(tmp_path)):
        assert error.what == ("The metric val_loss, which ReduceLROnPlateau goes by, is 3.0 on rank 0, nan on rank 1.")


@pytest.mark.case("C7")
def test_a_reduced_one_gives_all_ranks_the_same_best(tmp_path: Path) -> None:
    (path, last), other = run_ranks(2, _monitored, str(tmp_path), {"sync_dist": True}, False)
    assert other == (path, last)
    assert last == 2.5
    assert torch.load(path, weights_only=True)["epoch"] == 1  # 2, 1.5, 2.5


class SavesAlone(Callback):
    """Guards by the rank what only the writing within it should be guarded by."""

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.is_global_zero and trainer.global_step == 2:
            trainer.save_checkpoint("alone.ckpt")  # by one rank


class ReadsLogDir(Callback):
    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.is_global_zero and trainer.global_step == 2:
            print(trainer.log_dir)  # by one rank


class Stream(IterableDataset[Any]):
    """A data set of unknown length, which holds less for one rank than for the other."""

    def __init__(self, rank: int) -> None:
        self.samples = list(batches(5 - 2 * rank).dataset)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def saves_alone(rank: int, watchdog: Watchdog) -> None:
    watched(rank, watchdog, SavesAlone())


def reads_log_dir(rank: int, watchdog: Watchdog) -> None:
    watched(rank, watchdog, ReadsLogDir())


def uneven_streams(rank: int, watchdog: Watchdog) -> None:
    watched(rank, watchdog, loader=DataLoader(Stream(rank), batch_size=2))


class Slow(Callback):
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.global_rank == 0:
            time.sleep(7)  # longer than the timeout of training


def slow_setup(rank: int, watchdog: Watchdog) -> None:
    hang_report.NOTE_AFTER = 3.0
    watched(rank, watchdog, Slow(), strategy=SafeDDPStrategy(timeout=TIMEOUT))


def watched(rank: int, watchdog: Watchdog, *callbacks: Callback, loader: Any = None, **settings: Any) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    run = trainer(2, ".", Heartbeats(watchdog), *callbacks, **settings)
    run.fit(Toy(), batches(6) if loader is None else loader, batches(1))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Runs that wait most of the time, and so all at once."""
    functions = (saves_alone, reads_log_dir, uneven_streams, slow_setup)
    runs = {f.__name__: Run(2, f, tmp_path_factory.mktemp(f.__name__)) for f in functions}
    yield runs
    for run in runs.values():
        run.kill()


@pytest.mark.case("C2")
def test_a_checkpoint_that_one_rank_saves_names_rank_and_line(ends: dict[str, Run]) -> None:
    check_alone(ends["saves_alone"].outcome(), "barrier", line_of(SavesAlone, "# by one rank"))


@pytest.mark.case("C4")
def test_a_property_that_is_a_collective_names_rank_and_line(ends: dict[str, Run]) -> None:
    check_alone(ends["reads_log_dir"].outcome(), "broadcast_object_list", line_of(ReadsLogDir, "# by one rank"))


def check_alone(outcome: Outcome, call: str, line: int) -> None:
    check_all_ended(outcome)
    assert outcome.codes == [1, 1]
    assert f"waits in {call} test_collectives.py:{line} on_train_batch_end" in row(outcome, 0)
    last = last_line(outcome.table)
    assert last.startswith(f"error: The ranks wait for each other: Rank 0 in {call}, called at ")
    assert "Rank 0 skipped one or called one that the others did not" in last
    assert "no `if rank == 0`" in last
    assert last.endswith("[hang]")


@pytest.mark.case("C4")
def test_no_code_of_this_program_asks_for_it_in_a_run() -> None:
    package = Path(template.__file__).parent
    files = [path for path in package.rglob("*.py") if path.parent.name != "catalogue"]
    assert [path.name for path in files if re.search(r"trainer\.log_dir", path.read_text())] == []


@pytest.mark.case("C1")
def test_streams_of_different_lengths_name_the_rank_that_ends_first(ends: dict[str, Run]) -> None:
    outcome = ends["uneven_streams"].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, 1]
    told = "The training loader ended after 3 batches on rank 1, and rank 0 has got another."
    assert told in outcome.printed[1]
    assert told in last_line(outcome.printed[0])


@pytest.mark.case("C8")
def test_slow_work_of_one_rank_at_the_start_is_waited_for_and_told(ends: dict[str, Run]) -> None:
    outcome = ends["slow_setup"].outcome()
    assert outcome.codes == [0, 0]
    line = line_of(Slow, "time.sleep")
    assert re.search(
        rf"rank 1 waits for rank 0 since \d+ s \([^,]+, \S+test_collectives\.py:{line} setup: time\.sleep\(7\)",
        outcome.printed[0],
    )


def _streams(rank: int, folder: str) -> int:
    run = trainer(2, folder)
    run.fit(Toy(), DataLoader(Stream(0), batch_size=2), batches(1))
    return run.global_step


@pytest.mark.case("C1")
def test_streams_of_one_length_go_on(tmp_path: Path) -> None:
    assert run_ranks(2, _streams, str(tmp_path)) == [10, 10]
