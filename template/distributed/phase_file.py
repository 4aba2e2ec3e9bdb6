"""The phase and the step of a process, in a file that outlives it, however it ends. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PHASE_FILE = "phase.txt"
_WIDTH = 100  # of the text, which is overwritten in place


class PhaseFile:
    """Is there as long as its process runs, and after an end that Python has not seen.

    Args:
        path: On a disk of this machine: each note is written at once, which takes some microseconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        self.note("start-up", None)

    def note(self, phase: str, step: int | None) -> None:
        """Take note of what the process does."""
        text = f"{'' if step is None else step}\t{phase}"[: _WIDTH - 1].ljust(_WIDTH - 1) + "\n"
        with contextlib.suppress(OSError):  # a full disk is no reason to end
            os.pwrite(self._descriptor, text.encode("ascii", "replace"), 0)

    def remove(self) -> None:
        """Python has come to the end of the process, which has said why."""
        self.path.unlink(missing_ok=True)


def read_last(path: str | Path) -> tuple[int | None, str] | None:
    """Step and phase of a process that is gone.

    Returns:
        None where there is no such file: Python has ended the process, or it ran on another machine.
    """
    try:
        text = Path(path).read_text(encoding="ascii") if path else ""
    except OSError:
        return None
    step, found, phase = text.strip("\n ").partition("\t")
    return (int(step) if step.isdigit() else None, phase) if found else None
