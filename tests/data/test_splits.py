from __future__ import annotations

import random
from typing import Any

import pytest

from template.data.names import split_names
from template.data.splits import Splitter, fold_groups, grouped, split_groups
from template.distributed.faults import NamedError

CARS = [f"car{car}_{view:02}" for car in range(10) for view in range(1, 17)]


def _fails(identifier: str, word: str, action: Any) -> None:
    with pytest.raises(NamedError, match=word) as caught:
        action()
    assert caught.value.identifier == identifier


def test_the_group_is_what_the_parentheses_match_or_all_of_the_match() -> None:
    assert grouped(["a b_01", "图_2"], r"^(.*)_\d+$") == {"a b_01": "a b", "图_2": "图"}
    assert grouped(["p1-x", "p2-y"], r"p\d") == {"p1-x": "p1", "p2-y": "p2"}
    assert grouped(["a", "b"], None) == {"a": "a", "b": "b"}


def test_a_pattern_that_cannot_group_is_named() -> None:
    _fails("config", r"'\(' is no regular expression", lambda: grouped(["a"], "("))
    _fails("config", "does not match 'b 图'", lambda: grouped(["a_1", "b 图"], r"(.*)_\d"))
    for pattern in ("(b)?a", r"(\d*)", "b?"):  # each would be its own group, or all of them one
        _fails("config", "an empty group in 'a'", lambda pattern=pattern: grouped(["a"], pattern))


def test_a_group_is_in_one_split() -> None:
    parts = split_groups(grouped(CARS, r"^(.*)_\d+$"), 0, 0.2, 0.1)
    assert {split: len(names) for split, names in parts.items()} == {"train": 7 * 16, "val": 2 * 16, "test": 16}
    cars = {split: {name.partition("_")[0] for name in names} for split, names in parts.items()}
    assert {split: len(of) for split, of in cars.items()} == {"train": 7, "val": 2, "test": 1}
    # Whole cars, those that a split of the ten names would take.
    expected = split_names([f"car{car}" for car in range(10)], 0, 0.2, 0.1)
    assert {split: sorted(of) for split, of in cars.items()} == expected


def test_names_without_groups_are_split_as_ever() -> None:
    assert split_groups(grouped(CARS, None), 4, 0.2, 0.1) == split_names(CARS, 4, 0.2, 0.1)


def test_a_split_depends_on_names_and_seed_alone() -> None:
    shuffled = random.Random(1).sample(CARS, len(CARS))
    for splitter in (Splitter(0.2, 0.1, 3), Splitter(0.2, 0.1, 3, folds=3, fold=1)):
        assert splitter.split(grouped(CARS, "(.*)_")) == splitter.split(grouped(shuffled, "(.*)_"))
    other = Splitter(0.2, 0.1, 4, folds=3, fold=1)
    assert other.split(grouped(CARS, "(.*)_")) != splitter.split(grouped(CARS, "(.*)_"))


def test_each_name_is_in_one_fold_and_folds_differ_by_one() -> None:
    names = [f"n{number}" for number in range(11)]
    folds = fold_groups(grouped(names, None), 0, 4)
    assert sorted(name for fold in folds for name in fold) == sorted(names)
    assert sorted(map(len, folds)) == [2, 3, 3, 3]


def test_folds_of_groups_of_several_sizes_are_balanced() -> None:
    # Largest first to the emptiest fold: 6 | 4, then 3 to the second (7), 2 to the first (8), 1 to the second (8).
    sizes = {"a": 6, "b": 4, "c": 3, "d": 2, "e": 1}
    groups = {f"{group}{number}": group for group, size in sizes.items() for number in range(size)}
    first, second = fold_groups(groups, 0, 2)
    assert {name[0] for name in first} == {"a", "d"}
    assert {name[0] for name in second} == {"b", "c", "e"}


def test_folds_take_turns_as_validation_beside_one_test() -> None:
    groups = grouped(CARS, "(.*)_")
    parts = [Splitter(0.2, 0.1, folds=3, fold=fold).split(groups) for fold in range(3)]
    assert len({tuple(part["test"]) for part in parts}) == 1
    assert len(parts[0]["test"]) == 16
    validated = [name for part in parts for name in part["val"]]
    assert sorted([*validated, *parts[0]["test"]]) == CARS
    for part in parts:
        assert sorted(name for names in part.values() for name in names) == CARS
        assert not {name[:4] for name in part["val"]} & {name[:4] for name in part["train"]}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((-0.1, 0.0), "val_fraction"),
        ((0.6, 0.5), "val_fraction"),
        ((0.2, 0.1, 0, 1), "data.folds is 1"),
        ((0.2, 0.1, 0, 5, 5), "0 to 4"),
        ((0.2, 0.1, 0, 5, -1), "0 to 4"),
        ((0.2, 0.1, 0, None, 2), "data.folds is not set"),
    ],
)
def test_arguments_that_make_no_split_are_refused(arguments: Any, word: str) -> None:
    _fails("config", word, lambda: Splitter(*arguments))


def test_fewer_groups_than_folds_are_named() -> None:
    splitter = Splitter(0.2, 0.0, folds=3)
    _fails("too-few-samples", "there are 2", lambda: splitter.split({"a": "x", "b": "x", "c": "y"}))


def test_splits_that_a_data_set_comes_with_are_kept() -> None:
    own: Any = {"train": {"b": "b", "a": "a"}, "val": {"c": "c"}, "test": {"d": "d"}}
    given: Any = {"train": ["a", "b"], "val": ["c"], "test": ["d"]}
    for split in given:
        assert Splitter(0.2, 0.1).share(split, own.get) == given[split]
    assert Splitter(0.2, 0.1).share("test", {"train": own["train"]}.get) is None
    assert Splitter(0.2, 0.1).share("train", {"val": own["val"]}.get) is None
    assert Splitter(0.2, 0.1).share("val", {"test": own["test"]}.get) is None
    _fails("config", "comes with a validation", lambda: Splitter(0.2, 0.1, folds=2).share("train", own.get))


def test_a_missing_validation_is_cut_out_of_training_by_group() -> None:
    groups = grouped(CARS, "(.*)_")
    given: Any = {"train": groups}.get
    splitter = Splitter(0.2, 0.1)
    train, val = splitter.share("train", given), splitter.share("val", given)
    assert {"train": train, "val": val, "test": []} == split_groups(groups, 0, 0.2, 0.0)
    folded = Splitter(0.2, 0.1, folds=5, fold=2).share("val", given)
    assert folded == fold_groups(groups, 0, 5)[2]
