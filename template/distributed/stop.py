"""Stopping and saving together: all ranks after the same step, without a collective and without a look at a clock."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Literal

from typing_extensions import Self

if TYPE_CHECKING:
    from torch.distributed import Store

Order = Literal["", "save", "stop"]
_ASKED = "stop/asked"
#: Seconds of training from one order to the next: what a rank that is told to stop has to wait at most.
_INTERVAL = 0.5
#: Longest pause between two looks at the store of a rank that waits at a validation's end, in seconds.
_PAUSE = 0.05


class Stopped(Exception):  # noqa: N818  # asked for, not an error
    """The run was asked to stop.

    Attributes:
        exit_code: 128 + the signal's number, as a shell reports it: 143 for SIGTERM.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum


class CtrlC:
    """Knows whether this process was sent SIGINT, inside of ``with``: code can raise ``KeyboardInterrupt`` as well.

    Attributes:
        came: It was.
    """

    def __init__(self) -> None:
        self.came = self._listens = False

    def __enter__(self) -> Self:
        # Another one's handler, and threads, which may set none, are left alone.
        in_main = threading.current_thread() is threading.main_thread()
        self._listens = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._listens:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        # Lightning ignores the signal after the exception, and whoever presses twice shall not disturb the end.
        if self._listens and not self.came:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(signum, frame)


class Orders:
    """Rank 0 decides what is done after a step, and every rank reads the decision after that very step.

    An order tells at which step the next one is due, about half a second later, so that reading one costs nothing in
    all steps between. Ranks train in step, each of them ending in a sum over all, so none waits for its order long.
    In validation ranks are not in step: there each one may cast a vote to stop, as long as not all of them are done.

    Args:
        store: The run's store; None with one process.
        rank: This process.
        size: Number of processes.
        interval: Seconds from one order to the next.
    """

    def __init__(self, store: Store | None, rank: int, size: int, interval: float = _INTERVAL) -> None:
        # A clone has a connection of its own, which the process group's waits do not lock.
        self._store = store.clone() if store is not None and size > 1 else None
        self._rank, self._size, self._interval = rank, size, interval
        self._asked = False
        self._number = 0
        self._due: int | None = None
        self._vote = 0
        self._looked = 0.0

    def ask(self) -> None:
        """Ask all ranks to stop."""
        if not self._asked and self._store is not None:
            self._store.set(_ASKED, "1")
        self._asked = True

    @property
    def asked(self) -> bool:
        """Whether some rank was asked to stop."""
        if not self._asked and self._store is not None:
            # The store is gone when the rank that holds it has ended.
            with contextlib.suppress(RuntimeError):
                self._asked = self._store.check([_ASKED])
        return self._asked

    def after(self, step: int, step_seconds: float, save: Callable[[], bool]) -> Order:
        """What all ranks do after a step. Called on every rank after every step.

        Args:
            step: Steps done.
            step_seconds: Duration of a step.
            save: Whether it is time for a checkpoint; asked on rank 0 alone.
        """
        if self._due is not None and step < self._due:
            return ""
        key = f"stop/order/{self._number}"
        if self._store is None or self._rank == 0:
            order: Order = "stop" if self.asked else "save" if save() else ""
            self._due = step + max(1, int(self._interval / max(step_seconds, 1e-6)))
            if self._store is not None:
                self._store.set(key, f"{order} {self._due}")
                if self._number:
                    # Every rank has read it: all have finished the steps since.
                    self._store.delete_key(f"stop/order/{self._number - 1}")
        else:
            word, due = self._store.get(key).decode().split(" ")
            order = "stop" if word == "stop" else "save" if word == "save" else ""
            self._due = int(due)
        self._number += 1
        return order

    def open_vote(self) -> None:
        """Begin a validation."""
        self._vote += 1

    def vote_during(self) -> bool:
        """Whether the ranks stop inside this validation; a rank that was asked to votes for it."""
        now = time.monotonic()
        if self._store is None or (not self._asked and now - self._looked < _PAUSE):
            return self._asked
        self._looked = now
        # As this rank is not done, nobody can have closed the vote against it.
        return self.asked and self._verdict("stop") == "stop"

    def vote_at_end(self, asked_here: Callable[[], bool]) -> bool:
        """Wait until all ranks are done with their share of this validation, or one has voted to stop.

        Args:
            asked_here: Whether this rank was asked to stop meanwhile.
        """
        if self._store is None:
            return asked_here()
        pause = 0.001
        if self._store.add(f"stop/vote/{self._vote}/done", 1) == self._size:
            return self._verdict("go") == "stop"
        while not self._store.check([f"stop/vote/{self._vote}"]):
            if asked_here():
                self.ask()
                return self._verdict("stop") == "stop"
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)
        return self._verdict("") == "stop"

    def _verdict(self, mine: str) -> str:
        """The first vote that counts; mine, if I am the first."""
        assert self._store is not None
        return self._store.compare_set(f"stop/vote/{self._vote}", "", mine).decode()
