"""Pictures of validation samples in TensorBoard."""

from __future__ import annotations

from typing import Any, NamedTuple

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from .drawing import central_slice, panel, stack


class _Sample(NamedTuple):
    """A slice of a sample, on the CPU: image [C, h, w] in the network's units, masks [H, W]."""

    name: str
    image: Tensor
    truth: Tensor
    prediction: Tensor


class PicturesCallback(Callback):
    """Shows image, truth and prediction of the same few validation samples during a fit.

    Uses what ``validation_step`` returns, so nothing is computed twice. The samples are the first of rank 0's
    share; the other processes do nothing. Without a TensorBoard logger nothing is drawn.

    Args:
        every_n_epochs: Epochs from one picture to the next; the last validation is always drawn.
        samples: Number of samples.
    """

    def __init__(self, every_n_epochs: int = 5, samples: int = 4) -> None:
        self.every_n_epochs = max(1, every_n_epochs)
        self.samples = samples
        self._kept: list[_Sample] = []
        self._step = 0

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the previous validation's samples."""
        self._kept.clear()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first samples and their predictions."""
        if len(self._kept) >= self.samples or _board(trainer) is None:
            return
        for group, predictions in zip(batch, outputs["prediction"], strict=True):
            for case, image, truth, prediction in zip(
                group["case"], group["image"], group["mask"], predictions, strict=True
            ):
                if len(self._kept) < self.samples:
                    self._kept.append(_flat(case.name, image, truth, prediction))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw where the epoch's turn has come."""
        self._step = trainer.global_step
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._draw(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the last validation; only now is it known to be the last one, as a run may stop early."""
        self._draw(trainer)

    def _draw(self, trainer: Trainer) -> None:
        board, data = _board(trainer), trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=…)
        if board is None or not self._kept:
            return
        rows = [
            panel(
                data.display(sample.image),
                sample.truth,
                sample.prediction,
                data.classes,
                name=sample.name,
                legend=number == len(self._kept),
            )
            for number, sample in enumerate(self._kept, start=1)
        ]
        board.experiment.add_image("val/pictures", stack(rows), self._step)
        self._kept.clear()


def _flat(name: str, image: Tensor, truth: Tensor, prediction: Tensor) -> _Sample:
    """Copy a sample to the CPU; of a volume, the slice with the largest labelled area."""
    image, truth, prediction = image.cpu(), truth.cpu(), prediction.cpu()
    if truth.ndim == 3:
        index = central_slice(truth if (truth > 0).any() else prediction)
        name = f"{name}, slice {index}"
        # The image may have been resampled to another number of slices than its mask.
        image = image[:, index * image.shape[1] // len(truth)]
        truth, prediction = truth[index], prediction[index]
    return _Sample(name, image, truth, prediction)


def _board(trainer: Trainer) -> TensorBoardLogger | None:
    """The TensorBoard logger of a fit on rank 0; None elsewhere and during the sanity check."""
    if trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
        return None
    return next((logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)
