"""What can be wrong with the files of each format: named with the file in one sentence, or read all the same."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import nibabel
import numpy as np
import pytest

from template.data.decathlon import Decathlon
from template.data.nifti import LiTS, Nifti
from template.data.nnunet import NnUNet
from template.data.volumes import VolumeData
from template.distributed.faults import NamedError

from . import volume_sets
from .refused import cut_off, forbid, loop, refused


class Layout(NamedTuple):
    """A format: how a set of two volumes is made and read, and where the files of the first one are."""

    build: Callable[[Path], Path]
    read: Callable[..., VolumeData]
    image: str
    mask: str


def _nifti(root: Path) -> Path:
    for number in range(2):
        for part, voxels in zip("im", volume_sets.body(number), strict=True):
            volume_sets.save(root / part / f"volume-{number}.nii.gz", voxels)
    return root


def _read_nifti(root: Path, **arguments: Any) -> Nifti:
    classes = ["background", "liver", "tumour"]
    return Nifti(images=str(root / "i"), masks=str(root / "m"), classes=classes, **arguments)


def _lits(root: Path) -> Path:
    for file in _nifti(root).rglob("volume-*"):
        file.rename(root / file.name.replace("volume", {"i": "volume", "m": "segmentation"}[file.parent.name]))
    return root


TR = ("imagesTr/volume-0.nii.gz", "labelsTr/volume-0.nii.gz")
CHANNEL = ("imagesTr/volume-0_0000.nii.gz", TR[1])
LAYOUTS = {
    "Nifti": Layout(_nifti, _read_nifti, "i/volume-0.nii.gz", "m/volume-0.nii.gz"),
    "LiTS": Layout(_lits, LiTS, "volume-0.nii.gz", "segmentation-0.nii.gz"),
    "Decathlon": Layout(lambda root: volume_sets.decathlon(root, 2, tests=0), Decathlon, *TR),
    "NnUNet": Layout(lambda root: volume_sets.nnunet(root, 2, tests=0), NnUNet, *CHANNEL),
    "NnUNet v1": Layout(lambda root: volume_sets.nnunet(root, 2, version=1, tests=0), NnUNet, *CHANNEL),
}


def _changed(file: Path, change: Callable[[np.ndarray], np.ndarray], move: float = 0.0) -> None:
    stored = nibabel.load(file)
    affine = stored.affine.copy()
    affine[0, 3] += move
    nibabel.save(nibabel.Nifti1Image(change(np.asanyarray(stored.dataobj).copy()), affine), file)


def _with(value: float, kind: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(voxels: np.ndarray) -> np.ndarray:
        voxels = voxels.astype(kind)
        voxels[0, 0, 5] = value
        return voxels

    return change


def _huge(file: Path) -> None:
    """A header that promises 54 TB."""
    header = bytearray(nibabel.load(file).to_bytes())
    header[42:48] = np.array([30000, 30000, 30000], "<i2").tobytes()
    file.unlink()
    nibabel.openers.Opener(str(file), "wb").write(bytes(header))


def _header(where: int, number: Any, kind: str) -> Callable[[Path], Any]:
    """Overwrite numbers of a packed file's header; where they are is said in nifti1.h."""

    def spoil(file: Path) -> None:
        content = bytearray(gzip.decompress(file.read_bytes()))
        new = np.array(number, kind).tobytes()
        content[where : where + len(new)] = new
        file.write_bytes(gzip.compress(bytes(content), 1))

    return spoil


def _damaged_inside(file: Path) -> None:
    """Change a voxel of a packed file, but not the checksum that follows."""
    whole = gzip.decompress(file.read_bytes())
    other = gzip.compress(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], 1)
    file.write_bytes(other[:-8] + gzip.compress(whole, 1)[-8:])


def _other_endianness(file: Path) -> None:
    stored = nibabel.load(file)
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_dtype(">i2")
    nibabel.save(nibabel.Nifti1Image(np.asanyarray(stored.dataobj).astype(">i2"), stored.affine, header), file)


class Fault(NamedTuple):
    """What is done to the image (0) or the mask (1), and the identifiers that may name it."""

    of: int
    spoil: Callable[[Path], Any]
    identifiers: tuple[str, ...]


FAULTS = {
    "image missing": Fault(0, Path.unlink, ("data-missing", "data-unpaired")),
    "mask missing": Fault(1, Path.unlink, ("data-missing", "data-unpaired")),
    "image cut off": Fault(0, cut_off, ("data-unreadable",)),
    "mask cut off": Fault(1, cut_off, ("data-unreadable",)),
    "image empty": Fault(0, lambda file: file.write_bytes(b""), ("data-unreadable",)),
    "mask empty": Fault(1, lambda file: file.write_bytes(b""), ("data-unreadable",)),
    "image no NIfTI": Fault(0, lambda file: file.write_text("text" * 200), ("data-unreadable",)),
    "image complex": Fault(0, lambda file: _changed(file, lambda v: v.astype(np.complex64)), ("data-unreadable",)),
    "mask of another shape": Fault(1, lambda file: _changed(file, lambda v: v[:-1]), ("data-size-mismatch",)),
    "mask elsewhere": Fault(1, lambda file: _changed(file, np.asarray, move=3.0), ("data-geometry",)),
    "label out of range": Fault(1, lambda file: _changed(file, _with(7, np.uint8)), ("mask-values",)),
    "label below zero": Fault(1, lambda file: _changed(file, _with(-1, np.int16)), ("mask-values",)),
    "label of a half": Fault(1, lambda file: _changed(file, _with(0.5, np.float32)), ("mask-values",)),
    "label NaN": Fault(1, lambda file: _changed(file, _with(np.nan, np.float32)), ("mask-values",)),
    "image NaN": Fault(0, lambda file: _changed(file, _with(np.nan, np.float32)), ("data-not-finite",)),
    "image infinite": Fault(0, lambda file: _changed(file, _with(np.inf, np.float32)), ("data-not-finite",)),
    "image huge": Fault(0, _huge, ("data-unreadable", "data-size-mismatch")),
    "mask huge": Fault(1, _huge, ("data-unreadable", "data-size-mismatch")),
    "image of another shape": Fault(0, lambda file: _changed(file, lambda v: v[:, 1:]), ("data-size-mismatch",)),
    "image of two axes": Fault(0, lambda file: _changed(file, lambda v: v[..., 0]), ("data-size-mismatch",)),
    "image elsewhere": Fault(0, lambda file: _changed(file, np.asarray, move=-2.0), ("data-geometry",)),
    "mask no NIfTI": Fault(1, lambda file: file.write_text("text" * 200), ("data-unreadable",)),
    "mask complex": Fault(1, lambda file: _changed(file, lambda v: v.astype(np.complex64)), ("data-unreadable",)),
    "label infinite": Fault(1, lambda file: _changed(file, _with(np.inf, np.float32)), ("mask-values",)),
    "label of 256": Fault(1, lambda file: _changed(file, _with(256, np.int16)), ("mask-values",)),
    "label of 2 ** 32": Fault(1, lambda file: _changed(file, _with(2.0**32, np.float64)), ("mask-values",)),
    "image of no voxels": Fault(0, _header(42, 0, "<i2"), ("data-unreadable",)),
    "image of negative size": Fault(0, _header(42, -28, "<i2"), ("data-unreadable",)),
    "image of an unknown type": Fault(0, _header(70, 9999, "<i2"), ("data-unreadable",)),
    "image with an infinite intercept": Fault(0, _header(112, [1.0, np.inf], "<f4"), ("data-unreadable",)),
    "image without a place": Fault(0, _header(280, [np.nan] * 12, "<f4"), ("data-unreadable",)),
    "image with axes that coincide": Fault(0, _header(280, [1.0, 0, 0, 0] * 3, "<f4"), ("data-unreadable",)),
    "image with an axis out of all bounds": Fault(0, _header(280, 1e30, "<f4"), ("data-geometry",)),
    "image damaged inside": Fault(0, _damaged_inside, ("data-unreadable",)),
    "mask damaged inside": Fault(1, _damaged_inside, ("data-unreadable",)),
    "image a pipe": Fault(0, lambda file: (file.unlink(), os.mkfifo(file)), ("data-unreadable",)),
    "mask a pipe": Fault(1, lambda file: (file.unlink(), os.mkfifo(file)), ("data-unreadable",)),
    "mask in a loop": Fault(1, loop, ("data-unreadable",)),
    "mask a folder": Fault(1, lambda file: (file.unlink(), file.mkdir()), ("data-unreadable", "data-unpaired")),
    "image in a loop": Fault(0, loop, ("data-unreadable",)),
    "image of two channels": Fault(0, lambda file: _changed(file, lambda v: np.stack([v, v], -1)), ("image-channels",)),
    "mask of two channels": Fault(
        1, lambda file: _changed(file, lambda v: np.stack([v, v], -1)), ("data-size-mismatch",)
    ),
    "image a folder": Fault(0, lambda file: (file.unlink(), file.mkdir()), ("data-unreadable", "data-missing")),
}


def read_all(layout: Layout, root: Path) -> int:
    """Read a data set as a training does: its list, then each case."""
    data = layout.read(str(root) if layout.read is not _read_nifti else root, **settings(root))
    cases = data.cases("train")
    for case in cases:
        data.read(case)
    return len(cases)


def settings(root: Path) -> dict[str, Any]:
    return {"val_fraction": 0.0, "test_fraction": 0.0, "cache_dir": str(root.parent / "cache")}


@pytest.fixture(scope="module", params=LAYOUTS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Layout, Path]:
    """A data set of each format, which each test copies."""
    layout = LAYOUTS[request.param]
    return layout, layout.build(tmp_path_factory.mktemp("whole") / "set")


@pytest.fixture
def layout(whole: tuple[Layout, Path]) -> Layout:
    return whole[0]


@pytest.fixture
def root(whole: tuple[Layout, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[1], tmp_path / "my set 数据"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_file_is_named_with_the_file(fault: str, layout: Layout, root: Path) -> None:
    of, spoil, identifiers = FAULTS[fault]
    file = root / (layout.image, layout.mask)[of]
    spoil(file)
    with pytest.raises(NamedError) as caught:
        read_all(layout, root)
    error = caught.value
    assert error.identifier in identifiers, str(error)
    # Of a file that is not there, its partner is named, or the case.
    assert "volume-0" in error.what or "segmentation-0" in error.what
    assert file.name in error.what or "missing" in fault
    assert error.what.endswith(".")
    assert "\n" not in error.what
    assert len(error.what) < 700


def test_odd_names_and_the_other_order_of_bytes_are_read(layout: Layout, root: Path) -> None:
    """The folder's name holds a space and Chinese characters already."""
    _other_endianness(root / layout.image)
    _other_endianness(root / layout.mask)
    assert read_all(layout, root) == 20


def test_odd_names_of_files_are_read(layout: Layout, root: Path) -> None:
    if layout.read is LiTS:  # its names hold nothing but a number
        return
    for name in (layout.image, layout.mask):
        (root / name).rename(root / name.replace("volume-0", "肝 脏 (1)"))
    listing = root / "dataset.json"
    if listing.exists():
        listing.write_text(listing.read_text("utf-8").replace("volume-0", "肝 脏 (1)"), encoding="utf-8")
    assert read_all(layout, root) == 20


def test_a_name_twice_is_named(layout: Layout, root: Path) -> None:
    image = root / layout.image
    listing = root / "dataset.json"
    if layout.read is Decathlon:
        listing.write_text(listing.read_text("utf-8").replace("volume-1", "volume-0"), encoding="utf-8")
    else:
        (image.parent / "again").mkdir()
        shutil.copy(image, image.parent / "again")
    refused("data-unpaired", lambda: read_all(layout, root), "volume-0")


@pytest.mark.parametrize("of", [0, 1], ids=["image", "mask"])
def test_a_file_that_may_not_be_read_is_named(
    of: int, layout: Layout, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root / (layout.image, layout.mask)[of]
    if os.geteuid() == 0:
        forbid(monkeypatch, file)
    else:
        file.chmod(0)
    refused("data-unreadable", lambda: read_all(layout, root), file.name, "Permission denied")


#: What an image is refused for without a mask beside it.
ALONE = [
    name for name, fault in FAULTS.items()
    if fault.of == 0 and not {"data-geometry", "data-size-mismatch"} >= set(fault.identifiers)
]  # fmt: skip


@pytest.mark.parametrize("fault", ALONE)
def test_a_fault_of_a_new_file_is_named_by_predict(fault: str, layout: Layout, root: Path) -> None:
    _, spoil, identifiers = FAULTS[fault]
    data = layout.read(str(root) if layout.read is not _read_nifti else root, **settings(root))
    (root.parent / "new").mkdir()
    file = Path(shutil.copy(root / layout.image, root.parent / "new"))
    spoil(file)
    with pytest.raises(NamedError) as caught:
        data.read(data.predict_cases(file)[0])
    assert caught.value.identifier in identifiers
    assert file.name in caught.value.what


@pytest.mark.parametrize("fault", ["image empty", "image cut off", "image no NIfTI"])
def test_a_fault_of_one_new_file_of_two_waits_until_it_is_read(fault: str, layout: Layout, root: Path) -> None:
    _, spoil, identifiers = FAULTS[fault]
    data = layout.read(str(root) if layout.read is not _read_nifti else root, **settings(root))
    image = root / layout.image
    (root.parent / "new").mkdir()
    for file in (image, image.with_name(image.name.replace("volume-0", "volume-1"))):
        shutil.copy(file, root.parent / "new")
    spoil(root.parent / "new" / image.name)
    broken, good = data.predict_cases(root.parent / "new")
    assert data.read(good)[0].ndim == 4
    with pytest.raises(NamedError) as caught:
        data.read(broken)
    assert caught.value.identifier in identifiers
    assert image.name in caught.value.what


#: What is done to dataset.json, and what names it.
LISTINGS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "does not exist"),
    "cut off": (cut_off, "no JSON"),
    "empty": (lambda file: file.write_bytes(b""), "no JSON"),
    "in UTF-16": (lambda file: file.write_text(file.read_text("utf-8"), "utf-16"), "no JSON in UTF-8"),
    "a list": (lambda file: file.write_text("[]", "utf-8"), "no 'labels'"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "Is a directory"),
    "in a loop": (loop, "symbolic links"),
    "with a label of NaN": (lambda file: _relabelled(file, float("nan")), "nan"),
    "with a label of 10 ** 30": (lambda file: _relabelled(file, 10**30), "above 65535"),
    "with a key twice": (lambda file: file.write_text('{"labels": {"a": 1}, "labels": {}}', "utf-8"), "twice"),
}


def _relabelled(file: Path, value: Any) -> None:
    content = json.loads(file.read_text("utf-8"))
    v1 = "0" in content["labels"]
    labels = {"0": "background", str(value): "liver"} if v1 else {"background": 0, "liver": value}
    file.write_text(json.dumps({**content, "labels": labels}), encoding="utf-8")


@pytest.mark.parametrize("fault", LISTINGS)
@pytest.mark.parametrize("name", ["Decathlon", "NnUNet", "NnUNet v1"])
def test_a_fault_of_dataset_json_is_named(name: str, fault: str, tmp_path: Path) -> None:
    layout, (spoil, word) = LAYOUTS[name], LISTINGS[fault]
    root = layout.build(tmp_path / "a set 集")
    spoil(root / "dataset.json")
    error = refused("data-missing" if fault == "missing" else "data-unreadable", lambda: read_all(layout, root), word)
    assert str(root / "dataset.json") in error.what


def test_a_link_to_the_folder_itself_leads_nowhere(layout: Layout, root: Path) -> None:
    (root / "again").symlink_to(root)
    ((root / layout.image).parent / "around").symlink_to(root)
    assert read_all(layout, root) == 20


def test_a_folder_in_a_loop_or_of_no_data_is_named(layout: Layout, root: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "void").mkdir()
    for folder in ("loop", "void", "gone"):
        with pytest.raises(NamedError) as caught:
            read_all(layout, tmp_path / folder)
        assert caught.value.identifier in {"data-missing", "data-unreadable"}
        assert folder in caught.value.what
