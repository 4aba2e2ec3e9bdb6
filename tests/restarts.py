"""Starts the program on several ranks in a moment, kills it anywhere, and starts it again with the same command.

Ranks are forked from the server of :mod:`tests.ranks`, and run the program's ``main`` as torchrun's children do.
"""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import shutil
import signal
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.ranks import start_server
from tests.test_launchers import free_port

ROOT = Path(__file__).parents[1]
#: Says at which place a run kills itself: ``place:number:rank``.
KILL_AT = "TEST_KILL_AT"
#: Steps after which rank 1 kills itself, one for each attempt of torchrun.
DIE_AFTER = "TEST_DIE_AFTER"

CONFIG = """\
experiment: kill
seed_everything: 0
data:
  class_path: Phantom
  init_args:
    train_cases: 21
    val_cases: 9
    size: 32
    batch_size: 4
    num_workers: 1
    augment:
      - class_path: RandomWarp
        init_args: {degrees: 20}
model:
  net:
    class_path: UNet
    init_args: {width: 4, depth: 1, dropout: 0.3}
  optimizer:
    class_path: torch.optim.AdamW
    init_args: {lr: 1e-3}
  lr_scheduler:
    class_path: torch.optim.lr_scheduler.CosineAnnealingLR
    init_args: {T_max: 3}
checkpoint: {every_n_train_steps: 3, every_n_minutes: 0.02}
trainer:
  max_epochs: 3
  accelerator: cpu
  devices: auto
  log_every_n_steps: 1
  enable_progress_bar: false
  callbacks:
    - class_path: tests.restarts.KillAt
"""
STEPS = 15


def command(folder: Path, *more: str) -> list[str]:
    """Arguments of a fit that goes on by itself."""
    (folder / "kill.yaml").write_text(CONFIG, encoding="utf-8")
    overlay = f"{ROOT}/configs/preemptible.yaml"
    return ["fit", "--config", overlay, "--config", f"{folder}/kill.yaml", *more]


class KillAt(Callback):
    """Kills the whole process group, as ``KILL_AT`` says; does nothing without."""

    def __init__(self) -> None:
        place, number, rank = (os.environ.get(KILL_AT) or "never:0:0").split(":")
        self.place, self.number, self.rank = place, int(number), int(rank)
        self.written = 0

    def _at(self, trainer: Trainer, place: str, number: int) -> None:
        if (place, number, trainer.global_rank) == (self.place, self.number, self.rank):
            kill_group()
        if (f"wait_{place}", number, trainer.global_rank) == (self.place, self.number, self.rank):
            Path("there").touch()
            time.sleep(1)  # the test sends a signal meanwhile

    def on_after_backward(self, trainer: Trainer, *args: Any) -> None:
        self._at(trainer, "backward", trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._at(trainer, "step", trainer.global_step)
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        steps = os.environ.get(DIE_AFTER, "").split(":")
        if trainer.global_rank == 1 and attempt < len(steps) and steps[attempt] == str(trainer.global_step):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if not trainer.sanity_checking:
            self._at(trainer, "validation", trainer.current_epoch)

    def on_validation_end(self, trainer: Trainer, *args: Any) -> None:
        if not trainer.sanity_checking:
            self._at(trainer, "validated", trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, *args: Any) -> None:
        self._at(trainer, "epoch", trainer.current_epoch)

    def on_save_checkpoint(self, trainer: Trainer, *args: Any) -> None:
        self.written += 1
        if self.written == self.number and trainer.is_global_zero:
            if self.place == "writing":
                flush = os.fsync

                def half(descriptor: int) -> None:
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                    flush(descriptor)
                    kill_group()

                os.fsync = half
            if self.place == "written":
                from template.callbacks import checkpoint_io

                checkpoint_io._flush_folder = lambda folder: kill_group()


def kill_group() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    time.sleep(60)  # until the signal arrives


def start(world_size: int, arguments: list[str], folder: Path, kill_at: str = "") -> list[ForkServerProcess]:
    """Start the program; its ranks and all their children form one process group, led by rank 0."""
    import template.cli  # noqa: F401  # the server imports what this process has

    start_server()
    context = multiprocessing.get_context("forkserver")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC"))},
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        KILL_AT: kill_at,
    }
    ranks: list[ForkServerProcess] = []
    for rank in range(world_size):
        leader = ranks[0].pid if ranks else 0
        process = context.Process(target=_rank, args=(rank, leader, environment, arguments, str(folder)))
        process.start()
        ranks.append(process)
    return ranks


def _rank(rank: int, leader: int, environment: dict[str, str], arguments: list[str], folder: str) -> None:
    for _ in range(500):  # until rank 0 leads a group
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(0, leader)
            break
        time.sleep(0.01)
    os.environ.clear()
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(folder)
    with Path(folder, f"output_{rank}.txt").open("a") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    torch.set_num_threads(1)
    from template.__main__ import main

    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(ranks: list[ForkServerProcess], timeout: float = 120) -> list[int | None]:
    """Exit codes; what still runs then is killed, and has none."""
    deadline = time.monotonic() + timeout
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in ranks]
    kill(ranks)
    return codes


def kill(ranks: list[ForkServerProcess]) -> None:
    """Kill the whole process group: ranks and loader workers."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(ranks[0].pid or 0, signal.SIGKILL)
    for process in ranks:
        process.kill()
        process.join()


def newest(folder: Path) -> Path:
    """The run's folder."""
    return max((folder / "runs" / "kill").glob("version_*"), key=lambda path: int(path.name.partition("_")[2]))


def ended(folder: Path) -> dict[str, Any]:
    """What a run has come to: weights, optimizer and schedule of its last checkpoint, and its names."""
    checkpoints = newest(folder) / "checkpoints"
    last = torch.load(checkpoints / "last.ckpt", weights_only=True)
    kept = {key: last[key] for key in ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers")}
    return {**kept, "files": sorted(path.name for path in checkpoints.iterdir())}


def table(run: Path) -> dict[tuple[str, int], list[str]]:
    """Values of each metric at each step in ``metrics.csv``."""
    values: dict[tuple[str, int], list[str]] = {}
    with (run / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name not in ("step", "epoch") and value:
                    values.setdefault((name, int(row["step"])), []).append(value)
    return values


def events(folder: Path) -> dict[tuple[str, int], list[float]]:
    """Values of each scalar at each step in TensorBoard's events."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    values: dict[tuple[str, int], list[float]] = {}
    for name in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(name):
            values.setdefault((name, event.step), []).append(event.value)
    return values


def equal(one: Any, other: Any) -> bool:
    """Whether nested values are the same, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
