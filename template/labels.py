"""What a label is: the value of pixels that do not count, class colours, scored regions.

Imports no torch, so that the command line and the documentation can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Label of pixels that neither the loss nor the scores count. 255 is the value of Pascal VOC,
#: Cityscapes and mmsegmentation; it also fits the 8-bit masks that are written to disk.
IGNORE_INDEX = 255

#: Most classes a run may have: labels are stored in 8 bits and 255 is taken.
MAX_CLASSES = 255

#: Colours (RGB, 0-255) of class 0, 1, 2 …; class 0 is drawn transparent. Okabe and Ito's palette
#: (jfly.uni-koeln.de/color), which people with colour-blindness can tell apart.
_PALETTE = (
    (0, 0, 0),
    (0, 158, 115),
    (213, 94, 0),
    (0, 114, 178),
    (230, 159, 0),
    (204, 121, 167),
    (86, 180, 233),
    (240, 228, 66),
)


def class_color(index: int) -> tuple[int, int, int]:
    """Colour (RGB, 0-255) of a class; classes past the palette reuse it darker."""
    if index == 0:
        return _PALETTE[0]
    turn, place = divmod(index - 1, len(_PALETTE) - 1)
    red, green, blue = _PALETTE[place + 1]
    share = 4 - turn % 4
    return red * share // 4, green * share // 4, blue * share // 4


def default_regions(classes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Regions to score when a data set names none: every class, ``background`` left out.

    Args:
        classes: Class names; the position is the label.

    Returns:
        Region name to the labels that it joins.
    """
    every: dict[str, tuple[int, ...]] = {name: (label,) for label, name in enumerate(classes)}
    return {name: labels for name, labels in every.items() if name != "background"} or every


def check_regions(regions: Mapping[str, Sequence[int]], num_classes: int) -> None:
    """Refuse a region that joins labels which no class has.

    Raises:
        ValueError: A label lies outside ``0 … num_classes - 1``, or a region is empty.
    """
    for name, labels in regions.items():
        if not labels or not all(0 <= label < num_classes for label in labels):
            raise ValueError(f"region '{name}' joins the labels {list(labels)}; allowed are 0 to {num_classes - 1}")
