"""``doctor``: starts the processes, gathers what they find, and says what becomes of them. Imports no torch."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ..console import make_console
from ..distributed.faults import NamedError
from ..distributed.launch import ERROR_FILE
from ..distributed.told import printable
from .events import Event
from .finding import Finding
from .options import Options, parse_options
from .part import GO, SOLO, STEPS, Plan
from .processes import Process, Processes
from .table import ordered, show
from .verdicts import flood, gone, hanging, joined, left_behind, not_checked, spoken, staying

#: What launchers set; the doctor's processes have their own.
_LAUNCHER = ("SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_")
_PLACES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"}
#: Seconds that ranks have, on top of the time-out, to name among themselves the one that hangs.
_AMONG_THEMSELVES = 20.0
#: Seconds that a process has to end once its work is done; Python's own last steps take some.
_LEAVING = 15.0


def main(arguments: Sequence[str], program: str, entry: str) -> int:
    """Run the doctor.

    Args:
        arguments: What follows the verb.
        program: How the verb is started, for help.
        entry: File that starts the package.

    Returns:
        Exit code: 0 without a failure, else 1; 130 after Ctrl-C.

    Raises:
        NamedError: An option cannot be used, or ``--json`` cannot be written.
    """
    if arguments[:1] == [PART]:
        from .part import main as part

        return part(Path(arguments[1]), arguments[2])
    options, rest = parse_options(arguments, program)
    if options.json is not None:
        _write([], Path(options.json))  # to find out now that it cannot be written
    if "--print_config" in {argument.partition("=")[0] for argument in rest}:
        from ..cli import SegmentationCLI

        SegmentationCLI(["fit", *rest])
    for number in (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,):
        signal.signal(number, _leave)
    # Also where a shell starts it in the background, for which Ctrl-C is switched off: its processes are to be ended.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console, start = make_console(), time.monotonic()
    try:
        findings = examine(options, rest, [sys.executable, entry, "doctor", PART], console)
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C.", file=sys.stderr)
        return 128 + signal.SIGINT
    if options.json is not None:
        _write(findings, Path(options.json))
    try:
        show(findings, console, time.monotonic() - start)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; at its exit Python would complain of the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if any(one.status == "fail" for one in findings) else 0


#: In place of options: one of the doctor's own processes, with its folder and its name.
PART = "--part"


def examine(options: Options, arguments: Sequence[str], command: Sequence[str], console: Console) -> list[Finding]:
    """Start the processes, and gather what they find.

    Args:
        options: Of the doctor.
        arguments: Those of ``fit``.
        command: Starts a process of the doctor, given its folder and name.
        console: Shows meanwhile what is done, if it is a terminal.
    """
    environ = _without_launcher(os.environ)
    with tempfile.TemporaryDirectory(prefix="doctor_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        Plan(list(arguments), options, dict(os.environ), str(Path.cwd())).write(folder)
        with Processes(folder) as processes, console.status("doctor", spinner="line") as status:
            examination = _Examination(options, folder, processes, command, environ)
            while examination.goes_on():
                status.update(examination.doing())
                time.sleep(0.05)
            return examination.findings()


class _Examination:
    """The processes and what they have told so far."""

    def __init__(
        self, options: Options, folder: Path, processes: Processes, command: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self._options = options
        self._folder = folder
        self._processes = processes
        self._command = command
        self._environ = environ
        self._alone = processes.start(SOLO, [*command, str(folder), SOLO], environ)
        self._ranks: list[Process] = []
        self._told: list[tuple[str, Finding]] = []
        self._first_end: float | None = None
        self._over = False

    def goes_on(self) -> bool:
        """Take note of what has happened; whether there is anything left to wait for."""
        for process in self._processes.all:
            for event in process.news():
                self._hear(process, event)
        self._look(self._alone, self._options.timeout)
        alone_done = self._alone.ended or self._alone.code is not None
        if alone_done and not (self._folder / GO).exists():
            return False
        for rank in self._ranks:
            if alone_done or rank.code is not None:
                self._look(rank, self._options.timeout + _AMONG_THEMSELVES)
        if self._first_end is not None and time.monotonic() - self._first_end > _AMONG_THEMSELVES:
            self._over = True  # the others wait for one that has ended
        running = [one for one in self._processes.all if one.code is None]
        return bool(running) and not self._over

    def doing(self) -> str:
        """What is done just now, for a terminal."""
        rank = self._ranks[0] if self._ranks and (self._folder / GO).exists() else self._alone
        return f"{rank.name}: {rank.doing}"

    def findings(self) -> list[Finding]:
        """All findings, each once."""
        left = self._processes.left_behind()
        self._processes.end()
        for process in self._processes.all:
            for event in process.news():
                self._hear(process, event)
        for rank, text in _messages(self._folder).items():
            self._told.append((rank, spoken(text)))
        self._told += [(SOLO, one) for one in (*flood(self._processes.all), *left_behind(left))]
        found = joined(self._told, len(self._ranks))
        whole = all(one.ended for one in self._processes.all) and not any(one.check == STEPS for _, one in self._told)
        if self._options.processes > 1 and not (self._ranks and whole):
            started = bool(self._ranks) and (self._folder / GO).exists()
            found.append(not_checked(self._options.processes, started, any(one.status == "fail" for one in found)))
        return ordered(found)

    def _hear(self, process: Process, event: Event) -> None:
        if event.kind == "finding":
            self._told.append((process.name, Finding(**event.value)))
        if process is self._alone and event.kind == "begin" and event.value.startswith("steps:") and not self._ranks:
            self._start_ranks()

    def _start_ranks(self) -> None:
        """While one process is examined, the others import what they need; they train after it."""
        count = self._options.processes
        for rank in range(count if count > 1 else 0):
            name = f"rank {rank}"
            own = self._folder / f"rank_{rank}"
            own.mkdir()
            places = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": count,
                "LOCAL_WORLD_SIZE": count,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": 0,
                ERROR_FILE: own / "error.json",
            }
            environ = {**self._environ, **{key: str(value) for key, value in places.items()}}
            self._ranks.append(self._processes.start(name, [*self._command, str(self._folder), name], environ))

    def _look(self, process: Process, patience: float) -> None:
        if process.ended:
            # What keeps it, such as a thread that is no daemon, keeps the user's run as well.
            if process.code is None and time.monotonic() - process.since > _LEAVING:
                if not any(one.id == "processes-left" for _, one in self._told):  # the others have the same code
                    self._told.append((process.name, staying(process)))
                process.kill()
            return
        if process.code is not None:
            self._leaves(process)
        elif time.monotonic() - process.since > patience and not self._over:
            self._told.append((process.name, hanging(process, patience)))
            self._over = True

    def _leaves(self, process: Process) -> None:
        """A process has ended, perhaps before it was done."""
        for event in process.news():  # its last words
            self._hear(process, event)
        done: bool = process.ended
        if not done and self._first_end is None:
            self._first_end = time.monotonic()
            if not self._has_said_why(process):
                self._told.append((process.name, gone(process)))

    def _has_said_why(self, process: Process) -> bool:
        """Whether it has told of its own end, or of a rank that it waits for."""
        told = any(name == process.name and one.id == "rank-gone" for name, one in self._told)
        return told or process.name in _messages(self._folder)


def _without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in environ.items() if not key.startswith(_LAUNCHER) and key not in _PLACES}
    return {**kept, "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONUNBUFFERED": "1"}


def _messages(folder: Path) -> dict[str, str]:
    """What ranks that were ended by the watchdog have left, by their names."""
    return {
        f"rank {file.parent.name.removeprefix('rank_')}": file.read_text(encoding="utf-8")
        for file in sorted(folder.glob("rank_*/message.txt"))
    }


def _write(findings: Sequence[Finding], file: Path) -> None:
    text = json.dumps([one._asdict() for one in findings], indent=2, ensure_ascii=False) + "\n"
    try:
        file.write_text(printable(text), encoding="utf-8")
    except OSError as error:
        raise NamedError(
            "folder-not-writable",
            f"--json: '{file}' cannot be written: {error.strerror or error}.",
            cause="",
            fix="Name a file in a folder that exists and may be written.",
        ) from error


def _leave(number: int, frame: FrameType | None) -> Any:
    raise SystemExit(128 + number)
