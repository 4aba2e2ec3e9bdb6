"""What memory a training takes beside a bare loop, and whether loader processes share the list of cases.

    python -m benchmarks.memory [--json FILE] [--rounds 1] [--only training|loader]

Each training is a process of its own, whose peak the kernel keeps (``VmHWM``). The bare loop has the same network,
batch, loss and optimizer, imports torch alone, and makes its batches itself. A run on the CPU keeps what a step has
freed for the next one, so it is compared with a loop that does so too. Loader processes are looked at after each has
made as many samples as the others (``/proc/PID/smaps_rollup``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Measured, machine, ratio, table

_ROOT = Path(__file__).resolve().parent.parent
BATCH, SIZE, WIDTH, STEPS = 16, 256, 16, 3
OURS, GIVEN, KEPT, BARE = (
    "this program, everything on",
    "this program, `--model.channels_last true`",
    "bare loop, freed memory kept",
    "bare loop",
)
CASES, WORKERS = 10**6, (1, 2, 4)
#: Batches of 64 that each loader process makes before it is looked at.
EACH = 100


def kilobytes(text: str, *keys: str) -> int:
    """Sum of some lines of a file of /proc.

    Args:
        text: Lines such as ``Private_Dirty:      1024 kB``, as of ``/proc/PID/smaps_rollup`` or ``/proc/PID/status``.
        keys: Names of the lines, without the colon.

    Raises:
        ValueError: A line is not there.
    """
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    missing = [key for key in keys if key not in lines]
    if missing:
        raise ValueError(f"there is no line {', '.join(missing)}")
    return sum(int(lines[key].split()[0]) for key in keys)


def private(pid: int) -> float:
    """Memory in MB that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return kilobytes(text, "Private_Clean", "Private_Dirty") / 1024


def _peak() -> float:
    return kilobytes(Path("/proc/self/status").read_text(encoding="ascii"), "VmHWM") / 1024


def bare(keep: bool) -> None:
    """A loop as one writes it by hand."""
    import torch

    from template.allocator import keep_freed_memory
    from template.models.losses import CrossEntropyDice
    from template.models.unet import UNet

    if keep:
        keep_freed_memory()
    torch.manual_seed(0)
    net = UNet(1, 3, width=WIDTH).to(memory_format=torch.channels_last)
    optimizer, loss_of = torch.optim.AdamW(net.parameters()), CrossEntropyDice()
    for _ in range(STEPS):
        images = torch.rand(BATCH, 1, SIZE, SIZE).to(memory_format=torch.channels_last)
        masks = torch.randint(0, 3, (BATCH, SIZE, SIZE))
        optimizer.zero_grad()
        loss_of(net(images), masks).backward()
        optimizer.step()


def ours(channels_last: str) -> None:
    """A run of the phantom with progress, logs, pictures, checkpoints and a validation.

    Args:
        channels_last: ``auto`` measures both layouts before the first step, of which channels-first takes more memory.

    Raises:
        SystemExit: It failed.
    """
    from template.__main__ import main as run

    with tempfile.TemporaryDirectory() as folder:
        data = {"train_cases": BATCH * STEPS, "val_cases": 4, "size": SIZE, "batch_size": BATCH, "num_workers": 0}
        code = run([
            "fit", "--data=Phantom", *(f"--data.{key}={value}" for key, value in data.items()),
            "--data.preprocess=[{class_path: Window, init_args: {low: -160, high: 240}}]",
            "--model.net=UNet", f"--model.net.width={WIDTH}", "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
            "--trainer.devices=1", f"--model.channels_last={channels_last}", f"--runs={folder}/runs",
        ])  # fmt: skip
    if code:
        raise SystemExit(code)


WAYS = {
    OURS: partial(ours, "auto"),
    GIVEN: partial(ours, "true"),
    KEPT: partial(bare, True),
    BARE: partial(bare, False),
}


def peak_of(way: str) -> float:
    """Peak of a training in MB.

    Raises:
        SystemExit: It failed.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "benchmarks.memory", "--worker", way]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def trainings(rounds: int) -> dict[str, Measured]:
    """Peaks in MB, in turns."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, values in found.items():
            values.append(peak_of(way))
    return {way: Measured(tuple(values)) for way, values in found.items()}


def loader_memory(dataset: Any, workers: int, settings: dict[str, Any]) -> float:
    """Private memory in MB of each of some loader processes, the mean; of this one, what it gets, where there are none.

    Args:
        dataset: A training data set.
        workers: Their number.
        settings: Further ones of the loader.
    """
    import torch
    from torch.utils.data import DataLoader

    from template.data.dataset import collate

    numbers = torch.randint(0, len(dataset), (EACH * max(1, workers), 64), generator=torch.Generator().manual_seed(0))
    batches = [[(0, index) for index in batch] for batch in numbers.tolist()]
    before = private(os.getpid())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more loader processes than cores
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=collate,
            persistent_workers=workers > 0,
            **settings,
        )
        for _ in loader:
            pass
    if not workers:
        return private(os.getpid()) - before
    iterator: Any = loader._iterator
    return sum(private(one.pid) for one in iterator._workers) / workers


def loaders() -> dict[str, dict[str, float]]:
    """Private memory of a loader process by their number: of few and of many cases, and of a plain list of many."""
    from benchmarks.growth import Blank, seated
    from template.data.loader import start_worker

    found: dict[str, dict[str, float]] = {}
    for cases in (100, CASES):
        data = seated(Blank(cases, batch_size=64))
        dataset = data._dataset(data.cases("train"), [])
        found[f"{cases:,} cases"] = {
            str(n): loader_memory(dataset, n, {"worker_init_fn": start_worker}) for n in (0, *WORKERS)
        }
    dataset.cases = data.cases("train")  # as they are, in a loader as torch makes it
    found[f"{CASES:,} cases in a plain list"] = {str(n): loader_memory(dataset, n, {}) for n in (0, *WORKERS)}
    return found


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=["training", "loader"])
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        WAYS[asked.worker]()
        print(f"\n{_peak()}")
        return
    found: dict[str, Any] = {"machine": machine()}
    if asked.only != "loader":
        peaks = trainings(asked.rounds)
        rows = [
            (way, one.told(".0f"), f"{one.median - peaks[KEPT].median:.0f}", ratio(one, peaks[KEPT]).told(".3f"))
            for way, one in peaks.items()
        ]
        columns = (f"UNet of width {WIDTH}, {BATCH} x {SIZE}²", "peak, MB", f"beyond the {KEPT}, MB", "of it")
        print(table(columns, rows), end="\n\n", flush=True)
        found["training, MB"] = {way: one.plain() for way, one in peaks.items()}
    if asked.only != "training":
        each = loaders()
        rows = [(name, *(f"{max(mb, 0):.0f}" for mb in of.values())) for name, of in each.items()]
        columns = ("a loader process's own memory, MB", "none: what the training process gains")
        print(table((*columns, *(f"{n} process{'es' * (n > 1)}" for n in WORKERS)), rows))
        found["loader, MB"] = each
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
