"""The batch script of the documentation, with a stand-in for SLURM's commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "docs" / "examples" / "train.sbatch"


def run_script(folder: Path, exit_code: int) -> tuple[int, list[str]]:
    """Exit code of the script, and the commands it gave to SLURM."""
    for name, code in (("srun", exit_code), ("scontrol", 0)):
        command = folder / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/calls\nexit {code}\n')
        command.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "8"}
    done = subprocess.run(["bash", SCRIPT, "--data.batch_size=16"], cwd=ROOT, env=environ, check=False)
    return done.returncode, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("exit_code", [0, 1, 143])
def test_a_stopped_job_is_queued_again_and_no_other(exit_code: int, tmp_path: Path) -> None:
    code, calls = run_script(tmp_path, exit_code)
    assert code == exit_code
    assert calls[0].startswith("srun --kill-on-bad-exit=1 --cpus-per-task=8 python -m template fit --config")
    assert calls[0].endswith("--experiment liver_17 --ckpt_path last --data.batch_size=16")
    assert calls[1:] == (["scontrol requeue 17"] if exit_code == 143 else [])


def test_its_files_exist_and_it_asks_for_as_many_gpus_as_tasks() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    files = re.findall(r"--config (\S+)", text)
    assert files
    assert all((ROOT / file).is_file() for file in files)
    (tasks,), (gpus,) = (
        re.findall(rf"^#SBATCH --{key}-per-node=(\d+)", text, re.MULTILINE) for key in ("ntasks", "gpus")
    )
    assert tasks == gpus
