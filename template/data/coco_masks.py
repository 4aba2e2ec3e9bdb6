"""Drawing the objects of a COCO image into one mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX

Overlap = Literal["ignore", "smallest"]


def draw(objects: Iterable[tuple[int, bool, Any]], size: tuple[int, int], overlap: Overlap) -> npt.NDArray[np.uint8]:
    """Draw objects into a mask.

    Args:
        objects: Class index, whether it is a crowd, and polygons or run lengths of each.
        size: Height and width in pixels.
        overlap: ``ignore``: pixels of two objects do not count, also where both are of one class, as in torchvision's
            reference training (references/segmentation/coco_utils.py); ``smallest``: they are of the smaller object.

    Returns:
        uint8 [H, W]: class indices, 0 where nothing is, and ``IGNORE_INDEX``, which is also where a crowd is and no
        object.

    Raises:
        NamedError: ``not-installed``: pycocotools is not.
        ValueError: Run lengths that are none.
    """
    crowd = np.zeros(size, bool)
    things: list[tuple[int, npt.NDArray[np.bool_]]] = []
    for label, is_crowd, segmentation in objects:
        pixels = decode(segmentation, size)
        if is_crowd:
            crowd |= pixels
        else:
            things.append((label, pixels))
    mask = np.where(crowd, IGNORE_INDEX, 0).astype(np.uint8)
    # The smaller is drawn over the larger; of two of one size, the one that comes later in the file.
    for label, pixels in sorted(things, key=lambda thing: -int(thing[1].sum())):
        mask[pixels] = label
    if overlap == "ignore" and things:
        mask[np.sum([pixels for _, pixels in things], axis=0) > 1] = IGNORE_INDEX
    return mask


def decode(segmentation: Any, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Pixels of one object, bool [H, W]; polygons are rasterised by pycocotools, and a pixel belongs to any of them.

    Run lengths are read here: pycocotools 2.0.11 leaves the pixels that they do not reach as they were in memory.

    Raises:
        NamedError: ``not-installed``: pycocotools is not.
        ValueError: Run lengths that are none.
    """
    height, width = size
    if isinstance(segmentation, list):
        # Two points and fewer have no area; pycocotools would take four numbers for a box.
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        if not polygons:
            return np.zeros(size, bool)
        lengths = run_lengths(_rasterised(polygons, height, width))
    else:
        counts = segmentation["counts"]
        lengths = run_lengths(counts) if isinstance(counts, str) else counts
    if min(lengths, default=0) < 0 or sum(lengths) != height * width:
        raise ValueError(f"run lengths do not add up to {height} × {width} pixels")
    # Column by column, first what is not the object.
    inside = np.arange(len(lengths)) % 2 == 1
    return np.ascontiguousarray(np.repeat(inside, lengths).reshape(width, height).T)


def _rasterised(polygons: list[list[float]], height: int, width: int) -> str:
    """Compressed run lengths of polygons."""
    try:
        from pycocotools import mask as coco
    except ImportError as error:
        raise NamedError(
            "not-installed",
            "pycocotools, which draws the polygons of COCO, is not installed.",
            fix="Install the extra: pip install '.[coco]'.",
        ) from error
    runs: bytes = coco.merge(coco.frPyObjects(polygons, height, width))["counts"]
    return runs.decode("ascii")


def run_lengths(text: str) -> list[int]:
    """Read compressed run lengths, as ``rleFrString`` of pycocotools' maskApi.c.

    Six bits a character, from ``0``: five of the number, the lowest first, and one that says whether more follow.
    From the fourth on, a number is the difference to the one before the last.

    Raises:
        ValueError: The text ends within a number, or has other characters.
    """
    lengths: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"run lengths have the character {character!r}")
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << shift
        lengths.append(number + lengths[-2] if len(lengths) > 2 else number)
        number = shift = 0
    if shift:
        raise ValueError("run lengths end within a number")
    return lengths
