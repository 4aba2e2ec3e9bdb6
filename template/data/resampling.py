"""Volumes on another grid of the same field of view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray


def grid_of(
    size: Sequence[int], spacing: Sequence[float], wanted: Sequence[float | None] | None
) -> tuple[int, int, int]:
    """Size of a volume after it is resampled.

    Args:
        size: D, H and W.
        spacing: Of its voxels, in mm.
        wanted: Spacing to come; None in a place leaves that axis as it is.
    """
    if wanted is None:
        return size[0], size[1], size[2]
    depth, height, width = (
        n if w is None else max(1, round(n * s / w)) for n, s, w in zip(size, spacing, wanted, strict=True)
    )
    return depth, height, width


def resampled(volume: NDArray[Any], size: Sequence[int]) -> NDArray[Any]:
    """Resample a volume to another size; the field of view stays, voxel centres lie half a voxel within it.

    Args:
        volume: Image [C, D, H, W], interpolated linearly in float32, or labels uint8 [C, D, H, W], by their nearest
            neighbour.
        size: New D, H and W.
    """
    if tuple(volume.shape[1:]) == tuple(size):
        return volume
    values = torch.from_numpy(volume)[None]
    if volume.dtype == np.uint8:
        return F.interpolate(values, tuple(size), mode="nearest-exact")[0].numpy()
    return F.interpolate(values.float(), tuple(size), mode="trilinear")[0].numpy()


def compact(image: NDArray[Any]) -> NDArray[Any]:
    """The image as int16, half the size, where all its values are such whole numbers; else as it is."""
    if image.dtype == np.int16:
        return image
    limits = np.iinfo(np.int16)
    if image.min() < limits.min or image.max() > limits.max:
        return image
    # Plane by plane: a copy of the whole would take as much memory again.
    if all(np.array_equal(plane, np.rint(plane)) for channel in image for plane in channel):
        return image.astype(np.int16)
    return image
