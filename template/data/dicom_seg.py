"""Masks as DICOM SEG, read by highdicom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..distributed.faults import NamedError
from .dicom_files import load, unreadable
from .volume_files import TOLERANCE, Geometry


def read_seg(mask: Path, image: Path, geometry: Geometry) -> NDArray[np.int64]:
    """Read a DICOM SEG onto the grid of its series; slices that it leaves out hold nothing.

    Args:
        mask: The file.
        image: Folder of the series, for messages.
        geometry: Of the series.

    Returns:
        Segment numbers, integers [D, H, W].

    Raises:
        NamedError: ``not-installed``; ``data-unreadable`` or ``data-geometry``, with the file.
    """
    try:
        import highdicom
    except ImportError as error:
        raise NamedError(
            "not-installed", f"'{mask}' is a DICOM SEG, and highdicom, which reads it, is not installed.",
            fix="Install the extra: pip install '.[dicom-seg]'; or convert it to NIfTI.",
        ) from error  # fmt: skip
    if str(load(mask, stop_before_pixels=True, specific_tags=["Modality"]).get("Modality")) != "SEG":
        raise unreadable(mask, "it is DICOM, but no DICOM SEG")
    try:
        volume = highdicom.seg.segread(str(mask)).get_volume(combine_segments=True)
    except Exception as error:  # a damaged file makes highdicom and pydicom raise anything
        raise unreadable(mask, " ".join(str(error).split())[:200] or type(error).__name__) from error
    # highdicom's array is [slice, row, column] in DICOM's axes, which grow to the left, the back and the head.
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ np.asarray(volume.affine, np.float64)
    shape = tuple(int(n) for n in volume.spatial_shape)
    own = Geometry((shape[0], shape[1], shape[2]), affine)
    return _on_grid(own.to_program(np.asarray(volume.array)), own, geometry, mask, image)


def _on_grid(values: NDArray[np.int64], own: Geometry, grid: Geometry, mask: Path, image: Path) -> NDArray[np.int64]:
    """Put [D, H, W] into a grid of which it is a part."""
    indices = np.linalg.inv(grid.program_affine) @ own.program_affine
    start = np.rint(indices[:3, 3])
    last = np.array([*own.size, 1.0]) - [1, 1, 1, 0]
    apart = max(np.abs(indices[:3, 3] - start).max(), np.abs((indices @ last)[:3] - start - last[:3]).max())
    if not apart <= TOLERANCE or not np.allclose(indices[:3, :3], np.eye(3), atol=TOLERANCE):
        raise NamedError(
            "data-geometry",
            f"The mask '{mask}' lies on another grid than the slices of '{image}'.",
            fix="Export it on the grid of the series.",
        )
    low = start.astype(int)
    inside = [(max(0, a), min(n, a + m)) for a, n, m in zip(low, grid.size, own.size, strict=True)]
    labels = np.zeros(grid.size, np.int64)
    if all(a < b for a, b in inside):
        where = tuple(slice(a, b) for a, b in inside)
        part = values[tuple(slice(a - s, b - s) for (a, b), s in zip(inside, low, strict=True))]
        labels[where] = part
    if np.count_nonzero(labels) != np.count_nonzero(values):
        raise NamedError("data-geometry", f"The mask '{mask}' has labels outside of the slices of '{image}'.")
    return labels
