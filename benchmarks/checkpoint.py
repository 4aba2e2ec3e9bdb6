"""How long the training stops for a checkpoint: written in the background, at once, and by Lightning's own means.

In one training of each size, in turns; the first of each kind is left out. The training may use half of the cores.

python -m benchmarks.checkpoint [--saves 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from template.callbacks.checkpoint import RankZeroCheckpoint
from template.callbacks.checkpoint_io import AtomicCheckpointIO
from template.callbacks.resume import ExactResume
from template.data.phantom import Phantom
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known

#: Name and network; with AdamW's two numbers a weight, a checkpoint is three times as large as the weights.
SIZES: dict[str, dict[str, int]] = {
    "UNet of 31 M parameters": {"width": 64, "depth": 4, "max_width": 1024},
    "UNet of 0.1 M parameters": {"width": 8, "depth": 3},
}
BACKGROUND, AT_ONCE, LIGHTNING = "ours, in the background", "ours, at once", "Lightning's own"


class Turns(RankZeroCheckpoint):
    """Saves in all three ways in turn, and takes the time from the hook's begin to its end.

    Args:
        saves: Number of saves of each kind that are counted.
        file: Where Lightning's own go.
    """

    def __init__(self, saves: int, file: Path) -> None:
        super().__init__()
        self.seconds: dict[str, list[float]] = {BACKGROUND: [], AT_ONCE: [], LIGHTNING: []}
        self.writes: list[float] = []
        self.steps: dict[bool, list[float]] = {False: [], True: []}
        self._saves, self._file = saves, file
        self._began = self._ended = 0.0
        self._writing = False

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        io = trainer.strategy.checkpoint_io
        assert isinstance(io, AtomicCheckpointIO)
        now = time.perf_counter()
        if self._writing == io.writer.busy and batch_idx > 1:
            self.steps[self._writing].append(now - self._ended)
        if self._writing and not io.writer.busy:
            self.writes.append(now - self._began)
        self._writing = io.writer.busy
        # At first it makes room, and two steps of training come between two saves.
        if not self._writing and batch_idx % 3 == 2:
            self._save(trainer, pl_module, outputs, batch, batch_idx)
        else:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._ended = time.perf_counter()

    def _save(self, trainer: Trainer, *hook: Any) -> None:
        kind = min(self.seconds, key=lambda one: len(self.seconds[one]))
        if len(self.seconds[kind]) > self._saves:
            trainer.should_stop = True
            return
        self._began = time.perf_counter()
        if kind == LIGHTNING:
            ours, trainer.strategy.checkpoint_io = trainer.strategy.checkpoint_io, TorchCheckpointIO()
            trainer.save_checkpoint(self._file)
            trainer.strategy.checkpoint_io = ours
        else:
            self.background, self.save_soon = kind == BACKGROUND, True
            super().on_train_batch_end(trainer, *hook)
        self.seconds[kind].append(time.perf_counter() - self._began)
        self._writing = kind == BACKGROUND


def measure(network: dict[str, int], saves: int) -> dict[str, Any]:
    """One training.

    Args:
        network: The network's arguments.
        saves: Of each kind.

    Returns:
        Seconds of each save by kind, of each step while something is written and while nothing is, of each write in
        the background; and the size of a checkpoint in bytes.
    """
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        keeper = Turns(saves, Path(folder) / "lightning.ckpt")
        keeper.dirpath = folder
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[ExactResume(), keeper],
            plugins=[AtomicCheckpointIO()],
            default_root_dir=folder,
        )
        data = Phantom(train_cases=20_000, val_cases=1, size=32, batch_size=2, num_workers=0)
        module = Segmenter(UNet(**network), 3, 1, optimizer=partial(torch.optim.AdamW, lr=1e-3))  # type: ignore[arg-type]
        trainer.fit(module, datamodule=data)
        size = (Path(folder) / "last.ckpt").stat().st_size
    seconds = {kind: values[1:] for kind, values in keeper.seconds.items()}
    return {"seconds": seconds, "steps": keeper.steps, "writes": keeper.writes[1:], "bytes": size}


def row(name: str, values: list[float], against: list[float]) -> str:
    """Median and range in milliseconds, and the ratio of the medians."""
    low, middle, high = (1000 * value for value in (min(values), statistics.median(values), max(values)))
    ratio = statistics.median(values) / statistics.median(against)
    return f"| {name} | {middle:.1f} | {low:.1f}–{high:.1f} | {ratio:.3f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=7, help="Saves of each kind.")
    parser.add_argument("--json", type=Path, help="Where to put all numbers.")
    given = parser.parse_args()
    silence_known()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    results = {}
    for name, network in SIZES.items():
        found = results[name] = measure(network, given.saves)
        print(f"\n{name}, {found['bytes'] / 1e6:.1f} MB; {given.saves} saves of each kind\n")
        print("| training stops for a checkpoint | median, ms | range | against Lightning's own |")
        print("| --- | --- | --- | --- |")
        for kind, values in found["seconds"].items():
            print(row(kind, values, found["seconds"][LIGHTNING]))
        if found["steps"][True]:
            print("\n| training step | median, ms | range | against nothing written |")
            print("| --- | --- | --- | --- |")
            for writing, told in ((False, "nothing is written"), (True, "a checkpoint is written")):
                print(row(told, found["steps"][writing], found["steps"][False]))
        if found["writes"]:
            print(f"\nA write in the background takes {statistics.median(found['writes']):.2f} s.", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
