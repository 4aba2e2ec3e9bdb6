"""Stopping on a signal: all ranks after the same step, without a collective in every step."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

_KEY = "stop/after"
#: Seconds between two looks at the store, far below the notice that a stop is given.
_POLL = 0.1


class Stopped(Exception):  # noqa: N818  # asked for, not an error
    """The run was asked to stop.

    Attributes:
        exit_code: 128 + the signal's number, as a shell reports it: 143 for SIGTERM.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum


class StopAgreement:
    """Lets ranks that train in step agree on the step after which all of them stop.

    A rank that is asked to stop announces a step a little ahead through the store. Each other rank learns of it in a
    thread that looks for the announcement, long before it gets there: no rank can be more than one step ahead of
    another, since every step ends in a sum over all of them.

    Args:
        store: The run's store; None with one process.
    """

    def __init__(self, store: Store | None) -> None:
        # A clone has a connection of its own, which the process group's waits do not lock.
        self._store = store.clone() if store is not None else None
        self._after: int | None = None
        self._closed = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="stop-agreement", daemon=True)
        if self._store is not None:
            self._listener.start()

    def announce(self, step: int, margin: int) -> None:
        """Ask all ranks to stop.

        Args:
            step: Steps that this rank has done.
            margin: Steps ahead; enough that the announcement arrives before.
        """
        after = step + margin
        if self._store is not None:
            # The first announcement counts, whoever makes it.
            after = int(self._store.compare_set(_KEY, "", str(after)))
        self._after = after

    @property
    def announced(self) -> bool:
        """Whether some rank was asked to stop, as far as this rank knows."""
        return self._after is not None

    def due(self, step: int) -> bool:
        """Whether the ranks have agreed to stop by this step."""
        return self._after is not None and step >= self._after

    def close(self) -> None:
        """End the listening thread: one that is in the store's code when the process ends would abort it."""
        self._closed.set()
        if self._listener.is_alive():
            self._listener.join()

    def _listen(self) -> None:
        assert self._store is not None
        # The store is gone when the rank that holds it has ended.
        with contextlib.suppress(RuntimeError):
            while not self._closed.wait(_POLL) and self._after is None:
                if self._store.check([_KEY]):
                    self._after = int(self._store.get(_KEY))
