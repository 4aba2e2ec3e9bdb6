"""What the ranks' watchdogs tell each other, through a store."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from .alarm import Alarm
from .heartbeat import SETTLED, Beat
from .phase_file import read_last
from .told import printable
from .verdict import LEFT, Seen, Verdict

if TYPE_CHECKING:
    from torch.distributed import Store

#: Beats of one process after the other would be taken for one another in the same store.
_generations = itertools.count()
_T = TypeVar("_T")
#: For one answer of the store.
_PATIENCE = timedelta(seconds=5)
#: Seconds from the end of a process's connections to its own; a large one gives its memory back between.
_LEAVING = 1.0


class Peers:
    """The beats of all ranks, and the few things that they decide together.

    The store's clone has its own connection: it is not blocked while the main thread waits in the store.

    Args:
        store: Any store of ``torch.distributed``.
        rank: Rank of this process.
        world_size: Number of processes.
        timeout: Of the run.

    Attributes:
        interval: Seconds from one beat to the next.
        seen: Last beat of each rank heard so far, by rank.
        lost: The store no longer answers: the process that held it is gone.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        self.rank = rank
        self.seen: dict[int, Seen] = {}
        self.lost = False
        self._store = store
        self._connect()
        self._world_size = world_size
        self._prefix = f"watchdog/{next(_generations)}"
        # A file store only ever grows: there a beat must not come every second for days.
        slow = type(getattr(store, "_underlying_non_prefix_store", store)).__name__ == "FileStore"
        self.interval = min(10.0, max(1.0, timeout.total_seconds() / 60)) if slow else 1.0
        # Each rank reads all beats; with many ranks not every second.
        self._pause = max(self.interval, world_size / 32)
        self._changed: dict[int, float] = {}
        self._read_at: dict[int, float] = {}
        self._listened = time.monotonic()
        self._alarm: tuple[float, Alarm] | None = None

    # Beats -----------------------------------------------------------------------------------------------------------

    def publish(self, beat: Beat) -> None:
        """Send this rank's beat."""
        # Seen before torch finds out, which prints pages about it.
        self.lost = self.lost or self._host_gone()
        self._set(f"beat/{self.rank}", beat.dump())

    def listen(self, own: Beat) -> None:
        """Read the beats of the others into :attr:`seen`.

        Args:
            own: This rank's beat.
        """
        now = time.monotonic()
        asleep = now - self._listened - self.interval
        if asleep > 2.0:
            # This process did not run, as the others may have: it has no right to call them silent.
            self._changed = {rank: changed + asleep for rank, changed in self._changed.items()}
        self._listened = now
        for rank in range(self._world_size):
            before = self.seen.get(rank)
            beat = own if rank == self.rank else self._read(rank, before, now)
            if beat is None:
                continue
            if before is None or beat.number != before.beat.number:
                self._changed[rank] = now
            # Without the store nobody is heard of, which says nothing about them.
            age = 0.0 if self.lost or rank == self.rank else max(0.0, now - self._changed[rank])
            gone = before is not None and before.gone
            if rank != self.rank and not gone and (not self.lost or beat.hosts):
                beat, gone = self._look_for(rank, beat, own)
            self.seen[rank] = Seen(beat, age, max(0.0, age - self.interval - self._pause), gone)

    def _look_for(self, rank: int, beat: Beat, own: Beat) -> tuple[Beat, bool]:
        """Whether a rank's process is gone, and the last beat that it sent."""
        if self.lost:
            # It held the store, but may have ended well, or the network may have a fault that the training does not
            # even notice: that is nobody's matter until this rank waits for somebody.
            gone = beat.process_gone()
            waits = own.state == "victim" or (own.call and own.still >= (SETTLED if gone else LEFT))
            return _with_last_phase(beat) if gone else beat, bool(waits)
        if not beat.process_gone():
            return beat, False
        # What it said last may have come after the look at its beat and before the look at its process.
        text = self._get(f"beat/{rank}")
        return _with_last_phase(Beat.load(text.encode()) if text else beat), not self.lost

    def stack(self, rank: int) -> str:
        """The stack that a rank has published since it stands; may be empty."""
        return self._get(f"stack/{rank}") if self._has(f"stack/{rank}") else ""

    def publish_stack(self, stack: str) -> None:
        """Send this rank's stack."""
        self._set(f"stack/{self.rank}", printable(stack).encode())

    def wait_until_heard(self, seconds: float) -> None:
        """Wait until every other rank has ended, or has come to read all beats since now."""
        others = [rank for rank in range(self._world_size) if rank != self.rank]
        first = {rank: seen.beat.number for rank, seen in self.seen.items()}
        deadline = time.monotonic() + seconds
        while others and not self.lost and time.monotonic() < deadline:
            beats = {rank: self._read(rank, None, 0.0) for rank in others}
            # A beat that was sent before, the one in whose turn ours is read, and the next one, which proves it.
            others = [
                rank
                for rank, beat in beats.items()
                if beat and beat.state == "running" and beat.number < first.get(rank, 1) + 3 and not beat.process_gone()
            ]
            time.sleep(0.1)

    # Decisions -------------------------------------------------------------------------------------------------------

    def raise_alarm(self, alarm: Alarm) -> None:
        """Tell the others that a collective of this rank failed."""
        self._alarm = self._alarm or (time.monotonic(), alarm)
        if not self._has("alarm"):
            self._set("alarm", json.dumps([alarm.timed_out, alarm.text]).encode())

    def alarm(self) -> Alarm | None:
        """The first alarm of any rank, if there was one."""
        if self._alarm is None and self._has("alarm") and (text := self._get("alarm")):
            self._alarm = (time.monotonic(), Alarm(*json.loads(text)))
        if self._alarm is None:
            return None
        since, alarm = self._alarm
        return replace(alarm, age=time.monotonic() - since)

    def claim(self) -> bool:
        """Claim the right to speak for all; only one rank has it, until it dies."""
        holder = self._claim("")
        if holder is not None and holder != self.rank and not self.seen[holder].living:
            holder = self._claim(str(holder))
        return holder in (self.rank, None)

    def publish_verdict(self, verdict: Verdict, report: str) -> None:
        """Send the verdict to all."""
        self._set("verdict", json.dumps([verdict.dump().decode(), report]).encode())

    def verdict(self) -> tuple[Verdict, str] | None:
        """The verdict of another rank and its report."""
        if not self._has("verdict"):
            return None
        text = self._get("verdict")
        if not text:
            return None
        verdict, report = json.loads(text)
        return Verdict.load(verdict.encode()), report

    def answer(self) -> None:
        """Say that this rank has the verdict."""
        self._add("answers", 1)

    def wait_for_answers(self, seconds: float) -> None:
        """Wait until all other living ranks have the verdict."""
        expected = sum(seen.living for rank, seen in self.seen.items() if rank != self.rank)
        deadline = time.monotonic() + seconds
        # Without the store the others need that time to come to the same verdict.
        while time.monotonic() < deadline and (self.lost or self._add("answers", 0) < expected):
            time.sleep(0.1)

    # The store -------------------------------------------------------------------------------------------------------

    def _read(self, rank: int, before: Seen | None, now: float) -> Beat | None:
        known = before.beat if before else None
        if self.lost or (before and now - self._read_at.get(rank, 0.0) < self._pause - 0.5):
            return known
        self._read_at[rank] = now
        # A get would wait for a key that is not there yet.
        text = self._get(f"beat/{rank}") if known or self._has(f"beat/{rank}") else ""
        return Beat.load(text.encode()) if text else known

    def _connect(self) -> None:
        self._store = self._store.clone()
        self._store.set_timeout(_PATIENCE)

    def _host_gone(self) -> bool:
        host = self.seen.get(0)
        return host is not None and host.beat.hosts and host.beat.process_gone()

    def _host_leaves(self) -> bool:
        """Whether the process that held the store is gone, or goes: its sockets close a moment before it has ended."""
        deadline = time.monotonic() + _LEAVING
        while not (gone := self._host_gone()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return gone

    def _try(self, action: Callable[[], _T], otherwise: _T) -> _T:
        if self.lost:
            return otherwise
        try:
            return action()
        except RuntimeError:
            # To connect again to one that is gone would take all the patience, and torch would print about it.
            self.lost = self._host_leaves()
        if not self.lost:
            try:
                self._connect()
                return action()
            except RuntimeError:
                self.lost = True
        return otherwise

    def _has(self, key: str) -> bool:
        return self._try(lambda: self._store.check([f"{self._prefix}/{key}"]), False)

    def _get(self, key: str) -> str:
        return self._try(lambda: self._store.get(f"{self._prefix}/{key}").decode(), "")

    def _set(self, key: str, value: bytes) -> None:
        self._try(lambda: self._store.set(f"{self._prefix}/{key}", value), None)  # type: ignore[arg-type]

    def _add(self, key: str, amount: int) -> int:
        return self._try(lambda: self._store.add(f"{self._prefix}/{key}", amount), 0)

    def _claim(self, holder: str) -> int | None:
        """The rank that has the claim, after an attempt to take it over from its holder."""
        key = f"{self._prefix}/claim"
        return self._try(lambda: int(self._store.compare_set(key, holder, str(self.rank)).decode()), None)


def _with_last_phase(beat: Beat) -> Beat:
    """The last beat of a process that is gone, with what it did since, as far as that can be seen from here."""
    last = read_last(beat.phase_file) if beat.state == "running" else None
    if last is None or last == (beat.step, beat.phase):
        return beat
    return replace(beat, step=last[0], phase=last[1], place="", code="", call="")


def hosted_here(store: Store, rank: int) -> bool:
    """Whether a store ends with this process: then rank 0 serves it, not the launcher and not a file."""
    store = getattr(store, "_underlying_non_prefix_store", store)
    # Only its text tells a server from a client.
    return rank == 0 and type(store).__name__ == "TCPStore" and "server=<nullptr>" not in repr(store)
