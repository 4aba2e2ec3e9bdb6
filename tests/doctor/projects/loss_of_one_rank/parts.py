import os

from template.models.losses import CrossEntropyDice


class Broken(CrossEntropyDice):
    """Gives NaN on rank 1, as a division by the number of objects in an empty share would."""

    def is_empty(self):
        return os.environ["RANK"] == "1"

    def forward(self, logits, target):
        loss = super().forward(logits, target)
        return loss * float("nan") if self.is_empty() else loss


class Healthy(Broken):
    def is_empty(self):
        return False
