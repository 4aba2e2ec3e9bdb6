"""Ends a run that stands still, on all ranks, with the rank and the place in the code that it stands at.

How it is decided who is to blame: :func:`.verdict.judge`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from .alarm import alarm_of
from .faults import NamedError
from .forks import at_work
from .hang_report import long_wait, plain_report, sentence, with_dump, write_report
from .heartbeat import Beat, birth, machine, short
from .main_thread import MainThread
from .peers import Peers, hosted_here
from .phase_file import PhaseFile
from .raised import own_frames, said
from .stacks import StackFile, end_process
from .told import ERROR_FILE, printable
from .verdict import HEARING, Seen, Verdict, judge

if TYPE_CHECKING:
    from torch.distributed import Store

#: Seconds within which a process must have ended once the verdict is known; then the interpreter's C code ends it.
_BACKSTOP = 10.0
#: Seconds that a rank which has learnt the verdict leaves the one that prints it, so that nothing is printed after.
_HOLD_BACK = 2.0


class Watchdog:
    """Publishes this rank's heartbeat, listens to those of the others, and ends the process when the run stands still.

    A daemon thread does all of it, once a second, through its own clone of the store; the main thread only takes
    notes. Forked data-loader workers have no such thread and do not touch the clone. With one process there is
    nothing to wait for, and nothing is started.

    When the run has stopped, the lowest living rank prints one table and the guilty rank's stack; each living rank
    writes the same to ``error.txt`` in its folder and ends with exit code 1, its data-loader workers too, even when
    its main thread is blocked in C++.

    Args:
        store: Of the process group; it is cloned.
        rank: Rank of this process.
        world_size: Number of processes.
        timeout: Longest time that a rank may stay in one place while others wait for it.
        startup_timeout: The same until its first batch is done.
        folder: The rank's folder; can be given later with :meth:`use_folder`.
        out: Where to print; default: what is standard error now, whatever it is redirected to later.
        leave: Called with the report, for a launcher that prints it.
        phase_file: Where to keep phase and step for those who outlive this process.
    """

    def __init__(
        self,
        store: Store | None,
        rank: int,
        world_size: int,
        timeout: timedelta,
        startup_timeout: timedelta,
        folder: Path | None = None,
        out: TextIO | None = None,
        leave: Callable[[str], None] | None = None,
        phase_file: Path | None = None,
    ) -> None:
        self.rank = rank
        self.timeout = timeout
        self.startup_timeout = startup_timeout
        self._store = store if world_size > 1 else None
        self._world_size = world_size
        self._folder = folder
        self._out = out
        self._leave = leave
        self._phase_file = PhaseFile(phase_file) if phase_file is not None and self._store is not None else None
        self._main = MainThread()
        self._beat = Beat(0, os.getpid(), birth(os.getpid()), machine(), socket.gethostname())
        self._stack = ""  # as published last
        self._noted: set[tuple[int, str]] = set()
        self._concluded: float | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._asked = self._ending = False
        self._verdict: Verdict | None = None
        self._decided = threading.Event()
        self._thread: threading.Thread | None = None
        self._stacks: StackFile | None = None

    # The main thread's part ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to watch the calling thread."""
        if self._store is None:
            return
        self._out = self._out or os.fdopen(
            os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="backslashreplace"
        )
        self._peers = Peers(self._store, self.rank, self._world_size, self.timeout)
        self._beat = replace(self._beat, hosts=hosted_here(self._store, self.rank))
        self._main = MainThread()
        if self._phase_file is not None:
            self._main.keep_in(self._phase_file)
            self._beat = replace(self._beat, phase_file=str(self._phase_file.path))
        if self._folder is not None:
            self.use_folder(self._folder)
        self._say(self._beat)  # at once, so that the others know this rank even if it dies at once
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit, os.getpid())

    def use_folder(self, folder: Path) -> None:
        """Keep the stack of a frozen or crashed interpreter, and the report, in this folder of the rank."""
        self._folder = folder
        if self._store is not None and self._stacks is None:
            self._stacks = StackFile(folder)
            with self._lock:
                self._beat = replace(self._beat, stack_file=str(self._stacks.path))
                if self._thread is not None:  # at once: this process may end before the next beat
                    self._say(self._beat)

    def note(self, phase: str, step: int | None = None) -> None:
        """Say what the main thread does now. Costs a fraction of a microsecond.

        Args:
            phase: Such as ``training step``.
            step: Optimizer step, or batch of an evaluation; None keeps the last one.
        """
        self._main.note(phase, step)

    def underway(self) -> None:
        """Say that the first batch is done: from now on :attr:`timeout` counts."""
        self._main.startup = False

    def on_exception(self, error: BaseException) -> None:
        """Tell the others, as soon as an exception is there, that this rank failed, or that it fails because of them.

        Args:
            error: What the main thread raised.
        """
        if self._thread is None:
            return
        with self._lock:
            if self._beat.state != "running":
                return
            self._beat = self._main.beat_of(self._beat, error)
            alarm = alarm_of(error)
            if alarm is not None:
                self._say(replace(self._beat, state="victim", call=self._beat.call or "a collective"))
        if alarm is not None:
            self._peers.raise_alarm(alarm)
        else:
            self._peers.publish_stack(own_frames(error))
            self.publish_failure(said(error))

    def publish_failure(self, text: str) -> None:
        """Tell the others why this rank fails, before it ends.

        Args:
            text: The message of its failure.
        """
        if self._thread is None:
            return
        with self._lock:
            if self._beat.state != "running":
                return
            self._say(replace(self._beat, state="failed", reason=text))
        self._linger()

    def explain_peer_failure(self, error: BaseException) -> NamedError | None:
        """Find out which rank made a collective of this one fail, and why.

        Args:
            error: What it raised.

        Returns:
            The named failure, on the lowest living rank, which has printed the table then; None if the error is not
            about another rank, or nothing is watched. The processes of the other ranks end in this call.
        """
        if self._thread is None or alarm_of(error) is None:
            return None
        with self._lock:
            self._asked = not self._ending
        self.on_exception(error)
        self._decided.wait(HEARING + 2 * _BACKSTOP)
        return sentence(self._verdict) if self._verdict is not None else None

    def stop(self) -> None:
        """Stop watching: the run ended, or failed for a reason that is known."""
        if self._thread is None:
            return
        atexit.unregister(self._at_exit)
        if self._phase_file is not None:
            self._phase_file.remove()
        with self._lock:
            running = self._beat.state == "running"
            if running:
                self._say(replace(self._main.beat(self._beat), state="ended"))
        if running:
            self._linger()
        self._stop.set()
        self._thread.join(timeout=2)
        self._thread = None
        # After a verdict the interpreter's timer stays armed: whatever hangs on the way out is ended by it.
        if self._stacks is not None and self._verdict is None:
            self._stacks.close(keep=self._beat.state != "ended")

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            error = getattr(sys, "last_value", None)  # of an exception that nobody caught
            if error is not None:
                self.on_exception(error)
                if (named := self.explain_peer_failure(error)) is not None:
                    self._print(f"error: {named}\n")
            self.stop()

    def _linger(self) -> None:
        """Stay until the others have heard the last beat, if the store lives and dies with this process."""
        if self._beat.hosts:
            self._peers.wait_until_heard(3.0)

    def _say(self, beat: Beat) -> None:
        self._beat = replace(beat, number=self._beat.number + 1)
        self._peers.publish(self._beat)

    # The watchdog's thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        told = False
        while not self._stop.wait(1.0 if self._beat.state == "victim" else self._peers.interval):
            try:
                self._tick()
            except Exception:  # noqa: BLE001 - a fault of the watchdog must not end a healthy run
                if not told and not self._stop.is_set():
                    self._print(f"The watchdog of rank {self.rank} has a fault:\n{traceback.format_exc()}")
                told = True
                with contextlib.suppress(Exception):
                    self._say(replace(self._beat, still=0.0))

    @at_work
    def _tick(self) -> None:
        if self._stacks is not None:
            self._stacks.arm((self.startup_timeout if self._main.startup else self.timeout).total_seconds())
        with self._lock:
            if self._beat.state == "running":
                self._say(self._main.beat(self._beat))
            else:
                self._say(replace(self._beat, still=self._beat.still + 1.0))
        if self._main.stack and self._stack != self._main.stack:
            self._publish_stack()
        self._stack = self._main.stack
        self._peers.listen(self._beat)
        if (verdict := self._peers.verdict()) is not None:
            self._obey(*verdict)
        if self._beat.state == "failed":
            return
        ranks = self._peers.seen
        verdict_here = judge(ranks, self.timeout, self.startup_timeout, self._peers.alarm())
        if verdict_here is None:
            self._concluded = None
            if min((rank for rank, seen in ranks.items() if seen.living), default=-1) == self.rank:
                self._print(long_wait(ranks, self._noted))
            return
        now = time.monotonic()
        before = sum(seen.living and rank < self.rank for rank, seen in ranks.items())
        if self._concluded is None:
            # The lowest living rank speaks; should it die over it, the next one, four seconds later.
            self._concluded = now + 4.0 * before
        if before and self._peers.lost:
            self._obey(*self._report(verdict_here)[:2])
        if now >= self._concluded and self._peers.claim():
            self._speak(verdict_here)

    def _publish_stack(self) -> None:
        """Send the main thread's stack, and its loader's workers'."""
        stack = self._main.stack
        if self._beat.loader and not self._beat.call and self._stacks is not None:
            stack += self._stacks.of_workers()
        self._peers.publish_stack(stack)

    def _report(self, verdict: Verdict) -> tuple[Verdict, str, str, dict[int, Seen]]:
        ranks, first, stack = dict(self._peers.seen), verdict.guilty[0], ""
        if not ranks[first].living:
            verdict, ranks[first], stack = with_dump(verdict, ranks[first])
        stack = stack or self._peers.stack(first)
        return verdict, plain_report(verdict, ranks, stack), stack, ranks

    def _speak(self, verdict: Verdict) -> None:
        """Print the report, tell it to the others, and end."""
        self._end_soon()
        verdict, report, stack, ranks = self._report(verdict)
        with self._lock:
            self._ending = not self._asked
        self._peers.publish_verdict(verdict, report)
        assert self._out is not None
        with contextlib.suppress(OSError):
            whole = short(str((self._folder / ERROR_FILE).resolve())) if self._folder else ""
            write_report(self._out, verdict, ranks, stack, self._ending, whole)
        self._keep(report)
        self._peers.wait_for_answers(3.0)
        if self._ending:
            self._end()
        self._verdict = verdict
        self._decided.set()
        self._stop.set()

    def _obey(self, verdict: Verdict, report: str) -> None:
        """Another rank has spoken: end without a word."""
        self._ending = True
        self._end_soon()
        if not (failed := self._beat.state == "failed"):  # for its own reason, which its main thread is about to tell
            self._keep(report)
        self._peers.answer()
        time.sleep(_HOLD_BACK * (3 if failed else 1))
        self._end()

    def _keep(self, report: str) -> None:
        with contextlib.suppress(OSError):
            if self._folder:
                (self._folder / ERROR_FILE).write_text(printable(report), encoding="utf-8")
        if self._leave is not None:
            self._leave(report)

    def _end(self) -> None:
        if self._phase_file is not None:
            self._phase_file.remove()
        if self._stacks is not None:
            self._stacks.discard_empty()
        end_process()

    def _end_soon(self) -> None:
        if self._stacks is not None:
            self._stacks.arm(_BACKSTOP)

    def _print(self, text: str) -> None:
        assert self._out is not None
        with contextlib.suppress(OSError):
            self._out.write(text)
            self._out.flush()
