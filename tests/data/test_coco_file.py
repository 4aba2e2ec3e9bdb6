from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from template.data.coco_file import read_coco

from .picture_sets import CATEGORIES, HEIGHT, WIDTH, coco_content, rectangle
from .refused import cut_off, forbid, loop, refused


def _file(folder: Path, content: Any) -> Path:
    file = folder / "注 释 1.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def _object(**keys: Any) -> dict[str, Any]:
    return {**coco_content(["a.jpg"])["annotations"][0], **keys}


def test_categories_come_in_the_order_of_their_ids_and_images_of_their_files(tmp_path: Path) -> None:
    content = read_coco(_file(tmp_path, coco_content(["b 图.jpg", "a.jpg"])))
    assert list(content.categories.items()) == [(3, "car"), (17, "cat 猫"), (44, "bottle")]
    assert [image.file_name for image in content.images] == ["a.jpg", "b 图.jpg"]
    assert content.images[0].size == (HEIGHT, WIDTH)
    assert content.images[0].annotations == [(3, False, [rectangle(10, 5, 30, 25)])]


def test_pycocotools_finds_the_same(tmp_path: Path) -> None:
    peer = pytest.importorskip("pycocotools.coco")
    file = _file(tmp_path, coco_content(["b.jpg", "a.jpg"], annotations=[_object(), _object(id=2, iscrowd=1)]))
    theirs = peer.COCO(str(file))
    content = read_coco(file)
    assert list(content.categories) == sorted(theirs.getCatIds())
    assert {image.file_name: len(image.annotations) for image in content.images} == {
        image["file_name"]: len(theirs.getAnnIds(imgIds=[image["id"]])) for image in theirs.dataset["images"]
    }
    assert [found.crowd for image in content.images for found in image.annotations] == [False, True]


def test_a_mark_at_the_start_and_ids_that_are_words_are_taken(tmp_path: Path) -> None:
    categories = [{"id": "b", "name": "one"}, {"id": 7, "name": "two"}, {"id": "a", "name": "three"}]
    content = coco_content(["a.jpg"], categories=categories, annotations=[_object(category_id="b")])
    file = _file(tmp_path, "\ufeff" + json.dumps(content))
    assert list(read_coco(file).categories) == [7, "a", "b"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, coco_content(["a.jpg"]))
    cut_off(file)
    refused("data-unreadable", lambda: read_coco(file), f"'{file}' is no whole JSON file")
    file.write_bytes(b"")
    refused("data-unreadable", lambda: read_coco(file), "no whole JSON file")
    file.write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    refused("data-unreadable", lambda: read_coco(file), "no whole JSON file")
    _file(tmp_path, "[" * 100_000)
    refused("data-unreadable", lambda: read_coco(file), "no whole JSON file")
    loop(file)
    refused("data-unreadable", lambda: read_coco(file), "symbolic links")
    file.unlink()
    refused("data-missing", lambda: read_coco(file), "does not exist")
    refused("data-unreadable", lambda: read_coco(tmp_path), "Is a directory")
    _file(tmp_path, coco_content(["a.jpg"]))
    forbid(monkeypatch, file)
    refused("data-unreadable", lambda: read_coco(file), "Permission denied")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([{"image_id": 1, "category_id": 1, "score": 0.9}], "no list 'images'"),
        ({"images": []}, "no list 'annotations'"),
        ({"images": [], "annotations": {}, "categories": []}, "no list 'annotations'"),
        (coco_content(["a.jpg"], images=[{"id": 1}]), "no 'file_name' in images[0]"),
        (coco_content(["a.jpg"], categories=["car"]), "no 'id' in categories[0]"),
        (coco_content(["a.jpg"], categories=[{"id": [1], "name": "car"}]), "the id [1]"),
        (coco_content(["a.jpg"], images=[{"id": 1, "file_name": "a.jpg", "height": "40", "width": 0}]), "'40' × 0"),
        (coco_content(["a.jpg"], annotations=[_object(segmentation=[])]), "annotation 900 without a segmentation"),
        (coco_content(["a.jpg"], annotations=[_object(segmentation=[1, 2, 3])]), "annotation 900, whose polygons"),
        (coco_content(["a.jpg"], annotations=[_object(segmentation=[[1, 2, 3]])]), "whose polygons"),
        (coco_content(["a.jpg"], annotations=[_object(segmentation=[[1, 2, 3, 4, 5, "6"]])]), "whose polygons"),
        (coco_content(["a.jpg"], annotations=[_object(segmentation=[[1, 2, 3, 4, 5, 1e300]])]), "whose polygons"),
        (coco_content(["a.jpg"], annotations=[_object(segmentation="runs")]), "neither polygons nor run lengths"),
        (
            coco_content(["a.jpg"], annotations=[_object(segmentation={"size": [40, 48], "counts": [1, 2]})]),
            "do not add up to 40 × 48",
        ),
        (
            coco_content(["a.jpg"], annotations=[_object(segmentation={"size": [40, 48], "counts": None})]),
            "neither numbers nor text",
        ),
    ],
)  # fmt: skip
def test_what_is_not_of_the_format_is_named(tmp_path: Path, content: Any, word: str) -> None:
    file = _file(tmp_path, content)
    refused("data-unreadable", lambda: read_coco(file), str(file), word)


@pytest.mark.parametrize(
    ("identifier", "parts", "word"),
    [
        ("data-missing", {"images": []}, "lists no image"),
        ("data-unpaired", {"images": coco_content(["a.jpg"])["images"] * 2}, "the id 100 twice in images"),
        ("data-unpaired", {"categories": [CATEGORIES[0], CATEGORIES[0]]}, "the id 44 twice in categories"),
        ("data-unpaired", {"annotations": [_object(), _object()]}, "the id 900 twice in annotations"),
        ("data-unpaired", {"categories": [CATEGORIES[1], {"id": 4, "name": "car"}]}, "two categories are called 'car'"),
        ("data-unpaired", {"images": coco_content(["a", "a"])["images"]}, "two images have the file 'a'"),
        ("data-unpaired", {"annotations": [_object(image_id=5)]}, "annotation 900 of image 5"),
        ("data-unpaired", {"annotations": [_object(image_id=[5])]}, "annotation 900 of image [5]"),
        ("mask-values", {"annotations": [_object(category_id=99)]}, "annotation 900 of category 99"),
        (
            "data-size-mismatch",
            {"annotations": [_object(segmentation={"size": [48, 40], "counts": [1920]})]},
            "annotation 900 of [48, 40] pixels in an image of [40, 48]",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path: Path, identifier: str, parts: Any, word: str) -> None:
    file = _file(tmp_path, coco_content(["a.jpg"], **parts))
    refused(identifier, lambda: read_coco(file), str(file), word)
