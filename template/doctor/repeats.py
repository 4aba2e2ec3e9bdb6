"""Checks of the doctor that make a sample twice: what the seed does not reach differs between processes."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from ..data.dataset import Case, CaseDataset
from ..data.module import SegmentationData
from ..data.seeding import seeded
from ..distributed.told import listed
from ..distributed.undo import nothing_happened
from .finding import Finding, check, failure, passed, warning
from .rehearsal import Rehearsal
from .survey import spread, survey

#: Seeds of the global generators that stand for two processes.
ONE, ANOTHER = 101, 303
#: Cases that are made twice, and seconds after which no further one is begun.
CASES, SECONDS = 4, 1.0
#: Cases and epochs in which an augmentation that is rarely applied has the chance to show.
TRIALS, EPOCHS = 8, 16

#: Part of a value by which a transform that does nothing may change it.
ROUNDING = 1e-5

Sample = dict[str, Any]


@check("data: augmentation", "own-random-numbers")
def samples_can_be_made_again(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A sample is the same when it is made again, and another one in another epoch."""
    if rehearsal.data._is_own("train_dataloader"):
        yield passed("train_dataloader of your own: not looked at")
        return
    data = rehearsal.data
    dataset = data._dataset(data._listed("train"), data.augment)
    places = _readable(rehearsal, dataset)
    if not places:
        yield warning("not-checked", "No training case can be read, so no sample was made.")
        return
    modules = transforms(data)
    end = time.monotonic() + SECONDS
    made = 0
    for place in places[:CASES]:
        if made and time.monotonic() > end:
            break
        made += 1
        with nothing_happened(modules):
            guilty = _guilty(dataset, place, type(data).__name__)
        if guilty is not None:
            yield guilty
            return
    same = f"{made} sample{'s, made twice, are' if made > 1 else ', made twice, is'} the same"
    if not data.augment:
        yield passed(f"{same}; no augment")
        return
    with nothing_happened(modules):
        idle = _idle(dataset, places)
    if idle is not None:
        yield idle
    else:
        yield passed(f"{same}; epochs differ")


def transforms(data: SegmentationData) -> nn.ModuleList:
    """All transforms that :func:`.undo.nothing_happened` can bring back to what they were."""
    every: list[Any] = [*data.preprocess, *data.augment]
    return nn.ModuleList(one for one in every if isinstance(one, nn.Module))


def _readable(rehearsal: Rehearsal, dataset: CaseDataset) -> list[int]:
    """Places of cases that can be read, spread over the training cases."""
    looks = [look for look in survey(rehearsal).looks if look.split == "train"]
    broken = {look.name for look in looks if look.error is not None or look.labels is None}
    return [place for place in spread(len(dataset), 2 * TRIALS) if str(dataset.cases[place].name) not in broken]


def _guilty(dataset: CaseDataset, place: int, name: str) -> Finding | None:
    """What makes another sample of the same case, epoch and seed; the first of reading, preprocess and augment."""
    case = dataset.cases[place]
    dataset[(0, place)]  # names a transform that fails
    with seeded(ONE):
        image, mask = dataset.checked(case)
    with seeded(ANOTHER):
        image_again, mask_again = dataset.checked(case)
    if not _same({"image": image, "mask": mask}, {"image": image_again, "mask": mask_again}):
        return failure(
            "own-random-numbers",
            f"{name}.read gives another image or mask of '{case.name}' when it is called again.",
            cause="It draws random numbers: each worker and process draws others, and scores cannot be repeated.",
            fix="Read without chance; random changes are modules in data.augment, which are seeded for each sample.",
        )
    sample = _sample(image, mask)
    for number, module in enumerate(dataset.preprocess):
        with seeded(ONE):
            first = module(_cloned(sample))
        with seeded(ANOTHER):
            second = module(_cloned(sample))
        if not _same(first, second):
            return failure(
                "own-random-numbers",
                f"data.preprocess[{number}], {type(module).__name__}, changes '{case.name}' in another way when it is "
                "called again.",
                cause="It draws random numbers; data.preprocess is not seeded, and is used in validation as well.",
                fix="Move it to data.augment.",
            )
        sample = first
    for number, module in enumerate(dataset.augment or ()):
        with seeded(dataset.seed, 0, place):
            twin = _twin(module)
            first = module(_cloned(sample))
        with seeded(dataset.seed, 0, place):
            second = module(_cloned(sample))
        if not _same(first, second):
            return _unseeded(number, module, twin, sample, first, case, (dataset.seed, 0, place))
        sample = first
    return None


def _unseeded(
    number: int,
    module: nn.Module,
    twin: nn.Module | None,
    sample: Sample,
    first: Sample,
    case: Case,
    seed: Sequence[int],
) -> Finding:
    with seeded(*seed):
        copied = twin is not None and _same(first, twin(_cloned(sample)))
    how = (
        "It holds a generator of its own: each loader worker and each process has a copy of it, and all of them draw "
        "the same numbers."
        if copied
        else None
    )
    return failure(
        "own-random-numbers",
        f"data.augment[{number}], {type(module).__name__}, changes '{case.name}' in another way when it is made again "
        "with the same seed.",
        cause=how,
    )


def _twin(module: nn.Module) -> nn.Module | None:
    """A copy as loader workers get it, where it can be copied."""
    with suppress(Exception):
        return copy.deepcopy(module)
    return None


def _idle(dataset: CaseDataset, places: Sequence[int]) -> Finding | None:
    """Whether the augmentation is the same for all epochs, and what that means."""
    end = time.monotonic() + SECONDS
    drawn = changed = False
    for place in places[:TRIALS]:
        prepared = _sample(*dataset.checked(dataset.cases[place]))
        for module in dataset.preprocess:
            prepared = module(prepared)
        kept: Sample | None = None
        for epoch in range(EPOCHS):
            sample = _cloned(prepared)
            with seeded(dataset.seed, epoch, place):
                before = _state()
                for module in dataset.augment or ():
                    sample = module(sample)
                drawn = drawn or _state() != before
            if kept is not None and not _same(kept, sample):
                return None
            kept = kept or sample
        changed = changed or not _same(prepared, kept or prepared, ROUNDING)
        if time.monotonic() > end:
            break
    names = [type(module).__name__ for module in dataset.augment or ()]
    if changed and not drawn and not any("random" in name.lower() for name in names):
        return None  # such as a crop at the centre, in training alone
    how = "changes all epochs in one and the same way" if changed else "changes nothing"
    return warning("no-augmentation", f"data.augment ({listed(names)}) {how}, in {EPOCHS} epochs of a few samples.")


def _state() -> tuple[Any, ...]:
    """State of all global generators."""
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().numpy().tobytes()


def _sample(image: Tensor, mask: Tensor | None) -> Sample:
    sample: Sample = {"image": tv_tensors.Image(image)}
    return sample if mask is None else {**sample, "mask": tv_tensors.Mask(mask)}


def _cloned(sample: Sample) -> Sample:
    """A sample of its own for a transform that works in place."""
    return {name: tv_tensors.wrap(value.clone(), like=value) for name, value in sample.items()}


def _same(one: Sample, other: Sample, rounding: float = 0.0) -> bool:
    """Equal in keys, shape, type and values; NaN equals NaN."""
    return one.keys() == other.keys() and all(_equal(value, other[name], rounding) for name, value in one.items())


def _equal(one: Any, other: Any, rounding: float) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is None and other is None
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = one.as_subclass(Tensor), other.as_subclass(Tensor)
    return torch.allclose(first, second, rtol=rounding, atol=rounding, equal_nan=True)


CHECKS: tuple[Callable[[Rehearsal], list[Finding]], ...] = (samples_can_be_made_again,)
