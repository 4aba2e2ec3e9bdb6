from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from template.data.decoded import Volume
from template.data.names import input_of, overlay_stem, split_names, unique_stems


def test_a_split_is_a_permutation_by_hash() -> None:
    names = [f"case {number}" for number in range(20)]
    order = sorted(names, key=lambda name: hashlib.sha256(f"3/{name}".encode()).hexdigest())
    split = split_names(names, 3, val_fraction=0.2, test_fraction=0.1)
    assert split == {"test": sorted(order[:2]), "val": sorted(order[2:6]), "train": sorted(order[6:])}


def test_a_split_depends_on_the_names_and_the_seed_alone() -> None:
    names = [f"{number}图" for number in range(50)]
    first = split_names(names, 0, 0.2, 0.1)
    random.seed(8)
    assert split_names(random.sample(names, 50), 0, 0.2, 0.1) == first
    assert split_names(names, 1, 0.2, 0.1) != first
    assert sorted(name for part in first.values() for name in part) == sorted(names)


def test_fractions_take_at_least_one_name_unless_they_are_0() -> None:
    assert [len(part) for part in split_names(list("abc"), 0, 0.1, 0.1).values()] == [1, 1, 1]
    assert [len(part) for part in split_names(list("abc"), 0, 0.0, 0.0).values()] == [3, 0, 0]
    assert [len(part) for part in split_names(list("abc"), 0, 0.0, 1.0).values()] == [0, 0, 3]


def test_stems_stay_unique() -> None:
    files = [Path(name) for name in ("a.jpg", "a.png", "a_png.tif", "b.v2.png")]
    assert unique_stems(files) == ["a_jpg", "a_png_", "a_png", "b.v2"]


def test_overlays_are_called_as_no_mask_is() -> None:
    masks = {"x", "x_overlay", "x_overlay_"}
    assert overlay_stem("y", masks) == "y_overlay"
    assert [overlay_stem(name, masks) for name in sorted(masks)] == [
        "x_overlay__",
        "x_overlay_overlay",
        "x_overlay__overlay",
    ]


@pytest.mark.parametrize(
    ("source", "given", "told"),
    [
        ("in/a/x.png", "in", "a/x.png"),
        (("in/a/x.png", None), "in", "a/x.png"),
        (Volume("x", ("in/x_0000.nii", "in/x_0001.nii")), "in", "x_0000.nii"),
        ("in/x.png", "in/x.png", "in/x.png"),
        ("in/a/x.png", "in/**/*.png", "in/a/x.png"),
        ("in/x.png", None, "in/x.png"),
        (7, "in", ""),
        ((), None, ""),
    ],
)
def test_an_input_is_told_from_the_folder_on(source: object, given: str | None, told: str) -> None:
    assert input_of(source, Path(given) if given else None) == told
