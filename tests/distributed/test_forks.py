"""A worker is forked while no thread of ours is in the middle of something."""

from __future__ import annotations

import os
import threading
import time

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
