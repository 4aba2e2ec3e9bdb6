"""One process of the doctor: the one that is examined alone, or one of those that train together."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..distributed.heartbeat import is_library, is_packages, short
from ..distributed.process import end_with_launcher, share_threads
from ..distributed.world import read_world
from .events import Teller
from .finding import failure, of_error
from .options import Options
from .processes import EVENTS, STACK

#: Name of the process that is examined alone.
SOLO = "solo"
#: The files that stand for a word: a rank has imported what it needs; the ranks may train.
READY, GO = "ready_{}", "go"
PLAN = "plan.json"
#: Name of the check that a process comes through its steps.
STEPS = "run: steps"


class Plan(NamedTuple):
    """What all processes of the doctor are told.

    Attributes:
        arguments: Those of ``fit``.
        options: Of the doctor.
        environ: Variables that the doctor was started with.
        directory: In which it was started.
    """

    arguments: list[str]
    options: Options
    environ: dict[str, str]
    directory: str

    def write(self, folder: Path) -> None:
        """Write it for the processes."""
        (folder / PLAN).write_text(json.dumps([*self]), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read what :meth:`write` wrote."""
        arguments, options, environ, directory = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return cls(arguments, Options(*options), environ, directory)


def main(folder: Path, name: str) -> int:
    """Run one process of the doctor.

    Args:
        folder: The doctor's, with the plan in it.
        name: Of the process.

    Returns:
        0: what is wrong is told in the events.
    """
    end_with_launcher(signal.SIGKILL)
    share_threads(read_world())
    teller = Teller(folder / EVENTS.format(name))
    with (folder / STACK.format(name)).open("w") as stacks:
        if hasattr(signal, "SIGUSR1"):
            faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        faulthandler.enable(stacks)
        os._exit = _told(os._exit, teller)  # type: ignore[assignment]
        plan = Plan.read(folder)
        teller.begin("start")
        # Imported here: where the import itself fails or hangs, it can be told.
        if name == SOLO:
            from .solo import examine as work
        else:
            from .together import train as work
        try:
            work(plan, folder, teller)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            teller.find([of_error(error)._replace(check=STEPS)])
            with contextlib.suppress(Exception):  # the user's code may have closed the stream
                traceback.print_exc()  # beside the one sentence, for whoever looks closer
        teller.end()
    return 0


def _told(leave: Callable[[int], NoReturn], teller: Teller) -> Callable[[int], NoReturn]:
    """``os._exit``, which tells first which line of the user's code has called it."""
    pid = os.getpid()

    def tell_and_leave(code: int) -> NoReturn:
        frames = [(f.filename, f.lineno or 0, f.name) for f in reversed(traceback.extract_stack()[:-1])]
        users = [frame for frame in frames if not is_library(frame[0]) and not is_packages(frame[0])]
        if users and os.getpid() == pid:  # workers and other children end in this way
            file, line, function = users[0]
            rank = os.environ.get("RANK")
            who = "the process" if rank is None else f"rank {rank}"
            what = f"os._exit({code}) ends {who}, at {short(file)}:{line} {function}."
            cause = "It leaves no time to say why, to save a checkpoint, or to tell the other ranks."
            teller.find([failure("rank-gone", what, cause, "Raise an exception.")._replace(check="run: processes")])
        leave(code)

    return tell_and_leave


def wait_for(folder: Path, word: str, teller: Teller) -> None:
    """Wait until a word has been left in the folder; while its writer works, this process has its own sign of life."""
    told = time.monotonic()
    while not (folder / word).exists():
        time.sleep(0.05)
        if time.monotonic() - told > 1:
            teller.measure("waits", word)
            told = time.monotonic()


def leave_word(folder: Path, word: str, value: Any = None) -> None:
    """Leave a word, whole or not at all."""
    part = folder / f"{word}.part"
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(folder / word)
