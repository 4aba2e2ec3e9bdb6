"""Checks of the doctor on a network or data set of a test's own, in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer, seed_everything
from torch import nn

from template.data.module import SegmentationData
from template.data.phantom import Phantom
from template.data.transforms import RandomWarp, Window
from template.doctor.finding import Finding
from template.doctor.options import Options
from template.doctor.rehearsal import AtStart, Rehearsal
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known

Check = Callable[[Rehearsal], list[Finding]]


def phantom(**settings: Any) -> Phantom:
    """Eight phantoms of 32 pixels, in batches of four."""
    defaults: dict[str, Any] = {
        "train_cases": 8,
        "val_cases": 4,
        "test_cases": 2,
        "size": 32,
        "batch_size": 4,
        "num_workers": 0,
        "preprocess": [Window(-160, 240)],
        "augment": [RandomWarp(degrees=10)],
    }
    return Phantom(**{**defaults, **settings})


def examine(
    check: Check | list[Check],
    folder: Path,
    *,
    net: nn.Module | None = None,
    data: SegmentationData | None = None,
    options: Options | None = None,
    asked: dict[str, Any] | None = None,
    module: Segmenter | None = None,
    **settings: Any,
) -> list[Finding]:
    """Run checks on a rehearsal of one process that is about to take its first step.

    Args:
        check: One, or several.
        folder: Of the test.
        net: In place of a small UNet.
        data: In place of :func:`phantom`.
        options: Of the doctor.
        asked: Section ``trainer`` of the configuration.
        module: In place of a Segmenter of ``net``.
        settings: Of the Segmenter.
    """
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    data = data or phantom()
    module = module or Segmenter(net or UNet(width=4, depth=2), data.num_classes, data.in_channels, **settings)
    found: list[Finding] = []

    def look(trainer: Trainer, pl_module: Any) -> None:
        defaults = {"devices": 1, "max_epochs": 3, "accumulate_grad_batches": 1, "strategy": "auto"}
        rehearsal = Rehearsal(
            trainer, pl_module, data, options or Options(), {**defaults, **(asked or {})}, None, folder
        )
        for one in check if isinstance(check, list) else [check]:
            found.extend(one(rehearsal))

    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
        callbacks=[AtStart(look, stop=True)],
    )
    trainer.fit(module, datamodule=data)
    return found


def of_status(found: list[Finding], status: str = "fail") -> list[Finding]:
    """The findings of a status."""
    return [one for one in found if one.status == status]
