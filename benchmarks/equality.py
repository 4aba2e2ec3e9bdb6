"""How far trainings with other numbers of processes end apart: the table of docs/guarantees.md.

python -m benchmarks.equality
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace

from tests.parity import STEPS, Setting, apart, train
from tests.ranks import run_ranks

#: Setting, and what it is compared with where that is not the same setting on one process.
ROWS: list[tuple[str, Setting, Setting | None]] = [
    ("SGD, float64", Setting(), None),
    ("AdamW, float64", Setting("AdamW"), None),
    ("SGD, float64, 2 micro-batches", Setting(accumulation=2), None),
    ("SGD, float32", Setting(precision="32-true"), None),
    ("AdamW, float32", Setting("AdamW", "32-true"), None),
    ("SGD, bf16-mixed", Setting(precision="bf16-mixed"), None),
    ("AdamW, bf16-mixed", Setting("AdamW", "bf16-mixed"), None),
    ("SGD, float64, dropout 0.1", Setting(dropout=0.1), None),
    ("SGD, float64, `strategy.sync_batchnorm: false`", Setting(without="SyncBatchNorm"), None),
    ("SGD, float64, `strategy.comm_hook: fp16`", Setting(comm_hook="fp16"), None),
    ("SGD, float64, 2 micro-batches, against 1", Setting(accumulation=2), Setting()),
]


def main() -> None:
    """Print the table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"| {STEPS} steps | losses, 2 processes | weights | losses, 4 processes | weights |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, setting, other in ROWS:
            alone = run_ranks(1, train, 1, folder, other or replace(setting, without="", comm_hook="none"))[0]
            cells = [name]
            for world_size in (2, 4):
                of_steps, weights = run_ranks(world_size, train, world_size, folder, setting, timeout=300)[0]
                per_step = len(of_steps) // len(alone[0])
                losses = [sum(of_steps[i : i + per_step]) / per_step for i in range(0, len(of_steps), per_step)]
                furthest = max(abs(one - two) for one, two in zip(alone[0], losses, strict=True))
                cells += [f"{furthest:.0e}", f"{apart(alone[1], weights):.0e}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
