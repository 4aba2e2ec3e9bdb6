from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from template.data.coco import COCO
from template.data.splits import split_groups

from .picture_sets import CATEGORIES, coco, coco_content, photo, rectangle
from .refused import cut_off, forbid, loop, refused

pytest.importorskip("pycocotools")
IMAGES = {"train": ["000000000009.jpg", "a/街 1.jpg", "b/街 1.jpg"], "val": ["000000000139.jpg"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return coco(tmp_path, IMAGES)


def _coco(root: Path, **arguments: Any) -> COCO:
    files = {"annotations": f"{root}/annotations/instances_{{split}}2017.json", "images": f"{root}/{{split}}2017"}
    return COCO(**{**files, **arguments})


def _one(root: Path, **arguments: Any) -> COCO:
    return _coco(
        root, annotations=f"{root}/annotations/instances_train2017.json", images=f"{root}/train2017", **arguments
    )


def _change(root: Path, split: str = "train", **parts: Any) -> None:
    file = root / "annotations" / f"instances_{split}2017.json"
    file.write_text(json.dumps(coco_content(IMAGES[split], **parts)), encoding="utf-8")


def _object(number: int, category: int, *segmentation: Any, image: int = 100, crowd: int = 0) -> dict[str, Any]:
    keys = {"id": number, "image_id": image, "category_id": category, "iscrowd": crowd}
    return {**keys, "segmentation": list(segmentation)}


def _mask(data: COCO, index: int = 0) -> torch.Tensor:
    mask = data.read(data.cases("train")[index])[1]
    assert mask is not None
    return mask


def test_ids_with_gaps_become_classes_in_their_order(root: Path) -> None:
    data = _coco(root)
    assert data.classes == ["background", "car", "cat 猫", "bottle"]  # ids 3, 17, 44
    assert {split: [case.name for case in data.cases(split)] for split in ("train", "val")} == {
        "train": ["000000000009", "a_街 1", "b_街 1"],
        "val": ["000000000139"],
    }
    image, mask = data.read(data.cases("train")[0])
    assert image.shape == (3, 40, 48)
    assert mask is not None
    assert mask.dtype == torch.uint8
    assert int((mask == 1).sum()) == 400
    assert mask[10:30, 5:25].unique().tolist() == [1]
    objects = [_object(1, 44, rectangle(0, 0, 4, 4)), _object(2, 17, rectangle(8, 8, 16, 16))]
    _change(root, annotations=objects)
    assert [int((_mask(_coco(root)) == value).sum()) for value in range(4)] == [40 * 48 - 80, 0, 64, 16]


def test_objects_that_overlap_and_crowds(root: Path) -> None:
    objects = [
        _object(1, 3, rectangle(0, 0, 20, 20)),
        _object(2, 44, rectangle(10, 10, 14, 14)),
        _object(3, 17, rectangle(30, 0, 40, 48), crowd=1),
    ]
    _change(root, annotations=objects)
    mask = _mask(_coco(root))
    assert [int((mask == value).sum()) for value in (1, 2, 3, 255)] == [400 - 16, 0, 0, 16 + 480]
    mask = _mask(_coco(root, overlap="smallest"))
    assert [int((mask == value).sum()) for value in (1, 2, 3, 255)] == [400 - 16, 0, 16, 480]


def test_chosen_classes_leave_the_others_to_the_background(root: Path) -> None:
    objects = [_object(1, 44, rectangle(0, 0, 4, 4)), _object(2, 3, rectangle(8, 8, 16, 16)),
               _object(3, 17, rectangle(30, 0, 40, 48), crowd=1)]  # fmt: skip
    _change(root, annotations=objects)
    mask = _mask(_coco(root, classes=["background", "bottle"]))
    assert [int((mask == value).sum()) for value in (0, 1, 255)] == [40 * 48 - 16, 16, 0]
    error = refused("config", lambda: _coco(root, classes=["background", "dog"]).cases("train"), "'dog'")
    assert "bottle, car, cat 猫" in error.cause


def test_one_file_is_split_by_fractions_groups_and_folds(root: Path) -> None:
    names = ["000000000009", "a_街 1", "b_街 1"]
    parts = split_groups({name: name for name in names}, 0, 0.2, 0.1)
    data = _one(root)
    for split in ("train", "val", "test"):
        assert [case.name for case in data.cases(split)] == parts[split]  # type: ignore[arg-type]
    folds = [_one(root, folds=3, fold=fold, test_fraction=0.0) for fold in range(3)]
    assert sorted(case.name for fold in folds for case in fold.cases("val")) == names
    grouped = _one(root, group="(.)", val_fraction=0.4, test_fraction=0.0)
    assert len(grouped.cases("train")) == 2
    refused("too-few-samples", lambda: _one(root, test_fraction=0.0).cases("test"), "Of 3 images")


def test_validation_without_a_file_is_cut_out_of_training(root: Path) -> None:
    (root / "annotations" / "instances_val2017.json").unlink()
    data = _coco(root)
    assert len(data.cases("val")) == 1
    assert len(data.cases("train")) == 2
    error = refused("data-missing", lambda: data.cases("test"), "for the split test")
    assert "not public" in error.cause
    (root / "annotations" / "instances_train2017.json").unlink()
    refused("data-missing", lambda: _coco(root), "instances_{split}2017.json", "train")


def test_a_folder_for_each_split_as_of_roboflow(tmp_path: Path) -> None:
    for split, names in (("train", ["a.jpg", "b.jpg"]), ("valid", ["c.jpg"]), ("test", ["d.jpg"])):
        for seed, name in enumerate(names):
            photo(tmp_path / split / name, seed)
        text = json.dumps(coco_content(names))
        (tmp_path / split / "_annotations.coco.json").write_text(text, encoding="utf-8")
    data = COCO(annotations=f"{tmp_path}/{{split}}/_annotations.coco.json", images=f"{tmp_path}/{{split}}")
    names = {split: [case.name for case in data.cases(split)] for split in ("train", "val", "test")}
    assert names == {"train": ["a", "b"], "val": ["c"], "test": ["d"]}


def test_new_images_and_their_masks(root: Path, tmp_path: Path) -> None:
    data = _coco(root)
    (case,) = data.predict_cases(root / "train2017" / "a")
    assert data.read(case)[1] is None
    predicted = torch.from_numpy(np.arange(40 * 48, dtype=np.uint8).reshape(40, 48) % 4)
    with Image.open(data.write(case, predicted, tmp_path)) as written:
        assert (np.asarray(written) == predicted.numpy()).all()


def test_images_that_are_not_there_or_damaged_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "train2017" / "a" / "街 1.jpg"
    case = _coco(root).cases("train")[1]
    cut_off(file, 0.9)
    refused("data-unreadable", lambda: _coco(root).read(case), str(file))
    loop(file)
    refused("data-unreadable", lambda: _coco(root).read(case), str(file), "symbolic links")
    file.unlink()
    refused("data-missing", lambda: _coco(root), "'a/街 1.jpg'", str(file))
    refused("data-missing", lambda: _coco(root, images=f"{root}/gone"), f"{root}/gone")
    forbidden = root / "val2017" / "000000000139.jpg"
    photo(file, 0)
    (case,) = _coco(root).cases("val")
    forbid(monkeypatch, forbidden)
    refused("data-unreadable", lambda: _coco(root).read(case), str(forbidden), "Permission denied")


def test_an_image_of_another_size_than_its_annotations_is_named(root: Path) -> None:
    photo(root / "train2017" / "000000000009.jpg", 0, (48, 40))
    error = refused("data-size-mismatch", lambda: _mask(_coco(root)), "000000000009.jpg", "48 × 40", "40 × 48")
    assert "EXIF" in error.cause


def test_damaged_run_lengths_name_their_image(root: Path) -> None:
    objects = [{**_object(1, 3), "segmentation": {"size": [40, 48], "counts": "3Z6"}}]
    _change(root, annotations=objects)
    refused("data-unreadable", lambda: _mask(_coco(root)), "000000000009.jpg", "run lengths")


def test_files_of_other_categories_are_named(root: Path) -> None:
    _change(root, "val", categories=[{"id": 3, "name": "lorry"}])
    refused("mask-values", lambda: _coco(root).cases("val"), "000000000139.jpg", "'lorry'")
    assert _coco(root, classes=["background", "car"]).cases("val")
    _change(root, categories=[], annotations=[])
    refused("data-missing", lambda: _coco(root), "lists no category")
    cut_off(root / "annotations" / "instances_train2017.json")
    refused("data-unreadable", lambda: _coco(root), "instances_train2017.json")


def test_images_of_several_sizes_need_a_crop(root: Path) -> None:
    images = coco_content(IMAGES["train"])["images"]
    images[1]["height"] = 60
    _change(root, images=images, categories=CATEGORIES)
    refused("sizes-differ", lambda: _coco(root).cases("train"), "60 × 48", "40 × 48")
    assert len(_coco(root, size=(32, 32)).cases("train")) == 3
