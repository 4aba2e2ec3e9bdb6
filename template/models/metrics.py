"""Dice and IoU, counted over the whole data set and over all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from ..labels import IGNORE_INDEX, check_regions


class MeanLoss(Metric):
    """Mean of the losses of single samples over all processes, of which some may have none.

    Sums are in double precision, so that the order in which processes add their shares does not show.
    """

    full_state_update = False
    total: Tensor
    samples: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.set_dtype(torch.float64)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("samples", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def update_called(self) -> bool:
        """Always: a process without samples is no mistake to warn of."""
        return True

    def update(self, loss: Tensor) -> None:
        """Add the loss of one sample, scalar."""
        self.total += loss.detach()
        self.samples += 1

    def compute(self) -> Tensor:
        """The mean, float64; NaN without a sample."""
        return self.total / self.samples


class SegmentationScores(Metric):
    """Dice and IoU of regions, from one confusion matrix of pixels.

    With TP, FP and FN counted over all labelled pixels of all samples (LiTS calls this "Dice global")::

        Dice = 2 TP / (2 TP + FP + FN)        IoU = TP / (TP + FP + FN)

    Processes add whole numbers, so the scores do not depend on how samples are dealt to them; one may hold none.

    Args:
        num_classes: K.
        regions: Name of a region to the labels that it joins. Regions may overlap: the liver of LiTS is labels 1
            and 2, with the tumour in it.

    Raises:
        ValueError: A region joins labels that no class has.
    """

    full_state_update = False
    confusion: Tensor

    def __init__(self, num_classes: int, regions: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        check_regions(regions, num_classes)
        self.num_classes = num_classes
        self.regions = {name: sorted(set(labels)) for name, labels in regions.items()}
        # Rows are the truth, columns the prediction.
        empty = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("confusion", default=empty, dist_reduce_fx="sum")

    @property
    def update_called(self) -> bool:
        """Always true: to have counted nothing is a valid state here, about which torchmetrics would warn."""
        return True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the pixels of some samples.

        Args:
            prediction: Labels ``0 … K - 1``, integer, any shape.
            target: Labels ``0 … K - 1`` or ``IGNORE_INDEX``, integer, same shape.

        Raises:
            ValueError: Shapes differ, or a label is none of these.
        """
        if prediction.shape != target.shape:
            raise ValueError(f"prediction {list(prediction.shape)} and target {list(target.shape)} differ in shape")
        # To pick the labelled pixels out takes several times as long as to count the others in a bin of their own.
        ignored = target == IGNORE_INDEX
        truth, predicted = (labels.long().masked_fill(ignored, 0) for labels in (target, prediction))
        for name, labels in (("target", truth), ("prediction", predicted)):
            if labels.numel() and not 0 <= labels.min() <= labels.max() < self.num_classes:
                found = labels[~ignored]
                raise ValueError(
                    f"{name} has labels from {int(found.min())} to {int(found.max())}; "
                    f"allowed are 0 to {self.num_classes - 1}"
                )
        bins = self.num_classes**2
        pairs = (truth * self.num_classes + predicted).masked_fill_(ignored, bins).flatten()
        self.confusion += torch.bincount(pairs, minlength=bins + 1)[:bins].view_as(self.confusion)

    def compute(self) -> dict[str, Tensor]:
        """Scores over everything counted so far, on all processes.

        Returns:
            ``dice_<region>`` and ``iou_<region>``, float64 scalars on the CPU, NaN where the region is neither there
            nor predicted; ``dice`` and ``iou``, their means over the regions that have a score.
        """
        confusion = self.confusion.cpu().double()  # exact up to 2**53 pixels
        dice: dict[str, Tensor] = {}
        iou: dict[str, Tensor] = {}
        for name, labels in self.regions.items():
            overlap = confusion[labels][:, labels].sum()
            true, predicted = confusion[labels].sum(), confusion[:, labels].sum()
            dice[f"dice_{name}"] = 2 * overlap / (true + predicted)
            iou[f"iou_{name}"] = overlap / (true + predicted - overlap)
        means = {
            "dice": torch.stack([*dice.values()]).nanmean(),
            "iou": torch.stack([*iou.values()]).nanmean(),
        }
        return {**means, **dice, **iou}
