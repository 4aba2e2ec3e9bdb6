"""Dice and IoU: by hand, against torchmetrics, and over ranks."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.classification import MulticlassF1Score, MulticlassJaccardIndex

from template.labels import IGNORE_INDEX
from template.models.metrics import SegmentationScores

from ..ranks import run_ranks

LITS = {"liver": [1, 2], "tumour": [2]}


def sample(count: int, size: tuple[int, ...] = (7, 6), classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(classes, (count, *size), generator=generator)
    target = torch.randint(classes, (count, *size), generator=generator)
    target[torch.rand(target.shape, generator=generator) < 0.2] = IGNORE_INDEX
    return prediction, target


def scores_of(metric: SegmentationScores) -> dict[str, float]:
    return {name: value.item() for name, value in metric.compute().items()}


def test_scores_worked_out_by_hand() -> None:
    target = torch.tensor([[0, 0, 1, 1, 2, 2, 1, IGNORE_INDEX]])
    prediction = torch.tensor([[0, 1, 1, 2, 1, 2, 0, 2]])
    metric = SegmentationScores(3, LITS)
    metric.update(prediction, target)
    assert metric.confusion.tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    # Liver: 5 pixels true, 5 predicted, 4 both. Tumour: 2 true, 2 predicted, 1 both.
    assert scores_of(metric) == pytest.approx(
        {
            "dice": (8 / 10 + 2 / 4) / 2,
            "iou": (4 / 6 + 1 / 3) / 2,
            "dice_liver": 8 / 10,
            "dice_tumour": 2 / 4,
            "iou_liver": 4 / 6,
            "iou_tumour": 1 / 3,
        }
    )


@pytest.mark.parametrize("size", [(7, 6), (3, 4, 5)])
def test_single_classes_score_as_in_torchmetrics(size: tuple[int, ...]) -> None:
    metric = SegmentationScores(3, {str(k): [k] for k in range(3)})
    f1 = MulticlassF1Score(3, average=None, ignore_index=IGNORE_INDEX)
    jaccard = MulticlassJaccardIndex(3, average=None, ignore_index=IGNORE_INDEX)
    for prediction, target in zip(*(part.split(2) for part in sample(6, size)), strict=True):
        metric.update(prediction, target)
        f1.update(prediction, target)
        jaccard.update(prediction, target)
    ours = scores_of(metric)
    assert [ours[f"dice_{k}"] for k in range(3)] == pytest.approx(f1.compute().tolist(), rel=1e-6)
    assert [ours[f"iou_{k}"] for k in range(3)] == pytest.approx(jaccard.compute().tolist(), rel=1e-6)
    assert ours["dice"] == pytest.approx(f1.compute().mean().item(), rel=1e-6)


def test_a_region_that_joins_labels_scores_as_the_joined_mask() -> None:
    prediction, target = sample(4)
    joined = SegmentationScores(2, {"liver": [1]})
    joined.update((prediction > 0).long(), torch.where(target == IGNORE_INDEX, target, (target > 0).long()))
    metric = SegmentationScores(3, LITS)
    metric.update(prediction, target)
    assert scores_of(metric)["dice_liver"] == scores_of(joined)["dice_liver"]
    assert scores_of(metric)["iou_liver"] == scores_of(joined)["iou_liver"]


def test_an_absent_region_has_no_score_and_no_share_in_the_mean() -> None:
    metric = SegmentationScores(4, {"liver": [1], "tumour": [2], "cyst": [3]})
    metric.update(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1]))
    scores = scores_of(metric)
    assert math.isnan(scores["dice_tumour"])
    assert math.isnan(scores["iou_tumour"])
    assert scores["dice_cyst"] == 0  # predicted, though absent
    assert scores["dice"] == pytest.approx((2 / 3 + 0) / 2)


def test_nothing_counted_is_nan_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = scores_of(SegmentationScores(3, LITS))
    assert all(math.isnan(score) for score in scores.values())


def test_large_counts_stay_exact() -> None:
    metric = SegmentationScores(2, {"liver": [1]})
    metric.confusion = torch.tensor([[0, 1], [0, 2**40]])
    assert 1 - scores_of(metric)["dice_liver"] == pytest.approx(1 / 2**41, rel=1e-3)


def test_8_bit_labels_and_reset() -> None:
    prediction, target = sample(2)
    metric = SegmentationScores(3, LITS)
    metric.update(prediction.to(torch.uint8), target.to(torch.uint8))
    assert metric.confusion.sum() == (target != IGNORE_INDEX).sum()
    metric.half()
    assert metric.confusion.dtype == torch.int64
    metric.reset()
    assert metric.confusion.sum() == 0


@pytest.mark.parametrize(("prediction", "target", "name"), [(3, 0, "prediction"), (0, 3, "target"), (0, -1, "target")])
def test_labels_that_no_class_has_are_refused(prediction: int, target: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has labels"):
        SegmentationScores(3, LITS).update(torch.tensor([prediction]), torch.tensor([target]))


def test_wrong_shapes_and_regions_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        SegmentationScores(3, LITS).update(torch.zeros(1, 2).long(), torch.zeros(1, 3).long())
    with pytest.raises(ValueError, match="liver"):
        SegmentationScores(2, LITS)


# Ranks hold shares of different length; some hold none.
SHARES = {2: [5, 0], 4: [0, 3, 2, 0]}


def score_share(rank: int, world_size: int) -> dict[str, float]:
    warnings.simplefilter("error")
    metric = SegmentationScores(3, LITS)
    prediction, target = (part.split(SHARES[world_size])[rank] for part in sample(5))
    for one, truth in zip(prediction, target, strict=True):
        metric.update(one, truth)
    return scores_of(metric)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_give_exactly_the_scores_of_one_process(world_size: int) -> None:
    metric = SegmentationScores(3, LITS)
    metric.update(*sample(5))
    assert run_ranks(world_size, score_share, world_size) == [scores_of(metric)] * world_size


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_pixels_are_counted_where_they_are() -> None:
    # To pick labelled pixels out, as target[labelled] does, took four fifths of the time.
    prediction, target = sample(2)
    metric = SegmentationScores(3, LITS)
    with _Operations() as seen:
        metric.update(prediction, target)
    assert seen.names.count("aten.bincount") == 1
    assert not {"aten.nonzero", "aten.index", "aten.masked_select"} & set(seen.names)


def test_labels_that_are_no_class_are_told_without_those_that_do_not_count() -> None:
    metric = SegmentationScores(3, LITS)
    with pytest.raises(ValueError, match="target has labels from 1 to 7; allowed are 0 to 2"):
        metric.update(torch.tensor([0, 1, 2]), torch.tensor([1, 7, IGNORE_INDEX]))
    metric.update(torch.tensor([0, 1, 9]), torch.tensor([1, 1, IGNORE_INDEX]))  # nobody looks there
    assert metric.confusion.tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
