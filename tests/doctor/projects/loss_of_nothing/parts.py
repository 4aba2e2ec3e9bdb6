import torch.nn.functional as F
from torch import nn

from template.data.phantom import Phantom


class HalfLabelled(Phantom):
    """Every other case has no labels at all."""

    def read(self, case):
        image, mask = super().read(case)
        if case.source[1] % 2:
            mask[:] = 255
        return image, mask


class Mean(nn.Module):
    """The mean over the labelled pixels of this process: 0 / 0 where it has none."""

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, ignore_index=255)
