"""A network that needs no training, for tests that know what it predicts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Threshold(nn.Module):
    """Class 1 where the middle channel is above a value, at every place for itself.

    Args:
        value: In the image's unit.
    """

    def __init__(self, value: float = 30.0) -> None:
        super().__init__()
        self.value = value
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> Tensor:
        """Logits [N, 2, *S] of images [N, C, *S]."""
        above = (image[:, image.shape[1] // 2] - self.value) * self.scale
        return torch.stack([-above, above], dim=1)
