"""Checks of the doctor on what each process makes for itself: its list of cases, and the object of the data set."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..data.module import SegmentationData, Split
from ..data.seeding import seeded
from .finding import Finding, check, failure, passed
from .rehearsal import Rehearsal
from .survey import survey

#: Seeds of the global generators that stand for two processes.
ONE, ANOTHER = 101, 303
#: Cases of a list in which two ranks are told to differ.
SHOWN = 3


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


def fingerprints(data: SegmentationData) -> dict[str, list[str]]:
    """What ranks compare: of each split of a fit, a digest of the whole list, and the names that it begins with."""
    found = {}
    for split in ("train", "val"):
        cases = data._cases.get(split, [])
        digest = hashlib.blake2b(digest_size=16)
        for case in cases:
            digest.update(f"{case.name}\0{case.source!r}\0".encode("utf-8", "surrogateescape"))
        found[split] = [digest.hexdigest(), *(str(case.name) for case in cases[:SHOWN])]
    return found


def ranks_list_alike(name: str, of_ranks: Sequence[Mapping[str, Sequence[str]]]) -> Iterator[Finding]:
    """Findings where ranks have listed other cases; nothing where all have the same.

    Args:
        name: Of the data set's class.
        of_ranks: :func:`fingerprints` of each rank.
    """
    for split, (digest, *names) in of_ranks[0].items():
        for rank, other in enumerate(of_ranks):
            if other[split][0] != digest:
                theirs = other[split][1:]
                begun = f": they begin with {', '.join(theirs)} and {', '.join(names)}"
                where = begun if names != theirs else ", further on"
                yield failure(
                    "cases-differ", f"{name}.cases('{split}') gives other cases on rank {rank} than on rank 0{where}."
                )
                break


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


CHECKS: tuple[Callable[[Rehearsal], list[Finding]], ...] = (cases_are_listed_alike, prepare_data_leaves_nothing_behind)
