"""The verbs on a large case, in a process of its own: what each takes beyond what is there before it starts.

python -m tests.data.large_runs COMMON_ARGUMENTS VERBS   (JSON: arguments of all verbs; verb to arguments of its own)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from template.__main__ import main

#: A step that changes nothing.
_TRAINING = [
    "--trainer.max_steps=1", "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.num_sanity_val_steps=0",
    "--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=false", "--trainer.precision=32-true",
    "--model.optimizer=torch.optim.SGD", "--model.optimizer.init_args.lr=0",
    "--data.batch_size=1", "--data.num_workers=0",
]  # fmt: skip


def _gigabytes(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 2**20


def _peaks(common: list[str], verbs: dict[str, list[str]]) -> dict[str, float]:
    assert main(["fit", *common, *_TRAINING]) == 0
    peaks = {}
    for verb, arguments in verbs.items():
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM, the peak, begins anew
        before = _gigabytes("VmRSS")
        assert main([verb, *common, *_TRAINING, *arguments]) == 0
        peaks[verb] = _gigabytes("VmHWM") - before
    return peaks


if __name__ == "__main__":
    torch.set_num_threads(1)  # several would wait for each other on a busy machine
    print(json.dumps(_peaks(*map(json.loads, sys.argv[1:]))))
