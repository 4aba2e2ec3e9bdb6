"""Every way to start two processes trains the phantom to the same loss, in one run's folder."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FIT = [
    "fit",
    f"--config={ROOT}/configs/phantom.yaml",
    f"--config={ROOT}/configs/ddp.yaml",
    "--data.train_cases=8",
    "--data.val_cases=3",
    "--data.size=32",
    "--data.batch_size=4",
    "--model.net.init_args.width=4",
    "--trainer.max_epochs=2",
    "--trainer.accelerator=cpu",
    "--trainer.precision=64-true",
]
PLAIN = [argument for argument in FIT if "ddp.yaml" not in argument]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
LAUNCH = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2"]
MODULE = ["-m", "template"]
SCRIPT = [str(ROOT / "template" / "__main__.py")]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_", "RANK"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def losses(folder: Path) -> list[float]:
    """Loss of each epoch, from the only run there is."""
    (run,) = (folder / "runs" / "phantom").iterdir()
    assert run.name == "version_0"
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss_epoch"]) for row in csv.DictReader(file) if row["train/loss_epoch"]]


def check_folder(folder: Path, processes: int = 2) -> None:
    """One set of checkpoints, and a folder for each rank with its own events and output."""
    run = folder / "runs" / "phantom" / "version_0"
    assert sorted(path.name for path in run.glob("rank_*")) == [f"rank_{rank}" for rank in range(processes)]
    for rank in range(processes):
        assert len(list((run / f"rank_{rank}").glob("events.out.tfevents*"))) == 1
        assert (run / f"rank_{rank}" / "output.log").exists()
        assert not (run / f"rank_{rank}" / "error.txt").exists()
    assert len(list(run.glob("events.out.tfevents*"))) == 1
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    assert checkpoints[1] == "last.ckpt"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What one process makes of it."""
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, *MODULE, *FIT, "--trainer.devices=1"]
    subprocess.run(command, cwd=folder, env=environment(), check=True, timeout=120, capture_output=True)
    return losses(folder)


@pytest.mark.case("E1", "notes/launch-arguments", "notes/spawn", "notes/run-button", "notes/ddp-arguments")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, *MODULE, *FIT], id="by hand"),
        pytest.param([sys.executable, *SCRIPT, *FIT], id="run button"),
        pytest.param([sys.executable, *MODULE, *PLAIN, "--trainer.devices=2"], id="devices alone"),
        pytest.param([sys.executable, *MODULE, *PLAIN, "--trainer.devices=2", "--trainer.strategy=ddp"], id="ddp"),
        pytest.param(
            [sys.executable, *MODULE, *PLAIN, "--trainer.devices=2", "--trainer.strategy=ddp_spawn"], id="ddp_spawn"
        ),
        pytest.param([*TORCHRUN, "2", *MODULE, *FIT], id="torchrun"),
        pytest.param([*TORCHRUN, "2", *MODULE, *FIT, "--trainer.devices=auto"], id="torchrun, devices auto"),
        pytest.param([*TORCHRUN, "4", *MODULE, *FIT, "--trainer.devices=4"], id="torchrun on four"),
        pytest.param([*LAUNCH, *MODULE, *FIT], id="launch -m"),
        pytest.param([*LAUNCH, *SCRIPT, *FIT], id="launch script"),
        pytest.param([*LAUNCH, "--use_env", *MODULE, *FIT], id="launch --use_env"),
        pytest.param([*LAUNCH, *MODULE, "--local_rank=0", *FIT], id="launch with the older spelling"),
    ],
)
def test_a_launcher_reaches_the_same_loss(command: list[str], tmp_path: Path, expected: list[float]) -> None:
    if "torch.distributed" in command[2]:  # a port of its own for each: tests may run side by side
        command = [*command[:3], f"--master-port={free_port()}", *command[3:]]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), timeout=180, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path) == pytest.approx(expected, abs=1e-9)
    check_folder(tmp_path, 4 if "4" in command else 2)
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.case("G1")
def test_srun_reaches_the_same_loss(tmp_path: Path, expected: list[float]) -> None:
    slurm = {
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "train",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "localhost",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, *MODULE, *FIT],
            cwd=tmp_path,
            env=environment(**slurm, SLURM_PROCID=str(task), SLURM_LOCALID=str(task)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for task in range(2)
    ]
    outputs = [task.communicate(timeout=180)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert losses(tmp_path) == pytest.approx(expected, abs=1e-9)
    check_folder(tmp_path)


@pytest.mark.case("E5")
def test_a_busy_port_does_not_matter_where_the_program_owns_the_launch(tmp_path: Path, expected: list[float]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        busy = str(listener.getsockname()[1])
        subprocess.run(
            [sys.executable, *MODULE, *FIT],
            cwd=tmp_path,
            env=environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=busy),
            check=True,
            timeout=180,
            capture_output=True,
        )
    assert losses(tmp_path) == pytest.approx(expected, abs=1e-9)


@pytest.mark.case("E2")
def test_more_processes_than_the_configuration_asks_for_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TORCHRUN, "2", f"--master-port={free_port()}", *MODULE, *FIT, "--trainer.devices=1"],
        cwd=tmp_path,
        env=environment(),
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    # Both processes find it, and one says it.
    assert done.stderr.count("torchrun started 2 processes on this machine, but trainer.devices is 1") == 1
    assert "--trainer.devices 2" in done.stderr
    assert not (tmp_path / "runs").exists()
