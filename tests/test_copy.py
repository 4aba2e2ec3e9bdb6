"""The folder of the package works under any other name, beside the same configurations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import tiny

ROOT = Path(__file__).parent.parent


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the package as ``liverseg``, and the shipped configurations."""
    shutil.copytree(ROOT / "template", tmp_path / "liverseg", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the copy in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "liverseg", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment, "OMP_NUM_THREADS": "1"}
    )


SMALL = [
    *("--data.train_cases", "8", "--data.val_cases", "2", "--data.test_cases", "2", "--data.size", "32"),
    *("--model.net.width", "4", "--model.net.depth", "2", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"),
]


@pytest.mark.slow
def test_a_copy_under_another_name_trains_with_the_same_files(copied: Path) -> None:
    done = call("fit", "--config", "configs/phantom.yaml", *SMALL)
    assert done.returncode == 0, done.stderr
    run = copied / "runs" / "phantom" / "version_0"
    saved = (run / "config.yaml").read_text(encoding="utf-8")
    assert "class_path: UNet\n" in saved
    assert "liverseg" not in saved
    assert "template" not in saved
    for file in (run / "checkpoints").glob("*.ckpt"):
        content = file.read_bytes()
        assert b"liverseg" not in content
        assert b"template" not in content
    # The original takes up what the copy has left, and the other way round.
    tested = tiny.run(verb="test", config=str(run / "config.yaml"))
    assert tested == 0
    assert (run / "test_0" / "scores.json").is_file()
    assert tiny.run("--trainer.max_epochs", "2", "--ckpt_path", "last", config=str(run / "config.yaml")) == 0
    done = call("test", "--config", str(run / "config.yaml"), "--ckpt_path", "best")
    assert done.returncode == 0, done.stderr
    assert "liver" in done.stdout


def test_a_copy_names_itself(copied: Path) -> None:
    done = call("--help")
    assert done.returncode == 0, done.stderr
    assert "python -m liverseg fit --config configs/phantom.yaml" in done.stdout
    assert "template" not in done.stdout
    assert (copied / "liverseg" / "__main__.py").is_file()
