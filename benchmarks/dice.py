"""Dice of regions, by NumPy alone: the scorer of benchmarks.quality shares no code with the program's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def region_dice(
    pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]], regions: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """Dice of each region over all pixels of all cases together.

    Args:
        pairs: Predicted and true labels of each case, of one shape.
        regions: Name to the labels that it joins.

    Returns:
        2 |A ∩ B| / (|A| + |B|) by region; NaN where neither has a pixel of it.
    """
    hits, sizes = dict.fromkeys(regions, 0), dict.fromkeys(regions, 0)
    for predicted, true in pairs:
        if predicted.shape != true.shape:
            raise ValueError(f"a prediction of shape {predicted.shape} for a mask of {true.shape}")
        for name, labels in regions.items():
            found, wanted = np.isin(predicted, labels), np.isin(true, labels)
            hits[name] += int((found & wanted).sum())
            sizes[name] += int(found.sum()) + int(wanted.sum())
    return {name: 2 * hits[name] / sizes[name] if sizes[name] else float("nan") for name in regions}
