"""What a process sets for itself: its share of the cores, and to end with its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from template.distributed import process
from template.distributed.world import World

ROOT = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.case("notes/visible-devices")
@pytest.mark.parametrize(
    ("world", "before", "threads"),
    [
        (World(), {}, None),
        (World(0, 3, 0, 3, "torchrun"), {}, "2"),
        (World(0, 16, 0, 16, "torchrun"), {}, "1"),
        (World(0, 2, 0, 2, "torchrun"), {"OMP_NUM_THREADS": "3"}, "3"),
        (World(0, 2, 0, 2, "mpirun"), {"OMP_NUM_THREADS": "1"}, "1"),
        (World(0, 2, 0, 2, "slurm"), {}, "4"),
        (World(0, 2, 0, 2, "slurm"), {"SLURM_CPUS_PER_TASK": "6"}, "6"),
    ],
)
def test_cores_are_shared_out(world: World, before: dict[str, str], threads: str | None) -> None:
    process.share_threads(world, before)
    assert before.get("OMP_NUM_THREADS") == threads


CHILD = """
import os, sys
sys.path.insert(0, {root!r})
os.sched_getaffinity = lambda _: set(range(8))
from template.distributed.process import share_threads
from template.distributed.world import read_world
share_threads(read_world())
open(f"threads_{{os.environ['RANK']}}", "w").write(os.environ["OMP_NUM_THREADS"])
"""


@pytest.mark.parametrize(("chosen", "threads"), [(None, "4"), ("1", "1"), ("3", "3")])
def test_the_one_thread_of_torchrun_is_no_choice_of_the_users(tmp_path: Path, chosen: str | None, threads: str) -> None:
    (tmp_path / "child.py").write_text(CHILD.format(root=ROOT))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if chosen is not None:
        environment["OMP_NUM_THREADS"] = chosen
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "child.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60)
    assert [(tmp_path / f"threads_{rank}").read_text() for rank in (0, 1)] == [threads, threads]


ORPHAN = """
import os, sys, time
sys.path.insert(0, {root!r})
from template.distributed.process import end_with_launcher
if os.fork() == 0:
    end_with_launcher()
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_rank_ends_with_its_launcher() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN.format(root=ROOT)], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        assert Path(f"/proc/{rank}").exists()
        launcher.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while _runs(rank) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not _runs(rank)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
