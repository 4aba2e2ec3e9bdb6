"""Stacks of threads that cannot tell where they are, for they hold the lock, crashed, or are in a worker; the end."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

STACK_FILE = "stack.txt"
#: Asks a data-loader worker for its stack.
_ASK = getattr(signal, "SIGUSR2", None)


class StackFile:
    """A file into which the interpreter's own C code writes stacks, when no Python code can run any more.

    Data-loader workers that are forked inherit it, and write theirs when they are asked.

    Args:
        folder: Folder of the rank.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = (folder / STACK_FILE).resolve()
        self._file: TextIO = self.path.open("w", encoding="utf-8")
        self._crashes = not faulthandler.is_enabled()
        if self._crashes:
            faulthandler.enable(self._file)
        self._asks = _ASK is not None and signal.getsignal(_ASK) == signal.SIG_DFL
        if self._asks and _ASK is not None:
            faulthandler.register(_ASK, self._file, all_threads=False)

    def arm(self, seconds: float) -> None:
        """Write all stacks and end the process, unless this is called again within so many seconds."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def of_workers(self) -> str:
        """Stacks of this process's data-loader workers, the innermost frame first, as far as they can tell them."""
        if not self._asks or _ASK is None:
            return ""
        before = self.path.stat().st_size
        texts = []
        for worker in multiprocessing.active_children():
            if worker.pid is not None and handles(worker.pid, _ASK):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, _ASK)
                time.sleep(0.2)
                with self.path.open(encoding="utf-8") as file:
                    file.seek(before)
                    texts.append(f"data-loader worker, process {worker.pid}:\n{file.read().strip()}")
                before = self.path.stat().st_size
        return "\n".join(texts)

    def close(self, keep: bool) -> None:
        """Stop writing; remove the file unless it shall be kept."""
        faulthandler.cancel_dump_traceback_later()
        if self._crashes:
            faulthandler.disable()
        if self._asks and _ASK is not None:
            faulthandler.unregister(_ASK)
        self._file.close()
        self.discard_empty()
        if not keep:
            self.path.unlink(missing_ok=True)

    def discard_empty(self) -> None:
        """Remove the file if nothing was written."""
        with contextlib.suppress(OSError):
            if not self.path.stat().st_size:
                self.path.unlink()


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise (proc(5), SigCgt)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def read_dump(path: str) -> tuple[str, list[tuple[str, int, str]]]:
    """Read what a rank's interpreter wrote when it stood still or crashed.

    Args:
        path: Of the rank's :class:`StackFile`; it may lie on another machine, out of reach.

    Returns:
        Its headline, such as ``Timeout (0:00:30)!``, or nothing; and its main thread's frames as file, line and
        function, the innermost first.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        text = ""
    found = re.search(r"^(Timeout \(.*|Fatal Python error: .*)$", text, re.MULTILINE)
    if found is None:
        return "", []
    return found[1], frames_of(text[found.end() :])


def frames_of(text: str) -> list[tuple[str, int, str]]:
    """File, line and function of a thread's frames in a dump of :mod:`faulthandler`, the innermost first.

    It is the thread that crashed or was asked; of a stop the main thread, which is the oldest and comes last.
    """
    blocks = re.split(r"^(?=(?:Current t|T)hread 0x)", text, flags=re.MULTILINE)[1:]
    block = next((block for block in blocks if block.startswith("Current")), blocks[-1] if blocks else "")
    frames = re.findall(r'^ +File "(.*)", line (\d+) in (.*)$', block, re.MULTILINE)
    return [(file, int(line), function.strip()) for file, line, function in frames]


def end_process() -> None:
    """End this process and its data-loader workers, whatever its main thread is blocked in."""
    for worker in multiprocessing.active_children():
        worker.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
