from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from template.doctor.part import wait_for
from template.doctor.processes import Process, Processes, descendants
from template.doctor.verdicts import flood, gone, hanging, left_behind

ROOT = Path(__file__).parents[2]
#: What each of the doctor's processes does first: its events, and a file for its stacks.
HEAD = """
import faulthandler, os, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from template.doctor.events import Teller
folder, name = Path({folder!r}), "rank 1"
stacks = (folder / (name + ".stack")).open("w")
faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
faulthandler.enable(stacks)
teller = Teller(folder / (name + ".events"))
teller.begin("steps: training step 2")
"""


def start(processes: Processes, code: str) -> Process:
    file = processes.folder / "net.py"
    file.write_text(HEAD.format(root=str(ROOT), folder=str(processes.folder)) + code, encoding="utf-8")
    return processes.start("rank 1", [sys.executable, str(file)], os.environ)


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert true()


def test_a_hang_in_c_is_named_by_the_line(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = start(processes, "import ctypes\ndef forward():\n    ctypes.PyDLL(None).sleep(1000)\nforward()\n")
        until(lambda: bool(process.news()) or process.doing != "start")
        time.sleep(0.5)
        found = hanging(process, 7.0)
        assert (found.id, found.status) == ("hang", "fail")
        assert found.subject.startswith("Rank 1 stood still for 7 s, at ")
        assert "net.py:14 forward (ctypes.PyDLL(None).sleep(1000))" in found.subject
        assert found.subject.endswith("during: steps: training step 2.")
    assert process.code is not None


def test_a_crash_is_named_by_its_signal_and_line(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = start(processes, "import ctypes\ndef forward():\n    ctypes.string_at(0)\nforward()\n")
        until(lambda: process.code is not None)
        process.news()
        found = gone(process)
    assert "Rank 1 was ended by SIGSEGV, at " in found.subject
    assert "net.py:14 forward" in found.subject


def test_an_end_without_a_word_tells_what_was_printed_last(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = start(processes, "print('the last word', flush=True)\nos._exit(4)\n")
        until(lambda: process.code is not None and bool(process.printed))
        found = gone(process)
    assert "ended with exit code 4" in found.subject
    assert "the last word" in found.cause


def test_megabytes_of_output_neither_block_nor_fill_the_memory(tmp_path: Path) -> None:
    code = "for _ in range(200):\n    print('x' * 99_999)\nprint('the end', flush=True)\nteller.end()\n"
    with Processes(tmp_path) as processes:
        process = start(processes, code)
        until(lambda: process.code is not None and process.printed >= 20_000_008)
        process.news()
        assert process.ended
        assert process.tail(1) == "the end"
        assert len(process.tail(10**9)) < 200_000
        (found,) = flood(processes.all)
    assert found.id == "output-flood"
    assert found.subject.startswith("Rank 1 printed 20 MB in a few steps: ")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another process")
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    code = """
subprocess.Popen(["sleep", "1000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
teller.end()
"""
    before = set(descendants(os.getpid()))  # the server of other tests' ranks
    with Processes(tmp_path) as processes:
        process = start(processes, code)
        until(lambda: process.code is not None)
        left = processes.left_behind()
        assert len(left) == 2
        assert "sleep 1000" in left
        (found,) = left_behind(left)
        assert found.id == "processes-left"
        orphans = set(descendants(os.getpid())) - before
        assert len(orphans) == 2
    assert not orphans & set(descendants(os.getpid()))


def test_one_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = start(processes, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n")
        until(lambda: bool(process.news()) or process.doing != "start")
    until(lambda: process.code is not None)
    assert left_behind([]) == []


def test_a_rank_that_waits_lives(tmp_path: Path) -> None:
    told: list[str] = []

    class Told:
        def measure(self, name: str, value: str) -> None:
            told.append(value)
            (tmp_path / "go").touch()

    wait_for(tmp_path, "go", Told())  # type: ignore[arg-type]
    assert told == ["go"]
