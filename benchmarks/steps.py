"""What a training step costs beside the network's own work: a bare loop, Fabric, Lightning, and this program.

    python -m benchmarks.steps [--json FILE] [--rounds 5] [--steps 300] [--cpu]

All take the same batch, which lies ready, the same loss and the same optimizer, on one thread. Lightning "off" has
neither logger, checkpoints nor progress; this program has all that a run of it has: progress, TensorBoard, a table of
metrics, checkpoints, heartbeats, pictures, the log of its rank.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning import Callback, Fabric, LightningModule, Trainer
from torch import Tensor, nn

from benchmarks.measure import Measured, machine, ratio, table, turns
from template.data.phantom import Phantom
from template.models.losses import CrossEntropyDice
from template.models.unet import UNet

CLASSES, CHANNELS = 3, 1
#: Steps before the clock starts: caches are filled, and the first log is written.
WARM = 20
Batch = dict[str, Any]


def ready_batch(samples: int, size: int) -> Batch:
    """A batch of noise, the same each time: ``image`` [N, 1, size, size] float32, ``mask`` [N, size, size] uint8."""
    numbers = torch.Generator().manual_seed(0)
    return {
        "image": torch.rand(samples, CHANNELS, size, size, generator=numbers),
        "mask": torch.randint(0, CLASSES, (samples, size, size), generator=numbers, dtype=torch.uint8),
    }


class ReadyData(Phantom):
    """The phantom, whose training batches are one batch that lies ready, again and again.

    Args:
        steps: Batches of an epoch.
        share: Samples of a batch of each process; default: the whole batch.
    """

    def __init__(self, steps: int = 300, share: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps, self.share = steps, share

    def train_dataloader(self) -> Any:
        """The batches."""
        return Again(ready_batch(self.share or self.batch_size, self.size), self.steps)


class Again:
    """One batch a number of times."""

    def __init__(self, batch: Batch, times: int) -> None:
        self.batch, self.times = batch, times

    def __len__(self) -> int:
        """How often."""
        return self.times

    def __iter__(self) -> Iterator[Batch]:
        """The batch, again and again."""
        return iter([self.batch] * self.times)


class TinyNet(nn.Sequential):
    """Two convolutions: what is left of a step is what surrounds it."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(CHANNELS, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))


class SomeUNet(UNet):
    """The shipped network, of which a step takes a tenth of a second."""

    def __init__(self) -> None:
        super().__init__(CHANNELS, CLASSES, width=16)


class Clock(Callback):
    """Time between two training batches: the first that counts, and the last.

    Args:
        clock: Tells it, in seconds. It is asked only twice: that of the processor is a call of the system.
        warm: Batches before it counts.
    """

    def __init__(self, clock: Callable[[], float], warm: int = WARM) -> None:
        self.clock, self.warm = clock, warm
        self.first = self.last = self.steps = 0.0

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take it."""
        if batch_idx == self.warm:
            self.first = self.clock()
        elif batch_idx == trainer.num_training_batches - 1:
            self.last, self.steps = self.clock(), batch_idx - self.warm

    def each(self) -> float:
        """Seconds of a step."""
        return (self.last - self.first) / self.steps


class Plain(LightningModule):
    """A LightningModule as its documentation writes it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.loss = net, CrossEntropyDice()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Log and return the loss."""
        loss: Tensor = self.loss(self.net(batch["image"]), batch["mask"].long())
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The same as elsewhere."""
        return torch.optim.AdamW(self.parameters())


def bare(make: Callable[[], nn.Module], batch: Batch, steps: int, clock: Callable[[], float]) -> float:
    """Seconds of a step of a loop as one writes it by hand, channels last where that is faster."""
    return _loop(make(), torch.optim.AdamW, lambda loss: loss.backward(), batch, steps, clock)


def fabric(make: Callable[[], nn.Module], batch: Batch, steps: int, clock: Callable[[], float]) -> float:
    """The same with Fabric."""
    tool = Fabric(accelerator="cpu", devices=1)
    net = make()
    net, optimizer = tool.setup(net, torch.optim.AdamW(net.parameters()))  # type: ignore[assignment]
    return _loop(net, lambda _: optimizer, tool.backward, batch, steps, clock)


def _loop(net: Any, make_optimizer: Any, backward: Any, batch: Batch, steps: int, clock: Any) -> float:
    loss_of, optimizer = CrossEntropyDice(), make_optimizer(net.parameters())
    image, mask = batch["image"], batch["mask"]
    if image.shape[-1] >= 128:  # a UNet, whose convolutions are faster so
        net, image = net.to(memory_format=torch.channels_last), image.to(memory_format=torch.channels_last)
    start = 0.0
    for step in range(steps):
        if step == WARM:
            start = clock()
        optimizer.zero_grad()
        backward(loss_of(net(image), mask.long()))
        optimizer.step()
    return (clock() - start) / (steps - WARM)


def lightning(
    make: Callable[[], nn.Module], batch: Batch, steps: int, clock: Callable[[], float], **settings: Any
) -> float:
    """Seconds of a step of Lightning's trainer."""
    watch = Clock(clock)
    with tempfile.TemporaryDirectory() as folder, _silent():
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=1, callbacks=[watch], default_root_dir=folder, **settings
        )
        trainer.fit(Plain(make()), Again(batch, steps))
    return watch.each()


OFF = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def ours(net: str, batch: Batch, steps: int, clock: Callable[[], float]) -> float:
    """Seconds of a step of this program, everything on."""
    from template.__main__ import main as run

    samples, _, size, _ = batch["image"].shape
    watch = Watched.watch = Clock(clock)
    cases = {"train_cases": samples, "val_cases": 1, "test_cases": 1, "size": size}
    data = {"steps": steps, "batch_size": samples, "num_workers": 0, **cases}
    settings = {
        "data": {"class_path": "benchmarks.steps.ReadyData", "init_args": data},
        "model": {"net": {"class_path": f"benchmarks.steps.{net}"}},
        "trainer": {
            "max_epochs": 1,
            "accelerator": "cpu",
            "devices": 1,
            "callbacks": [{"class_path": "benchmarks.steps.Watched"}],
        },
    }
    with tempfile.TemporaryDirectory() as folder, _silent() as said:
        file = Path(folder) / "steps.yaml"
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        code = run(["fit", "--config", str(file), f"--runs={folder}/runs"])
    if code:
        raise SystemExit(f"this program's fit ended with {code}: {said.getvalue()[-2000:]}")
    return watch.each()


class Watched(Callback):
    """The clock, as the configuration can name it."""

    watch: Clock

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Take the time."""
        self.watch.on_train_batch_start(*args, **kwargs)


@contextlib.contextmanager
def _silent() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def fixed_cost(rounds: int, steps: int, clock: Callable[[], float]) -> dict[str, Measured]:
    """Seconds of a step of a network of two convolutions."""
    batch = ready_batch(4, 32)
    return turns(
        {
            "this program, everything on": partial(ours, "TinyNet", batch, steps, clock),
            "bare loop": partial(bare, TinyNet, batch, steps, clock),
            "Fabric": partial(fabric, TinyNet, batch, steps, clock),
            "Lightning, everything off": partial(lightning, TinyNet, batch, steps, clock, **OFF),
            "Lightning, defaults": partial(lightning, TinyNet, batch, steps, clock),
        },
        rounds,
    )


def real_network(rounds: int, clock: Callable[[], float]) -> dict[str, Measured]:
    """Seconds of a step of a UNet of width 16 on 2 images of 256 x 256."""
    batch, steps = ready_batch(2, 256), WARM + 30
    return turns(
        {
            "this program, everything on": partial(ours, "SomeUNet", batch, steps, clock),
            "bare loop": partial(bare, SomeUNet, batch, steps, clock),
        },
        rounds,
    )


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of a fit of the tiny network")
    parser.add_argument("--only", choices=["fixed", "network"])
    parser.add_argument("--cpu", action="store_true", help="time of the processor, for a busy machine")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    clock = time.process_time if asked.cpu else time.perf_counter
    found: dict[str, Any] = {"machine": machine()}
    if asked.only != "network":
        fixed = fixed_cost(asked.rounds, asked.steps, clock)
        beyond = {
            name: Measured(tuple(a - b for a, b in zip(one.values, fixed["bare loop"].values, strict=True))).each(
                lambda s: 1e3 * s
            )
            for name, one in fixed.items()
        }
        rows = [(name, one.each(lambda s: 1e3 * s).told(), beyond[name].told()) for name, one in fixed.items()]
        print(table(("a step of two convolutions", "ms", "ms beyond the bare loop"), rows), end="\n\n")
        found["fixed cost, ms"] = {name: one.plain() for name, one in beyond.items()}
    if asked.only != "fixed":
        network = real_network(asked.rounds, clock)
        share = ratio(network["this program, everything on"], network["bare loop"])
        rows = [(name, one.each(lambda s: 1e3 * s).told()) for name, one in network.items()]
        print(table(("a step of a UNet", "ms"), [*rows, ("this program, of the bare loop", share.told())]))
        found["step of a UNet, of the bare loop"] = share.plain()
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # Under its own name, by which the configuration finds its classes.
    importlib.import_module("benchmarks.steps").main()
