"""How long a command takes before it does what was asked: this program, and a bare script around LightningCLI.

    python -m benchmarks.start [--json FILE] [--rounds 3] [--cpu]

A first step is one training step of the phantom on one process; the bare script trains a network of one layer on noise.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import interleaved, machine, ratio, table

_ROOT = Path(__file__).resolve().parent.parent
_BARE = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI


class Model(LightningModule):
    def __init__(self, width: int = 1):
        super().__init__()
        self.net = torch.nn.Conv2d(1, width, 3, padding=1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.rand(16, 1, 32, 32), self.batch_size)


if __name__ == "__main__":
    LightningCLI(Model, Data)
"""
_ONE_STEP = ["--trainer.max_steps=1", "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.logger=false"]


def run(command: list[str], folder: Path) -> None:
    """Run a command to its end.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    # In a folder of its own: LightningCLI refuses one that holds the configuration of a run before.
    with tempfile.TemporaryDirectory(dir=folder) as own:
        subprocess.run(
            [sys.executable, *command], cwd=own, env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True
        )


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="time of the processor, for a busy machine")
    asked = parser.parse_args()
    clock = _cpu_of_children if asked.cpu else time.perf_counter
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = folder / "bare.py"
        bare.write_text(_BARE, encoding="utf-8")
        phantom = ["fit", "--config", str(_ROOT / "configs" / "phantom.yaml"), "--data.train_cases=8"]
        cases = ["--data.val_cases=1", "--trainer.limit_val_batches=0", "--trainer.enable_progress_bar=false"]
        # As small as the bare one: a real network's first steps, in which this program measures, are no start-up.
        cases += ["--data.size=32", "--data.batch_size=4", "--model.net=benchmarks.steps.TinyNet"]
        few = ["--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"]
        commands = {
            "--help": (["-m", "template", "--help"], [str(bare), "--help"]),
            "fit --help": (["-m", "template", "fit", "--help"], [str(bare), "fit", "--help"]),
            "one training step": (
                ["-m", "template", *phantom, *cases, *_ONE_STEP],
                [str(bare), "fit", *few, *_ONE_STEP],
            ),
        }
        rows, found = [], {}
        for what, (ours, theirs) in commands.items():
            calls = {"ours": partial(run, ours, folder), "bare": partial(run, theirs, folder)}
            seconds = interleaved(calls, asked.rounds, clock=clock)
            share = ratio(seconds["ours"], seconds["bare"])
            rows.append((what, seconds["ours"].told(), seconds["bare"].told(), share.told(".2f")))
            found[what] = {"ours": seconds["ours"].plain(), "bare": seconds["bare"].plain(), "ratio": share.plain()}
    print(table(("command", "this program, s", "a bare LightningCLI script, s", "ratio"), rows))
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
