"""What can be wrong with the files of each format of pictures: named with the file in one sentence, or read."""

from __future__ import annotations

import importlib.util
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from template.data.cityscapes import Cityscapes
from template.data.coco import COCO
from template.data.folder import Folder
from template.data.module import SegmentationData
from template.data.oxford_pet import OxfordPet
from template.data.voc import VOC
from template.distributed.faults import NamedError

from . import picture_sets
from .refused import cut_off, loop, refused

#: A space and Chinese characters; the formats that ask for more have it after them.
ODD = "a 图 1"


class Layout(NamedTuple):
    """A format: how a set is made and read, and where image and mask of its odd name are."""

    build: Callable[[Path], Any]
    read: Callable[[Path], SegmentationData]
    image: str
    mask: str | None


def _folder(root: Path) -> None:
    for name in (ODD, "b"):
        picture_sets.photo(root / "images" / f"{name}.png", 0)
        picture_sets.labels(root / "masks" / f"{name}.png", picture_sets.square(1, 0, 2))


def _read_folder(root: Path) -> SegmentationData:
    return Folder(
        images=str(root / "images"), masks=str(root / "masks"), classes=["background", "a", "b"], val_fraction=0.0,
        test_fraction=0.0,
    )  # fmt: skip


def _read_coco(root: Path) -> SegmentationData:
    files = root / "annotations" / "instances_{split}2017.json"
    return COCO(annotations=str(files), images=str(root / "{split}2017"))


STREET = f"aachen_{ODD}_000001"
PETS = ("oxford-iiit-pet/images", "oxford-iiit-pet/annotations/trimaps")
STREETS = (f"leftImg8bit/train/aachen/{STREET}_leftImg8bit.png", f"gtFine/train/aachen/{STREET}_gtFine_labelIds.png")
LAYOUTS = {
    "Folder": Layout(_folder, _read_folder, f"images/{ODD}.png", f"masks/{ODD}.png"),
    "VOC": Layout(
        lambda root: picture_sets.voc(root, {"train": [ODD, "b"], "val": ["c"]}),
        lambda root: VOC(root=str(root / "VOC2012")),
        f"VOC2012/JPEGImages/{ODD}.jpg",
        f"VOC2012/SegmentationClass/{ODD}.png",
    ),
    "OxfordPet": Layout(
        lambda root: picture_sets.oxford_pet(root, [ODD, "b_2"], ["c_3"]),
        lambda root: OxfordPet(root=str(root), size=(32, 32), val_fraction=0.0),
        f"{PETS[0]}/{ODD}.jpg",
        f"{PETS[1]}/{ODD}.png",
    ),
    "Cityscapes": Layout(
        lambda root: picture_sets.cityscapes(root, {"train": [STREET, "aachen_b_1"], "val": ["ulm_c_1"]}),
        lambda root: Cityscapes(root=str(root)),
        *STREETS,
    ),
}
if importlib.util.find_spec("pycocotools"):
    LAYOUTS["COCO"] = Layout(
        lambda root: picture_sets.coco(root, {"train": [f"{ODD}.jpg", "b.jpg"], "val": ["c.jpg"]}),
        _read_coco,
        f"train2017/{ODD}.jpg",
        None,
    )


def _huge(file: Path) -> None:
    """A header that promises 65500 × 65500 pixels."""
    content, size = bytearray(file.read_bytes()), struct.pack(">II", 65500, 65500)
    if file.suffix == ".png":
        content[16:24] = size
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    else:
        frame = content.index(b"\xff\xc0")
        content[frame + 5 : frame + 9] = size[2:4] + size[6:8]
    file.write_bytes(bytes(content))


def _damaged_inside(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-20] ^= 255
    file.write_bytes(bytes(content))


def _resized(file: Path) -> None:
    with Image.open(file) as picture:
        other = picture.resize((31, 29), Image.Resampling.NEAREST)
    other.save(file)


def _labelled(file: Path) -> None:
    with Image.open(file) as picture:
        values = np.asarray(picture).copy()
    values[12, 12] = 250
    Image.fromarray(values).save(file)


def _replaced(file: Path, make: Callable[[Path], Any]) -> None:
    file.unlink()
    make(file)


#: What is done to image and mask, and what may name it.
FAULTS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "missing": (Path.unlink, {"data-missing", "data-unpaired"}),
    "cut off": (cut_off, {"data-unreadable"}),
    "header cut off": (lambda file: cut_off(file, 0.02), {"data-unreadable"}),
    "empty": (lambda file: file.write_bytes(b""), {"data-unreadable"}),
    "text": (lambda file: file.write_text("text" * 200), {"data-unreadable"}),
    "a folder": (lambda file: _replaced(file, Path.mkdir), {"data-unreadable", "data-missing", "data-unpaired"}),
    "a pipe": (lambda file: _replaced(file, os.mkfifo), {"data-unreadable", "data-missing", "data-unpaired"}),
    "in a loop": (loop, {"data-unreadable", "data-missing"}),
    "a link to nothing": (
        lambda file: _replaced(file, lambda link: link.symlink_to("gone")), {"data-unreadable", "data-missing"},
    ),
    "huge": (_huge, {"data-unreadable"}),
    "of another size": (_resized, {"data-size-mismatch"}),
}  # fmt: skip
#: What can be wrong with masks alone.
OF_MASKS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "damaged inside": (_damaged_inside, {"data-unreadable"}),
    "label out of range": (_labelled, {"mask-values"}),
}


def read_all(layout: Layout, root: Path) -> int:
    """Read a data set as a training does: its list, then each case."""
    data = layout.read(root)
    cases = data.cases("train")
    for case in cases:
        data.read(case)
    return len(cases)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture
def root(layout: Layout, tmp_path: Path) -> Path:
    layout.build(tmp_path / "my set 数据")
    return tmp_path / "my set 数据"


def _spoiled(file: Path, fault: str, layout: Layout, root: Path) -> None:
    assert read_all(layout, root) == 2  # odd names are read
    spoil, identifiers = {**FAULTS, **OF_MASKS}[fault]
    spoil(file)
    with pytest.raises(NamedError) as caught:
        read_all(layout, root)
    error = caught.value
    assert error.identifier in identifiers, str(error)
    assert ODD in error.what
    assert error.what.endswith(".")
    assert "\n" not in error.what


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_image_is_named_with_the_file(fault: str, layout: Layout, root: Path) -> None:
    _spoiled(root / layout.image, fault, layout, root)


@pytest.mark.parametrize("fault", [*FAULTS, *OF_MASKS])
def test_a_fault_of_a_mask_is_named_with_the_file(fault: str, layout: Layout, root: Path) -> None:
    if layout.mask is not None:  # COCO's are in its annotations
        _spoiled(root / layout.mask, fault, layout, root)


def test_a_file_that_may_not_be_read_is_named(layout: Layout, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Image.open
    for file in (root / name for name in (layout.image, layout.mask) if name):

        def denied(path: Any, *rest: Any, file: Path = file) -> Any:
            if Path(path) == file:  # rights do not stop root
                raise PermissionError(13, "Permission denied", str(file))
            return opened(path, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(Image, "open", denied)
            refused("data-unreadable", lambda: read_all(layout, root), file.name, "Permission denied")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_named(value: float, tmp_path: Path) -> None:
    _folder(tmp_path)
    (tmp_path / "masks" / "b.png").unlink()
    pixels = np.zeros((40, 48), np.float32)
    pixels[3, 3] = value
    Image.fromarray(pixels).save(tmp_path / "masks" / "b.tif")
    refused("mask-values", lambda: read_all(LAYOUTS["Folder"], tmp_path), "b.tif")
