"""Only hooks that a callback has are called at each step, and all are there again afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from template.callbacks.idle_hooks import _HOOKS, IdleHooks


class Counts(Callback):
    """Has one of the six."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.none: list[str] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch_idx)
        self.none = [hook for hook in _HOOKS if getattr(self, hook) is None]


class Fails(BoringModel):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 1:
            raise ValueError("no more")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("fails", [False, True])
def test_only_what_a_callback_has_is_called_and_all_is_there_afterwards(fails: bool, tmp_path: Path) -> None:
    counts = Counts()
    trainer = Trainer(
        accelerator="cpu", max_steps=3, limit_val_batches=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[counts, IdleHooks()],
    )  # fmt: skip
    if fails:
        with pytest.raises(ValueError, match="no more"):
            trainer.fit(Fails())
    else:
        trainer.fit(BoringModel())
    assert counts.seen == ([0, 1] if fails else [0, 1, 2])
    assert counts.none == [hook for hook in _HOOKS if hook != "on_train_batch_start"]
    assert all(callable(getattr(counts, hook)) for hook in _HOOKS)
    assert not set(vars(counts)) & set(_HOOKS)


def test_hooks_are_those_of_this_lightning() -> None:
    assert all(callable(getattr(Callback, hook)) for hook in _HOOKS)
