import os

from torch import nn

from template.models.losses import CrossEntropyDice


class Broken(CrossEntropyDice):
    """Divides by a number of objects that is 0 on rank 1."""

    def count(self):
        return 1 - int(os.environ["RANK"])

    def forward(self, logits, target):
        loss = super().forward(logits, target)
        return loss + 0 * loss / self.count() if self.count() else loss * float("nan")


class Healthy(Broken):
    def count(self):
        return 1
