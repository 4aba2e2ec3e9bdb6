"""The doctor's processes: started, listened to, ended with all that they leave behind. Imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ..distributed.stacks import frames_of, handles
from .events import Event, Listener

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
#: What a process prints beyond this is counted, and only its end is kept.
_KEPT = 65536


class Process:
    """One process, its events, and the end of what it prints.

    Args:
        name: Such as ``rank 1``.
        command: Program and arguments.
        environ: Its environment variables.
        folder: For its events and stacks.
    """

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.doing = "start"
        self.since = time.monotonic()
        self.ended = False
        self.printed = 0
        self._tail: deque[bytes] = deque()
        self._listener = Listener(folder / EVENTS.format(name))
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A signal to the doctor's group, such as Ctrl-C, is the doctor's to pass on.
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._pump, daemon=True)
        self.reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def news(self) -> list[Event]:
        """Events since the last call; each is a sign of life."""
        events = self._listener.news()
        for event in events:
            self.since = time.monotonic()
            if event.kind == "begin":
                self.doing = event.value
            elif event.kind == "end":
                self.ended = True
        return events

    def tail(self, lines: int = 8) -> str:
        """The last lines that it printed."""
        text = b"".join(self._tail).decode("utf-8", "replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def stack(self) -> list[tuple[str, int, str]]:
        """Where its main thread is: file, line and function of each frame, the innermost first; may be empty."""
        file = self.folder / STACK.format(self.name)
        # Its interpreter's C code writes it, which no Python code can keep from running.
        with contextlib.suppress(OSError):
            if not handles(self.pid, signal.SIGUSR1):
                return []
            before = file.stat().st_size
            os.kill(self.pid, signal.SIGUSR1)
            deadline = time.monotonic() + 2
            while file.stat().st_size == before and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            return frames_of(file.read_text(encoding="utf-8", errors="replace")[before:])
        return []

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        kept = 0
        with self._process.stdout as output:
            while chunk := os.read(output.fileno(), _KEPT):
                self.printed += len(chunk)
                self._tail.append(chunk)
                kept += len(chunk)
                while kept - len(self._tail[0]) > _KEPT:
                    kept -= len(self._tail.popleft())


#: Files of a process in the folder, by its name.
EVENTS = "{}.events"
STACK = "{}.stack"


class Processes:
    """Starts processes, and leaves none behind: not those that they have started, nor those of these.

    Args:
        folder: For their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Process] = []
        self._others: set[int] = set()  # that this process had before

    def __enter__(self) -> Processes:
        _adopt_orphans(True)
        self._others = set(descendants(os.getpid()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        _adopt_orphans(False)
        for one in self.all:
            one.reader.join(timeout=1)

    def start(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> Process:
        """Start one."""
        process = Process(name, command, environ, self.folder)
        self.all.append(process)
        return process

    def left_behind(self) -> list[str]:
        """Command lines of processes that live on although the one that started them has ended well."""
        ended = {one.pid for one in self.all if one.code is not None}
        if len(ended) < len(self.all):
            return []
        time.sleep(0.3)  # loader workers that see that their parent is gone
        return [text for pid in self._descendants() if (text := _command_line(pid))]

    def _descendants(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in self._others]

    def end(self) -> None:
        """End all processes: nothing of them is needed."""
        for _ in range(20):  # one that is killed may have started another in the meantime
            alive = [*self._descendants(), *(one.pid for one in self.all if one.code is None)]
            if not alive:
                return
            for pid in alive:
                _send(pid, signal.SIGKILL)
            time.sleep(0.05)
            for pid in alive:
                with contextlib.suppress(ChildProcessError):
                    if pid not in {one.pid for one in self.all}:
                        os.waitpid(pid, os.WNOHANG)


def _adopt_orphans(yes: bool) -> None:
    """Let whoever loses its parent become a child of this process, so that it is found; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def descendants(root: int) -> list[int]:
    """Processes below a process, zombies left out; empty where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents.setdefault(int(fields[1]), []).append(int(folder.name))
    return list(_below(root, parents))


def _below(pid: int, parents: Mapping[int, list[int]]) -> Iterator[int]:
    for child in parents.get(pid, ()):
        yield child
        yield from _below(child, parents)


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
