"""The doctor as a user starts it, on healthy configurations and on networks that do their worst."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from template.__main__ import main
from template.doctor.processes import descendants

ROOT = Path(__file__).parents[2]

WORST = """
import ctypes, os, subprocess, sys, time
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)
        self.step = 0

    def forward(self, x):
        self.step += 1
        self.worst()
        return self.head(self.body(x).relu())

    def later_on_rank_1(self):
        return os.environ.get("RANK") == "1" and self.step > 1


class HangsInC(Net):
    def worst(self):
        ctypes.PyDLL(None).sleep(10_000)  # hangs


class HangsOnOneRank(Net):
    def worst(self):
        if self.later_on_rank_1():
            time.sleep(10_000)  # hangs


class Exits(Net):
    def worst(self):
        sys.exit(3)  # exits


class ExitsAtOnce(Net):
    def worst(self):
        if self.later_on_rank_1():
            os._exit(0)  # exits


class Raises(Net):
    def worst(self):
        if self.later_on_rank_1():
            raise ValueError("no liver here")  # raises


class Floods(Net):
    def worst(self):
        print("x" * 3_000_000)


class Forks(Net):
    def worst(self):
        if os.fork() == 0:
            os.setsid()
            time.sleep(10_000)
"""
CONFIG = """
data:
  class_path: Phantom
  init_args: {train_cases: 8, val_cases: 4, test_cases: 2, size: 32, batch_size: 4, num_workers: 0}
model: {net: {class_path: UNet, init_args: {width: 4, depth: 2}}}
trainer: {max_epochs: 2}
"""
PLACE = "net.py:{}"


class Answer(NamedTuple):
    code: int
    findings: list[dict[str, str]]
    printed: str
    seconds: float

    def of(self, status: str) -> list[dict[str, str]]:
        return [one for one in self.findings if one["status"] == status]


def doctor(folder: Path, *arguments: str, timeout: float = 200) -> Answer:
    """Run it; nothing that it has started may live on."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    command = [sys.executable, "-m", "template", "doctor", "--json", "found.json", *arguments]
    start = time.monotonic()
    run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    seconds = time.monotonic() - start
    time.sleep(0.5)
    assert _at_work_in(folder) == []
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    print(run.stdout, run.stderr)
    return Answer(run.returncode, found, run.stdout, seconds)


def _at_work_in(folder: Path) -> list[str]:
    """Processes whose working directory it is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def on(folder: Path, network: str, *arguments: str) -> Answer:
    """The doctor on one of the networks."""
    (folder / "net.py").write_text(WORST, encoding="utf-8")
    (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")
    return doctor(folder, "--config", "run.yaml", "--model.net", f"net.{network}", "--timeout", "12", *arguments)


def line(network: str, comment: str) -> str:
    """``net.py:12`` of a network's line with a comment."""
    lines = WORST.splitlines()
    start = next(number for number, text in enumerate(lines) if text.startswith(f"class {network}"))
    return PLACE.format(next(n for n in range(start, len(lines)) if f"# {comment}" in lines[n]) + 1)


@pytest.mark.slow
def test_a_healthy_configuration_passes_as_it_is_shipped(tmp_path: Path) -> None:
    answer = doctor(tmp_path, "--config", str(ROOT / "configs/phantom.yaml"), "--link-speed", "25")
    assert answer.of("fail") == answer.of("warn") == []
    assert answer.code == 0
    assert {one["check"].partition(":")[0] for one in answer.findings} == {"machine", "data", "model", "run", "cost"}
    assert all(set(one) == {"id", "check", "status", "subject", "cause", "fix"} for one in answer.findings)
    assert max(map(len, answer.printed.splitlines())) <= 80
    assert "\x1b" not in answer.printed  # a file has no colours
    assert not (tmp_path / "runs").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "identifier", "named", "comment"),
    [
        ("HangsInC", "hang", "The run on one process stood still for 12 s", "hangs"),
        ("HangsOnOneRank", "hang", "Rank 1 ", "hangs"),
        ("Exits", "exception", "sys.exit(3)", "exits"),
        ("ExitsAtOnce", "rank-gone", "os._exit(0) ends rank 1", "exits"),
        ("Raises", "exception", "On rank 1: ValueError: no liver here", "raises"),
    ],
)
def test_the_worst_is_a_finding(network: str, identifier: str, named: str, comment: str, tmp_path: Path) -> None:
    answer = on(tmp_path, network)
    assert answer.code == 1
    fails = answer.of("fail")
    assert [one["id"] for one in fails] == [identifier], fails
    assert named in fails[0]["subject"]
    assert line(network, comment) in fails[0]["subject"]
    assert "not-checked" in [one["id"] for one in answer.of("warn")]
    # The steps before, the timeout, and what the ranks need among themselves.
    assert answer.seconds < 100


@pytest.mark.slow
@pytest.mark.parametrize(("network", "identifier"), [("Floods", "output-flood"), ("Forks", "processes-left")])
def test_what_only_disturbs_is_a_warning(network: str, identifier: str, tmp_path: Path) -> None:
    answer = on(tmp_path, network)
    assert answer.code == 0
    assert [one["id"] for one in answer.of("warn")] == [identifier]


@pytest.mark.slow
def test_ctrl_c_and_sigterm_leave_nothing_behind(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "template", "doctor", "--config", str(ROOT / "configs/phantom.yaml")]
    for number, code in ((2, 130), (15, 143)):
        run = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while len(descendants(run.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(descendants(run.pid)) >= 3
        run.send_signal(number)
        printed = run.communicate(timeout=30)[0].decode()
        assert run.returncode == code
        assert "Traceback" not in printed
        time.sleep(0.5)
        assert _at_work_in(tmp_path) == []


def test_wrong_usage_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--processes", "0"]) == 2
    assert "--processes is 0" in capsys.readouterr().err
