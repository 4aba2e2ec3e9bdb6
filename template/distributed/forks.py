"""Data-loader workers are forked while no other thread is in the middle of something.

A forked process has the one thread that forked. Whatever lock another thread held at that moment, in Python, in the
store or in C, stays locked in it for good, and the worker stands still at the first line that needs it.

One such lock is Python's own: before 3.12 a forked process takes the lock of the list of thread states before it
makes that lock new (``_PyThreadState_DeleteExcept`` in CPython's ``Python/pystate.c``). torch's threads hold it for a
moment whenever they let go of a tensor that Python knows, which they do just after a collective, as the first batch is
asked for.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from typing_extensions import ParamSpec

P = ParamSpec("P")

#: Seconds that a fork waits for a thread, which may itself wait for a store that does not answer.
_PATIENCE = 1.0
_THREADS = Path("/proc/self/task")
#: How torch names its threads, the backward pass's aside, which have a thread state of their own.
_OF_TORCH = ("pt_", "gloo_")
_busy = threading.Lock()
_held = threading.local()


def at_work(function: Callable[P, None]) -> Callable[P, None]:
    """Decorate what a thread does: while it runs no other thread forks, unless it takes longer than a second."""

    @functools.wraps(function)
    def held(*args: P.args, **kwargs: P.kwargs) -> None:
        with _busy:
            function(*args, **kwargs)

    return held


def _torch_works() -> bool:
    """Whether a thread of torch's runs, or waits for memory."""
    for thread in _THREADS.glob("*/stat"):
        try:
            name, _, state = thread.read_text(errors="replace").partition("(")[2].rpartition(") ")
        except OSError:  # it has just ended
            continue
        if name.startswith(_OF_TORCH) and state[0] in "RD":
            return True
    return False


def _before() -> None:
    _held.locked = _busy.acquire(timeout=_PATIENCE)
    if sys.version_info < (3, 12):
        deadline = time.monotonic() + _PATIENCE
        while _torch_works() and time.monotonic() < deadline:
            time.sleep(0.001)  # the interpreter's lock is theirs meanwhile, and is ours from the last look to the fork


def _after() -> None:
    if _held.locked:
        _busy.release()


def _in_child() -> None:
    global _busy
    _busy = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
