"""Networks that need no training, for tests that know what they predict."""

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


class Lookup(nn.Module):
    """The class whose number is in the image, for tests that give masks as images.

    Args:
        values: Number of each class.
    """

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = values
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> Tensor:
        """Logits [N, K, *S] of images [N, 1, *S]."""
        return torch.cat([-(image[:, :1] - value).abs() * self.scale for value in self.values], dim=1)


class LargestChannel(nn.Module):
    """The channel with the largest value; the first is replaced by a constant.

    Args:
        value: In its place.
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> Tensor:
        """Logits [N, C, *S] of images [N, C, *S]."""
        return torch.cat([torch.full_like(image[:, :1], self.value), image[:, 1:]], dim=1) * self.scale
