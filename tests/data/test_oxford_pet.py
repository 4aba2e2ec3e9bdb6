from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision.datasets.oxford_iiit_pet as peer
from PIL import Image

from template.data.oxford_pet import OxfordPet
from template.data.splits import split_groups

from .picture_sets import labels, oxford_pet, photo, square
from .refused import cut_off, forbid, loop, refused

TRAINVAL = [f"Abyssinian_{number}" for number in range(1, 6)] + ["my pet 猫_1"]
TEST = ["american_bulldog_10", "Birman_1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return oxford_pet(tmp_path, TRAINVAL, TEST)


def _pets(folder: Path, **arguments: Any) -> OxfordPet:
    return OxfordPet(root=str(folder.parent), **{"size": (32, 32), **arguments})


def _names(data: OxfordPet, split: Any) -> list[str]:
    return [case.name for case in data.cases(split)]


def _trimap(folder: Path, name: str = "Birman_1") -> Path:
    return folder / "annotations" / "trimaps" / f"{name}.png"


def test_a_trimap_becomes_pet_background_and_what_does_not_count(folder: Path) -> None:
    data = _pets(folder)
    assert data.classes == ["background", "pet"]
    (case, _) = data.cases("test")
    assert case.name == "Birman_1"
    image, mask = data.read(case)
    assert image.shape == (3, 47, 48)  # the eighth picture, 40 + 7 high
    assert mask is not None
    # 20 × 20 pixels are the pet, 24 × 24 - 20 × 20 the border, the rest of 47 × 48 the background.
    assert [int((mask == value).sum()) for value in (1, 255, 0)] == [400, 176, 1680]
    with Image.open(case.source[1]) as trimap:
        values = np.asarray(trimap)
    assert (np.array([9, 1, 0, 255])[values] == mask.numpy()).all()


def test_the_border_may_be_a_class(folder: Path) -> None:
    data = _pets(folder, border="class")
    assert data.classes == ["background", "pet", "border"]
    mask = data.read(data.cases("test")[0])[1]
    assert mask is not None
    assert [int((mask == value).sum()) for value in (1, 2, 0)] == [400, 176, 1680]


def test_torchvision_lists_the_same_files(tmp_path: Path) -> None:
    folder = oxford_pet(tmp_path, TRAINVAL[:-1], TEST)  # it takes no names with spaces
    for split, own in (("trainval", ("train", "val")), ("test", ("test",))):
        theirs = peer.OxfordIIITPet(folder.parent, split=split, target_types="segmentation")
        pairs = {(str(image), str(mask)) for image, mask in zip(theirs._images, theirs._segs, strict=True)}
        data = _pets(folder)
        assert {case.source for part in own for case in data.cases(part)} == pairs  # type: ignore[arg-type]


def test_validation_is_cut_out_of_trainval(folder: Path) -> None:
    data = _pets(folder, val_fraction=0.34, split_seed=3)
    parts = split_groups({name: name for name in TRAINVAL}, 3, 0.34, 0.0)
    assert (_names(data, "train"), _names(data, "val")) == (parts["train"], parts["val"])
    assert len(parts["val"]) == 2
    folds = [_names(_pets(folder, folds=3, fold=fold), "val") for fold in range(3)]
    assert sorted(name for fold in folds for name in fold) == sorted(TRAINVAL)
    assert _names(_pets(folder, val_fraction=0.0), "val") == []
    refused("too-few-samples", lambda: _names(_pets(folder, val_fraction=1.0), "train"), "train")


def test_a_predicted_mask_is_a_trimap(folder: Path, tmp_path: Path) -> None:
    picture = folder / "images" / "my pet 猫_1.jpg"
    data = _pets(folder, border="class")
    predicted = torch.from_numpy(square(1, 0, 2, (45, 48)))
    with Image.open(data.write(data.predict_cases(picture)[0], predicted, tmp_path)) as written:
        assert (np.asarray(written) == square(1, 2, 3, (45, 48))).all()
    # Without the border as a class, a pixel is pet or background.
    two = _pets(folder)
    with Image.open(two.write(two.predict_cases(picture)[0], predicted % 2, tmp_path)) as written:
        assert set(np.unique(written).tolist()) == {1, 2}


def test_what_is_there_is_not_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "download_and_extract_archive", lambda *_, **__: pytest.fail("fetched"))
    _pets(folder).prepare_data()


def test_what_is_missing_is_fetched_by_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(url: str, download_root: str, md5: str) -> None:
        fetched.append((url, md5))
        if not (tmp_path / "oxford-iiit-pet").exists():
            assert Path(download_root) == tmp_path / "oxford-iiit-pet"
            oxford_pet(tmp_path, TRAINVAL[:-1], TEST)

    monkeypatch.setattr(peer, "download_and_extract_archive", fetch)
    _pets(tmp_path / "oxford-iiit-pet", download=False).prepare_data()
    assert not fetched
    data = _pets(tmp_path / "oxford-iiit-pet")
    data.prepare_data()
    assert fetched == [
        ("https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c"),
        ("https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f"),
    ]
    assert _names(data, "test") == sorted(TEST)


@pytest.mark.parametrize("error", [URLError("no route"), RuntimeError("File not found or corrupted."), EOFError()])
def test_a_download_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(peer, "download_and_extract_archive", fail)
    assert "images.tar.gz" in refused("download", _pets(tmp_path / "oxford-iiit-pet").prepare_data, "fetched").fix


def test_missing_and_damaged_lists_are_named(folder: Path) -> None:
    list_ = folder / "annotations" / "test.txt"
    list_.write_text("Birman_1 1 1 1\nBirman_1 1 1 1\n", encoding="utf-8")
    refused("data-unpaired", lambda: _names(_pets(folder), "test"), "test.txt", "'Birman_1' twice")
    list_.write_bytes(b"")
    refused("data-missing", lambda: _names(_pets(folder), "test"), "test.txt' is empty")
    loop(list_)
    refused("data-unreadable", lambda: _names(_pets(folder), "test"), "test.txt", "symbolic links")
    list_.unlink()
    refused("data-missing", lambda: _names(_pets(folder), "test"), "test.txt' does not exist")
    refused("data-missing", lambda: _names(_pets(folder / "gone"), "train"), "trainval.txt' does not exist")


def test_images_and_trimaps_that_are_not_there_are_named(folder: Path) -> None:
    _trimap(folder).unlink()
    refused("data-unpaired", lambda: _names(_pets(folder), "test"), "Birman_1.png")
    (folder / "images" / "Birman_1.jpg").unlink()
    refused("data-missing", lambda: _names(_pets(folder), "test"), "Birman_1.jpg")


def test_files_that_cannot_be_read_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _pets(folder)
    case = data.cases("test")[0]
    cut_off(_trimap(folder))
    refused("data-unreadable", lambda: data.read(case), "Birman_1.png")
    cut_off(folder / "images" / "Birman_1.jpg", 0.9)
    refused("data-unreadable", lambda: data.read(case), "Birman_1.jpg")
    loop(folder / "images" / "Birman_1.jpg")
    refused("data-unreadable", lambda: _names(_pets(folder), "test"), "Birman_1.jpg", "symbolic links")
    forbid(monkeypatch, _trimap(folder, "my pet 猫_1"))
    refused("data-unreadable", lambda: _names(_pets(folder), "train"), "my pet 猫_1.png", "Permission denied")


@pytest.mark.parametrize("value", [0, 4, 255])
def test_values_that_no_trimap_has_are_named(folder: Path, value: int) -> None:
    data = _pets(folder)
    case = data.cases("test")[0]
    labels(_trimap(folder), square(value, 2, 3, (47, 48)))
    assert "1 (pet)" in refused("mask-values", lambda: data.read(case), "Birman_1.png", str(value)).cause


def test_a_trimap_of_another_size_and_pictures_of_several_are_named(folder: Path) -> None:
    refused("sizes-differ", lambda: _names(_pets(folder, size=None), "train"))
    photo(folder / "images" / "Birman_1.jpg", 0, (30, 30))
    refused("data-size-mismatch", lambda: _names(_pets(folder), "test"), "30 × 30", "47 × 48")
