"""What a process of the doctor tells the one that started it, line by line in a file. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..distributed.told import printable
from .finding import Finding, warning

_T = TypeVar("_T")


class Event(NamedTuple):
    """A line.

    Attributes:
        kind: ``begin`` of a check or step, with its name; ``finding``; ``measured``, a number by its name; ``end``.
        value: What is told.
    """

    kind: str
    value: Any


class Teller:
    """Writes events, at once: the process may end any moment.

    A process that the user's code has forked off, and that goes on with the doctor's own code, ends here.

    Args:
        file: Events are added to it.
    """

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pid = os.getpid()

    def begin(self, what: str) -> None:
        """A check or step begins; also a sign of life."""
        self._tell("begin", what)

    def find(self, findings: Iterable[Finding]) -> None:
        """Tell findings."""
        for one in findings:
            self._tell("finding", one._asdict())

    def measure(self, name: str, value: Any) -> None:
        """Tell a number, or another plain value."""
        self._tell("measured", [name, value])

    def end(self) -> None:
        """All is done."""
        self._tell("end", None)

    def run(self, checks: Iterable[Callable[[_T], list[Finding]]], subject: _T) -> None:
        """Run checks one after the other, and tell what each finds."""
        for one in checks:
            self.begin(getattr(one, "name", one.__name__))
            self.find(one(subject))

    def _tell(self, kind: str, value: Any) -> None:
        forked = os.getpid() != self._pid
        if forked:
            fork = warning("forked", "Code of the network or the data has forked a process, which goes on as a second "
                           "copy of the program.")  # fmt: skip
            kind, value = "finding", fork._replace(check="run: processes")._asdict()
        line = json.dumps([kind, value], ensure_ascii=False) + "\n"
        os.write(self._descriptor, printable(line).encode())
        if forked:
            os._exit(0)


class Listener:
    """Reads what a :class:`Teller` has written so far.

    Args:
        file: May not be there yet.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0

    def news(self) -> list[Event]:
        """Events since the last call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [event for line in whole.splitlines() if (event := _event(line)) is not None]


def _event(line: bytes) -> Event | None:
    """None of a line that a full disk has cut."""
    try:
        kind, value = json.loads(line)
    except ValueError:
        return None
    return Event(kind, value)
