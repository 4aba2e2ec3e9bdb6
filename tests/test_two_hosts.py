"""Two machines train to the weights of one: two network namespaces, joined by a cable, on this machine."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FIT = [
    "-m",
    "template",
    "fit",
    f"--config={ROOT}/configs/phantom.yaml",
    f"--config={ROOT}/configs/ddp.yaml",
    f"--config={ROOT}/configs/several_machines.yaml",
    "--data.train_cases=8",
    "--data.val_cases=5",
    "--data.size=32",
    "--data.batch_size=4",
    "--data.num_workers=0",
    "--model.net.init_args.width=4",
    "--trainer.max_epochs=2",
    "--trainer.accelerator=cpu",
    "--trainer.precision=64-true",
    "--trainer.enable_progress_bar=false",
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
#: Addresses that exist inside the namespaces alone; nothing else of this machine is reached from there.
ADDRESSES = ("10.203.77.1", "10.203.77.2")
PORT = "29400"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Names of two namespaces with one interface each and a cable between them.

    Whatever happens, their processes are ended and they are removed.
    """
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("needs Linux and the command ip (package iproute2)")
    names = f"seg{os.getpid()}a", f"seg{os.getpid()}b"
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            # Made inside, so that they never exist outside; the far end is pushed into the other namespace.
            ip("-n", names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", names[1])
            for name, address in zip(names, ADDRESSES, strict=True):
                ip("-n", name, "address", "add", f"{address}/30", "dev", "wire")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "wire", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"may not make network namespaces: {error.stderr.strip()}")
        yield names
    finally:
        for name in names:
            inside = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
            for pid in inside.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    with two_hosts() as names:
        yield names


def environment(**more: str) -> dict[str, str]:
    others = ("SLURM_", "MASTER_", "RANK", "GLOO_", "NCCL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def start(host: str, command: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *command],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes: list[subprocess.Popen[str]], timeout: float = 500) -> list[str]:
    deadline = time.monotonic() + timeout
    return [process.communicate(timeout=max(1, deadline - time.monotonic()))[0] for process in processes]


class Run:
    """What a training left: the only run below a folder."""

    def __init__(self, folder: Path) -> None:
        (self.folder,) = (folder / "runs" / "phantom").iterdir()
        with (self.folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        self.losses = [float(row["train/loss_epoch"]) for row in rows if row["train/loss_epoch"]]
        self.scores = [float(row["val/dice"]) for row in rows if row["val/dice"]]
        state = torch.load(self.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        self.weights = torch.cat([tensor.double().flatten() for tensor in state.values()])
        self.ranks = sorted(path.name for path in self.folder.glob("rank_*"))


@pytest.fixture(scope="module")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four processes on one machine."""
    folder = tmp_path_factory.mktemp("one_host")
    command = [*TORCHRUN, "--standalone", "--local-addr=localhost", "--nproc-per-node=4", *FIT]
    subprocess.run(command, cwd=folder, env=environment(), check=True, timeout=500, capture_output=True)
    return Run(folder)


def check_same(folder: Path, one_host: Run) -> None:
    run = Run(folder)
    assert run.folder.name == "version_0"
    assert run.ranks == one_host.ranks == ["rank_0", "rank_1", "rank_2", "rank_3"]
    assert len(run.losses) == 2
    assert run.losses == pytest.approx(one_host.losses, rel=1e-9)
    assert run.scores == pytest.approx(one_host.scores, rel=1e-9)
    assert (run.weights - one_host.weights).norm() / one_host.weights.norm() < 1e-9


def test_torchrun_on_two_hosts(hosts: tuple[str, str], one_host: Run, tmp_path: Path) -> None:
    """The commands of docs/several-machines.md; the second machine starts five seconds late."""
    agents = []
    for number, (host, address) in enumerate(zip(hosts, ADDRESSES, strict=True)):
        rendezvous = [
            "--nnodes=2",
            "--nproc-per-node=2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}",
            "--rdzv-id=test",
            f"--rdzv-conf=is_host={1 - number}",
            f"--local-addr={address}",
        ]
        agents.append(start(host, [*TORCHRUN, *rendezvous, *FIT], tmp_path))
        time.sleep(5 * (1 - number))
    outputs = finish(agents)
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    check_same(tmp_path, one_host)
    assert "4 processes" in "".join(outputs)


def test_torchrun_without_a_rendezvous_service(hosts: tuple[str, str], one_host: Run, tmp_path: Path) -> None:
    """The machines are numbered by hand."""
    agents = []
    for number, host in enumerate(hosts):
        place = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={number}"]
        meeting = [f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]
        agents.append(start(host, [*TORCHRUN, *place, *meeting, *FIT], tmp_path))
    outputs = finish(agents)
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    check_same(tmp_path, one_host)


@pytest.mark.parametrize(
    "address",
    [
        pytest.param({"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT}, id="address of the batch script"),
        # A list of hosts in SLURM's way of writing; these hosts have no names.
        pytest.param({"SLURM_STEP_NODELIST": "10.203.77.[1-2]"}, id="address of the first node"),
    ],
)
def test_srun_on_two_hosts(address: dict[str, str], hosts: tuple[str, str], one_host: Run, tmp_path: Path) -> None:
    """What srun does: a process for each task, with SLURM's variables; those of the second node five seconds late."""
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "train",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_NODELIST": "10.203.77.[1-2]",
    }
    tasks = []
    for task in range(4):
        place = {"SLURM_PROCID": str(task), "SLURM_NODEID": str(task // 2), "SLURM_LOCALID": str(task % 2)}
        tasks.append(start(hosts[task // 2], [sys.executable, *FIT], tmp_path, **job, **address, **place))
        time.sleep(5 if task == 1 else 0)
    outputs = finish(tasks)
    assert [task.returncode for task in tasks] == [0, 0, 0, 0], outputs
    check_same(tmp_path, one_host)


def test_nothing_is_left_of_the_hosts() -> None:
    with two_hosts() as names:
        sleeper = subprocess.Popen(["ip", "netns", "exec", names[1], "sleep", "600"])
        while not subprocess.run(["ip", "netns", "pids", names[1]], check=True, capture_output=True).stdout:
            time.sleep(0.05)
    assert sleeper.wait(timeout=10) == -signal.SIGKILL
    left = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    assert not [name for name in names if name in left]
