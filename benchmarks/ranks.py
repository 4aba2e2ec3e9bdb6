"""What training in two processes costs: this program, plain DDP with and without synchronised BatchNorm, and no DDP.

    python -m benchmarks.ranks [--json FILE] [--rounds 2] [--steps 16]

A UNet of width 16 on a global batch of 8 images of 256 x 256 that lies ready, in two gloo processes of one thread each,
beside one process of two threads. Each candidate is started anew in each round, and times its own steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from lightning import Callback
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Measured, machine, ratio, table, turns
from benchmarks.steps import Clock, SomeUNet, ready_batch
from template.distributed.sync_batchnorm import convert
from template.models.layout import Layout
from template.models.losses import CrossEntropyDice

_ROOT = Path(__file__).resolve().parent.parent
SAMPLES, SIZE = 8, 256
#: Steps before the clock starts.
WARM = 4
OURS, SYNC, PLAIN, SILENT, ONE = (
    "this program, two processes",
    "DDP with the same SyncBatchNorm",
    "DDP, BatchNorm of each process",
    "two processes that do not talk",
    "one process of two threads",
)
_FILE = "BENCHMARK_SECONDS"


class Told(Callback):
    """Writes the seconds of a step to a file, on rank 0."""

    def __init__(self) -> None:
        self.clock = Clock(time.perf_counter, WARM)

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Take the time."""
        self.clock.on_train_batch_start(*args, **kwargs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write."""
        if trainer.is_global_zero:
            Path(os.environ[_FILE]).write_text(str(self.clock.each()), encoding="utf-8")


def worker(way: str, steps: int) -> None:
    """A loop as one writes it by hand, in a process that torchrun has started."""
    world = 1 if way == ONE else 2
    torch.set_num_threads(2 if way == ONE else 1)
    rank = 0
    if way != ONE:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(0)
    net: Any = SomeUNet()
    layout = Layout(True)
    layout.weights(net)
    if way == SYNC:
        net = convert(net)
    if way in (SYNC, PLAIN):
        net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    batch = ready_batch(SAMPLES // world, SIZE)
    images, masks = layout.images(batch["image"]), batch["mask"]
    optimizer, loss_of = torch.optim.AdamW(net.parameters()), CrossEntropyDice()
    start = 0.0
    for step in range(steps):
        if step == WARM:
            start = time.perf_counter()
        optimizer.zero_grad()
        loss_of(net(images), masks.long()).backward()
        optimizer.step()
    if rank == 0:
        Path(os.environ[_FILE]).write_text(str((time.perf_counter() - start) / (steps - WARM)), encoding="utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()


def seconds(way: str, steps: int) -> float:
    """Seconds of a step of a way of training.

    Raises:
        SystemExit: It failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds"
        processes = 1 if way == ONE else 2
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command += ["-m", "benchmarks.ranks", "--worker", way, "--steps", str(steps)]
        if way == OURS:
            settings = Path(folder) / "ranks.yaml"
            settings.write_text(yaml.safe_dump(_settings(steps)), encoding="utf-8")
            command = [sys.executable, "-m", "template", "fit", "--config", str(settings), f"--runs={folder}/runs"]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        threads = {"OMP_NUM_THREADS": str(2 // processes)}
        done = subprocess.run(
            command,
            env=os.environ | threads | {"PYTHONPATH": path, _FILE: str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{way}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return float(file.read_text())


def _settings(steps: int) -> dict[str, Any]:
    cases = {"train_cases": SAMPLES, "val_cases": 2, "test_cases": 2, "size": SIZE}
    # The batch of an own loader is a process's share.
    data = {"steps": steps, "batch_size": SAMPLES, "share": SAMPLES // 2, "num_workers": 0, **cases}
    return {
        "data": {"class_path": "benchmarks.steps.ReadyData", "init_args": data},
        "model": {"net": {"class_path": "benchmarks.steps.SomeUNet"}},
        "trainer": {
            "max_epochs": 1,
            "accelerator": "cpu",
            "devices": 2,
            "limit_val_batches": 0,
            "callbacks": [{"class_path": "benchmarks.ranks.Told"}],
        },
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=WARM + 12)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.worker, asked.steps)
        return
    ways = (OURS, SYNC, PLAIN, SILENT, ONE)
    found = turns({way: partial(seconds, way, asked.steps) for way in ways}, asked.rounds)
    rate: dict[str, Measured] = {way: one.each(lambda s: SAMPLES / s) for way, one in found.items()}
    rows = [(way, rate[way].told(), ratio(rate[way], rate[SYNC]).told(".2f")) for way in ways]
    print(table(("training", "images a second", "of DDP with the same SyncBatchNorm"), rows))
    if asked.json:
        plain = {way: one.plain() for way, one in rate.items()}
        asked.json.write_text(json.dumps({"machine": machine(), **plain}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
