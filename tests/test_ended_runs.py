"""The whole program, ended from outside or by a rank that sleeps: nobody is left behind, and the rank is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.test_launchers import MODULE, ROOT, TORCHRUN, environment, free_port

pytestmark = pytest.mark.slow

FIT = [
    "fit",
    f"--config={ROOT}/configs/phantom.yaml",
    f"--config={ROOT}/configs/ddp.yaml",
    "--data.train_cases=32",
    "--data.val_cases=4",
    "--data.size=32",
    "--data.batch_size=8",
    "--data.num_workers=1",
    "--model.net.init_args.width=4",
    "--trainer.max_epochs=5000",
    "--trainer.accelerator=cpu",
]


class Run:
    """The program in a folder of its own, and all processes that belong to it."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.folder = folder
        self.printed = folder / "printed"
        with self.printed.open("w") as out:
            self.program = subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=out, stderr=out, start_new_session=True
            )
        self.ended = 0.0

    @property
    def checkpoint(self) -> Path:
        return self.folder / "runs/phantom/version_0/checkpoints/last.ckpt"

    def wait_for(self, file: Path) -> None:
        deadline = time.monotonic() + 120
        while not file.exists():
            assert self.program.poll() is None, self.printed.read_text()
            assert time.monotonic() < deadline, self.printed.read_text()
            time.sleep(0.1)

    def processes(self) -> dict[int, str | None]:
        """Process number to rank, None for a launcher; a rank's loader workers have its rank."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    rank = re.search(rb"(?:^|\0)RANK=(\d+)", (entry / "environ").read_bytes())
                    found[int(entry.name)] = rank[1].decode() if rank else None
            except OSError:  # it has just ended
                pass
        return found

    def rank(self, rank: int) -> int:
        """Process of a rank: the first of those that have its number."""
        return min(pid for pid, number in self.processes().items() if number == str(rank))

    def seconds_until_all_are_gone(self, limit: float) -> float:
        started = time.monotonic()
        while self.processes():
            self.program.poll()  # reaps it
            assert time.monotonic() - started < limit, (self.processes(), self.printed.read_text())
            time.sleep(0.05)
        self.program.wait(5)
        return time.monotonic() - started

    @property
    def last_line(self) -> str:
        return self.printed.read_text().strip().splitlines()[-1]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)
        run.program.wait(10)


def _start(started: list[Run], command: list[str], folder: Path) -> Run:
    started.append(Run(command, folder))
    return started[-1]


@pytest.mark.parametrize(
    ("launcher", "rank"), [*(("by hand", rank) for rank in range(4)), ("torchrun", 0), ("torchrun", 3)]
)
def test_sigkill_of_any_rank_ends_all_and_names_it(
    rank: int, launcher: str, tmp_path: Path, started: list[Run]
) -> None:
    program = [*TORCHRUN, "4", f"--master-port={free_port()}"] if launcher == "torchrun" else [sys.executable]
    run = _start(started, [*program, *MODULE, *FIT, "--trainer.devices=4"], tmp_path)
    run.wait_for(run.checkpoint)
    assert len(run.processes()) >= 5 + 4  # the launcher, four ranks, a loader worker of each
    os.kill(run.rank(rank), signal.SIGKILL)
    run.seconds_until_all_are_gone(20)
    assert run.program.returncode == 1
    if launcher == "by hand":
        assert f"Rank {rank} was ended by SIGKILL" in run.last_line
        errors = re.findall(r"^error: .*", run.printed.read_text(), re.MULTILINE)
        assert len(errors) == 1
        assert re.match(rf"error: Rank {rank} (was ended by SIGKILL|on \S+ ended without a word)", errors[0])
        assert "--ckpt_path last" in errors[0]
        assert errors[0].endswith("[rank-gone]")
    else:  # its own report comes last, and names the rank as well
        assert re.search(rf"rank\s*: {rank} .*\n.*exitcode\s*: -9", run.printed.read_text())
    assert torch.load(run.checkpoint, weights_only=True)["state_dict"]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_sigterm_ends_with_143_and_a_checkpoint(devices: int, tmp_path: Path, started: list[Run]) -> None:
    run = _start(started, [sys.executable, *MODULE, *FIT, f"--trainer.devices={devices}"], tmp_path)
    run.wait_for(run.checkpoint)
    before = torch.load(run.checkpoint, weights_only=True)["global_step"]
    time.sleep(2)
    run.program.send_signal(signal.SIGTERM)
    run.seconds_until_all_are_gone(10)
    assert run.program.returncode == 143
    assert torch.load(run.checkpoint, weights_only=True)["global_step"] > before
    assert "--ckpt_path last" in run.last_line


@pytest.mark.parametrize("launcher", ["by hand", "torchrun"])
def test_ranks_end_when_their_launcher_is_killed(launcher: str, tmp_path: Path, started: list[Run]) -> None:
    program = [*TORCHRUN, "2", f"--master-port={free_port()}"] if launcher == "torchrun" else [sys.executable]
    run = _start(started, [*program, *MODULE, *FIT, "--trainer.devices=2"], tmp_path)
    run.wait_for(run.checkpoint)
    run.program.kill()
    run.seconds_until_all_are_gone(20)
    assert torch.load(run.checkpoint, weights_only=True)["state_dict"]


@pytest.mark.parametrize("devices", [1, 2])
def test_ctrl_c_ends_with_130_and_one_sentence(devices: int, tmp_path: Path, started: list[Run]) -> None:
    run = _start(started, [sys.executable, *MODULE, *FIT, f"--trainer.devices={devices}"], tmp_path)
    run.wait_for(run.checkpoint)
    os.killpg(run.program.pid, signal.SIGINT)  # as a terminal does, to every process
    run.seconds_until_all_are_gone(20)
    assert run.program.returncode == 130
    printed = run.printed.read_text()
    assert printed.count("Stopped by Ctrl-C") == 1
    assert "Traceback" not in printed
    assert torch.load(run.checkpoint, weights_only=True)["state_dict"]


def _start_with_network(started: list[Run], folder: Path, network: str, code: str, *more: str) -> Run:
    """Train a network of one's own on two processes, until its first checkpoint."""
    (folder / f"{network.partition('.')[0]}.py").write_text(code)
    fit = [argument for argument in FIT if "net.init_args" not in argument]
    arguments = [f"--model.net={network}", "--model.net.width=4", "--trainer.devices=2", *more]
    run = _start(started, [sys.executable, *MODULE, *fit, *arguments], folder)
    run.wait_for(run.checkpoint)
    return run


# Three passes come before the first step, in the look at the network; the eighth is step 4, the first being 0.
RAISER = """
import os
from template.models.unet import UNet

class Raiser(UNet):
    calls = 0
    def forward(self, x):
        Raiser.calls += self.training
        if Raiser.calls == 8 and os.environ["RANK"] == "1":
            raise ValueError("no liver here")
        return super().forward(x)
"""


def test_a_rank_that_raises_says_why_last_and_leaves_it_in_its_folder(tmp_path: Path, started: list[Run]) -> None:
    run = _start_with_network(started, tmp_path, "raiser.Raiser", RAISER)
    run.seconds_until_all_are_gone(30)
    assert run.program.returncode == 1
    assert run.last_line.startswith("error: ")
    assert "ValueError: no liver here, raised at raiser.py:10 forward. " in run.last_line
    assert "runs/phantom/version_0/rank_1/error.txt" in run.last_line
    printed = run.printed.read_text()
    assert len(re.findall("^error: ", printed, re.MULTILINE)) == 1
    assert all("raiser.py" in frame for frame in re.findall(r"^ *File .*", printed, re.MULTILINE))
    folder = run.checkpoint.parents[1]
    assert 'raiser.py", line 10, in forward' in (folder / "rank_1/error.txt").read_text()
    assert torch.load(run.checkpoint, weights_only=True)["state_dict"]


ENDING = """
import ctypes, os, sys
from template.models.unet import UNet

class Ending(UNet):
    calls = 0
    def forward(self, x):
        Ending.calls += self.training
        if Ending.calls == 8 and os.environ["RANK"] == "1":
            END
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("sys.exit(0)", r"sys\.exit\(0\), raised at ending\.py:10 forward"),
        ("raise KeyboardInterrupt", r"KeyboardInterrupt, raised at ending\.py:10 forward"),
        (r'raise ValueError("Gr\udcfcn")', r"ValueError: Gr\\udcfcn, raised at ending\.py:10 forward"),
        ("os._exit(3)", r"Rank 1 ended itself with exit code 3 in step 4 \(training step\), without a Python exc"),
        ("os._exit(0)", r"Rank 1 ended itself with exit code 0 in step 4 \(training step\), without a Python exc"),
        ("ctypes.string_at(0)", r"Rank 1 crashed in step 4 \(training step\) at ending\.py:10 forward: Segmentation"),
    ],
)
def test_a_rank_that_its_own_code_ends_is_a_failure_with_its_place(
    statement: str, text: str, tmp_path: Path, started: list[Run]
) -> None:
    run = _start_with_network(started, tmp_path, "ending.Ending", ENDING.replace("END", statement))
    run.seconds_until_all_are_gone(40)
    assert run.program.returncode == 1
    printed = run.printed.read_text(encoding="utf-8")
    assert re.search(text, printed), printed
    assert "Traceback" not in printed
    assert not list(tmp_path.rglob("phase.txt"))


SLEEPER = """
import os, time
from template.models.unet import UNet

class Sleeper(UNet):
    calls = 0
    def forward(self, x):
        Sleeper.calls += self.training
        if Sleeper.calls == 8 and os.environ["RANK"] == "1":
            time.sleep(600)  # the culprit
        return super().forward(x)
"""


def test_a_sleeping_rank_ends_the_run_within_its_timeout(tmp_path: Path, started: list[Run]) -> None:
    line = SLEEPER.splitlines().index("            time.sleep(600)  # the culprit") + 1
    timeout = "--trainer.strategy.init_args.timeout=30s"
    # Until the checkpoint there were four steps; two forward passes were the probe's.
    run = _start_with_network(started, tmp_path, "sleeper.Sleeper", SLEEPER, timeout)
    seconds = run.seconds_until_all_are_gone(45)
    assert seconds > 20
    assert run.program.returncode == 1
    printed = run.printed.read_text()
    assert re.search(r"^  >1 .* 4 +training step", printed, re.MULTILINE), printed
    assert f"sleeper.py:{line} forward" in printed
    assert run.last_line.startswith("error: Rank 1 has not moved for 3")
    assert "time.sleep(600)  # the culprit" in run.last_line
    assert run.last_line.endswith("[hang]")
