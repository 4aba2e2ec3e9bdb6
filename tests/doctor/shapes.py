"""A data set for tests of the doctor: a bright square on noise, of which a test breaks one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from template.data.dataset import Case
from template.data.module import SegmentationData, Split

Pair = tuple[Any, Any]


class Shapes(SegmentationData):
    """Eight training, four validation and two test cases of 16 x 16 pixels; healthy.

    Args:
        counts: Cases of train, val and test.
        kwargs: As of the base class.
    """

    def __init__(self, counts: Sequence[int] = (8, 4, 2), **kwargs: Any) -> None:
        defaults: dict[str, Any] = {"classes": ["background", "square"], "batch_size": 4, "num_workers": 0}
        super().__init__(**{**defaults, **kwargs})
        self.counts = dict(zip(("train", "val", "test"), counts, strict=True))

    def cases(self, split: Split) -> list[Case]:
        """Names with the split's, numbers that are unique."""
        first = {"train": 0, "val": 100_000, "test": 200_000}[split]
        return [Case(f"{split}_{number}", first + number) for number in range(self.counts[split])]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """The pair of :meth:`pair`, with what :meth:`broken` makes of it."""
        image, mask = self.broken(case, *self.pair(case.source))
        return image, mask

    def pair(self, number: int) -> Pair:
        """Image 0 to 1, and its mask."""
        rng = np.random.default_rng(number)
        image, mask = torch.from_numpy(rng.uniform(0, 0.5, (1, 16, 16)).astype(np.float32)), torch.zeros(16, 16).byte()
        row, column = rng.integers(0, 8, 2)
        mask[row : row + 8, column : column + 8] = 1
        return image + mask * 0.5, mask

    def broken(self, case: Case, image: Tensor, mask: Tensor) -> Pair:
        """Healthy here."""
        return image, mask
