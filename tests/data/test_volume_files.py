from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from template.data.mask_values import MaskValues
from template.data.names import unique_volume_names
from template.data.volume_files import (
    Geometry,
    check_same_place,
    read_header,
    read_labels,
    read_volume,
    stem,
    write_labels,
)
from template.distributed.faults import NamedError

RNG = np.random.default_rng(0)


def affines() -> list[NDArray[np.float64]]:
    """All 48 orders and directions of the axes, with voxels of 1, 2 and 3 mm, and one that is oblique."""
    found = []
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            affine = np.zeros((4, 4))
            for axis, (towards, sign) in enumerate(zip(order, signs, strict=True)):
                affine[towards, axis] = sign * (axis + 1.0)
            affine[:, 3] = (-11.0, 7.0, 3.0, 1.0)
            found.append(affine)
    return found


def tilted(affine: NDArray[np.float64], degrees: float = 12.0) -> NDArray[np.float64]:
    angle = np.deg2rad(degrees)
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn @ affine  # type: ignore[no-any-return]


def save(path: Path, voxels: NDArray[Any], affine: NDArray[np.float64] | None = None, **header: Any) -> Path:
    image = nibabel.Nifti1Image(voxels, np.eye(4) if affine is None else affine)
    for name, value in header.items():
        image.header[name] = value
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("tilt", [0.0, 12.0])
def test_every_orientation_shows_the_same_place_and_is_written_back(tilt: float, tmp_path: Path) -> None:
    """A bright voxel at one place of the body is at one place of the program, whatever the file's axes are."""
    for number, affine in enumerate(affines()):
        shape = tuple(int(n) for n in np.array([5, 6, 7]))
        used = tilted(affine, tilt) if tilt else affine
        # The voxel that lies furthest to the right, front and feet: RAS+ grows to right, front and head.
        world = np.stack(np.meshgrid(*map(range, shape), indexing="ij"), -1) @ affine[:3, :3].T
        corner = np.unravel_index((world @ np.array([1.0, 1.0, -1.0])).argmax(), shape)
        voxels = np.zeros(shape, np.int16)
        voxels[corner] = 100
        file = save(tmp_path / f"{number}.nii", voxels, used)
        image, geometry = read_volume(file)
        assert image.shape == (1, *geometry.size)
        assert image[0, 0, 0, 0] == 100  # first slice: feet; first row: front; first column: the right
        assert image.sum() == 100
        assert sorted(geometry.spacing) == pytest.approx([1.0, 2.0, 3.0])
        # Steps along D, H and W go up, back and to the left, by the spacing.
        for axis, (direction, sign) in enumerate(((2, 1), (1, -1), (0, -1))):
            along = np.abs(affine[direction, :3]).argmax()
            assert geometry.spacing[axis] == pytest.approx(np.abs(affine[direction, along]))
            assert geometry.size[axis] == shape[along]
            assert sign
        mask = (image[0] > 0).astype(np.uint8)
        write_labels(tmp_path / "mask.nii", mask, geometry)
        written = nibabel.load(tmp_path / "mask.nii")
        assert np.array_equal(np.asanyarray(written.dataobj), voxels > 0)
        assert np.allclose(written.affine, used)
        assert written.get_data_dtype() == np.uint8


@pytest.mark.parametrize("degrees", [45.0, 135.0, -45.0])
def test_at_45_degrees_an_image_and_its_rounded_mask_are_turned_alike(degrees: float) -> None:
    voxels = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    for affine in affines():
        image = Geometry((5, 6, 7), tilted(affine, degrees))
        for _ in range(3):
            noise = np.vstack([RNG.normal(0, 1e-6, (3, 4)), np.zeros((1, 4))])
            mask = Geometry((5, 6, 7), image.affine + noise)
            assert np.array_equal(image.to_program(voxels), mask.to_program(voxels))
            check_same_place(Path("image.nii"), image, Path("mask.nii"), mask)


def scaled(file: Path, stored: NDArray[Any], slope: float, intercept: float) -> Path:
    """A file of these numbers; nibabel itself stores others, which give the same values."""
    nibabel.save(nibabel.Nifti1Image(stored, np.eye(4)), file)
    raw = bytearray(file.read_bytes())
    raw[112:120] = np.array([slope, intercept], "<f4").tobytes()
    file.write_bytes(bytes(raw))
    return file


@pytest.mark.parametrize(
    ("stored", "slope", "intercept", "kept"),
    [
        ("int16", 1.0, -1024.0, "int16"),
        ("int16", -2.0, 3.0, "int16"),
        ("uint8", 0.0, 0.0, "int16"),  # a slope of 0 is none
        ("int16", 0.5, -1024.0, "float32"),
        ("int16", 3000.0, 0.0, "float32"),
        ("uint16", 1.0, 32745.0, "float32"),  # 23 becomes 32768
        ("float32", 2.0, 1.0, "float32"),
    ],
)
def test_slope_and_intercept_are_applied(
    stored: str, slope: float, intercept: float, kept: str, tmp_path: Path
) -> None:
    file = scaled(tmp_path / "ct.nii", np.arange(24).astype(stored).reshape(2, 3, 4), slope, intercept)
    read, _ = read_volume(file)
    assert read.dtype == kept
    expected = np.arange(24.0).reshape(2, 3, 4) * (slope or 1) + intercept
    # eye(4) is RAS: the first voxel in the program is the right, front, inferior one.
    assert np.array_equal(read[0], expected[::-1, ::-1].transpose(2, 1, 0))
    assert np.array_equal(read[0].T[::-1, ::-1], np.asanyarray(nibabel.load(file).dataobj))


@pytest.mark.parametrize("stored", ["int8", "int16", ">i2", "uint16", "int32", "uint32", "float32", "float64"])
def test_labels_of_any_type(stored: str, tmp_path: Path) -> None:
    numbers = np.arange(24).reshape(2, 3, 4)
    header = nibabel.Nifti1Header(endianness=">") if stored[0] == ">" else None
    nibabel.save(nibabel.Nifti1Image(numbers.astype(stored), np.eye(4), header), tmp_path / "mask.nii")
    labels, _ = read_labels(tmp_path / "mask.nii")
    assert labels.dtype.kind in "iu"
    assert np.array_equal(labels, numbers[::-1, ::-1].transpose(2, 1, 0))
    assert MaskValues(24, {n: n for n in range(24)}).to_classes(labels[0], tmp_path).tolist() == labels[0].tolist()


@pytest.mark.parametrize("stored", ["int8", "int16", "int32", "float32"])
def test_negative_labels_are_of_no_class(stored: str, tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.full((2, 2, 2), -1, stored), np.eye(4)), tmp_path / "mask.nii")
    labels, _ = read_labels(tmp_path / "mask.nii")
    with pytest.raises(NamedError, match="has the values -1"):
        MaskValues(2, {0: 0, 1: 1}).to_classes(labels[0], tmp_path / "mask.nii")


def test_channels_come_from_the_fourth_axis(tmp_path: Path) -> None:
    voxels = RNG.normal(size=(3, 4, 5, 2)).astype(np.float32)
    image, geometry = read_volume(save(tmp_path / "mr.nii.gz", voxels))
    assert image.shape == (2, 5, 4, 3)
    assert np.array_equal(image[1], voxels[::-1, ::-1, :, 1].T)
    assert read_header(tmp_path / "mr.nii.gz")[1] == 2
    assert geometry.shape == (3, 4, 5)


def test_big_endian_files_are_read(tmp_path: Path) -> None:
    voxels = np.arange(24, dtype=">i2").reshape(2, 3, 4)
    header = nibabel.Nifti1Header(endianness=">")
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4), header), tmp_path / "big.nii")
    image, _ = read_volume(tmp_path / "big.nii")
    assert sorted(image.ravel()) == list(range(24))


def test_names_with_spaces_and_other_letters(tmp_path: Path) -> None:
    file = save(tmp_path / "肝 脏 (1).nii.gz", np.ones((2, 2, 2), np.uint8))
    assert read_labels(file)[0].sum() == 8
    assert stem(file) == "肝 脏 (1)"
    assert [stem(Path(name)) for name in ("a.nii", "a.b.nii.gz", "a.nrrd")] == ["a", "a.b", "a"]


def damaged(folder: Path, kind: str) -> Path:
    whole = save(folder / "whole.nii", RNG.normal(size=(8, 8, 8)).astype(np.float32))
    packed = save(folder / "packed.nii.gz", RNG.normal(size=(8, 8, 8)).astype(np.float32))
    file = folder / f"bad_{kind.split(maxsplit=1)[0]}.nii"
    if kind == "missing":
        return file
    if kind == "truncated":
        file.write_bytes(whole.read_bytes()[:900])
    elif kind == "truncated.gz":
        file = folder / "bad.nii.gz"
        file.write_bytes(packed.read_bytes()[:700])
    elif kind == "empty":
        file.touch()
    elif kind == "text":
        file.write_text("this is no volume, but it is long enough to look like the header of one" * 20)
    elif kind == "not gzip":
        file = folder / "bad.nii.gz"
        file.write_bytes(whole.read_bytes())
    elif kind == "huge header":
        header = bytearray(whole.read_bytes())
        header[42:48] = np.array([30000, 30000, 30000], "<i2").tobytes()
        file.write_bytes(bytes(header))
    elif kind == "loop":
        file.symlink_to(folder / "bad_loop.nii")
    elif kind == "folder":
        file.mkdir()
    elif kind == "complex":
        save(file, np.ones((2, 2, 2), np.complex64))
    elif kind == "five axes":
        save(file, np.ones((2, 2, 2, 2, 2), np.float32))
    elif kind == "singular":
        affine = np.eye(4)
        affine[1, 1] = 0
        image = nibabel.Nifti1Image(np.ones((2, 2, 2), np.float32), None)
        image.header["sform_code"] = 1
        image.header["srow_x"], image.header["srow_y"], image.header["srow_z"] = affine[:3]
        nibabel.save(image, file)
        raw = bytearray(file.read_bytes())
        raw[254:256] = np.array([1], "<i2").tobytes()
        raw[280:328] = affine[:3].astype("<f4").tobytes()
        file.write_bytes(bytes(raw))
    return file


@pytest.mark.parametrize(
    "kind",
    ["truncated", "truncated.gz", "empty", "text", "not gzip", "huge header", "loop", "folder", "complex", "five axes",
     "singular"],
)  # fmt: skip
def test_what_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    file = damaged(tmp_path, kind)
    with pytest.raises(NamedError) as raised:
        read_volume(file)
    assert raised.value.identifier == "data-unreadable"
    assert f"'{file}'" in raised.value.what
    assert len(raised.value.what) < 500


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NamedError, match="does not exist") as raised:
        read_volume(damaged(tmp_path, "missing"))
    assert raised.value.identifier == "data-missing"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    file = save(tmp_path / "a.nii", np.ones((2, 2, 2), np.uint8))
    file.chmod(0)
    with pytest.raises(NamedError, match="Permission denied"):
        read_volume(file)


def test_labels_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    halves = save(tmp_path / "halves.nii", np.array([[[0.0, 0.5, 1.0]]], np.float32))
    with pytest.raises(NamedError, match=r"0, 0\.5, 1") as raised:
        read_labels(halves)
    assert raised.value.identifier == "mask-values"
    with pytest.raises(NamedError, match="no whole numbers"):
        read_labels(scaled(tmp_path / "scaled.nii", np.array([[[0, 1, 2]]], np.int16), 1.5, 0.2))
    assert read_labels(scaled(tmp_path / "whole.nii", np.array([[[0, 1, 2]]], np.int16), 2, 1))[0].max() == 5
    channels = save(tmp_path / "channels.nii", np.ones((2, 2, 2, 3), np.uint8))
    with pytest.raises(NamedError, match="3 channels"):
        read_labels(channels)
    floats = save(tmp_path / "floats.nii", np.array([[[0.0, 1.0, 2.0]]], np.float64))
    assert sorted(read_labels(floats)[0].ravel()) == [0, 1, 2]


def test_a_mask_must_lie_on_its_image() -> None:
    here, there = np.diag([1.0, 1.0, 2.0, 1.0]), np.diag([1.0, 1.0, 2.0, 1.0])
    there[2, 3] = 5.0
    image, mask = Path("image.nii"), Path("mask.nii")
    with pytest.raises(NamedError, match=r"'image\.nii' and its mask 'mask\.nii' lie 5 voxels apart") as raised:
        check_same_place(image, Geometry((4, 4, 4), here), mask, Geometry((4, 4, 4), there))
    assert raised.value.identifier == "data-geometry"
    assert "[0.0, 0.0, 2.0, 5.0]" in raised.value.what
    with pytest.raises(NamedError, match="4 × 4 × 4 voxels, its mask 'mask.nii' 4 × 4 × 5"):
        check_same_place(image, Geometry((4, 4, 4), here), mask, Geometry((4, 4, 5), here))
    rounded = here + 1e-5
    rounded[3] = (0, 0, 0, 1)
    check_same_place(image, Geometry((4, 4, 4), here), mask, Geometry((4, 4, 4), rounded))
    flipped = here @ np.diag([-1.0, 1.0, 1.0, 1.0])
    with pytest.raises(NamedError, match="voxels apart"):
        check_same_place(image, Geometry((4, 4, 4), here), mask, Geometry((4, 4, 4), flipped))


def test_names_of_new_files_are_unique_and_a_stem_that_is_alone_keeps_its_own() -> None:
    def names(*files: str) -> list[str]:
        return unique_volume_names([Path(file) for file in files])

    assert names("q/a.nii.gz", "q/b.nii") == ["a", "b"]
    assert names("q/a.nii.gz", "q/a.nii", "r/q/a.nii") == ["q_a", "q_a_2", "q_a_3"]
    assert names("q/a/b.nii", "q/c/b.nii", "q/z/a_b.nii.gz") == ["a_b_2", "c_b", "a_b"]  # the mask a_b is that of a_b
