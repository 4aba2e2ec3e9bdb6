"""One run's folder, one fit at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from template.distributed.faults import NamedError
from template.run_lock import run_lock
from tests import tiny

HOLDER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from template.run_lock import run_lock
with run_lock(Path({folder!r})):
    print("held", flush=True)
    time.sleep(60)
"""


def _hold(folder: Path) -> subprocess.Popen[bytes]:
    code = HOLDER.format(root=str(Path(__file__).parents[1]), folder=str(folder))
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_a_folder_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with _hold(tmp_path) as holder:
        with pytest.raises(NamedError, match="still trains in the run's folder") as error, run_lock(tmp_path, 0.3):
            pass
        assert error.value.identifier == "run-in-use"
        assert str(tmp_path) in error.value.what
        holder.kill()


def test_a_killed_process_holds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _hold(tmp_path) as holder:
        threading.Timer(0.5, holder.kill).start()
        with run_lock(tmp_path, 20):
            assert list(tmp_path.iterdir()) == []  # no file is left for anyone to clear away
    assert capsys.readouterr().err.startswith(f"waiting for another process to leave '{tmp_path}'")


def test_a_second_fit_in_the_same_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("template.run_lock.PATIENCE", 0.2)
    tiny.write()
    assert tiny.run() == 0
    with _hold(tmp_path / "runs/tiny/version_0") as holder:
        assert tiny.run("--ckpt_path=last", "--trainer.max_epochs=2") == 1
        assert "[run-in-use]" in capsys.readouterr().err
        assert tiny.run("--ckpt_path=last", verb="test") == 0  # which writes into a folder of its own
        holder.kill()
    assert tiny.run("--ckpt_path=last", "--trainer.max_epochs=2") == 0
