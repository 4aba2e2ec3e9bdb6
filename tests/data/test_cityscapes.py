from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import Cityscapes as Peer
from torchvision.transforms import v2

from template.data.cityscapes import IDS, Cityscapes

from .picture_sets import cityscapes, labels, square
from .refused import cut_off, forbid, loop, refused

IMAGES = {
    "train": ["aachen_000000_000019", "aachen_000001_000019", "köln am Rhein 科隆_000000_000001"],
    "val": ["lindau_000000_000019"],
    "test": ["berlin_000000_000019"],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return cityscapes(tmp_path / "cityscapes", IMAGES)


def _streets(root: Path, **arguments: Any) -> Cityscapes:
    return Cityscapes(root=str(root), **arguments)


def _mask(root: Path, name: str = "aachen_000000_000019", split: str = "train") -> Path:
    return root / "gtFine" / split / name.partition("_")[0] / f"{name}_gtFine_labelIds.png"


def _image(root: Path, name: str = "aachen_000000_000019", split: str = "train") -> Path:
    return root / "leftImg8bit" / split / name.partition("_")[0] / f"{name}_leftImg8bit.png"


def test_the_images_of_all_cities_and_their_train_ids(root: Path) -> None:
    data = _streets(root)
    assert {split: [case.name for case in data.cases(split)] for split in ("train", "val")} == {
        split: IMAGES[split] for split in ("train", "val")
    }
    image, mask = data.read(data.cases("train")[2])
    assert image.shape == (3, 40, 48)
    assert mask is not None
    # 20 × 20 pixels of car (id 26, train id 13), a border out of roi (id 3), and road (id 7, train id 0).
    assert [int((mask == value).sum()) for value in (13, 255, 0)] == [400, 176, 1344]
    assert (data.classes[13], data.classes[0]) == ("car", "road")


def test_the_ids_are_those_of_torchvision_s_table(root: Path) -> None:
    trained = {entry.name: entry for entry in Peer.classes if entry.train_id not in (-1, 255)}
    assert {name: entry.id for name, entry in trained.items()} == IDS
    assert [entry.train_id for name in IDS for entry in [trained[name]]] == list(range(19))
    data = _streets(root)
    stored = np.array([[entry.id for entry in Peer.classes if entry.id >= 0]], np.uint8)
    assert stored.tolist() == [list(range(34))]
    expected = [entry.train_id for entry in Peer.classes if entry.id >= 0]
    assert data.mask_values.to_classes(stored, root).tolist() == [expected]


def test_torchvision_lists_the_same_files(root: Path) -> None:
    for split in ("train", "val"):
        theirs = Peer(str(root), split=split, mode="fine", target_type="semantic")
        pairs = {(image, targets[0]) for image, targets in zip(theirs.images, theirs.targets, strict=True)}
        assert {case.source for case in _streets(root).cases(split)} == pairs  # type: ignore[arg-type]


def test_a_predicted_mask_holds_ids(root: Path, tmp_path: Path) -> None:
    data = _streets(root)
    (case,) = data.predict_cases(root / "leftImg8bit" / "test" / "*" / "*.png")
    assert case.name == "berlin_000000_000019_leftImg8bit"
    with Image.open(data.write(case, torch.from_numpy(square(13, 0, 18)), tmp_path)) as written:
        assert (np.asarray(written) == square(26, 7, 33)).all()


def test_the_test_has_no_public_masks(root: Path) -> None:
    error = refused("data-missing", lambda: _streets(root).cases("test"), "no public masks")
    assert "validate" in error.fix
    assert f"'{root}/leftImg8bit/test/*/*.png'" in error.fix


def test_missing_and_empty_folders_are_named(root: Path, tmp_path: Path) -> None:
    refused("data-missing", lambda: _streets(tmp_path / "gone").cases("train"), "leftImg8bit/train", "No such file")
    _image(root, *("lindau_000000_000019", "val")).rename(root / "lindau_leftImg8bit.png")
    error = refused("data-missing", lambda: _streets(root).cases("val"), "leftImg8bit/val", "1 folders")
    assert "leftImg8bit_trainvaltest.zip" in error.fix
    city = root / "leftImg8bit" / "val" / "ulm"
    city.symlink_to(city)
    refused("data-missing", lambda: _streets(root).cases("val"), "val/ulm", "symbolic links")


def test_an_image_without_a_mask_and_a_name_twice_are_named(root: Path) -> None:
    _mask(root).unlink()
    refused("data-unpaired", lambda: _streets(root).cases("train"), "aachen_000000_000019_leftImg8bit.png")
    other = root / "leftImg8bit" / "train" / "ulm"
    other.mkdir()
    (other / _image(root).name).write_bytes(_image(root).read_bytes())
    refused("data-unpaired", lambda: _streets(root).cases("train"), "two cities", _image(root).name)


def test_files_of_macos_are_passed_over(root: Path) -> None:
    (_image(root).parent / f"._{_image(root).name}").write_bytes(b"\0\5\x16\7")
    (root / "leftImg8bit" / "train" / ".DS_Store").write_bytes(b"\0")
    assert len(_streets(root).cases("train")) == 3


def test_files_that_cannot_be_read_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _streets(root)
    case = data.cases("train")[0]
    cut_off(_mask(root), 0.8)
    refused("data-unreadable", lambda: data.read(case), _mask(root).name)
    loop(_mask(root))
    refused("data-unreadable", lambda: _streets(root).cases("train"), _mask(root).name, "symbolic links")
    _image(root).write_bytes(b"")
    refused("data-unreadable", lambda: _streets(root).cases("train"), _image(root).name, "0 bytes")
    forbidden = _mask(root, *("lindau_000000_000019", "val"))
    forbid(monkeypatch, forbidden)
    refused("data-unreadable", lambda: _streets(root).cases("val"), forbidden.name, "Permission denied")


def test_masks_that_do_not_fit_are_named(root: Path) -> None:
    data = _streets(root)
    case = data.cases("train")[0]
    for values in (square(34, 7, 3), square(13, 0, 255)):  # no id of Cityscapes; train ids under a wrong name
        labels(_mask(root), values)
        assert "0 to 33" in refused("mask-values", lambda: data.read(case), _mask(root).name).cause
    labels(_mask(root), np.full((20, 24), 7, np.uint8))  # at half the resolution, as some copies are
    refused("data-size-mismatch", lambda: _streets(root).cases("train"), "40 × 48", "20 × 24")


def test_crops_keep_image_and_mask_together(root: Path) -> None:
    data = _streets(root, augment=[v2.RandomCrop((16, 32))])
    assert len(data.cases("train")) == 3
