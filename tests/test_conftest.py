"""The check that every test passes through: here tests that leave something must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAVING = """
import os, random, signal

def test_environment():
    os.environ["LEFT"] = "1"

def test_directory(tmp_path):
    os.chdir(tmp_path)

def test_signal():
    signal.signal(signal.SIGTERM, lambda *_: None)

def test_process():
    os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")

def test_process_group(tmp_path):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)

def test_clean():
    assert "LEFT" not in os.environ
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert random.random() == random.Random(0).random()
"""


def test_what_a_test_leaves_is_named_and_undone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(LEAVING)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=6, errors=5)
    result.stdout.fnmatch_lines_random(
        [
            "*left behind: environment variable LEFT",
            "*left behind: another working directory",
            "*left behind: a handler of SIGTERM",
            "*left behind: process *",
            "*left behind: a process group",
        ]
    )
