"""What the main thread says that it does, and what can be seen of it from another thread."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from types import FrameType

from .heartbeat import Beat, collectives_entered, where


class MainThread:
    """Watches the thread that makes it.

    Attributes:
        startup: Its first batch is not done yet.
        still: Seconds since it was last seen to move.
        frame: Where it was at the last look.
        moves: How often it was seen to move: the same number means the same place.
    """

    def __init__(self) -> None:
        self.startup = True
        self.still = 0.0
        self.frame: FrameType | None = None
        self.moves = 0
        self._thread = threading.get_ident()
        self._phase = "start-up"
        self._step: int | None = None
        self._notes = 0
        self._position = (0, 0)
        self._moved = time.monotonic()

    def note(self, phase: str, step: int | None) -> None:
        """Take note of what it does; called by the thread itself."""
        self._phase = phase
        if step is not None:
            self._step = step
        self._notes += 1

    def beat(self, last: Beat) -> Beat:
        """The next beat after another one: with what the thread has noted, and where it is now."""
        self.frame = sys._current_frames().get(self._thread)
        if self.frame is None:
            return self._noted(last)
        at, now = where(self.frame), time.monotonic()
        position = (at.position, self._notes)
        if position != self._position:
            self._position, self._moved = position, now
            self.moves += 1
        self.still = now - self._moved
        found = replace(last, still=self.still, place=at.place, code=at.code, call=at.call, loader=at.loader)
        return replace(self._noted(found), counts=collectives_entered())

    def beat_of(self, last: Beat, error: BaseException) -> Beat:
        """A beat that says where an exception was raised."""
        raised = error.__traceback__
        while raised is not None and raised.tb_next is not None:
            raised = raised.tb_next
        if raised is None:
            return self._noted(last)
        at = where(raised.tb_frame)
        return self._noted(replace(last, place=at.place, code=at.code, call=at.call, loader=at.loader))

    def _noted(self, beat: Beat) -> Beat:
        return replace(beat, phase=self._phase, step=self._step, startup=self.startup)
