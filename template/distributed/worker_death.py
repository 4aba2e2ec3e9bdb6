"""What a data-loader worker that ended before its work was done has died of. Imports no torch."""

from __future__ import annotations

import re
import signal
import traceback

from .faults import NamedError
from .told import text_of
from .world import read_world

#: As torch's DataLoader and its handler of SIGCHLD put it since 1.0.
_DIED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) "
    r"(?:is killed by signal: (?P<signal>[^.]+)\.|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)


def worker_death(error: BaseException) -> NamedError | None:
    """Name the end of a data-loader worker.

    Args:
        error: What the loader raised in the process that uses it.

    Returns:
        The named failure, or None for an exception that is about something else.
    """
    found = _DIED.search(text_of(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return None
    world = read_world()
    of_rank = f" of rank {world.rank}" if world.size > 1 else ""
    how = f"was ended by a signal: {found['signal']}" if found["signal"] else _exit(error, found["code"])
    identifier = "shared-memory" if "Bus error" in how or "SIGBUS" in how else "loader-worker-died"
    what = f"A data-loader worker{of_rank} (process {found[1]}) {how}."
    if identifier == "shared-memory":
        return NamedError(identifier, what)
    if "Killed" in how or "SIGKILL" in how:
        cause = "It was killed from outside, most often by the kernel, out of memory; dmesg tells."
        return NamedError(identifier, what, cause, "Lower data.num_workers or data.batch_size.")
    cause = "Code that reads or transforms the samples crashed in C, or ended its process."
    return NamedError(identifier, what, cause, "Run with data.num_workers: 0, where the same code shows where it is.")


def _exit(error: BaseException, code: str | None) -> str:
    """How the worker ended where the message does not say it: its loader, which noticed, still holds it."""
    ends = [int(code)] if code else []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        ends += [worker.exitcode for worker in frame.f_locals.get("failed_workers", ()) if worker.exitcode is not None]
    if not ends:
        return "ended unexpectedly"
    return f"was ended by {signal.Signals(-ends[0]).name}" if ends[0] < 0 else f"ended itself with exit code {ends[0]}"
