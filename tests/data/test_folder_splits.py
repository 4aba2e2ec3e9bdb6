"""Folders and lists for each split, groups and folds of ``Folder``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from template.data.folder import Folder
from template.distributed.faults import NamedError

SPLITS: Any = ("train", "val", "test")


def _draw(folder: Path, *stems: str, suffix: str = ".png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / f"{stem}{suffix}")


def _pairs(root: Path, *stems: str, split: str = "") -> None:
    _draw(root / "images" / split, *stems)
    _draw(root / "masks" / split, *stems)


def _folder(root: Path, **arguments: Any) -> Folder:
    defaults = {"images": f"{root}/images", "masks": f"{root}/masks", "classes": ["background", "a"]}
    return Folder(**{**defaults, **arguments})


def _by_split(root: Path, **arguments: Any) -> Folder:
    return _folder(root, images=f"{root}/images/{{split}}", masks=f"{root}/masks/{{split}}", **arguments)


def _names(data: Folder) -> dict[str, list[str]]:
    return {split: [case.name for case in data.cases(split)] for split in SPLITS}


def _fails(identifier: str, word: str, action: Any) -> NamedError:
    with pytest.raises(NamedError, match=word) as caught:
        action()
    assert caught.value.identifier == identifier
    return caught.value


def test_a_folder_for_each_split(tmp_path: Path) -> None:
    for split, stems in (("train", "ab"), ("valid", ["a 图"]), ("test", "d")):
        _pairs(tmp_path, *stems, split=split)
    data = _by_split(tmp_path)
    assert _names(data) == {"train": ["a", "b"], "val": ["a 图"], "test": ["d"]}
    assert data.cases("val")[0].source == (f"{tmp_path}/images/valid/a 图.png", f"{tmp_path}/masks/valid/a 图.png")


def test_images_and_masks_below_the_folder_of_a_split(tmp_path: Path) -> None:
    for split in SPLITS:
        _pairs(tmp_path / split, "a")
    data = _folder(tmp_path, images=f"{tmp_path}/{{split}}/images", masks=f"{tmp_path}/{{split}}/masks")
    assert _names(data) == {"train": ["a"], "val": ["a"], "test": ["a"]}
    assert data.cases("test")[0].source[0] == f"{tmp_path}/test/images/a.png"


def test_validation_is_cut_out_of_training_where_it_has_no_folder(tmp_path: Path) -> None:
    _pairs(tmp_path, *(f"car{car}_{view}" for car in range(5) for view in range(2)), split="train")
    data = _by_split(tmp_path, group=r"(.*)_\d")
    train, val = ({case.name.partition("_")[0] for case in data.cases(split)} for split in ("train", "val"))
    assert (len(train), len(val), train & val) == (4, 1, set())
    _fails("data-missing", "no folder for the test split", lambda: data.cases("test"))


def test_folders_of_splits_that_are_wrong_are_named(tmp_path: Path) -> None:
    _pairs(tmp_path, "a", split="train")
    _draw(tmp_path / "images" / "test", "b")
    _fails("data-missing", "data.masks: .* for the test split", lambda: _by_split(tmp_path).cases("test"))
    error = _fails("data-missing", "holds no picture", lambda: _folder(tmp_path).cases("train"))
    assert f"data.images: {tmp_path}/images/{{split}}" in error.fix
    _fails("config", "data.masks", lambda: _folder(tmp_path, images=f"{tmp_path}/images/{{split}}"))
    _fails("config", "split_files", lambda: _by_split(tmp_path, split_files={"train": "train.txt"}))
    _fails("data-missing", "no folder for the train split", lambda: _by_split(tmp_path / "gone").cases("val"))
    loop = tmp_path / "images" / "val"
    loop.symlink_to(loop)
    (tmp_path / "masks" / "val").mkdir()
    _fails("data-missing", "symbolic links", lambda: _by_split(tmp_path).cases("val"))


def _listed(root: Path, **lists: str) -> dict[str, str]:
    (root / "lists").mkdir(exist_ok=True)
    for split, text in lists.items():
        (root / "lists" / f"{split}.txt").write_text(text, encoding="utf-8")
    return {split: f"{root}/lists/{split}.txt" for split in lists}


def test_lists_say_which_stems_are_in_a_split(tmp_path: Path) -> None:
    _pairs(tmp_path, "a", "b 图", "c", "left out")
    _draw(tmp_path / "images", "has no mask, and is in no list")
    lists = _listed(tmp_path, train="c\na.png\n", val="b 图\n", test="left out\n")
    expected = {"train": ["a", "c"], "val": ["b 图"], "test": ["left out"]}
    assert _names(_folder(tmp_path, split_files=lists)) == expected
    assert _names(_folder(tmp_path, split_files=f"{tmp_path}/lists")) == expected


def test_a_list_may_name_images_by_their_files(tmp_path: Path) -> None:
    _draw(tmp_path / "images", "1_sat", "2_sat")
    _draw(tmp_path / "masks", "1", "2")
    lists = _listed(tmp_path, train="1_sat.png\n2\n")
    data = _folder(tmp_path, split_files=lists, image_suffix="_sat", val_fraction=0.0)
    assert [case.name for case in data.cases("train")] == ["1", "2"]


def test_folds_of_what_the_lists_leave_for_training(tmp_path: Path) -> None:
    _pairs(tmp_path, *"abcde")
    lists = _listed(tmp_path, train="a\nb\nc\nd\n", test="e\n")
    folds = [_names(_folder(tmp_path, split_files=lists, folds=2, fold=fold)) for fold in range(2)]
    assert sorted(folds[0]["val"] + folds[1]["val"]) == list("abcd")
    assert folds[0]["train"] == folds[1]["val"]
    assert [part["test"] for part in folds] == [["e"], ["e"]]


def test_lists_that_are_wrong_are_named(tmp_path: Path) -> None:
    _pairs(tmp_path, "a", "b")
    for identifier, word, texts in (
        ("data-unpaired", "'ghost' and 1 more, and no image", {"train": "a\nghost\nx\n"}),
        ("data-unpaired", "'a' is in .*train.txt' and in .*val.txt'", {"train": "a\n", "val": "a\n"}),
        ("data-unpaired", "'a' twice", {"train": "a\na\n"}),
        ("data-missing", "list '.*train.txt' is empty", {"train": ""}),
    ):
        data = _folder(tmp_path, split_files=_listed(tmp_path, **texts))
        _fails(identifier, word, lambda data=data: data.cases("train"))
    gone = _folder(tmp_path, split_files={"train": f"{tmp_path}/none.txt"})
    _fails("data-missing", "list '.*none.txt' does not exist", lambda: gone.cases("train"))
    good = _listed(tmp_path, train="a\n")
    _fails("data-missing", "no list for the test", lambda: _folder(tmp_path, split_files=good).cases("test"))
    _fails("data-missing", "has no train.txt", lambda: _folder(tmp_path, split_files=f"{tmp_path}/images"))
    _fails("config", r"\['val'\]", lambda: _folder(tmp_path, split_files={"val": "val.txt"}))
    _listed(tmp_path, train="a\nb\n")
    (tmp_path / "masks" / "b.png").unlink()
    _fails("data-unpaired", "1 of 2 images have no mask", lambda: _folder(tmp_path, split_files=good).cases("train"))


def test_cars_and_folds_of_carvana(tmp_path: Path) -> None:
    views = [f"{car}{view:02}" for car in ("aa_", "bb_", "cc_", "dd_") for view in range(1, 4)]
    _draw(tmp_path / "images", *views, suffix=".jpg")
    _draw(tmp_path / "masks", *(f"{view}_mask" for view in views), suffix=".gif")
    common = {"mask_suffix": "_mask", "group": r"^(.*)_\d+$", "folds": 3, "test_fraction": 0.25}
    parts = [_names(_folder(tmp_path, fold=fold, **common)) for fold in range(3)]
    assert len({name[:2] for name in parts[0]["test"]}) == 1
    for part in parts:
        cars = [{name[:2] for name in part[split]} for split in SPLITS]
        assert list(map(len, cars)) == [2, 1, 1]
        assert len(set.union(*cars)) == 4
    assert len({part["val"][0][:2] for part in parts}) == 3
    _fails("config", "does not match 'aa_01'", lambda: _folder(tmp_path, **{**common, "group": "x"}).cases("train"))
