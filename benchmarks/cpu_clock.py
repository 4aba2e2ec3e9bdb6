"""The clock of benchmarks.quality: how much CPU time the training of the real command takes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback


class CpuClock(Callback):
    """Writes what a training took to a file.

    CPU time of this process, so that other programs on the machine change little. It counts from the first batch to
    the end of the fit: validation, pictures and checkpoints are in it, imports are not.

    Args:
        file: JSON with ``seconds`` of the whole training, ``epochs`` (seconds of each), ``steps`` and ``parameters``.
    """

    def __init__(self, file: str) -> None:
        self.file = Path(file)
        self.ends: list[float] = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin, or end the epoch before: its validation and its checkpoint belong to it."""
        self.ends.append(time.process_time())

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the file."""
        self.ends.append(time.process_time())
        taken = {
            "seconds": self.ends[-1] - self.ends[0],
            "epochs": [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)],
            "steps": trainer.global_step,
            "parameters": sum(p.numel() for p in pl_module.parameters() if p.requires_grad),
        }
        self.file.write_text(json.dumps(taken), encoding="utf-8")
