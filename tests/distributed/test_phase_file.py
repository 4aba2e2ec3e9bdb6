"""The phase of a process outlives it, and is read by whoever misses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from template.distributed.cut_off import cut_off
from template.distributed.heartbeat import Beat
from template.distributed.peers import _with_last_phase
from template.distributed.phase_file import PhaseFile, read_last


def test_the_last_note_is_read_and_a_longer_one_before_leaves_nothing(tmp_path: Path) -> None:
    file = PhaseFile(tmp_path / "phase.txt")
    assert read_last(file.path) == (None, "start-up")
    file.note("end of the validation" * 20, 12)
    file.note("backward", 13)
    assert read_last(file.path) == (13, "backward")
    file.remove()
    assert read_last(file.path) is None
    assert read_last("") is None


def test_peers_see_what_a_process_did_after_its_last_beat(tmp_path: Path) -> None:
    file = PhaseFile(tmp_path / "phase.txt")
    beat = Beat(1, 1, "", "", "", place="a.py:1 f", code="f()", phase_file=str(file.path))
    assert _with_last_phase(beat) == beat
    file.note("training step", 3)
    assert _with_last_phase(beat) == replace(beat, step=3, phase="training step", place="", code="")
    ended = replace(beat, state="ended")
    assert _with_last_phase(ended) == ended


def test_a_crash_is_told_with_the_place_that_the_interpreter_wrote(tmp_path: Path) -> None:
    file = PhaseFile(tmp_path / "phase.txt")
    file.note("training step", 3)
    (tmp_path / "stack.txt").write_text(
        "Fatal Python error: Segmentation fault\n\n"
        'Current thread 0x1 (most recent call first):\n  File "/home/me/net.py", line 4 in forward\n'
    )
    error = cut_off(1, -11, tmp_path, file.path)
    assert error.what == "Rank 1 crashed in step 3 (training step) at home/me/net.py:4 forward: Segmentation fault."
    assert cut_off(1, -9, tmp_path / "none", None).what == "Rank 1 was ended by SIGKILL."
