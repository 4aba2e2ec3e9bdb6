"""Tiny data sets in the layouts that VOC, Oxford-IIIT Pet, Cityscapes and COCO come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Labels = npt.NDArray[np.uint8]

HEIGHT, WIDTH = 40, 48


def photo(file: Path, seed: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> None:
    """Write a picture in colour; the suffix says the format."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def labels(file: Path, values: Labels, palette: bool = False) -> None:
    """Write a mask, grey or with a palette."""
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(values)
    if palette:
        picture.putpalette([level for entry in range(256) for level in (entry, 255 - entry, entry // 2)])
    picture.save(file)


def square(inside: int, around: int, border: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Labels:
    """A square of 20 × 20 pixels with a border of 2 about it: 400 pixels inside, 176 of border."""
    values = np.full(size, around, np.uint8)
    values[8:32, 8:32] = border
    values[10:30, 10:30] = inside
    return values


def voc(root: Path, lists: dict[str, list[str]]) -> Path:
    """Write a year of VOC: each image has a dog (12) in a square.

    Args:
        root: Where ``VOC2012`` is made.
        lists: List to names.
    """
    root = root / "VOC2012"
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    for name, names in lists.items():
        (root / "ImageSets" / "Segmentation" / f"{name}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    for seed, name in enumerate(sorted({name for names in lists.values() for name in names})):
        photo(root / "JPEGImages" / f"{name}.jpg", seed)
        labels(root / "SegmentationClass" / f"{name}.png", square(12, 0, 255), palette=True)
    photo(root / "JPEGImages" / "2007_of another task.jpg", 0)
    return root


def oxford_pet(root: Path, trainval: list[str], test: list[str]) -> Path:
    """Write Oxford-IIIT Pet, each picture of a size of its own, with what else its archives hold."""
    folder = root / "oxford-iiit-pet"
    annotations = folder / "annotations"
    (annotations / "trimaps").mkdir(parents=True)
    for name, names in (("trainval", trainval), ("test", test)):
        lines = [f"{picture} {number % 37 + 1} {number % 2 + 1} 1" for number, picture in enumerate(names)]
        (annotations / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (annotations / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n", encoding="utf-8")
    (annotations / "trimaps" / "._of macOS.png").write_bytes(b"\0\5\x16\7")
    for seed, picture in enumerate([*trainval, *test]):
        size = HEIGHT + seed, WIDTH
        photo(folder / "images" / f"{picture}.jpg", seed, size)
        labels(annotations / "trimaps" / f"{picture}.png", square(1, 2, 3, size))
    (folder / "images" / "Abyssinian_101.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    return folder


def cityscapes(root: Path, images: dict[str, list[str]], size: tuple[int, int] = (HEIGHT, WIDTH)) -> Path:
    """Write Cityscapes: a car (26) on the road (7), and a border out of roi (3).

    Args:
        root: Where ``leftImg8bit`` and ``gtFine`` are made.
        images: Split to names, each of which begins with its city.
        size: Height and width.
    """
    for split, names in images.items():
        for seed, name in enumerate(names):
            city = name.partition("_")[0]
            photo(root / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png", seed, size)
            masks = root / "gtFine" / split / city
            labels(masks / f"{name}_gtFine_labelIds.png", square(26, 7, 3, size))
            labels(masks / f"{name}_gtFine_labelTrainIds.png", square(13, 0, 255, size))
            (masks / f"{name}_gtFine_polygons.json").write_text("{}", encoding="utf-8")
    return root


#: Ids with gaps, not in the order of the file.
CATEGORIES = [{"id": 44, "name": "bottle"}, {"id": 3, "name": "car"}, {"id": 17, "name": "cat 猫"}]


def rectangle(top: int, left: int, bottom: int, right: int) -> list[float]:
    """Polygon of the pixels of rows ``top`` to ``bottom - 1`` and columns ``left`` to ``right - 1``."""
    return [float(value) for value in (left, top, right, top, right, bottom, left, bottom)]


def coco_content(names: list[str], **parts: Any) -> dict[str, Any]:
    """What a file of annotations says: a car in each image, whose polygon is rows 10-29 and columns 5-24."""
    images = [
        {"id": 100 + number, "file_name": name, "height": HEIGHT, "width": WIDTH} for number, name in enumerate(names)
    ]
    annotations = [
        {
            "id": 900 + number, "image_id": 100 + number, "category_id": 3, "iscrowd": 0, "area": 400.0,
            "bbox": [5.0, 10.0, 20.0, 20.0], "segmentation": [rectangle(10, 5, 30, 25)],
        }
        for number, _ in enumerate(names)
    ]  # fmt: skip
    return {"info": {}, "images": images, "annotations": annotations, "categories": CATEGORIES, **parts}


def coco(root: Path, images: dict[str, list[str]], **parts: Any) -> Path:
    """Write COCO 2017.

    Args:
        root: Where ``annotations`` and a folder for each split are made.
        images: Split to file names.
        parts: Parts of the files that replace those of :func:`coco_content`.
    """
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, names in images.items():
        file = root / "annotations" / f"instances_{split}2017.json"
        file.write_text(json.dumps(coco_content(names, **parts)), encoding="utf-8")
        for seed, name in enumerate(names):
            photo(root / f"{split}2017" / name, seed)
    return root
