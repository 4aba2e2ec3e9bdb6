"""Units and qforms: what is measured is in millimetres, and what is written lies where the image does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from template.callbacks.case_scores import scores_of
from template.callbacks.measures import unit_of
from template.data.nifti import Nifti
from template.data.volume_files import check_same_place, read_header, write_labels
from template.distributed.faults import NamedError

SHAPE = (4, 5, 6)


def affine(sizes: tuple[float, float, float], *, flip: bool = False) -> NDArray[np.float64]:
    """Turned by 20 degrees about the third axis, which may run the other way."""
    angle, found = np.deg2rad(20.0), np.eye(4)
    found[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    found[:3, :3] *= np.array(sizes) * [1, 1, -1 if flip else 1]
    found[:3, 3] = (-20.0, 30.0, 7.0)
    return found


def save(file: Path, place: NDArray[np.float64], unit: str | None = "mm", voxels: Any = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8) if voxels is None else voxels, place)
    image.header.set_xyzt_units("unknown" if unit is None else unit, "sec")
    nibabel.save(image, file)
    return file


def coded(file: Path) -> tuple[Any, int, Any, int]:
    header = nibabel.load(file).header
    return (*header.get_qform(coded=True), *header.get_sform(coded=True))


def masked(image: Path) -> Path:
    geometry = read_header(image)[0]
    write_labels(image.with_name("mask.nii"), np.zeros(geometry.size, np.uint8), geometry)
    return image.with_name("mask.nii")


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_a_mask_has_both_forms_of_its_image_and_their_codes(kind: Any, flip: bool, tmp_path: Path) -> None:
    quaternion, matrix = affine((0.5, 0.75, 2.0), flip=flip), affine((0.5, 0.75, 2.0))
    matrix[0, 3] = 99.0
    image = kind(np.zeros(SHAPE, np.int16), matrix)
    image.set_qform(quaternion, 1)
    image.set_sform(matrix, 4)
    nibabel.save(image, tmp_path / "image.nii")
    qform, qform_code, sform, sform_code = coded(masked(tmp_path / "image.nii"))
    assert (qform_code, sform_code) == (1, 4)
    assert np.allclose(qform, quaternion, atol=1e-5)
    assert np.allclose(sform, matrix, atol=1e-5)


def test_a_mask_of_an_image_with_a_qform_alone_has_both(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.zeros(SHAPE, np.int16), affine((0.5, 0.75, 2.0), flip=True))
    image.set_qform(image.affine, 1)
    image.set_sform(None, 0)
    nibabel.save(image, tmp_path / "image.nii")
    qform, qform_code, sform, sform_code = coded(masked(tmp_path / "image.nii"))
    assert (qform_code, sform_code) == (1, 1)
    assert np.allclose(qform, image.affine, atol=1e-5)
    assert np.allclose(sform, image.affine, atol=1e-5)


def test_a_mask_of_an_image_without_a_qform_has_none(tmp_path: Path) -> None:
    sheared = affine((1, 1, 1))
    sheared[0, 2] = 0.4
    _, qform_code, sform, sform_code = coded(masked(save(tmp_path / "image.nii", sheared)))
    assert (qform_code, sform_code) == (0, 2)  # nibabel says "aligned"
    assert np.allclose(sform, sheared)


@pytest.mark.parametrize(
    ("unit", "written", "millimetres"),
    [("micron", "micron", 0.001), ("meter", "meter", 1000.0), ("mm", "mm", 1.0), (None, "mm", 1.0)],
)
def test_what_is_measured_is_in_millimetres(unit: str | None, written: str, millimetres: float, tmp_path: Path) -> None:
    sizes = np.array([0.5, 0.75, 2.0])  # of x, y and z in mm, where the unit is known
    place = affine(tuple(sizes / millimetres))
    labels = np.zeros(SHAPE, np.uint8)
    labels[1, 1, 1:4] = 1
    save(tmp_path / "i" / "a.nii", place, unit, np.arange(120, dtype=np.int16).reshape(SHAPE))
    save(tmp_path / "m" / "a.nii", place, unit, labels)
    data = Nifti(
        images=str(tmp_path / "i"),
        masks=str(tmp_path / "m"),
        classes=["background", "organ"],
        cache_dir=str(tmp_path / "cache"),
        spacing=(1.0, None, None),
        val_fraction=0.0,
        test_fraction=1.0,
    )
    (case,) = data.cases("test")
    assert data.spacing(case) == pytest.approx((2.0, 0.75, 0.5))
    image, truth = data.read(case)
    assert image.shape == (1, 12, 5, 4)  # 6 slices of 2 mm are 12 of 1 mm
    assert truth is not None
    # Of 3 voxels in a column along the body the first is predicted: they are 0, 2 and 4 mm away from it.
    prediction = truth.clone()
    prediction[2:] = 0
    scores = scores_of(truth.numpy(), prediction.numpy(), {"organ": [1]}, unit_of(data.spacing(case), 3))
    assert scores["volume_error_organ"] == pytest.approx(-2 * 0.75 / 1000)  # 2 voxels of 0.75 mm³, in ml
    assert scores["hd95_organ"] == pytest.approx(3.8)  # between the last two, nine tenths of the way
    (tmp_path / "out").mkdir()
    file = data.write(case, torch.as_tensor(prediction), tmp_path / "out")
    assert nibabel.load(file).header.get_xyzt_units()[0] == written
    assert np.allclose(nibabel.load(file).affine, place)


@pytest.mark.parametrize(
    ("unit", "factor", "accepted"),
    [
        ("micron", 1.0, True),
        (None, 1.0, True),  # the mask's program has lost the unit
        ("mm", 1.0, True),  # or has written one without a look
        ("mm", 0.001, True),
        ("mm", 0.002, False),
        (None, 0.001, False),
    ],
)
def test_a_mask_may_be_in_another_unit(unit: str | None, factor: float, accepted: bool, tmp_path: Path) -> None:
    place = affine((500.0, 750.0, 2000.0))
    scaled = place.copy()
    scaled[:3] *= factor
    image, mask = save(tmp_path / "image.nii", place, "micron"), save(tmp_path / "mask.nii", scaled, unit)
    geometries = read_header(image)[0], read_header(mask)[0]
    if accepted:
        check_same_place(image, geometries[0], mask, geometries[1])
        return
    with pytest.raises(NamedError) as failure:
        check_same_place(image, geometries[0], mask, geometries[1])
    assert failure.value.identifier == "data-geometry"


def test_voxels_of_a_microscope_in_metres_are_a_volume(tmp_path: Path) -> None:
    geometry = read_header(save(tmp_path / "image.nii", affine((1e-5, 1e-5, 2e-5)), "meter"))[0]
    assert geometry.spacing == pytest.approx((0.02, 0.01, 0.01))
