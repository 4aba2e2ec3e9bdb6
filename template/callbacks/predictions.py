"""Predicted masks on disk, each beside a picture to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from PIL import Image
from torch import Tensor

from ..distributed.faults import NamedError
from .drawing import central_slice, overlay


class PredictionWriter(Callback):
    """Writes a mask and ``<mask's stem>_overlay.png`` for each case that this process predicts.

    A case is dealt to exactly one process, so no two processes write one file.

    Args:
        folder: Where to; made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._written = 0

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the folder before anything is computed.

        Raises:
            NamedError: It cannot be made.
        """
        self._written = 0
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
                image, _ = data.read(case)
                try:
                    file = data.write(case, mask, self.folder)
                    picture = _picture(data, image, mask)
                    # The lowest compression: a fifth of the time for a tenth more bytes.
                    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(_beside(file), compress_level=1)
                except OSError as error:
                    raise _not_writable(self.folder, error) from error
                self._written += 1

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count what all processes have written together."""
        written = torch.tensor(self._written, device=pl_module.device)
        self._written = int(trainer.strategy.reduce(written, reduce_op="sum"))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Say where it is, when the progress bar is gone."""
        if stage == "predict" and trainer.is_global_zero:
            print(f"{self._written} masks and overlays in {self.folder}", flush=True)


def _picture(data: Any, image: Tensor, mask: Tensor) -> Tensor:
    """The overlay, uint8 [3, H, W]; of a volume, the slice with the largest labelled area."""
    if mask.ndim == 3:
        index = central_slice(mask)
        image, mask = image[:, index], mask[index]
    return overlay(data.display(image), mask, data.classes)


def _beside(file: Path) -> Path:
    """Path of the overlay of a mask; ``case.nii.gz`` has the stem ``case``."""
    return file.with_name(f"{Path(file.name.removesuffix('.gz')).stem}_overlay.png")


def _not_writable(folder: Path, error: OSError) -> NamedError:
    return NamedError(
        "folder-not-writable",
        f"'{error.filename or folder}' cannot be written: {error.strerror or error}.",
        fix="Choose another folder with --out, or make room on the disk.",
    )
