"""Failure reports about starting processes: one run of two, started in an unkind way, and refusals."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from template import __main__ as program
from template.distributed.recognize import recognize_text
from tests import tiny
from tests.logs import known_texts

ROOT = Path(__file__).parents[2]
RUN = Path("runs/tiny/version_0")

#: A script of the user's own from standard input, which changes the directory before the fit and goes on after it.
SCRIPT = """\
import os
from template.__main__ import main
os.chdir("below")
code = main(["fit", "--config", "tiny.yaml", "--trainer.devices", "2"])
best = [name for name in os.listdir("runs/tiny/version_0/checkpoints") if name.startswith("best")]
with open("after.txt", "a") as file:
    file.write(f"{code} {len(best)}\\n")
"""


class Done(NamedTuple):
    """A program that has ended.

    Attributes:
        folder: Its working directory at the end.
        out: Standard output.
        err: Standard error.
    """

    folder: Path
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """Nothing of a launcher's, and warnings as they are without pytest."""
    theirs = ("SLURM_", "MASTER_", "RANK", "WORLD_", "LOCAL_", "PYTHONWARNINGS", "TORCH_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A fit of two processes, by a script from standard input."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "below").mkdir()
    (folder / "below" / "tiny.yaml").write_text(tiny.CONFIG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-"],
        cwd=folder,
        env=environment(),
        input=SCRIPT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Done(folder / "below", done.stdout, done.stderr)


@pytest.mark.case("E8", "notes/run-button", "notes/spawn")
def test_a_script_from_standard_input_that_has_changed_the_directory_starts_all_its_processes(two: Done) -> None:
    assert "global batch 2 = 2 processes × 1 × 1 accumulation" in two.out
    assert (two.folder / RUN / "checkpoints" / "last.ckpt").is_file()
    assert "Traceback" not in two.err


@pytest.mark.case("E10")
def test_code_after_the_fit_runs_once_and_finds_the_checkpoint(two: Done) -> None:
    assert (two.folder / "after.txt").read_text(encoding="utf-8") == "0 1\n"


@pytest.mark.case("G1", "notes/tensorboard-race", "notes/save-every")
def test_the_processes_write_into_one_run_and_no_two_into_one_folder(two: Done) -> None:
    assert [path.name for path in (two.folder / "runs/tiny").iterdir()] == ["version_0"]
    events = sorted(str(path.parent.relative_to(two.folder / RUN)) for path in (two.folder / RUN).rglob("events.out.*"))
    assert events == [".", "rank_0", "rank_1"]
    with (two.folder / RUN / "metrics.csv").open(newline="", encoding="utf-8") as file:
        assert [int(row["step"]) for row in csv.DictReader(file) if row["train/loss_step"]] == [0, 1]


@pytest.mark.case("notes/warnings")
def test_a_run_of_two_processes_prints_no_warning(two: Done) -> None:
    """A new one fails here: it is mended, or silenced in ``template/quiet.py`` with the reason."""
    logs = [path.read_text(encoding="utf-8") for path in (two.folder / RUN).glob("rank_*/output.log")]
    assert len(logs) == 2
    text = "\n".join((two.out, two.err, *logs))
    assert not [line for line in text.splitlines() if re.search(r"(?i)warn|deprecat|\[[WE]\d{3}|future", line)]
    assert recognize_text(text) == []


@pytest.mark.case("E8")
def test_the_other_processes_start_the_program_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "launch", lambda processes, command: started.extend(command) or 0)
    tiny.write()
    assert tiny.run("--trainer.devices", "2") == 0
    assert started == [str(ROOT / "template" / "__main__.py"), "fit", "--config", "tiny.yaml", "--trainer.devices", "2"]


# Launchers and configurations that do not agree ---------------------------------------------------------------------


def refused(
    variables: Mapping[str, str],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a process of a launcher says before it meets any other."""
    # They change this process for good.
    monkeypatch.setattr(program, "end_with_launcher", lambda: None)
    monkeypatch.setattr(program, "share_threads", lambda world: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tiny.run(*arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error[error.index("error: ") :]


TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.case("E2")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "torchrun started 2 processes on this machine, but trainer.devices is 1."),
        (["--trainer.devices", "4"], "but trainer.devices is 4"),
        (["--trainer.devices", "2", "--trainer.num_nodes", "2"], "trainer.num_nodes 2."),
    ],
)
def test_another_number_of_processes_than_the_configuration_asks_for(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write()
    error = refused(TORCHRUN, arguments, monkeypatch, capsys)
    assert told in error
    assert "Set --trainer.devices 2" in error
    assert "or --trainer.devices auto, which takes as many as the launcher has started." in error
    assert error.endswith("[world-size]\n")
    assert not Path("runs").exists()


@pytest.mark.case("E4", "notes/visible-devices")
def test_srun_that_shows_each_task_one_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    tiny.write()
    slurm = {
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "4",
        "SLURM_NNODES": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    error = refused(slurm, ["--trainer.accelerator", "gpu", "--trainer.devices", "4"], monkeypatch, capsys)
    assert "rank 0 sees 1 GPU (CUDA_VISIBLE_DEVICES=0)" in error
    assert "--gpus-per-task" in error
    assert "Ask for --gpus-per-node=4 --ntasks-per-node=4 instead" in error


# Notebooks ----------------------------------------------------------------------------------------------------------


@pytest.mark.case("E6")
@pytest.mark.parametrize("identifier", ["notebook-strategy", "cuda-before-fork"])
def test_what_lightning_says_in_a_notebook_is_explained_in_one_line(identifier: str) -> None:
    for _, text in known_texts(identifier):
        (finding,) = recognize_text(text)
        assert finding.fault.identifier == identifier
        assert "in a terminal" in finding.fault.fix


@pytest.mark.slow
@pytest.mark.case("E6")
def test_in_a_notebook_the_program_starts_processes_of_its_own(tmp_path: Path) -> None:
    """They are new ones: it does not matter what the kernel has done, CUDA included."""
    (tmp_path / "tiny.yaml").write_text(tiny.CONFIG, encoding="utf-8")
    code = (
        'from template.__main__ import main; print("code", main("fit --config tiny.yaml --trainer.devices 2".split()))'
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "-c", code],
        cwd=tmp_path,
        env=environment(IPYTHONDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert "code 0" in done.stdout, done.stdout + done.stderr
    assert "2 processes × 1" in done.stdout
    assert (tmp_path / RUN / "checkpoints" / "last.ckpt").is_file()
