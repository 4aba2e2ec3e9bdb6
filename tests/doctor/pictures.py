"""Small pictures and masks for the broken projects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

#: With data.val_fraction 0.25: validation has case_01, case_06 and case_11, the test case_02, and training the others.
COUNT = 12

Labels = npt.NDArray[np.uint8]


def draw(folder: Path, *, size: int = 32, channels: int = 1) -> dict[str, Labels]:
    """Write ``images/case_00.png`` and so on, a square and a disc on dark ground.

    Returns:
        The labels of each by its file name, uint8 [H, W]: 0 ground, 1 square, 2 disc.
    """
    (folder / "images").mkdir()
    drawn = {}
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        rows, columns = np.indices((size, size))
        top, left = rng.integers(2, size // 4, 2)
        row, column = rng.integers(5 * size // 8, 6 * size // 8, 2)
        labels = np.zeros((size, size), np.uint8)
        labels[top : top + size // 4, left : left + size // 4] = 1
        labels[(rows - row) ** 2 + (columns - column) ** 2 < (size // 6) ** 2] = 2
        noise = rng.integers(0, 30, (size, size, channels))
        pixels = (noise + np.array([20, 110, 200])[labels][..., None]).astype(np.uint8)
        name = f"case_{number:02}.png"
        Image.fromarray(pixels if channels > 1 else pixels[..., 0]).save(folder / "images" / name)
        drawn[name] = labels
    return drawn


def write_masks(folder: Path, drawn: dict[str, Labels]) -> None:
    """Write labels as ``masks/case_00.png`` and so on."""
    (folder / "masks").mkdir()
    for name, labels in drawn.items():
        Image.fromarray(labels).save(folder / "masks" / name)
