"""Tiny volumes of a liver with a tumour, written as data sets of the usual layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

#: Columns of affine matrices by orientation; voxels of 1 × 1 × 2.5 mm (x, y, z).
SPACING = (1.0, 1.0, 2.5)


def body(number: int, size: tuple[int, int, int] = (28, 26, 10)) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """A CT in RAS+ order [x, y, z], Hounsfield units, and its labels: liver on the right, a tumour in it."""
    rng = np.random.default_rng(number)
    x, y, z = np.meshgrid(*[np.arange(n) for n in size], indexing="ij")
    liver = ((x - size[0] * 0.68) / 6) ** 2 + ((y - size[1] * 0.5) / 7) ** 2 + ((z - size[2] * 0.5) / 4) ** 2 < 1
    tumour = ((x - size[0] * 0.68 - 1) / 2.5) ** 2 + ((y - size[1] * 0.5) / 2.5) ** 2 + ((z - 5) / 2) ** 2 < 1
    labels = liver.astype(np.uint8) + (tumour & liver)
    image = np.select([labels == 1, labels == 2], [110.0, 40.0], -50.0) + rng.normal(0, 10, size)
    return image.round().astype(np.int16), labels


def oriented(voxels: NDArray[Any], codes: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """RAS+ voxels [x, y, z] in another orientation such as ``LPS``, and their affine matrix."""
    ras = np.diag([*SPACING, 1.0])
    ras[:3, 3] = (-20.0, -15.0, 100.0)
    image = nibabel.Nifti1Image(voxels, ras)
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(tuple(codes))
    )
    turned = image.as_reoriented(turn)
    return np.asanyarray(turned.dataobj), turned.affine


def save(path: Path, voxels: NDArray[Any], codes: str = "RAS") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    turned, affine = oriented(voxels, codes)
    nibabel.save(nibabel.Nifti1Image(turned, affine), path)
    return path


def lits(folder: Path, cases: int = 5, orientations: tuple[str, ...] = ("RAS", "LPS", "PIR")) -> Path:
    """``volume-N.nii`` and ``segmentation-N.nii`` in two subfolders, packed or not, in several orientations."""
    for number in range(cases):
        image, labels = body(number)
        codes, suffix = orientations[number % len(orientations)], (".nii", ".nii.gz")[number % 2]
        batch = folder / f"Training Batch {number % 2 + 1}"
        save(batch / f"volume-{number}{suffix}", image, codes)
        save(batch / f"segmentation-{number}{suffix}", labels, codes)
    return folder
