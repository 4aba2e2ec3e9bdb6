"""A worker is forked while no thread of ours is in the middle of something."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from template.distributed import forks
from template.distributed.forks import at_work


def _locked_in_child(lock: threading.Lock) -> bool:
    """Fork, and see whether the child finds a lock taken that nobody will ever give back."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(lock.locked()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.parametrize(("careful", "locked"), [(False, True), (True, False)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_for_a_thread_at_work(careful: bool, locked: bool) -> None:
    lock, inside = threading.Lock(), threading.Event()

    def work() -> None:
        with lock:
            inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=at_work(work) if careful else work)
    thread.start()
    inside.wait()
    assert _locked_in_child(lock) is locked
    thread.join()
    assert not _locked_in_child(lock)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_thread_that_does_not_end_holds_a_fork_up_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_PATIENCE", 0.1)
    leave, lock = threading.Event(), threading.Lock()

    thread = threading.Thread(target=at_work(leave.wait))
    thread.start()
    assert not _locked_in_child(lock)
    leave.set()
    thread.join()


FORKS = """
import os, sys, time
import torch, torch.distributed as dist
import template.distributed.forks

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
hung = 0
for _ in range(60):
    dist.all_reduce_coalesced([torch.zeros(4) for _ in range(300)])
    for _ in range(3):
        time.sleep(0)  # gives the interpreter's lock away, as what comes before a fork in the data loader does
    if (pid := os.fork()) == 0:
        os._exit(0)
    deadline = time.monotonic() + 5
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            hung += 1
            break
        time.sleep(0.001)
    if hung:
        break
print(hung)
"""


def test_a_fork_just_after_a_collective_does_not_stand_still(tmp_path: Path) -> None:
    """Torch's threads let go of the collective's tensors then, for which each makes a thread state of Python's.

    Without the wait, 26 of 200 forks of this program stood still (Python 3.11.7, two cores); with it, none of 400.
    """
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "store")]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split() == ["0"]


def test_threads_of_torch_are_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_THREADS", tmp_path)
    told = {}
    for line in ["7 (pt_gloo_runloop) R 1", "7 (gloo_tcp_loop) D 1", "7 (pt_gloo_runloop) S 1", "7 (python) R 1"]:
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7/stat").write_text(line)
        told[line] = forks._torch_works()
    assert list(told.values()) == [True, True, False, False]
