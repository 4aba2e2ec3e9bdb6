import torch.nn.functional as F
from torch import nn

from template.data.phantom import Phantom


class Uneven(Phantom):
    """Every other case is labelled in its upper quarter alone."""

    def read(self, case):
        image, mask = super().read(case)
        if case.source[1] % 2:
            mask[mask.shape[0] // 4 :] = 255
        return image, mask


class Local(nn.Module):
    """The mean over the pixels of this process."""

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, ignore_index=255)
