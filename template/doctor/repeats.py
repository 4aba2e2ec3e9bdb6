"""Checks of the doctor that do something twice: what the seed does not reach differs between processes."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from ..data.dataset import Case, CaseDataset, seeded
from ..data.module import SegmentationData, Split
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


@check("data: same cases", "cases-differ")
def cases_are_listed_alike(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Two processes list the same cases in the same order, whatever their generators draw."""
    splits: list[Split] = [split for split in ("train", "val") if split in survey(rehearsal).listed]
    with seeded(ONE):
        first = _listing(rehearsal.data, splits)
    with seeded(ANOTHER):
        second = _listing(rehearsal.data, splits)
    name = type(rehearsal.data).__name__
    clean = True
    for split in splits:
        one, other = first[split], second[split]
        if one == other:
            continue
        clean = False
        moved = sorted(one) == sorted(other)
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        yield failure(
            "cases-differ",
            f"{name}.cases('{split}') gives {'another order' if moved else 'other cases'} with each state of the "
            f"random generators: number {place} is {_at(one, place)} or {_at(other, place)}.",
        )
    if clean:
        yield passed(f"{sum(map(len, first.values())):,} cases, listed twice, are the same")


@check("data: prepare_data", "prepare-data-state")
def prepare_data_leaves_nothing_behind(rehearsal: Rehearsal) -> Iterator[Finding]:
    """No attribute that prepare_data sets is read by setup, cases or read: other processes do not have it."""
    data = rehearsal.data
    if not data._is_own("prepare_data"):
        yield passed("the data set has no prepare_data of its own")
        return
    first, set_there, _ = _watched(data)
    with seeded(ONE):
        first.prepare_data()
    elsewhere, _, missed = _watched(data, set_there)
    with suppress(Exception), seeded(ONE):  # what it misses says more than what comes of that
        elsewhere.setup("fit")
        for split in ("train", "val"):
            for case in elsewhere._listed(split)[:1]:
                elsewhere.read(case)
    for name in missed:
        yield failure(
            "prepare-data-state", f"{type(data).__name__}.prepare_data sets self.{name}, which is read later."
        )
    if not missed:
        yield passed("other processes need nothing that prepare_data sets")


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


def _listing(data: SegmentationData, splits: Sequence[Split]) -> dict[Split, list[tuple[str, str]]]:
    """Cases of the splits, as a process that has only begun would list them."""
    fresh = _copy(data)
    with suppress(Exception):  # one that cannot be called twice has listed its cases already
        fresh.setup("fit")
    fresh._cases = {}
    return {split: [(str(case.name), repr(case.source)) for case in fresh.cases(split)] for split in splits}


def _copy(data: SegmentationData) -> Any:
    """A copy that can be set up anew without a change of the original; what was read stays shared."""
    fresh = copy.copy(data)
    for name, value in vars(data).items():
        if type(value) in (list, dict, set):
            fresh.__dict__[name] = value.copy()
    fresh.__dict__["trainer"] = data.trainer
    fresh._cases = {}
    return fresh


def _at(cases: Sequence[tuple[str, str]], place: int) -> str:
    if place >= len(cases):
        return "none"
    return f"'{cases[place][0]}'"


def _watched(data: SegmentationData, lacks: Iterable[str] = ()) -> tuple[Any, set[str], list[str]]:
    """A copy that notes which attributes are set, and which of those that it lacks are read before they are set.

    Args:
        data: The original.
        lacks: Attributes that are as before prepare_data: not there, or None where ``__init__`` has them.

    Returns:
        The copy, and the names of both kinds, which are filled in while it is used.
    """
    kind: Any = type(data)
    absent, noted, missed = set(lacks), set[str](), list[str]()
    begun = {name for base in kind.__mro__ if "__init__" in vars(base) for name in _names(base.__init__)}

    def note(self: Any, name: str, value: Any) -> None:
        noted.add(name)
        absent.discard(name)
        if name in missed:  # made where it was not there: no process lacks it
            missed.remove(name)
        kind.__setattr__(self, name, value)

    def give(self: Any, name: str) -> Any:
        if name not in absent:
            return kind.__getattribute__(self, name)
        if name not in missed:
            missed.append(name)
        if name not in begun:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        return None

    fresh = _copy(data)
    fresh.__class__ = type(kind)(kind.__name__, (kind,), {"__setattr__": note, "__getattribute__": give})
    return fresh, noted, missed


def _names(function: Any) -> tuple[str, ...]:
    """Attributes that a function mentions."""
    code = getattr(function, "__code__", None)
    return code.co_names if code else ()


def _readable(rehearsal: Rehearsal, dataset: CaseDataset) -> list[int]:
    """Places of cases that can be read, spread over the training cases."""
    broken = {look.name for look in survey(rehearsal).looks if look.split == "train" and look.error is not None}
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


CHECKS: tuple[Callable[[Rehearsal], list[Finding]], ...] = (
    cases_are_listed_alike,
    prepare_data_leaves_nothing_behind,
    samples_can_be_made_again,
)
