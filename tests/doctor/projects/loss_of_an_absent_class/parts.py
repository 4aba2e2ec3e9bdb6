import torch.nn.functional as F
from torch import nn

from template.data.phantom import Phantom


class SomeTumours(Phantom):
    """Every other liver has no tumour."""

    def read(self, case):
        image, mask = super().read(case)
        if case.source[1] % 2:
            mask[mask == 2] = 1
        return image, mask


class Dice(nn.Module):
    """Share of each class that is found, 0 / 0 for a class that a sample lacks."""

    smooth = 0.0

    def forward(self, logits, target):
        counted = target != 255
        truth = F.one_hot(target * counted, 3).movedim(-1, 1) * counted[:, None]
        found = (logits.softmax(1) * truth).sum((2, 3))
        return 1 - ((found + self.smooth) / (truth.sum((2, 3)) + self.smooth)).mean()


class Smooth(Dice):
    smooth = 1.0
