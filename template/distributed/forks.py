"""Data-loader workers are forked while none of our own threads is in the middle of something.

A forked process has the one thread that forked. Whatever lock another thread held at that moment, in Python, in the
store or in C, stays locked in it for good, and the worker stands still at the first line that needs it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

from typing_extensions import ParamSpec

P = ParamSpec("P")

#: Seconds that a fork waits for a thread, which may itself wait for a store that does not answer.
_PATIENCE = 1.0
_busy = threading.Lock()
_held = threading.local()


def at_work(function: Callable[P, None]) -> Callable[P, None]:
    """Decorate what a thread does: while it runs no other thread forks, unless it takes longer than a second."""

    @functools.wraps(function)
    def held(*args: P.args, **kwargs: P.kwargs) -> None:
        with _busy:
            function(*args, **kwargs)

    return held


def _before() -> None:
    _held.locked = _busy.acquire(timeout=_PATIENCE)


def _after() -> None:
    if _held.locked:
        _busy.release()


def _in_child() -> None:
    global _busy
    _busy = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
