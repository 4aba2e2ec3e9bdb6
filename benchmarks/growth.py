"""How cost grows: with the number of samples, of ranks, and of pixels.

    python -m benchmarks.growth [--json FILE] [--rounds 3] [--cpu] [--only samples|files|ranks|pixels]

Each number of samples, files or pixels has a process of its own. Ranks are simulated in one: the sampler of each, and
what each does beside the others at the start and later. The power is p in "cost = a · size^p": between the first and
the last size, and between the last two, where fixed costs count least: the last column goes by the latter.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor

from benchmarks.measure import machine, table
from template.allocator import keep_freed_memory
from template.data.dataset import Case
from template.data.folder import Folder
from template.data.module import SegmentationData, Split
from template.data.sampler import EvaluationBatchSampler, GlobalBatchSampler
from template.data.transforms import RandomWarp, Window
from template.distributed import heartbeat
from template.distributed.agreement import by_rank
from template.distributed.devices import Gpu, check_own_gpu
from template.distributed.peers import Peers
from template.models.losses import CrossEntropyDice
from template.models.unet import UNet

Clock = Callable[[], float]
Costs = dict[str, float]

SAMPLES = (10**2, 10**4, 10**6)
FILES = (10**2, 10**3, 10**4)
RANKS = (1, 4, 16, 64)
EDGES = (64, 256, 1024, 4096)
BATCH = 8
#: Samples that simulated ranks share, and their batch: one sample a rank at most.
SHARED, SHARED_BATCH = 100_000, 64
#: Seconds after which a short measurement is not repeated any more.
ENOUGH = 0.05


def power(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Exponent p of the curve ``a · size^p`` through the first and the last point.

    Args:
        sizes: What grows.
        values: What it costs, positive.

    Raises:
        ValueError: The points do not tell: a cost is not positive, or the sizes are the same.
    """
    if min(values[0], values[-1], sizes[0], sizes[-1]) <= 0 or sizes[0] == sizes[-1]:
        raise ValueError(f"no power goes through {list(zip(sizes, values, strict=True))}")
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def growth(exponent: float) -> str:
    """A power in a word; within 0.15, as cache misses and noise alone add some hundredths."""
    if abs(exponent - round(exponent)) <= 0.15 and round(exponent) in (0, 1):
        return "linear" if round(exponent) else "flat"
    if exponent < 0:
        return "falls"
    return "less than linear" if exponent < 1 else "**more than linear**"


def repeated(work: Callable[[], object], rounds: int, clock: Clock) -> float:
    """Seconds of one call: the median of rounds, each of as many calls as are needed for the clock to tell.

    The first call does not count.
    """
    work()
    calls, taken = 0, 0.0
    start = clock()
    while taken < ENOUGH:
        work()
        calls, taken = calls + 1, clock() - start
    seconds = [taken / calls]
    for _ in range(rounds - 1):
        start = clock()
        for _ in range(calls):
            work()
        seconds.append((clock() - start) / calls)
    return statistics.median(seconds)


def megabytes(key: str) -> float:
    """A line of ``/proc/self/status``, such as ``RssAnon``: memory of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) / 1024


class Blank(SegmentationData):
    """As many cases as wanted, whose images are all the same noise.

    Args:
        samples: Cases to train on.
        size: Height and width in pixels.
        **kwargs: As of :class:`SegmentationData`.
    """

    def __init__(self, samples: int, size: int = 8, **kwargs: Any) -> None:
        super().__init__(classes=["background", "one", "two"], seed=0, **kwargs)
        self.samples = samples
        self.image = torch.rand(1, size, size, generator=torch.Generator().manual_seed(0))
        self.mask = (3 * self.image[0]).to(torch.uint8)

    def cases(self, split: Split) -> list[Case]:
        """Names and paths as long as those of a data set of files."""
        count = self.samples if split == "train" else 1
        return [Case(f"{split}_{n:07d}", (f"images/{split}_{n:07d}.png", n)) for n in range(count)]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """The noise."""
        return self.image.clone(), self.mask.clone()


def seated(data: SegmentationData, rank: int = 0, ranks: int = 1) -> SegmentationData:
    """A data set as a rank's trainer has it."""
    data.__dict__["trainer"] = SimpleNamespace(
        global_rank=rank,
        world_size=ranks,
        num_devices=ranks,
        accumulate_grad_batches=1,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    return data


def of_samples(samples: int, rounds: int, clock: Clock) -> Costs:
    """Costs of a data set of so many samples."""
    next(iter(seated(Blank(BATCH, batch_size=BATCH, num_workers=0)).train_dataloader()))  # what the first one imports
    before, start = megabytes("RssAnon"), clock()
    data = seated(Blank(samples, batch_size=BATCH, num_workers=0))
    data.setup("fit")
    loader: Any = data.train_dataloader()
    next(iter(loader))
    started, kept = clock() - start, megabytes("RssAnon") - before
    deals: GlobalBatchSampler = loader.deals

    def epoch() -> None:
        deals.set_position(0, 0)
        for _ in deals:
            pass

    def middle() -> None:
        deals.set_position(0, len(deals) // 2)
        next(iter(deals))

    return {
        "data set, sampler and first batch, ms": 1e3 * started,
        "memory that they keep, MB": max(kept, 0.01),
        "an epoch dealt, ms": 1e3 * repeated(epoch, rounds, clock),
        "set into the middle of an epoch, ms": 1e3 * repeated(middle, rounds, clock),
    }


def of_files(pairs: int, rounds: int, clock: Clock) -> Costs:
    """Costs of a folder of so many pairs of pictures, all links to one pair."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        for part in ("images", "masks"):
            folder = Path(name) / part
            folder.mkdir()
            Image.new("L", (16, 16)).save(folder / "0.png")
            for number in range(1, pairs):
                (folder / f"{number}.png").hardlink_to(folder / "0.png")

        def listed() -> None:
            data = Folder(images=f"{name}/images", masks=f"{name}/masks", classes=["background", "one"], in_channels=1)
            seated(data).setup("fit")

        return {"a folder listed, split, and its headers checked, ms": 1e3 * repeated(listed, rounds, clock)}


def check_shares(ranks: int) -> None:
    """See that simulated ranks train and evaluate on every sample once.

    Raises:
        RuntimeError: They do not.
    """
    trained = [_trained(rank, ranks) for rank in range(ranks)]
    seen = [index for batch in chain.from_iterable(trained) for _, index in batch]
    evaluated = list(chain.from_iterable(chain(*(_evaluated(rank, ranks) for rank in range(ranks)))))
    if len(seen) != len(set(seen)) or len(seen) != SHARED // SHARED_BATCH * SHARED_BATCH:
        raise RuntimeError(f"{ranks} ranks train on {len(set(seen))} samples {len(seen)} times")
    if sorted(evaluated) != list(range(SHARED)):
        raise RuntimeError(f"{ranks} ranks evaluate {len(set(evaluated))} of {SHARED} samples {len(evaluated)} times")


def _trained(rank: int, ranks: int) -> GlobalBatchSampler:
    return GlobalBatchSampler(SHARED, SHARED_BATCH, 1, rank, ranks, seed=0)


def _evaluated(rank: int, ranks: int) -> EvaluationBatchSampler:
    return EvaluationBatchSampler(SHARED, max(1, SHARED_BATCH // ranks), rank, ranks)


def of_ranks(ranks: int, rounds: int, clock: Clock) -> Costs:
    """Costs on one of so many ranks, beside a store as torchrun has it."""
    check_shares(ranks)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    gpus = [Gpu("host", f"uuid {rank}", rank % 8, "not set") for rank in range(ranks)]
    for rank, gpu in enumerate(gpus):
        store.set(f"gpu/{rank}", json.dumps(gpu))
    peers = Peers(store, 0, ranks, timedelta(minutes=30))
    # This process stands for all ranks.
    pid = os.getpid()
    beat = heartbeat.Beat(1, pid, heartbeat.birth(pid), heartbeat.machine(), "host")
    for peers.rank in range(ranks):
        peers.publish(beat)
    peers.rank = 0

    def listen() -> None:
        peers._read_at.clear()
        peers.listen(beat)

    last = ranks - 1
    return {
        "training batches of an epoch, ms": 1e3 * repeated(lambda: list(_trained(last, ranks)), rounds, clock),
        "evaluation batches, ms": 1e3 * repeated(lambda: list(_evaluated(last, ranks)), rounds, clock),
        "start: a GPU of its own, ms": 1e3 * repeated(lambda: check_own_gpu(store, 0, ranks, gpus[0]), rounds, clock),
        "start: what all ranks say compared, ms": 1e3
        * repeated(lambda: by_rank(f"value {rank}" for rank in range(ranks)), rounds, clock),
        "each second: beats of all ranks heard, ms": 1e3 * repeated(listen, rounds, clock) / peers._pause,
    }


def of_pixels(edge: int, rounds: int, clock: Clock) -> Costs:
    """Costs of an image of so many pixels, for each million of them."""
    warp = RandomWarp(10, (0.9, 1.1))
    data = seated(Blank(1, edge, batch_size=1, preprocess=[Window(0, 1)], augment=[warp]))
    dataset = data._dataset(data.cases("train"), data.augment)
    torch.manual_seed(0)
    net, loss_of = UNet(1, 3, width=2, depth=2), CrossEntropyDice()
    optimizer = torch.optim.AdamW(net.parameters())

    def step(image: Tensor, mask: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(net(image), mask.long()).backward()
        optimizer.step()

    sample = dataset[0, 0]
    image, mask = sample["image"][None], sample["mask"][None]
    step(image[..., :32, :32], mask[..., :32, :32])  # what the first step brings with it
    before = megabytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM, the peak, begins anew
    step(image, mask)
    peak = megabytes("VmHWM") - before
    keep_freed_memory()  # as every run does that trains on the CPU
    few = min(rounds, max(1, 2**22 // edge**2))
    made = repeated(lambda: dataset[0, 0], few, clock)
    trained = repeated(lambda: step(image, mask), few, clock)
    millions = edge**2 / 1e6
    return {
        "a sample read, checked and warped, ms a megapixel": 1e3 * made / millions,
        "a training step of a small UNet, ms a megapixel": 1e3 * trained / millions,
        "memory that it takes at its peak, MB a megapixel": max(peak, 0.01) / millions,
    }


#: Of each table: what grows, its sizes, what is measured, and how large a size is.
PARTS: dict[str, tuple[str, Sequence[int], Callable[[int, int, Clock], Costs], Callable[[int], float]]] = {
    "samples": ("samples", SAMPLES, of_samples, float),
    "files": ("pairs of files", FILES, of_files, float),
    "ranks": ("ranks", RANKS, of_ranks, float),
    "pixels": ("pixels", EDGES, of_pixels, lambda edge: float(edge**2)),
}


def measured(part: str, size: int, rounds: int, clock: Clock) -> Costs:
    """Costs of one size, in a process of its own; forked, as the imports would take most of the time."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        costs: Costs = pool.apply(PARTS[part][2], (size, rounds, clock))
    return costs


def rows(sizes: Sequence[float], found: Sequence[Costs]) -> Iterable[list[str]]:
    """Costs at each size, both powers, and the latter in a word."""
    for what in found[0]:
        values = [costs[what] for costs in found]
        whole, last = power(sizes, values), power(sizes[-2:], values[-2:])
        yield [what, *(f"{value:.3g}" for value in values), f"{whole:.2f}", f"{last:.2f}", growth(last)]


def main() -> None:
    """Measure, and print a table for each thing that grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="time of the processor, for a busy machine")
    parser.add_argument("--only", choices=PARTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.process_time if asked.cpu else time.perf_counter
    found: dict[str, Any] = {"machine": machine()}
    for part in [asked.only] if asked.only else PARTS:
        what, sizes, _, extent = PARTS[part]
        costs = [measured(part, size, asked.rounds, clock) for size in sizes]
        named = [f"{size}²" if part == "pixels" else f"{size:,}" for size in sizes]
        columns = (f"number of {what}", *named, "power", "power of the last two", "grows")
        print(table(columns, rows([extent(size) for size in sizes], costs)), end="\n\n", flush=True)
        found[part] = dict(zip(named, costs, strict=True))
    if "ranks" in found:
        print("Simulated ranks train, and evaluate, on each sample once: checked for each number of them.")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
