"""One run's folder belongs to one fit at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .distributed.faults import NamedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Seconds that ranks of a killed start may take to end: SIGTERM leaves them fifteen to save a checkpoint.
PATIENCE = 20.0


@contextlib.contextmanager
def run_lock(folder: Path, patience: float | None = None) -> Iterator[None]:
    """Hold a run's folder; the lock ends with the process, however it ends, and leaves no file.

    File systems without locks are let pass: what this guards against is rare.

    Args:
        folder: Existing folder of the run.
        patience: Seconds to wait for another process that holds it; default: :data:`PATIENCE`.

    Raises:
        NamedError: ``run-in-use``.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline, told = time.monotonic() + (PATIENCE if patience is None else patience), False
        while not _taken(descriptor):
            if time.monotonic() > deadline:
                raise NamedError("run-in-use", f"Another process still trains in the run's folder '{folder}'.")
            if not told:
                print(f"waiting for another process to leave '{folder}'", file=sys.stderr)
                told = True
            time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
