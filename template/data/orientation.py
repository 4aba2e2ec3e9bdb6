"""Which way the axes of a volume's file run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=1024)
def orientation_of(affine: bytes) -> NDArray[Any]:
    """The axes of RAS+ that come closest to those of a file; asked for often, and it takes a fifth of a millisecond.

    Args:
        affine: float64 [4, 4], voxel indices to millimetres.

    Returns:
        [3, 2], as of nibabel's ``io_orientation``: the axis, and 1 or -1; read-only.
    """
    from nibabel.orientations import io_orientation

    directions = np.eye(4)
    columns = np.frombuffer(affine).reshape(4, 4)[:3, :3]
    # Rounded, so that at 45 degrees an image and its mask, whose last digits differ, are turned alike.
    directions[:3, :3] = (columns / np.linalg.norm(columns, axis=0)).round(4)
    found: NDArray[Any] = io_orientation(directions)  # type: ignore[no-untyped-call]
    found.flags.writeable = False
    return found
