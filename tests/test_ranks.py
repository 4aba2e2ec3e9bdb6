"""The tool that other tests start their ranks with."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RemoteTraceback, run_ranks, server_processes


class OnlyHere(Exception):  # noqa: N818
    """Cannot be pickled back: its constructor wants two arguments, its state holds one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


def where(rank: int) -> dict[str, object]:
    return {
        "rank": (rank, dist.get_rank(), os.environ["RANK"], os.environ["LOCAL_RANK"]),
        "world": (dist.get_world_size(), os.environ["WORLD_SIZE"]),
        "threads": torch.get_num_threads(),
        "loaded": "lightning.pytorch" in sys.modules,
        "folder": str(Path.cwd()),
        "flag": os.environ.get("A_FLAG"),
        "draw": torch.rand(()).item(),
    }


def total(rank: int, share: torch.Tensor) -> torch.Tensor:
    mine = share * (rank + 1)
    dist.all_reduce(mine)
    return mine


def big(rank: int) -> torch.Tensor:
    return torch.full((1_000_000,), float(rank))


def fail_on_one(rank: int, kind: type[Exception], args: tuple[object, ...]) -> None:
    if rank == 1:
        raise kind(*args)
    dist.barrier()


def die_on_one(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang_on_one(rank: int, folder: Path) -> None:
    (folder / str(rank)).write_text(str(os.getpid()))
    if rank == 1:
        time.sleep(600)


def with_child(rank: int, folder: Path) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    (folder / str(rank)).write_text(str(child))
    raise OSError("leave")


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_ranks_know_their_place_and_share_the_callers_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_FLAG", "set")
    torch.manual_seed(0)
    expected = torch.rand(()).item()

    for rank, seen in enumerate(run_ranks(2, where)):
        assert seen == {
            "rank": (rank, rank, str(rank), str(rank)),
            "world": (2, "2"),
            "threads": 1,
            "loaded": True,
            "folder": str(tmp_path),
            "flag": "set",
            "draw": expected,
        }


@pytest.mark.parametrize("world_size", [1, 3])
def test_collectives_and_order_of_results(world_size: int) -> None:
    share = torch.tensor([1.0, 0.5])
    results = run_ranks(world_size, total, share)
    factor = world_size * (world_size + 1) / 2
    assert len(results) == world_size
    for result in results:
        torch.testing.assert_close(result, share * factor)
    torch.testing.assert_close(share, torch.tensor([1.0, 0.5]))


def test_results_larger_than_a_pipe() -> None:
    assert [result.sum().item() for result in run_ranks(2, big)] == [0.0, 1_000_000.0]


def test_first_error_keeps_its_type_and_traceback() -> None:
    with pytest.raises(KeyError, match="guilty") as caught:
        run_ranks(2, fail_on_one, KeyError, ("guilty",))
    cause = str(caught.value.__cause__)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "rank 1:" in cause
    assert "in fail_on_one" in cause


def test_error_that_cannot_be_pickled_is_told_as_text() -> None:
    with pytest.raises(RuntimeError, match="OnlyHere: one"):
        run_ranks(2, fail_on_one, OnlyHere, ("one", "two"))


def test_a_killed_rank_is_named() -> None:
    with pytest.raises(ChildProcessError, match="rank 1 ended without a result, exit code -9"):
        run_ranks(2, die_on_one)


def test_timeout_names_the_ranks_shows_their_stack_and_kills_them(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"still running: rank 1 of 2[\s\S]*in hang_on_one"):
        run_ranks(2, hang_on_one, tmp_path, timeout=2)
    assert not [path.name for path in tmp_path.iterdir() if alive(int(path.read_text()))]


def test_children_of_a_rank_do_not_outlive_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="leave"):
        run_ranks(1, with_child, tmp_path)
    deadline = time.monotonic() + 5
    while alive(int((tmp_path / "0").read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(int((tmp_path / "0").read_text()))


def test_a_lambda_is_refused_before_anything_starts() -> None:
    with pytest.raises(Exception, match="pickle"):
        run_ranks(2, lambda rank: rank)


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_the_server_that_forks_runs_one_thread() -> None:
    run_ranks(1, where)
    for pid in server_processes():
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
