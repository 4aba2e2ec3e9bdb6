"""Where processes that a launcher started meet, and what they say where they cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_launchers import FIT, MODULE, TORCHRUN, check_folder, environment, free_port, losses

pytestmark = pytest.mark.slow

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "2",
    "SLURM_NODELIST": "localhost",
}


def start(command: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def srun(arguments: list[str], folder: Path, **variables: str) -> list[subprocess.Popen[str]]:
    """Two tasks on one machine."""
    command = [sys.executable, *MODULE, *FIT, *arguments]
    return [
        start(command, folder, **SLURM, SLURM_PROCID=str(task), SLURM_LOCALID=str(task), **variables)
        for task in range(2)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    return [process.returncode for process in processes], outputs


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What one process makes of it."""
    folder = tmp_path_factory.mktemp("alone")
    assert finish([start([sys.executable, *MODULE, *FIT, "--trainer.devices=1"], folder)])[0] == [0]
    return losses(folder)


@pytest.mark.case("notes/init-process-group")
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize("scheme", ["tcp", "file"])
def test_an_address_of_the_users(scheme: str, launcher: str, tmp_path: Path, expected: list[float]) -> None:
    url = f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"file://{tmp_path}/meeting"
    address = [f"--trainer.strategy.init_args.init_method={url}"]
    if launcher == "torchrun":
        processes = [start([*TORCHRUN, "2", f"--master-port={free_port()}", *MODULE, *FIT, *address], tmp_path)]
    else:
        processes = srun(address, tmp_path)
    codes, outputs = finish(processes)
    assert not any(codes), outputs
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-9)
    check_folder(tmp_path)
    assert not (tmp_path / "meeting").exists()


@pytest.mark.case("E5")
def test_srun_with_a_busy_port_ends_every_task_and_names_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        codes, outputs = finish(srun([], tmp_path, MASTER_PORT=str(port)))
    assert codes == [1, 1]
    assert f"Port {port} of " in outputs[0]
    assert f"What listens at localhost:{port}" in outputs[1]
    for output in outputs:
        assert "Set MASTER_PORT to another one in the batch script" in output
        assert "[port-in-use]" in output
        assert "Traceback" not in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.case("E5")
def test_torchrun_with_a_busy_port_is_explained(tmp_path: Path) -> None:
    """It fails before it starts the program: its own text is all there is."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        codes, outputs = finish([start([*TORCHRUN, "2", f"--master-port={port}", *MODULE, *FIT], tmp_path)])
    assert codes == [1]
    explained = subprocess.run(
        [sys.executable, *MODULE, "explain"],
        input=outputs[0],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert explained.startswith("port-in-use")
    assert f"port {port}" in explained
    assert "--master-port" in explained


@pytest.mark.case("E2")
def test_one_task_for_two_devices_is_refused(tmp_path: Path) -> None:
    task = {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    codes, outputs = finish([start([sys.executable, *MODULE, *FIT], tmp_path, **task)])
    assert codes == [2]
    assert "slurm started 1 process on this machine, but trainer.devices is 2" in outputs[0]
    assert "[world-size]" in outputs[0]
    assert not (tmp_path / "runs").exists()


def test_a_batch_script_without_srun_starts_its_processes_itself(tmp_path: Path, expected: list[float]) -> None:
    script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    script |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    codes, outputs = finish([start([sys.executable, *MODULE, *FIT], tmp_path, **script)])
    assert codes == [0], outputs
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-9)
    check_folder(tmp_path)
