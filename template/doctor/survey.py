"""Opens the cases of all splits once, and keeps of each what the checks of the data ask for."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.dataset import Case, CaseDataset
from ..data.module import Split
from ..data.seeding import seeded
from ..labels import IGNORE_INDEX
from .finding import Finding, of_error
from .rehearsal import Rehearsal

SPLITS: tuple[Split, ...] = ("train", "val", "test")
#: A sample of the cases: at most so many of a split, and no further one after so many seconds.
MOST, SECONDS = 200, 4.0
#: But at least so many of a split.
LEAST = 3
#: What occurs in 3 % of the cases is missed by a sample of 100 in one of 20 trials (the rule of three).
TELLING = 100


class Look(NamedTuple):
    """What was seen of a case.

    Attributes:
        split: Where it is listed.
        name: Of the case.
        error: What opening it raised; the values below are of no meaning then.
        low: Smallest value of the image.
        high: Largest value of the image.
        std: Standard deviation of the image's values.
        spacing: Edges of a pixel or voxel, where the data set knows them.
        labels: Pixels of each label in the mask; None without a mask.
        digest: Of the image's values.
    """

    split: Split
    name: str
    error: Finding | None = None
    low: float = 0.0
    high: float = 0.0
    std: float = 0.0
    spacing: tuple[float, ...] = ()
    labels: dict[int, int] | None = None
    digest: bytes = b""

    @property
    def constant(self) -> bool:
        """Whether all values of the image are one."""
        return self.error is None and self.low == self.high


class Survey(NamedTuple):
    """What was seen of the data.

    Attributes:
        looks: At each case that was opened.
        listed: Number of cases of each split that can be listed.
        unlisted: What listing a split raised.
    """

    looks: list[Look]
    listed: dict[Split, int]
    unlisted: dict[Split, Finding]

    @property
    def whole(self) -> bool:
        """Whether every case was opened."""
        return len(self.looks) == sum(self.listed.values())

    def of(self, split: Split) -> list[Look]:
        """Cases of a split that can be read."""
        return [look for look in self.looks if look.split == split and look.error is None]

    def telling(self, split: Split) -> bool:
        """Whether what is in none of the opened cases of a split can be said to be missing."""
        opened = sum(look.split == split for look in self.looks)
        return opened == self.listed.get(split, 0) or opened >= TELLING

    def opened(self, split: Split, what: str = "masks") -> str:
        """``the 88 masks of train`` or ``the 64 opened masks of train``."""
        opened = sum(look.split == split for look in self.looks)
        return f"the {opened:,} {'' if opened == self.listed[split] else 'opened '}{what} of {split}"

    @property
    def extent(self) -> str:
        """``120 cases`` or ``64 of 12,000 cases``."""
        total = sum(self.listed.values())
        return f"{total:,} cases" if self.whole else f"{len(self.looks):,} of {total:,} cases"


def survey(rehearsal: Rehearsal) -> Survey:
    """Open the cases of all splits, or an evenly spread sample of them; the second call returns the first's result.

    Args:
        rehearsal: Its data set is read, and with ``options.all`` all of it.
    """
    known = rehearsal.measured.get("survey")
    if not isinstance(known, Survey):
        with seeded(0):  # reading may draw random numbers, which is found elsewhere
            known = rehearsal.measured["survey"] = _survey(rehearsal)
    return known


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` positions; not only all of them, but the first ones also are spread evenly."""
    chosen = min(count, most)
    bits = max(1, (chosen - 1).bit_length())
    order = sorted(range(chosen), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [number * count // chosen for number in order]


def _survey(rehearsal: Rehearsal) -> Survey:
    data, every = rehearsal.data, rehearsal.options.all
    cases: dict[Split, list[Case]] = {}
    unlisted: dict[Split, Finding] = {}
    for split in SPLITS:
        try:
            cases[split] = list(data._listed(split))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            unlisted[split] = of_error(error)
    dataset = {
        split: data._dataset(listed, data.augment if split == "train" else None) for split, listed in cases.items()
    }
    queues = _queues(cases, every)
    looks: dict[tuple[int, int], Look] = {}
    end = time.monotonic() + SECONDS
    for turn in range(max(map(len, queues.values()), default=0)):
        if not every and turn >= LEAST and time.monotonic() > end:
            break
        for split, queue in queues.items():
            if turn < len(queue):
                rehearsal.alive()
                place = queue[turn]
                looks[SPLITS.index(split), place] = _look(rehearsal, dataset[split], split, cases[split][place])
    ordered = [looks[place] for place in sorted(looks)]
    return Survey(ordered, {split: len(listed) for split, listed in cases.items()}, unlisted)


def _queues(cases: dict[Split, list[Case]], every: bool) -> dict[Split, list[int]]:
    """Positions of the cases to open; those that two splits seem to share come first."""
    queues = {}
    signs = {
        split: [{_name(case), repr(getattr(case, "source", None))} for case in listed]
        for split, listed in cases.items()
    }
    for split, listed in cases.items():
        others = [other for other in cases if other != split and "train" in (split, other)]
        known = set().union(*(pair for other in others for pair in signs[other]))
        # That alone says nothing: it may be a number within the split.
        shared = [number for number, pair in enumerate(signs[split]) if pair & known]
        most = len(listed) if every else MOST
        first = shared[: most // 2] if len(shared) < len(listed) else []
        queues[split] = list(dict.fromkeys([*first, *spread(len(listed), most)]))[:most]
    return queues


def _look(rehearsal: Rehearsal, dataset: CaseDataset, split: Split, case: Case) -> Look:
    try:
        # A patch lies where it is drawn: its middle place alone would not show all that training sees.
        drawn = dataset.draw(case) if dataset.draw is not None and split == "train" else case
        image, mask = dataset.checked(drawn)
        return Look(
            split, str(case.name), None, *_values(image), _spacing(rehearsal, case), _labels(mask), _digest(image)
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        return Look(split, _name(case), of_error(error))


def _name(case: Any) -> str:
    return str(getattr(case, "name", case))


def _values(image: Tensor) -> tuple[float, float, float]:
    values = image.detach().float()
    low, high = values.aminmax()
    return float(low), float(high), float(values.std(correction=0))


def _labels(mask: Tensor | None) -> dict[int, int] | None:
    if mask is None:
        return None
    counts = torch.bincount(mask.flatten().to(torch.uint8), minlength=IGNORE_INDEX + 1).tolist()
    return {label: count for label, count in enumerate(counts) if count}


def _digest(image: Tensor) -> bytes:
    digest = hashlib.blake2b(str((tuple(image.shape), image.dtype)).encode(), digest_size=16)
    digest.update(image.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def _spacing(rehearsal: Rehearsal, case: Case) -> tuple[float, ...]:
    edges: Sequence[float] | None = rehearsal.data.spacing(case)
    return tuple(map(float, edges or ()))
