"""What the main thread says that it does, and what can be seen of it from another thread."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from dataclasses import replace

from .heartbeat import SETTLED, Beat, collectives_entered, where
from .phase_file import PhaseFile

_FRAMES = 200  # of a stack that are kept, the innermost


class MainThread:
    """Watches the thread that makes it.

    Attributes:
        startup: Its first batch is not done yet.
        stack: Where it stands, since it stands; empty while it moves.
    """

    def __init__(self) -> None:
        self.startup = True
        self.stack = ""
        self._thread = threading.get_ident()
        self._phase = "start-up"
        self._step: int | None = None
        self._notes = 0
        self._position = (0, 0)
        self._moved = time.monotonic()
        self._file: PhaseFile | None = None

    def keep_in(self, file: PhaseFile) -> None:
        """Keep the notes in a file, from now on."""
        self._file = file

    def note(self, phase: str, step: int | None) -> None:
        """Take note of what it does; called by the thread itself."""
        self._phase = phase
        if step is not None:
            self._step = step
        self._notes += 1
        if self._file is not None:
            self._file.note(phase, self._step)

    def beat(self, last: Beat) -> Beat:
        """The next beat after another one: with what the thread has noted, and where it is now."""
        # Never kept: a frame keeps everything alive that its code has let go of, tensors too.
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return self._noted(last)
        at, now = where(frame), time.monotonic()
        position = (at.position, self._notes)
        if position != self._position:
            self._position, self._moved, self.stack = position, now, ""
        still = now - self._moved
        if still >= SETTLED and not self.stack:
            self.stack = "".join(traceback.format_list(traceback.extract_stack(frame)[-_FRAMES:]))
        found = replace(last, still=still, place=at.place, code=at.code, call=at.call, loader=at.loader)
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
