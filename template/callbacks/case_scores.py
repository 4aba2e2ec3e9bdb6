"""Scores of each case of ``test`` or ``validate`` by its name, and pictures of the worst ones."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..distributed.agreement import gathered
from ..distributed.faults import NamedError
from ..distributed.told import listed, printable
from ..labels import IGNORE_INDEX
from ..models.surface import hd95
from .drawing import panel
from .measures import Unit, unit_of, write_table

CASES_FILE = "cases.csv"
_WORST = 3
_MEASURES = ("dice", "iou", "hd95", "volume_error")


class CaseScore(NamedTuple):
    """Scores of one case.

    Attributes:
        name: Of the case.
        values: ``dice`` and ``iou``, means over the regions; ``dice_<region>``, ``iou_<region>``, ``hd95_<region>``
            and ``volume_error_<region>``, the predicted minus the true volume.
        length: Unit of HD95.
        size: Unit of the volume error.
    """

    name: str
    values: dict[str, float]
    length: str
    size: str

    def row(self) -> dict[str, Any]:
        """For the table."""
        return {"case": self.name, **self.values, "hd95_unit": self.length, "volume_unit": self.size}


class CaseSummary(NamedTuple):
    """What all cases together show.

    Attributes:
        cases: Number of cases.
        means: As the values of a case; of the volume errors the mean of their sizes without sign.
        length: Unit of HD95; empty where cases have several, and then there is no mean.
        size: Unit of the volume errors; the same.
        left_out: Region to the number of cases that have no HD95, as truth or prediction has nothing of it.
        worst: Names of the worst cases and their Dice, the worst first.
    """

    cases: int
    means: dict[str, float]
    length: str
    size: str
    left_out: dict[str, int]
    worst: list[tuple[str, float]]

    def plain(self) -> dict[str, Any]:
        """For ``scores.json``."""
        units = {"hd95_unit": self.length, "volume_unit": self.size}
        return {"cases": self.cases, **self.means, **units, "hd95_left_out": self.left_out, "worst": dict(self.worst)}

    def told(self, folder: Path) -> list[str]:
        """What a person reads below the table of scores."""
        lines = [f"{self.cases} cases in {folder / CASES_FILE}"]
        if self.worst:
            lines.append("worst: " + ", ".join(f"{printable(name)} (Dice {dice:.4f})" for name, dice in self.worst))
        missing = [f"{count} of {region}" for region, count in self.left_out.items() if count]
        if missing:
            lines.append(f"HD95 leaves out {listed(missing)}: truth or prediction is empty there")
        return lines


class CaseScores(Callback):
    """Scores each case of ``test`` or ``validate``; rank 0 writes ``cases.csv`` and pictures of the worst cases.

    Dice, IoU, the 95th percentile of the Hausdorff distance and the error of the volume, for each region. Pixels that
    do not count are outside of truth and prediction alike. Cases are scored one after the other, so that the memory
    does not grow with their number.

    Args:
        folder: The verb's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.summary: CaseSummary | None = None
        self._scores: list[CaseScore] = []
        self._worst: list[tuple[float, int, bytes]] = []  # Dice, place in _scores, picture

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier test."""
        self.summary = None
        self._scores, self._worst = [], []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score the batch's cases."""
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by test(datamodule=…)
        for group, predictions in zip(batch, outputs["prediction"], strict=True):
            parts = (group["case"], group["image"], group["mask"].cpu(), predictions.cpu())
            for case, image, truth, prediction in zip(*parts, strict=True):
                unit = unit_of(data.spacing(case) if case.source is not None else None, truth.ndim)
                values = scores_of(truth.numpy(), prediction.numpy(), data.regions, unit)
                self._scores.append(CaseScore(case.name, values, unit.length, unit.size))
                self._keep(data, image, truth, prediction)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the scores of all processes together, and write them.

        Raises:
            NamedError: A file cannot be written.
        """
        shares = gathered(self._scores)
        # Cases are dealt out in turn, so in turn they come back to the order of the data set.
        dealt = [(rank, place) for place in range(max(map(len, shares))) for rank in range(len(shares))]
        places = [(rank, place) for rank, place in dealt if place < len(shares[rank])]
        scores = [shares[rank][place] for rank, place in places]
        known = [number for number, score in enumerate(scores) if not math.isnan(score.values["dice"])]
        worst = sorted(known, key=lambda number: scores[number].values["dice"])[:_WORST]
        mine = {place: picture for _, place, picture in self._worst}
        wanted = [places[number] for number in worst]
        everyone = gathered({place: mine[place] for rank, place in wanted if rank == trainer.global_rank})
        self.summary = _summary(scores, list(trainer.datamodule.regions), worst)  # type: ignore[attr-defined]
        if trainer.is_global_zero and scores:
            self._write(
                scores,
                [(scores[n].name, everyone[rank][place]) for n, (rank, place) in zip(worst, wanted, strict=True)],
            )
        self._scores, self._worst = [], []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As in a test."""
        if _validates(trainer):
            self.on_test_start(trainer, pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """As in a test."""
        if _validates(trainer):
            self.on_test_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As in a test."""
        if _validates(trainer):
            self.on_test_epoch_end(trainer, pl_module)

    def _keep(self, data: Any, image: Tensor, truth: Tensor, prediction: Tensor) -> None:
        """Draw the last case if it is one of the worst so far of this process."""
        place, dice = len(self._scores) - 1, self._scores[-1].values["dice"]
        if math.isnan(dice) or (len(self._worst) == _WORST and dice >= self._worst[-1][0]):
            return
        picture = _drawn(data, self._scores[-1].name, image, truth, prediction)
        self._worst = sorted([*self._worst, (dice, place, picture)])[:_WORST]

    def _write(self, scores: Sequence[CaseScore], pictures: Sequence[tuple[str, bytes]]) -> None:
        write_table(self.folder / CASES_FILE, [score.row() for score in scores], scores[0].row())
        for number, (name, picture) in enumerate(pictures, start=1):
            file = self.folder / f"worst_{number}_{name.replace('/', '_')}.png"
            try:
                file.write_bytes(picture)
            except OSError as error:
                what = f"'{file}' cannot be written: {error.strerror or error}."
                raise NamedError("folder-not-writable", what) from error


def scores_of(
    truth: NDArray[np.uint8], prediction: NDArray[np.uint8], regions: Mapping[str, Sequence[int]], unit: Unit
) -> dict[str, float]:
    """Scores of one case.

    Args:
        truth: Labels, [*S]; ``IGNORE_INDEX`` does not count.
        prediction: Labels, [*S].
        regions: Name of a region to the labels that it joins.
        unit: Of the case.

    Returns:
        As :class:`CaseScore`; NaN where a score is not defined: Dice and IoU of a region that is neither there nor
        predicted, HD95 of one that is not both.
    """
    found: dict[str, dict[str, float]] = {measure: {} for measure in _MEASURES}
    for region, labels in regions.items():
        member = np.zeros(256, dtype=bool)
        member[list(labels)] = True
        true, predicted = member[truth], member[prediction]
        predicted &= truth != IGNORE_INDEX
        sizes = int(np.count_nonzero(true)), int(np.count_nonzero(predicted))
        overlap, both = int(np.count_nonzero(true & predicted)), sum(sizes)
        found["dice"][region] = 2 * overlap / both if both else math.nan
        found["iou"][region] = overlap / (both - overlap) if both else math.nan
        found["hd95"][region] = hd95(true, predicted, unit.edges)
        found["volume_error"][region] = (sizes[1] - sizes[0]) * unit.factor
    means = {measure: _mean(found[measure].values()) for measure in ("dice", "iou")}
    return {**means, **{f"{m}_{region}": value for m, of in found.items() for region, value in of.items()}}


def summary_of(trainer: Trainer) -> tuple[CaseSummary, Path] | None:
    """What the test or validation of a trainer has found case by case, and the folder where it is written."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    one = next((callback for callback in callbacks if isinstance(callback, CaseScores)), None)
    return None if one is None or one.summary is None or not one.summary.cases else (one.summary, one.folder)


def _validates(trainer: Trainer) -> bool:
    """Whether the validation is what was asked for, and no part of a fit."""
    return trainer.state.fn == TrainerFn.VALIDATING


def _summary(scores: Sequence[CaseScore], regions: Sequence[str], worst: Sequence[int]) -> CaseSummary:
    units = [{score.length for score in scores}, {score.size for score in scores}]
    length, size = ("".join(unit) if len(unit) == 1 else "" for unit in units)
    means = {name: _mean(abs(score.values[name]) for score in scores) for name in (scores[0].values if scores else ())}
    for measure, unit in (("hd95", length), ("volume_error", size)):
        means.update({f"{measure}_{region}": math.nan for region in regions if not unit})
    return CaseSummary(
        len(scores),
        means,
        length,
        size,
        {region: sum(math.isnan(score.values[f"hd95_{region}"]) for score in scores) for region in regions},
        [(scores[number].name, scores[number].values["dice"]) for number in worst],
    )


def _mean(values: Any) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _drawn(data: Any, name: str, image: Tensor, truth: Tensor, prediction: Tensor) -> bytes:
    """Image, truth and prediction side by side, as PNG; of a volume, the slice with the most wrong voxels."""
    if truth.ndim == 3:
        wrong = [int(((t != p) & (t != IGNORE_INDEX)).sum()) for t, p in zip(truth, prediction, strict=True)]
        index = int(np.argmax(wrong))
        name = f"{name}, slice {index}"
        # The image may have been resampled to another number of slices than its mask.
        image = image[:, index * image.shape[1] // len(truth)]
        truth, prediction = truth[index], prediction[index]
    picture = panel(data.display(image.cpu()), truth, prediction, data.classes, name=name)
    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(file, "PNG", compress_level=1)
    return file.getvalue()
