"""What one process makes otherwise than another is named: lists of cases, and what prepare_data leaves behind."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from template.data.dataset import Case
from template.data.module import Split
from template.doctor import listing

from .rehearsed import examine, phantom
from .shapes import Pair, Shapes


class Splits(Shapes):
    """Twelve cases, of which a draw decides who is held out."""

    def held_out(self) -> set[int]:
        return set(np.random.permutation(12)[:4].tolist())

    def cases(self, split: Split) -> list[Case]:
        held = self.held_out()
        return [Case(f"case_{number}", number) for number in range(12) if (number in held) == (split == "val")]


class SplitsInSetup(Splits):
    def setup(self, stage: str) -> None:
        self.held = super().held_out()
        super().setup(stage)

    def held_out(self) -> set[int]:
        return self.held


class Reordered(Shapes):
    def cases(self, split: Split) -> list[Case]:
        cases = super().cases(split)
        if split == "train":
            random.shuffle(cases)
        return cases


class Unseeded(Splits):
    def held_out(self) -> set[int]:
        return set(np.random.default_rng().permutation(12)[:4].tolist())


class Seeded(Splits):
    def held_out(self) -> set[int]:
        return set(np.random.default_rng(0).permutation(12)[:4].tolist())


@pytest.mark.parametrize("kind", [Splits, SplitsInSetup, Unseeded])
def test_a_split_that_is_drawn_is_named(kind: type[Shapes], tmp_path: Path) -> None:
    found = examine(listing.cases_are_listed_alike, tmp_path, data=kind())
    assert {(one.id, one.status, one.check) for one in found} == {("cases-differ", "fail", "data: same cases")}
    assert found[0].subject.startswith(
        f"{kind.__name__}.cases('train') gives other cases with each state of the random"
    )


def test_an_order_that_is_drawn_is_named(tmp_path: Path) -> None:
    (found,) = examine(listing.cases_are_listed_alike, tmp_path, data=Reordered())
    assert found.subject.startswith(
        "Reordered.cases('train') gives another order with each state of the random generat"
    )


def test_a_seeded_split_passes(tmp_path: Path) -> None:
    for data in (Seeded(), Shapes(), phantom()):
        (found,) = examine(listing.cases_are_listed_alike, tmp_path, data=data)
        assert found.status == "pass"


class Prepares(Shapes):
    """Sets something in prepare_data that nobody else reads."""

    def prepare_data(self) -> None:
        self.prepared = True


class UsedInSetup(Prepares):
    def setup(self, stage: str) -> None:
        assert self.prepared
        super().setup(stage)


class UsedInRead(Prepares):
    def __init__(self) -> None:
        super().__init__()
        self.prepared = False

    def broken(self, case: Case, image: Tensor, mask: Tensor) -> Pair:
        return image * self.prepared, mask


class MadeAgain(Prepares):
    def __init__(self) -> None:
        super().__init__()
        self.prepared = False

    def setup(self, stage: str) -> None:
        if not self.prepared:
            self.prepared = True
        super().setup(stage)


class MadeWhereItLacks(Prepares):
    def setup(self, stage: str) -> None:
        self.prepared = getattr(self, "prepared", None) or True
        super().setup(stage)


@pytest.mark.parametrize("kind", [UsedInSetup, UsedInRead])
def test_what_prepare_data_leaves_behind_is_named(kind: type[Prepares], tmp_path: Path) -> None:
    data = kind()
    (found,) = examine(listing.prepare_data_leaves_nothing_behind, tmp_path, data=data)
    assert (found.id, found.status) == ("prepare-data-state", "fail")
    assert found.subject == f"{kind.__name__}.prepare_data sets self.prepared, which is read later."
    assert type(data) is kind
    assert data.prepared is True


@pytest.mark.parametrize("kind", [Shapes, Prepares, MadeAgain, MadeWhereItLacks])
def test_what_other_processes_do_without_passes(kind: type[Shapes], tmp_path: Path) -> None:
    (found,) = examine(listing.prepare_data_leaves_nothing_behind, tmp_path, data=kind())
    assert found.status == "pass"


def test_ranks_that_list_other_cases_are_named() -> None:
    ranks = []
    for held_out in ({0, 1, 2, 3}, {8, 9, 10, 11}):  # drawn ones may begin alike
        data = Splits()
        data.held_out = lambda held_out=held_out: held_out  # type: ignore[method-assign, misc]
        data.setup("fit")
        ranks.append(listing.fingerprints(data))
    found = list(listing.ranks_list_alike("Unseeded", ranks))
    assert {(one.id, one.status) for one in found} == {("cases-differ", "fail")}
    assert found[0].subject.startswith("Unseeded.cases('train') gives other cases on rank 1 than on rank 0: ")


def test_ranks_that_differ_further_on_are_named() -> None:
    (found,) = listing.ranks_list_alike("Mine", [{"train": ["1", "a"]}, {"train": ["1", "a"]}, {"train": ["2", "a"]}])
    assert found.subject == "Mine.cases('train') gives other cases on rank 2 than on rank 0, further on."


def test_ranks_that_list_the_same_cases_pass() -> None:
    ranks = []
    for data in (Seeded(), Seeded()):
        data.setup("fit")
        ranks.append(listing.fingerprints(data))
    assert list(listing.ranks_list_alike("Seeded", ranks)) == []
    assert [len(one) for one in ranks[0].values()] == [4, 4]
