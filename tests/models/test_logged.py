"""The loss that is logged quickly is the one that ``self.log`` would have logged."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from template.models.logged import log_training_loss

#: Losses of two epochs of three steps, and the samples of each batch.
LOSSES, SAMPLES = [0.5, 0.25, 2.0, 1.0, 4.0, 0.125], [4, 4, 2]


class Model(LightningModule):
    def __init__(self, quick: bool) -> None:
        super().__init__()
        self.weight, self.quick, self.calls = nn.Parameter(torch.zeros(())), quick, 0

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.weight * 0 + LOSSES[self.current_epoch * 3 + batch_idx]
        if self.quick:
            log_training_loss(self, loss, SAMPLES[batch_idx], batch_idx)
        else:
            super().log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True, batch_size=SAMPLES[batch_idx])
        return loss

    def log(self, *args: Any, **kwargs: Any) -> None:
        self.calls += 1
        super().log(*args, **kwargs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def _logged(quick: bool, folder: Path) -> tuple[list[dict[str, str]], dict[str, Tensor], Model]:
    model = Model(quick)
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, log_every_n_steps=1, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, logger=CSVLogger(folder, name=None, version=""),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own
        trainer.fit(model, torch.utils.data.DataLoader(range(3)))
    with (folder / "metrics.csv").open() as rows:
        return list(csv.DictReader(rows)), dict(trainer.callback_metrics), model


def test_what_is_logged_is_what_log_would_have_logged(tmp_path: Path) -> None:
    rows, metrics, model = _logged(True, tmp_path / "quick")
    expected, expected_metrics, _ = _logged(False, tmp_path / "log")
    assert rows == expected
    assert metrics == expected_metrics
    assert model.calls == 2  # the first step of each epoch
    steps = [float(row["train/loss_step"]) for row in rows if row["train/loss_step"]]
    assert steps == LOSSES
    epochs = [float(row["train/loss_epoch"]) for row in rows if row["train/loss_epoch"]]
    # By hand: (0.5 * 4 + 0.25 * 4 + 2 * 2) / 10, and (1 * 4 + 4 * 4 + 0.125 * 2) / 10.
    assert epochs == pytest.approx([0.7, 2.025])
