"""What a process sets for itself before torch is imported: its share of the cores, and to end with its launcher."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path

from .world import World

_THREADS = "OMP_NUM_THREADS"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def share_threads(world: World, environ: MutableMapping[str, str] = os.environ) -> None:
    """Give each process of a machine its share of the cores, unless the user has chosen a number of threads.

    torchrun sets one thread where the user has set nothing, which leaves most cores idle with few processes.

    Args:
        world: Place of this process.
        environ: Environment variables; torch's thread pool reads them when torch is imported.
    """
    if _THREADS in environ and not (world.launcher == "torchrun" and _set_by_torchrun(environ)):
        return
    if world.launcher == "slurm" and environ.get("SLURM_CPUS_PER_TASK", "").isdigit():
        environ[_THREADS] = environ["SLURM_CPUS_PER_TASK"]
    elif world.local_size > 1:
        environ[_THREADS] = str(cores_each(world.local_size))


def cores_each(processes: int) -> int:
    """Cores of this machine that this process may use, shared out to a number of processes; at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // processes)


def end_with_launcher(number: int = signal.SIGTERM) -> None:
    """Be told to stop when the launcher, the parent of this process, dies.

    A launcher that is killed with SIGKILL ends nobody, and its ranks would go on, out of sight, in a folder that the
    next start takes for its own. Linux alone has a signal for it.

    Args:
        number: Signal to be told by.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def leave_at_once() -> None:
    """End without a last search for garbage among all that torch and lightning have made, which takes seconds.

    All that was opened is closed by then: this runs after every other function that is called at the end.
    """
    atexit.register(gc.freeze)


def print_any_letter() -> None:
    """Escape what the terminal's encoding does not have, such as the bytes of a file name, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _set_by_torchrun(environ: MutableMapping[str, str]) -> bool:
    """Whether the variable is torchrun's own, which its own environment lacks."""
    if environ[_THREADS] != "1":
        return False
    try:
        of_parent = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    return not any(entry.startswith(f"{_THREADS}=".encode()) for entry in of_parent.split(b"\0"))
