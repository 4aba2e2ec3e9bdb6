"""Ranks that stop the others in every way they can: all processes end, and the one to blame is named."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from template.callbacks.heartbeats import Heartbeats
from template.data.phantom import Phantom
from template.distributed import hang_report
from template.distributed.strategy import SafeDDPStrategy
from template.distributed.watchdog import Watchdog
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests import ranks as harness
from tests.ports import free_port

TIMEOUT = 4.0
#: On top of the timeout, until every process is gone: 10 s are promised, the rest is for a busy machine.
SLACK = 10.0 + 10.0


@dataclass
class Outcome:
    """What became of a run.

    Attributes:
        codes: Exit code of each rank.
        printed: What each rank printed.
        seconds: From the moment that a rank wrote ``now`` (or else from the start) until all had ended.
        folder: With ``rank_<r>/`` in it.
        orphans: Whether data-loader workers outlived the ranks.
    """

    codes: list[int | None]
    printed: list[str]
    seconds: float
    folder: Path
    orphans: bool

    def error(self, rank: int) -> str:
        """What the rank left in its folder."""
        return (self.folder / f"rank_{rank}/error.txt").read_text()

    @property
    def table(self) -> str:
        """What the one rank that speaks printed."""
        (speaker,) = [text for text in self.printed if "place in the code" in text]
        return speaker


def _rank(rank: int, size: int, function: Callable[..., Any], folder: str, port: int, knobs: dict[str, Any]) -> None:
    os.setpgid(0, 0)
    os.chdir(folder)
    sys.path.insert(0, folder)
    printed = os.open(f"printed_{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    patience = timedelta(seconds=knobs.get("collective", 120))
    if port:
        store: dist.Store = dist.TCPStore("127.0.0.1", port, size, rank == 0, patience)
    else:
        store = dist.PrefixStore("run", dist.FileStore("meeting", size))
    watchdog = Watchdog(
        store,
        rank,
        size,
        timedelta(seconds=knobs.get("timeout", TIMEOUT)),
        timedelta(seconds=knobs.get("startup", 60)),
        Path(f"rank_{rank}"),
        leave=Path(f"left_{rank}").write_text,
    )
    watchdog.start()
    code = 0
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
        function(rank, watchdog)
    except Exception as error:  # noqa: BLE001 - as the command line does
        watchdog.on_exception(error)
        named = watchdog.explain_peer_failure(error)
        if named is None:
            traceback.print_exc()
        print(f"error: {named or error}", file=sys.stderr, flush=True)
        code = 1
    watchdog.stop()
    if code:
        os._exit(code)
    dist.destroy_process_group()


class Run:
    """Processes that run a function on a rank each."""

    def __init__(self, size: int, function: Callable[..., Any], folder: Path, store: str = "tcp", **knobs: Any) -> None:
        harness.start_server()
        context = multiprocessing.get_context("forkserver")
        port = free_port() if store == "tcp" else 0
        self.folder = folder
        self.started = time.time()
        self.processes = [
            context.Process(target=_rank, args=(rank, size, function, str(folder), port, knobs)) for rank in range(size)
        ]
        for process in self.processes:
            process.start()
        self.ended = 0.0
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        for process in self.processes:
            process.join(max(0.0, self.started + 150 - time.time()))
        self.ended = time.time()

    def outcome(self) -> Outcome:
        """Wait for the end."""
        try:
            self._thread.join()
            codes = [process.exitcode for process in self.processes]
            orphans = any(_group_lives(process.pid) for process in self.processes)
        finally:
            self.kill()
        printed = [(self.folder / f"printed_{rank}").read_text() for rank in range(len(codes))]
        print("\n".join(f"--- rank {rank}, exit code {codes[rank]}\n{text}" for rank, text in enumerate(printed)))
        since = (self.folder / "now").stat().st_mtime if (self.folder / "now").exists() else self.started
        return Outcome(codes, printed, self.ended - since, self.folder, orphans)

    def kill(self) -> None:
        """End what still runs."""
        for process in self.processes:
            harness._kill(process)
        self.processes = []


#: Started all at once, as they do nothing but wait most of the time: processes, what they run, store.
SCENARIOS: dict[str, tuple[int, Callable[..., Any]]] = {}


def scenario(size: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        SCENARIOS[function.__name__] = size, function
        return function

    return add


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    started = {name: Run(size, function, tmp_path_factory.mktemp(name)) for name, (size, function) in SCENARIOS.items()}
    yield started
    for run in started.values():
        run.kill()


def _group_lives(group: int | None) -> bool:
    """Whether a process of the group still runs, two seconds later at most."""
    for _ in range(20):
        states = [
            fields[0]
            for path in Path("/proc").glob("[0-9]*/stat")
            if (fields := _fields(path)) and fields[2] == str(group)
        ]
        if not set(states) - {"Z", "X"}:
            return False
        time.sleep(0.1)
    return True


def _fields(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def now() -> None:
    """Written by the rank that goes astray, at that moment."""
    Path("now").touch()


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def network() -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Linear(2, 2))


def train(
    rank: int,
    watchdog: Watchdog,
    steps: int = 6,
    before: Callable[[int, int], None] = lambda rank, step: None,
    pause: float = 0.0,
) -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        watchdog.note("training step", step)
        before(rank, step)
        time.sleep(pause)
        loss = net(torch.ones(1, 2)).sum()
        watchdog.note("backward")
        loss.backward()
        watchdog.note("optimizer")
        optimizer.step()
        watchdog.underway()


def _sleeps(rank: int, step: int) -> None:
    if (rank, step) == (1, 3):
        now()
        time.sleep(3600)  # this one


@scenario(3)
def sleeper(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_sleeps)


def check_all_ended(outcome: Outcome, timeout: float = TIMEOUT) -> None:
    assert outcome.seconds < timeout + SLACK
    assert not outcome.orphans


def last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def row(outcome: Outcome, rank: int) -> str:
    """A row of the table, its cells and lines joined; the guilty ranks' begin with >."""
    lines = outcome.table.split("─\n")[-1].split("stack of rank")[0].split("\nerror")[0].splitlines()
    begins = [number for number, line in enumerate(lines) if re.match(r" {1,3}>?\d+ ", line)]
    rows = {}
    for begin, end in itertools.pairwise([*begins, len(lines)]):
        text = " ".join(" ".join(lines[begin:end]).split())
        rows[int(text.lstrip(">").split()[0])] = text
    assert max(map(len, lines)) <= 80
    return rows[rank]


@pytest.mark.case("notes/watchdog-timeout")
def test_a_rank_that_sleeps(runs: dict[str, Run]) -> None:
    outcome = runs["sleeper"].outcome()
    check_all_ended(outcome)
    check_sleeper(outcome)
    assert "in _sleeps\n    time.sleep(3600)  # this one\n" in outcome.table


@pytest.mark.slow
def test_a_store_in_a_file_serves_as_well(tmp_path: Path) -> None:
    check_sleeper(Run(3, sleeper, tmp_path, "file").outcome())


@pytest.mark.slow
def test_a_timeout_of_thirty_seconds_ends_in_forty_five(tmp_path: Path) -> None:
    outcome = Run(3, sleeper, tmp_path, timeout=30).outcome()
    check_sleeper(outcome)
    assert outcome.seconds < 45
    assert re.match(r">1 \S+ 3 training step 3[0-5] s ", row(outcome, 1))


def check_sleeper(outcome: Outcome) -> None:
    assert not outcome.orphans
    assert outcome.codes == [1, 1, 1]
    place = f"test_watchdog.py:{line_of(_sleeps, '# this one')} _sleeps"
    guilty = rf">1 \S+ 3 training step \d+ s {re.escape(place)} time\.sleep\(3600\) # this one"
    assert re.fullmatch(guilty, row(outcome, 1))
    waits = line_of(train, "loss.backward()")
    assert re.fullmatch(rf"0 \S+ 3 backward \d+ s waits in backward test_watchdog\.py:{waits} train", row(outcome, 0))
    # The guilty rank comes first, then its stack.
    assert outcome.table.index(">1 ") < outcome.table.index("   0 ")
    last = last_line(outcome.table)
    assert last.startswith("error: Rank 1 has not moved for ")
    assert "in step 3 (training step): it is at " in last
    assert place in last
    assert "while ranks 0 and 2 wait in backward" in last
    assert last.endswith("[hang]")
    # Every rank keeps it, and leaves it to the launcher; only one prints.
    for rank in range(3):
        assert last in outcome.error(rank)
        assert last in (outcome.folder / f"left_{rank}").read_text()
    assert outcome.printed[1:] == ["", ""]
    assert not list(outcome.folder.glob("rank_*/stack.txt"))  # empty


def _kills_itself(victim: int) -> Callable[[int, int], None]:
    def before(rank: int, step: int) -> None:
        if (rank, step) == (victim, 3):
            time.sleep(2.5)  # a beat tells the step
            now()
            os.kill(os.getpid(), signal.SIGKILL)

    return before


@scenario(4)
def killed_0(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_kills_itself(0))


@scenario(4)
def killed_2(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_kills_itself(2))


@pytest.mark.parametrize(("name", "victim"), [("killed_0", 0), ("killed_2", 2)])
def test_a_rank_that_is_killed(runs: dict[str, Run], name: str, victim: int) -> None:
    outcome = runs[name].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(4)]
    assert re.match(rf">{victim} \S+ ≥ 3 training step, gone ", row(outcome, victim))
    speaker = 1 if victim == 0 else 0
    last = last_line(outcome.printed[speaker])
    assert re.match(rf"error: Rank {victim} on \S+ ended without a word, last seen in step 3 \(training step\)\.", last)
    assert last.endswith("[rank-gone]")


def _fails(rank: int, step: int) -> None:
    if (rank, step) == (1, 2):
        now()
        raise ValueError("the image tumour_7.png is odd")


@scenario(2)
def failing(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_fails)


def _fails_on_0(rank: int, step: int) -> None:
    _fails(1 - rank, step)


def failing_0(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_fails_on_0)


def test_a_rank_that_fails_is_quoted_by_the_others(runs: dict[str, Run]) -> None:
    check_failing(runs["failing"].outcome(), 1)


@pytest.mark.slow
def test_the_rank_with_the_store_is_quoted_too(tmp_path: Path) -> None:
    check_failing(Run(2, failing_0, tmp_path).outcome(), 0)


def check_failing(outcome: Outcome, one: int) -> None:
    check_all_ended(outcome)
    assert outcome.codes == [1, 1]
    assert "ValueError: the image tumour_7.png is odd" in outcome.printed[one]
    assert last_line(outcome.printed[1 - one]).startswith(
        f"error: Rank {one} failed in step 2 (training step): ValueError: the image tumour_7.png is odd"
    )
    assert last_line(outcome.printed[1 - one]).endswith("[rank-failed]")


@scenario(3)
def skipper(rank: int, watchdog: Watchdog) -> None:
    own = dist.new_group()
    for step in range(4):
        watchdog.note("training step", step)
        if step == 2:
            now()
        if (rank, step) != (2, 2):
            dist.all_reduce(torch.ones(1), group=own)
        dist.all_reduce(torch.ones(1))
        watchdog.underway()


def test_a_rank_that_skips_a_collective(runs: dict[str, Run]) -> None:
    outcome = runs["skipper"].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, 1, 1]
    ahead, behind = line_of(skipper, "all_reduce(torch.ones(1))"), line_of(skipper, "group=own")
    assert re.fullmatch(
        rf">2 \S+ 2 training step \d+ s waits in all_reduce test_watchdog\.py:{ahead} skipper", row(outcome, 2)
    )
    assert re.fullmatch(
        rf"0 \S+ 2 training step \d+ s waits in all_reduce test_watchdog\.py:{behind} skipper", row(outcome, 0)
    )
    last = last_line(outcome.table)
    assert last.startswith("error: The ranks wait for each other: Rank 2 in all_reduce")
    assert "Rank 2 skipped one" in last
    assert last.endswith("[hang]")


class Stuck(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3 and os.environ["STUCK"] == "1":
            now()
            time.sleep(3600)  # in the dataset
        return torch.ones(2)


@scenario(2)
def loader(rank: int, watchdog: Watchdog) -> None:
    os.environ["STUCK"] = str(rank)
    net = network()
    watchdog.note("loading data", 0)
    for step, batch in enumerate(DataLoader(Stuck(), num_workers=1, multiprocessing_context="fork")):
        watchdog.note("training step", step)
        net(batch).sum().backward()
        watchdog.underway()
        watchdog.note("loading data", step + 1)


def test_a_rank_whose_data_loader_is_stuck(runs: dict[str, Run]) -> None:
    outcome = runs["loader"].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, 1]
    assert re.match(r">1 \S+ 3 loading data \d+ s test_watchdog\.py:", row(outcome, 1))
    last = last_line(outcome.table)
    assert "Rank 1 has not moved for" in last
    assert "in step 3 (loading data): it waits for its data loader, while rank 0 waits in backward" in last
    assert last.endswith("[hang]")
    # The line of the dataset's code in the worker's process.
    line = line_of(Stuck, "# in the dataset")
    assert re.search(
        rf"data-loader worker, process \d+:.*test_watchdog\.py\", line {line} in __getitem__",
        outcome.table,
        re.DOTALL,
    )


@scenario(2)
def short_share(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, steps=6 - rank)
    now()


def test_a_rank_with_one_batch_fewer(runs: dict[str, Run]) -> None:
    outcome = runs["short_share"].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, 0]
    last = last_line(outcome.printed[0])
    assert last.startswith("error: Rank 1 left the loop in step 4 (optimizer) and ended normally")
    assert last.endswith("[rank-stopped-early]")


def _holds_the_lock(rank: int, step: int) -> None:
    if (rank, step) == (0, 3):
        time.sleep(2.5)
        now()
        ctypes.PyDLL(None).sleep(3600)  # keeps Python's lock


@scenario(3)
def frozen(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_holds_the_lock)


def test_a_rank_that_holds_pythons_lock(runs: dict[str, Run]) -> None:
    outcome = runs["frozen"].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, 1, 1]
    place = f"test_watchdog.py:{line_of(_holds_the_lock, '# keeps')} _holds_the_lock"
    assert place in row(outcome, 0)
    last = last_line(outcome.printed[1])
    assert last.startswith("error: Rank 0 stood still in step 3 (training step): it was at ")
    assert place in last
    assert "holds Python's lock" in last
    assert last.endswith("[hang]")


def _crashes(rank: int, step: int) -> None:
    if (rank, step) == (1, 3):
        time.sleep(2.5)
        now()
        ctypes.string_at(0)  # reads address 0


@scenario(2)
def crashing(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, before=_crashes)


def test_a_rank_that_crashes_in_c(runs: dict[str, Run]) -> None:
    outcome = runs["crashing"].outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, -signal.SIGSEGV]
    last = last_line(outcome.printed[0])
    assert last.startswith("error: Rank 1 crashed in step 3 (training step) at ")
    assert "Segmentation fault" in last
    assert last.endswith("[rank-gone]")


def busy(rank: int, watchdog: Watchdog) -> None:
    net = network()
    watchdog.underway()
    net(torch.ones(1, 2)).sum().backward()
    if rank == 1:
        watchdog.note("validation", 0)
        now()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.1)
            watchdog.note("validation")
    dist.barrier()


@pytest.mark.slow
def test_a_collective_that_times_out_while_a_rank_is_busy(tmp_path: Path) -> None:
    outcome = Run(2, busy, tmp_path, collective=6).outcome()
    check_all_ended(outcome, 6)
    assert outcome.codes == [1, 1]
    assert row(outcome, 1).startswith(">1 ")
    last = last_line(outcome.printed[0])
    assert last.startswith("error: Rank 1 is busy elsewhere in step 0 (validation)")
    assert "while rank 0 waits in barrier" in last


@scenario(2)
def healthy(rank: int, watchdog: Watchdog) -> None:
    train(rank, watchdog, steps=3)
    if rank == 0:  # alone, for longer than the timeout, but it moves
        watchdog.note("checkpoint")
        for _ in range(int(TIMEOUT * 15)):
            time.sleep(0.1)
            watchdog.note("checkpoint")
    dist.barrier()
    if rank == 1:  # in one place, but not for so long
        watchdog.note("validation")
        time.sleep(TIMEOUT - 2)
    dist.barrier()
    train(rank, watchdog, steps=3)


def test_a_healthy_run_is_left_alone(runs: dict[str, Run]) -> None:
    check_healthy(runs["healthy"].outcome())


@pytest.mark.slow
def test_a_healthy_run_is_left_alone_with_a_store_in_a_file(tmp_path: Path) -> None:
    check_healthy(Run(2, healthy, tmp_path, "file").outcome())


def check_healthy(outcome: Outcome) -> None:
    assert outcome.codes == [0, 0]
    assert outcome.printed == ["", ""]
    assert not list(outcome.folder.glob("rank_*/*"))
    assert not outcome.orphans


def waits_long(rank: int, watchdog: Watchdog) -> None:
    hang_report.NOTE_AFTER = 4.0
    watchdog.note("prepare_data")
    if rank == 0:
        time.sleep(8)  # alone
    dist.barrier()


@pytest.mark.slow
def test_a_long_wait_is_noted_once(tmp_path: Path) -> None:
    outcome = Run(2, waits_long, tmp_path).outcome()
    assert outcome.codes == [0, 0]
    assert re.fullmatch(
        rf"rank 1 waits for rank 0 since \d s \(prepare_data, \S+test_watchdog\.py:{line_of(waits_long, '# alone')} "
        r"waits_long: time\.sleep\(8\)  # alone\)\n",
        outcome.printed[0],
    )
    assert outcome.printed[1] == ""


class _SleepsInAStep(Callback):
    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_rank == 1 and trainer.global_step == 2:
            now()
            time.sleep(3600)  # in a callback


def lightning(rank: int, watchdog: Watchdog) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=SafeDDPStrategy(),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[Heartbeats(watchdog), _SleepsInAStep()],
    )
    data = Phantom(train_cases=12, val_cases=2, test_cases=1, size=32, batch_size=4, num_workers=1)
    trainer.fit(
        Segmenter(UNet(width=4, depth=2), 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)), datamodule=data
    )


@pytest.mark.slow
def test_lightnings_hooks_tell_step_and_phase(tmp_path: Path) -> None:
    outcome = Run(2, lightning, tmp_path).outcome()
    check_all_ended(outcome)
    assert outcome.codes == [1, 1]
    place = f"test_watchdog.py:{line_of(_SleepsInAStep, '# in a callback')} on_train_batch_start"
    assert re.match(rf">1 \S+ 2 training step \d+ s {re.escape(place)} ", row(outcome, 1))
    assert re.match(r"0 \S+ 2 (training step|backward) \d+ s waits in ", row(outcome, 0))


def slow_start(rank: int, watchdog: Watchdog) -> None:
    watchdog.note("set-up")
    if rank == 0:
        time.sleep(TIMEOUT + 4)
    dist.barrier()
    train(rank, watchdog)


@pytest.mark.slow
def test_start_up_may_take_longer(tmp_path: Path) -> None:
    outcome = Run(2, slow_start, tmp_path).outcome()
    assert outcome.codes == [0, 0]
    assert outcome.printed == ["", ""]


def test_one_process_is_not_watched(tmp_path: Path) -> None:
    watchdog = Watchdog(None, 0, 1, timedelta(seconds=1), timedelta(seconds=1), tmp_path)
    watchdog.start()
    watchdog.note("training step", 1)
    error = RuntimeError("Connection closed by peer")
    watchdog.on_exception(error)
    assert watchdog.explain_peer_failure(error) is None
    watchdog.stop()
    assert not list(tmp_path.iterdir())
