"""How far two masks' surfaces lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def hd95(truth: NDArray[np.bool_], prediction: NDArray[np.bool_], spacing: Sequence[float]) -> float:
    """95th percentile of the Hausdorff distance, as MONAI's ``compute_hausdorff_distance(percentile=95)``.

    The larger of two percentiles: of the distances of the prediction's surface from the truth's, and the other way
    round (Huttenlocher et al. 1993, doi:10.1109/34.232073). A surface are the pixels with a neighbour outside along
    an axis; what lies past the edge of the image is outside. Distances are looked up in a tree of the surface alone:
    a liver in 512 × 512 × 400 voxels takes seconds and megabytes, where a distance transform needs gigabytes.

    Args:
        truth: Where the region is, [*S].
        prediction: Where it is said to be, [*S].
        spacing: Edges of a pixel along each axis; the distance is in their unit.

    Returns:
        The distance; NaN where one of the two is empty.

    Raises:
        ValueError: Shapes or number of axes differ.
    """
    if truth.shape != prediction.shape or len(spacing) != truth.ndim:
        raise ValueError(f"truth {truth.shape}, prediction {prediction.shape} and spacing {list(spacing)} do not fit")
    box = _box(truth)
    other = _box(prediction)
    if box is None or other is None:
        return float("nan")
    both = tuple(slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(box, other, strict=True))
    edges = _edge(truth[both]), _edge(prediction[both])
    return max(_percentile(edges[0], edges[1], spacing), _percentile(edges[1], edges[0], spacing))


def _percentile(start: NDArray[np.bool_], end: NDArray[np.bool_], spacing: Sequence[float]) -> float:
    """95th percentile of the distances of one edge from the other."""
    from scipy.spatial import KDTree  # a third of a second, in `test` alone

    # Where both have an edge the distance is 0, which needs no search.
    apart = _points(start & ~end, spacing)
    distances = np.zeros(np.count_nonzero(start))
    if len(apart):
        tree = KDTree(_points(end, spacing), balanced_tree=False, compact_nodes=False)
        distances[: len(apart)] = tree.query(apart)[0]
    return float(np.percentile(distances, 95))


def _points(edge: NDArray[np.bool_], spacing: Sequence[float]) -> NDArray[np.float64]:
    """Places of pixels, [n, axes], in the unit of the spacing."""
    return np.stack([index * size for index, size in zip(np.nonzero(edge), spacing, strict=True)], axis=1)


def _box(mask: NDArray[np.bool_]) -> tuple[slice, ...] | None:
    """The smallest box around a mask; None where it is empty."""
    box = []
    for axis in range(mask.ndim):
        found = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if not len(found):
            return None
        box.append(slice(int(found[0]), int(found[-1]) + 1))
    return tuple(box)


def _edge(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels of a mask of which a neighbour along an axis is none."""
    inner = mask.copy()
    for axis in range(mask.ndim):
        along: Any = np.moveaxis(mask, axis, 0)
        inside: Any = np.moveaxis(inner, axis, 0)
        inside[1:] &= along[:-1]
        inside[:-1] &= along[1:]
        inside[0] = inside[-1] = False
    return mask & ~inner
