"""Logits and labels brought to one size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resized(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Logits [N, K, *S] at another size, linear in between; as they are where they have it."""
    if logits.shape[2:] == torch.Size(size):
        return logits
    return F.interpolate(logits.float(), tuple(size), mode="bilinear" if logits.ndim == 4 else "trilinear")


def same_size(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Bring a smaller output and its labels to one size: labels by their nearest neighbour, as nnU-Net does.

    The main output of a network that works at a coarser scale is trained there as well.
    """
    if logits.shape[2:] == mask.shape[1:]:
        return logits, mask
    small = F.interpolate(mask[:, None].to(torch.uint8), tuple(logits.shape[2:]), mode="nearest-exact")
    return logits, small[:, 0].long()


def cropped(logits: Tensor, size: Sequence[int]) -> Tensor:
    """The first ``size`` of logits [N, K, *S]."""
    for axis, length in enumerate(size, start=2):
        logits = logits.narrow(axis, 0, length)
    return logits
