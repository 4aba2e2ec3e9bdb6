from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from template.data.splits import split_groups
from template.data.voc import CLASSES, VOC

from .picture_sets import labels, photo, square, voc
from .refused import cut_off, forbid, loop, refused

LISTS = {"train": ["2007_000032", "2007_000039", "狗 and cat"], "val": ["2008_000001"], "test": ["2008_000007"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lists = {**LISTS, "trainval": [*LISTS["train"], *LISTS["val"]]}
    return voc(tmp_path, lists)


def _voc(root: Path, **arguments: Any) -> VOC:
    return VOC(root=str(root), **arguments)


def _mask(root: Path, name: str = "2007_000032") -> Path:
    return root / "SegmentationClass" / f"{name}.png"


def _list(root: Path, name: str = "train") -> Path:
    return root / "ImageSets" / "Segmentation" / f"{name}.txt"


def test_the_lists_are_the_splits_and_the_palette_index_is_the_class(root: Path) -> None:
    data = _voc(root)
    assert {split: [case.name for case in data.cases(split)] for split in ("train", "val", "test")} == LISTS
    image, mask = data.read(data.cases("train")[2])
    assert image.shape == (3, 40, 48)
    assert mask is not None
    assert data.classes[12] == "dog"
    counts = dict(zip(*torch.unique(mask, return_counts=True), strict=True))
    # 40 × 48 pixels, of which 20 × 20 are the dog, and 24 × 24 - 20 × 20 its outline.
    assert {int(value): int(count) for value, count in counts.items()} == {12: 400, 255: 176, 0: 1344}
    assert mask[10, 10] == 12
    assert mask[9, 10] == 255


def test_the_classes_are_those_of_the_development_kit() -> None:
    assert len(CLASSES) == 21
    # VOCinit.m of the devkit lists them in alphabetical order; torchvision's models of VOC have the same.
    assert list(CLASSES[1:]) == sorted(CLASSES[1:])
    weights = pytest.importorskip("torchvision.models.segmentation").FCN_ResNet50_Weights.DEFAULT
    assert [name.removeprefix("__").removesuffix("__") for name in weights.meta["categories"]] == list(CLASSES)


def test_torchvision_lists_the_same_files(tmp_path: Path) -> None:
    from torchvision.datasets import VOCSegmentation

    root = voc(tmp_path / "VOCdevkit", {"train": LISTS["train"], "val": LISTS["val"]})
    peer = VOCSegmentation(str(tmp_path), year="2012", image_set="train")
    data = _voc(root)
    assert sorted(zip(peer.images, peer.masks, strict=True)) == [case.source for case in data.cases("train")]
    order = sorted(range(len(peer)), key=peer.images.__getitem__)
    for index, case in zip(order, data.cases("train"), strict=True):
        mask = data.read(case)[1]
        assert mask is not None
        assert (np.asarray(peer[index][1]) == mask.numpy()).all()


def test_validation_may_be_cut_out_of_trainval(root: Path) -> None:
    names = sorted([*LISTS["train"], *LISTS["val"]])
    data = _voc(root, train_set="trainval", val_set=None, val_fraction=0.5)
    parts = split_groups({name: name for name in names}, 0, 0.5, 0.0)
    assert [case.name for case in data.cases("train")] == parts["train"]
    assert [case.name for case in data.cases("val")] == parts["val"]
    folds = [_voc(root, train_set="trainval", val_set=None, folds=4, fold=fold) for fold in range(4)]
    assert sorted(case.name for fold in folds for case in fold.cases("val")) == names
    grouped = _voc(root, train_set="trainval", val_set=None, val_fraction=0.3, group="(....)")
    train, val = ({case.name[:4] for case in grouped.cases(split)} for split in ("train", "val"))
    assert not train & val


def test_other_classes_and_other_folders_of_masks(root: Path) -> None:
    (root / "SegmentationClass").rename(root / "SegmentationClassAug")
    classes = ["background", *(f"class {number}" for number in range(1, 13))]
    data = _voc(root, masks="SegmentationClassAug", classes=classes)
    assert data.num_classes == 13
    assert data.read(data.cases("val")[0])[1].max() == 255  # type: ignore[union-attr]
    assert _voc(root, masks="SegmentationClassAug").predict_cases(root / "JPEGImages" / "狗 and cat.jpg")[0].name


def test_a_predicted_mask_is_a_palette_file_as_its_own(root: Path, tmp_path: Path) -> None:
    data = _voc(root)
    (case,) = data.predict_cases(root / "JPEGImages" / "狗 and cat.jpg")
    predicted = torch.from_numpy(square(20, 0, 12))
    file = data.write(case, predicted, tmp_path)
    with Image.open(file) as picture:
        assert (file.name, picture.mode) == ("狗 and cat.png", "P")
        assert (np.asarray(picture) == predicted.numpy()).all()


def test_a_missing_year_and_missing_lists_are_named(root: Path, tmp_path: Path) -> None:
    refused("data-missing", lambda: _voc(tmp_path).cases("train"), f"'{tmp_path}'", "ImageSets")
    refused("data-missing", lambda: _voc(root, train_set="gone").cases("train"), "gone.txt", "data.train_set")
    _list(root).write_text("\n", encoding="utf-8")
    refused("data-missing", lambda: _voc(root).cases("train"), "train.txt' is empty")
    loop(_list(root))
    refused("data-unreadable", lambda: _voc(root).cases("train"), "train.txt", "symbolic links")


def test_images_and_masks_that_are_not_there_are_named(root: Path) -> None:
    _mask(root).unlink()
    refused("data-unpaired", lambda: _voc(root).cases("train"), "2007_000032", "train.txt")
    _mask(root, "2008_000007").unlink()
    assert "not public" in refused("data-unpaired", lambda: _voc(root).cases("test"), "2008_000007").cause
    (root / "JPEGImages" / "2007_000032.jpg").unlink()
    refused("data-missing", lambda: _voc(root).cases("train"), "2007_000032.jpg")


def test_a_name_twice_or_in_two_lists_is_named(root: Path) -> None:
    refused("config", lambda: _voc(root, folds=3).cases("val"), "data.folds")
    refused("data-unpaired", lambda: _voc(root, train_set="trainval").cases("train"), "2008_000001", "val.txt")
    _list(root).write_text("2007_000032\n2007_000032\n", encoding="utf-8")
    refused("data-unpaired", lambda: _voc(root).cases("train"), "twice")


def test_files_that_cannot_be_read_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _voc(root).cases("train")[0]
    cut_off(_mask(root), 0.9)
    refused("data-unreadable", lambda: _voc(root).read(case), "2007_000032.png")
    _mask(root).write_bytes(b"")
    refused("data-unreadable", lambda: _voc(root).cases("train"), "2007_000032.png", "0 bytes")
    loop(_mask(root))
    refused("data-unreadable", lambda: _voc(root).cases("train"), "2007_000032.png", "symbolic links")
    cut_off(root / "JPEGImages" / "2007_000032.jpg", 0.01)
    refused("data-unreadable", lambda: _voc(root).cases("train"), "2007_000032.jpg")
    forbid(monkeypatch, root / "JPEGImages" / "2008_000001.jpg")
    refused("data-unreadable", lambda: _voc(root).cases("val"), "2008_000001.jpg", "Permission denied")


def test_masks_that_do_not_fit_are_named(root: Path) -> None:
    data = _voc(root)
    case = data.cases("train")[0]
    labels(_mask(root), square(21, 0, 255), palette=True)
    assert "data.classes" in refused("mask-values", lambda: data.read(case), "2007_000032.png", "21").fix
    colors = np.zeros((40, 48, 3), np.uint8)
    colors[10:20, 10:20] = 64, 0, 128
    Image.fromarray(colors).save(_mask(root))
    assert "palette masks" in refused("mask-values", lambda: data.read(case), "[64, 0, 128]").fix
    labels(_mask(root), square(12, 0, 255, (48, 40)))
    refused("data-size-mismatch", lambda: _voc(root).cases("train"), "40 × 48", "48 × 40")


def test_images_of_several_sizes_need_a_crop(root: Path) -> None:
    photo(root / "JPEGImages" / "2007_000039.jpg", 0, (50, 30))
    labels(_mask(root, "2007_000039"), square(12, 0, 255, (50, 30)))
    refused("sizes-differ", lambda: _voc(root).cases("train"), "2007_000039.jpg")
    assert len(_voc(root, size=(32, 32)).cases("train")) == 3
