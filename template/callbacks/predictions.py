"""Predicted masks on disk, each beside a picture to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from ..data.broken import Broken, refusal
from ..data.dataset import Case
from ..data.names import input_of, overlay_stem
from ..data.written import whole
from ..distributed.agreement import gathered
from ..distributed.faults import NamedError
from .drawing import central_slice, overlay
from .measures import unit_of, write_table

PREDICTIONS_FILE = "predict.csv"
_BACKGROUND = "background"


class PredictionWriter(Callback):
    """Writes a mask and ``<mask's stem>_overlay.png`` for each case that this process predicts.

    A case is dealt to exactly one process, so no two processes write one file. Rank 0 writes ``predict.csv``: how large
    each class is in each case. Cases that cannot be read are passed over, and named when all others are written.

    Args:
        folder: Where to; made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._written = 0
        self._rows: list[dict[str, Any] | Broken] = []
        self._places: dict[str, int] = {}  # case to its place in the data set, where its loader tells

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for what cannot be read, before the loader is made."""
        if stage == "predict":
            trainer.datamodule.passed_over = []  # type: ignore[attr-defined]  # set by predict(datamodule=…)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the folder before anything is computed.

        Raises:
            NamedError: It cannot be made.
        """
        self._written, self._rows = 0, []
        cases = getattr(getattr(trainer.predict_dataloaders, "dataset", None), "cases", ())
        self._places = {case.name: place for place, case in enumerate(cases)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.folder, error) from error

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the batch's masks and pictures.

        Raises:
            NamedError: A file cannot be written.
        """
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by predict(datamodule=…)
        for group, predictions in zip(batch, outputs["prediction"], strict=True):
            for case, mask in zip(group["case"], predictions.cpu(), strict=True):
                looked_at = _looked_at(data, case, mask)
                try:
                    file = data.write(case, mask, self.folder)
                    picture = _picture(data, *looked_at)
                    # The lowest compression: a fifth of the time for a tenth more bytes.
                    with whole(self._beside(file)) as part:
                        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(part, compress_level=1)
                except OSError as error:
                    raise _not_writable(self.folder, error) from error
                origin = input_of(case.source, data.predict_path)
                row = {"case": case.name, "file": file.name, "input": origin, **_sizes(data, case, mask)}
                self._rows.append(row)
        self._rows += data.passed_over
        data.passed_over.clear()

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put together what all processes have written.

        Raises:
            NamedError: The table cannot be written, or cases could not be read: the same on all processes.
        """
        data = trainer.datamodule  # type: ignore[attr-defined]
        data.passed_over = None
        shares = gathered(self._rows)
        # Cases are dealt out in turn, so in turn they come back; a batch has its shapes, and what is broken, in groups.
        done = [share[place] for place in range(max(map(len, shares))) for share in shares if place < len(share)]
        done.sort(key=lambda one: self._places.get(one.case.name if isinstance(one, Broken) else one["case"], 0))
        rows = [one for one in done if not isinstance(one, Broken)]
        failed = [one for one in done if isinstance(one, Broken)]
        self._written = len(rows)
        if trainer.is_global_zero and rows:
            write_table(self.folder / PREDICTIONS_FILE, rows, rows[0])
        if failed:
            gathered(None)  # a process that fails ends the others: not before the table is whole
            names = [input_of(one.case.source, data.predict_path) or one.case.name for one in failed]
            raise refusal([one.error for one in failed], names, len(rows))

    def _beside(self, file: Path) -> Path:
        """Path of the overlay of a mask; ``case.nii.gz`` has the stem ``case``."""
        return file.with_name(f"{overlay_stem(Path(file.name.removesuffix('.gz')).stem, self._places)}.png")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Say where it is, when the progress bar is gone."""
        if stage == "predict" and trainer.is_global_zero:
            print(f"{self._written} masks and overlays in {self.folder}", flush=True)


def _sizes(data: Any, case: Any, mask: Tensor) -> dict[str, Any]:
    """Volume or area of each class but the background, of each region where these are not the classes, and the unit."""
    unit = unit_of(data.spacing(case), mask.ndim)
    counts = torch.bincount(mask.flatten(), minlength=len(data.classes)).tolist()
    sizes = {name: counts[label] * unit.factor for label, name in enumerate(data.classes) if name != _BACKGROUND}
    joined = {name: sum(counts[label] for label in set(labels)) * unit.factor for name, labels in data.regions.items()}
    if any(
        sizes.get(name) is None or set(labels) != {data.classes.index(name)} for name, labels in data.regions.items()
    ):
        sizes |= {f"region_{name}": size for name, size in joined.items()}
    return {**sizes, "unit": unit.size}


def _looked_at(data: Any, case: Case, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Image [C, H, W] and mask [H, W] of a case; of a volume, the slice with the largest labelled area."""
    if mask.ndim == 3:
        index = central_slice(mask)
        return data.read_plane(case, index, len(mask)), mask[index]
    return data.read(case)[0], mask


def _picture(data: Any, image: Tensor, mask: Tensor) -> Tensor:
    """The overlay, uint8 [3, H, W]."""
    picture = data.display(image)
    if picture.shape[1:] != mask.shape:
        picture = interpolate(picture[None].float(), tuple(mask.shape), mode="bilinear")[0].round().to(torch.uint8)
    return overlay(picture, mask, data.classes)


def _not_writable(folder: Path, error: OSError) -> NamedError:
    return NamedError(
        "folder-not-writable",
        f"'{error.filename or folder}' cannot be written: {error.strerror or error}.",
        fix="Choose another folder with --out, or make room on the disk.",
    )
