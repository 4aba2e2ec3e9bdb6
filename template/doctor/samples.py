"""Checks of the doctor on how samples are shared out and made in time."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from statistics import median
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from ..data.dataset import CaseDataset
from ..data.module import SegmentationData
from ..data.plan import plan_batches
from ..distributed.faults import NamedError
from ..distributed.undo import nothing_happened
from . import listing, repeats
from .finding import Finding, check, failure, passed, warning
from .rehearsal import Rehearsal
from .survey import spread

#: Part of the samples that an epoch may leave out without a word.
LEFT_OUT = 0.2
#: Samples that are timed, and seconds after which no further one is begun.
TIMED, SECONDS = 8, 1.5
#: Workers that are told to be too few feed less than half of what a step takes.
TOO_SLOW = 2.0


@check("data: shares", "shares-differ")
def shares_are_disjoint_and_complete(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The processes' batches make up the batches of one process, and validation has each case once."""
    data, processes = rehearsal.data, rehearsal.options.processes
    own = [name for name in ("train_dataloader", "val_dataloader") if data._is_own(name)]
    clean = True
    if "train_dataloader" not in own:
        plan_batches(data.num_samples("train"), data.batch_size, processes, _accumulation(rehearsal))
        one, *shares = [_training(_seat(rehearsal, rank, of)) for rank, of in _seats(processes)]
        dealt = [sorted(chain.from_iterable(parts)) for parts in zip(*shares, strict=False)]
        if dealt != [sorted(batch) for batch in one] or len({len(share) for share in shares}) > 1:
            clean = False
            step = next((i for i, batch in enumerate(one) if dealt[i : i + 1] != [sorted(batch)]), len(one))
            yield failure(
                "shares-differ",
                f"The shares of {processes} processes do not make up micro-batch {step} of one process's epoch.",
            )
    if "val_dataloader" not in own:
        number = data.num_samples("val")
        times = Counter(
            chain.from_iterable(_evaluation(_seat(rehearsal, rank, processes)) for rank in range(processes))
        )
        wrong = [index for index in range(number) if times[index] != 1]
        if wrong:
            clean = False
            yield failure(
                "shares-differ",
                f"{len(wrong)} of {number} validation cases are not seen exactly once by {processes} processes, as "
                f"'{data._listed('val')[wrong[0]].name}', seen {times[wrong[0]]} times.",
            )
    if clean and own:
        yield passed(f"{' and '.join(own)} of your own: not looked at")
    elif clean:
        counts = f"{data.num_samples('train'):,} train, {data.num_samples('val'):,} val"
        yield passed(f"each sample to one of {processes} process{'es' * (processes > 1)}: {counts}")


@check("data: last batch", "too-few-samples")
def few_samples_are_left_out(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The smaller last batch, which training drops, is a small part of an epoch."""
    data = rehearsal.data
    if data._is_own("train_dataloader"):
        yield passed("train_dataloader of your own: not looked at")
        return
    number, batch = data.num_samples("train"), max(1, data.batch_size)
    steps, dropped = divmod(number, batch)
    if steps == 0 or dropped > LEFT_OUT * number:
        unit = rehearsal.options.processes * _accumulation(rehearsal)
        better = [size for size in range(unit, batch, unit) if number % size <= LEFT_OUT * number]
        tell = warning if steps else failure
        yield tell(
            "too-few-samples",
            f"Each epoch leaves out {dropped} of {number} samples, other ones each time.",
            cause=f"A smaller last batch is dropped, and data.batch_size is {batch}.",
            fix=f"Set data.batch_size to {better[-1]}, or add cases."
            if better
            else "Lower data.batch_size, or add cases.",
        )
        return
    yield passed(f"{steps} batches of {batch}; {dropped} of {number} samples left out")


@check("data: speed", "slow-data")
def samples_are_timed(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Time to make a training sample in one worker; it is held against a step's later on."""
    data = rehearsal.data
    if data._is_own("train_dataloader"):
        yield passed("train_dataloader of your own: not timed")
        return
    dataset = data._dataset(data._listed("train"), data.augment)
    dataset.defers = data.augment_on == "device"
    places = spread(len(dataset), TIMED + 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a loader worker
    try:
        with nothing_happened(repeats.transforms(data)):
            seconds = _timed(dataset, places)
    finally:
        torch.set_num_threads(threads)
    if seconds is None:
        yield warning("not-checked", "No training sample can be made, so none was timed.")
        return
    rehearsal.measured["seconds_per_sample"] = seconds
    yield passed(f"{_time(seconds)} to read and transform a sample in one worker")


@check("data: workers", "slow-data")
def workers_keep_up(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The loader workers that are asked for make the samples of a step in the time of a step."""
    measured, data, processes = rehearsal.measured, rehearsal.data, rehearsal.options.processes
    if "seconds_per_sample" not in measured or "step_seconds" not in measured:
        return
    per_sample, step = float(measured["seconds_per_sample"]), float(measured["step_seconds"])
    needed = workers_needed(per_sample, step, data.batch_size, processes)
    asked = data.num_workers
    load = per_sample * data.batch_size / (step * processes)
    if isinstance(asked, int) and load > TOO_SLOW * max(asked, 0.5):
        yield warning(
            "slow-data",
            f"data.num_workers {asked} makes the samples of a step in {_time(load * step / max(asked, 1))}, and a step "
            f"takes {_time(step)}: {processes} process{'es' * (processes > 1)} would need {needed} workers each.",
            cause=f"{_time(per_sample)} a sample, and {data.batch_size} samples in a step.",
            fix=f"Set data.num_workers to {needed} or auto, or make reading and data.augment faster.",
        )
        return
    enough = (
        f"{needed} worker{'s are' if needed > 1 else ' is'} enough for {'each' if processes > 1 else 'the'} process"
    )
    yield passed(f"{enough}: {_time(per_sample)} a sample")


@check("data: val_dataloader", "shares-differ")
def own_validation_has_each_case_once(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A validation loader of the user's own neither repeats nor leaves out cases so that all processes have as many."""
    loaders: Any = rehearsal.trainer.val_dataloaders
    if not rehearsal.data._is_own("val_dataloader") or loaders is None:
        return
    for loader in loaders if isinstance(loaders, (list, tuple)) else [loaders]:
        sampler = getattr(loader, "sampler", None)
        if not isinstance(sampler, DistributedSampler):
            continue
        sampled: Any = sampler.dataset
        number, more = len(sampled), sampler.total_size - len(sampled)
        if more:
            yield warning(
                "shares-differ",
                f"The DistributedSampler of {type(rehearsal.data).__name__}.val_dataloader "
                f"{'repeats' if more > 0 else 'leaves out'} {abs(more)} of {number} cases.",
                cause=f"It gives each of {sampler.num_replicas} processes as many, so the scores depend on how many "
                "there are.",
                fix="Leave out val_dataloader, as SegmentationData's has each case once, or give the loader the "
                "sampler range(rank, number, processes).",
            )
        else:
            yield passed(f"{number} cases, each once, on {sampler.num_replicas} processes")


def workers_needed(seconds_per_sample: float, step_seconds: float, samples_per_step: int, processes: int) -> int:
    """Loader workers of each process that make the samples of a step while the step before is computed.

    Args:
        seconds_per_sample: To read and transform one, in one worker.
        step_seconds: Of an optimizer step that does not wait for samples.
        samples_per_step: Of all processes.
        processes: Training processes.

    Returns:
        At least 1.
    """
    return max(1, math.ceil(seconds_per_sample * samples_per_step / (max(step_seconds, 1e-9) * processes)))


class _Seat:
    """The trainer as another process would have it, for a data set that makes its loaders."""

    def __init__(self, trainer: Any, rank: int, processes: int, accumulation: int) -> None:
        self.trainer = trainer
        self.global_rank = rank
        self.world_size = self.num_devices = processes
        self.accumulate_grad_batches = accumulation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)


def _seat(rehearsal: Rehearsal, rank: int, processes: int) -> SegmentationData:
    data = copy.copy(rehearsal.data)
    data.__dict__["trainer"] = _Seat(rehearsal.trainer, rank, processes, _accumulation(rehearsal))
    return data


def _seats(processes: int) -> list[tuple[int, int]]:
    """(rank, processes) of the run of one process, and of each process of the run of several."""
    return [(0, 1), *((rank, processes) for rank in range(processes))]


def _training(data: SegmentationData) -> list[list[int]]:
    """Samples of each micro-batch of a process, in one epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores, once for each process
        loader = data.train_dataloader()
    return [[index for _, index in batch] for batch in loader.deals]


def _evaluation(data: SegmentationData) -> list[int]:
    """Validation cases of a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = data.val_dataloader()
    return list(chain.from_iterable(loader.batch_sampler or ()))


def _accumulation(rehearsal: Rehearsal) -> int:
    return int(rehearsal.asked.get("accumulate_grad_batches") or 1)


def _timed(dataset: CaseDataset, places: Sequence[int]) -> float | None:
    """Median seconds of a sample; the first one, which opens files and fills caches, does not count among several."""
    seconds: list[float] = []
    end = time.monotonic() + SECONDS
    for place in places:
        start = time.perf_counter()
        with suppress(NamedError):  # which other checks have told
            dataset[(0, place)]
            seconds.append(time.perf_counter() - start)
        if time.monotonic() > end:
            break
    return median(seconds[1:] or seconds) if seconds else None


def _time(seconds: float) -> str:
    """Two digits and more: 1.5 s, 12 ms, 2.6 ms."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


CHECKS: tuple[Callable[[Rehearsal], list[Finding]], ...] = (
    shares_are_disjoint_and_complete,
    *listing.CHECKS,
    *repeats.CHECKS,
    few_samples_are_left_out,
    samples_are_timed,
)
#: Once the time of a step is known.
LATE_CHECKS: tuple[Callable[[Rehearsal], list[Finding]], ...] = (workers_keep_up, own_validation_has_each_case_once)
