"""A training on the phantom in which every ingredient of equality over world sizes matters, on real gloo ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor

from template.callbacks.accurate_batchnorm import AccurateBatchNorm
from template.callbacks.checkpoint_io import AtomicCheckpointIO
from template.callbacks.resume import ExactResume
from template.data import dataset, sampler
from template.data.dataset import Case
from template.data.phantom import Phantom
from template.data.transforms import RandomWarp, Window
from template.distributed.strategy import SafeDDPStrategy
from template.labels import IGNORE_INDEX
from template.models import losses
from template.models.losses import CrossEntropyDice
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known

STEPS = 30
SAVED_AT = 13
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
}


@dataclass(frozen=True)
class Setting:
    """What a run varies.

    Attributes:
        optimizer: Name in :data:`OPTIMIZERS`.
        precision: Of Lightning.
        workers: Loader processes of each rank.
        accumulation: Micro-batches of an optimizer step.
        clip: Largest norm of the gradients; 0: any.
        deep_supervision: Losses at coarser scales too.
        class_weights: Of the cross-entropy.
        dropout: Share of values that the network drops.
        comm_hook: Of the strategy.
        without: Ingredient that is turned off.
    """

    optimizer: str = "SGD"
    precision: str = "64-true"
    workers: int = 0
    accumulation: int = 1
    clip: float = 0.0
    deep_supervision: bool = False
    class_weights: tuple[float, ...] | None = None
    dropout: float = 0.0
    comm_hook: str = "none"
    without: str = ""


class UnevenlyLabelled(Phantom):
    """Some cases are labelled wholly, some in a corner, some not at all, so that ranks hold unequal shares."""

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        image, mask = super().read(case)
        assert mask is not None
        labelled = (1.0, 0.05, 0.6, 0.0)[case.source[1] % 4]
        mask[:, int(labelled * mask.shape[1]) :] = IGNORE_INDEX
        return image, mask


class _Losses(Callback):
    """Global loss of every micro-batch; a checkpoint in the middle of the third epoch."""

    def __init__(self) -> None:
        self.of_steps: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.of_steps.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)
        if trainer.global_step == SAVED_AT and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/middle.ckpt")


def train(
    rank: int, world_size: int, folder: str, setting: Setting, checkpoint: str | None = None
) -> tuple[list[float], Tensor]:
    """Train on this rank, from the beginning or from a checkpoint.

    Returns:
        The losses of all micro-batches, and all weights and running statistics in one vector, float64.
    """
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with _without(setting.without, rank, world_size):
        seed_everything(0, workers=True, verbose=False)
        data = UnevenlyLabelled(
            train_cases=42,  # five global batches of 8; two cases are dropped in each epoch
            val_cases=1,
            test_cases=1,
            size=32,
            batch_size=8,
            num_workers=setting.workers,
            preprocess=[Window(-160, 240)],
            augment=[RandomWarp(degrees=10, scale=(0.9, 1.1))],
        )
        weights = None if setting.class_weights is None else list(setting.class_weights)
        module = Segmenter(
            UNet(width=4, depth=2, deep_supervision=setting.deep_supervision, dropout=setting.dropout),
            3,
            1,
            loss=CrossEntropyDice(class_weights=weights),
            optimizer=OPTIMIZERS[setting.optimizer],
        )
        recorded = _Losses()
        trainer = Trainer(
            accelerator="cpu",
            devices=world_size,
            strategy=_strategy(setting) if world_size > 1 else "auto",
            precision=setting.precision,  # type: ignore[arg-type]  # one of Lightning's names
            max_epochs=STEPS // 5,
            accumulate_grad_batches=setting.accumulation,
            gradient_clip_val=setting.clip or None,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[ExactResume(), recorded, AccurateBatchNorm()],
            plugins=[AtomicCheckpointIO()],
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        assert trainer.global_step == STEPS
        # Without the counters of BatchNorm, whose large numbers would hide everything else.
        values = [value for value in module.state_dict().values() if value.is_floating_point()]
        return recorded.of_steps, torch.cat([value.double().flatten() for value in values])


def _strategy(setting: Setting) -> SafeDDPStrategy:
    hook: Any = setting.comm_hook
    return SafeDDPStrategy(sync_batchnorm=setting.without != "SyncBatchNorm", comm_hook=hook)


def _without(ingredient: str, rank: int, world_size: int) -> AbstractContextManager[Any]:
    """Turn one ingredient off, as code that lacks it would have it."""
    if ingredient in ("", "SyncBatchNorm"):
        return nullcontext()
    if ingredient == "global denominators":
        return mock.patch.object(losses, "global_sum", lambda share: share)
    if ingredient == "seeds of samples":
        seeded = dataset.seeded
        return mock.patch.object(dataset, "seeded", lambda *words, **more: seeded(*words, rank, **more))
    assert ingredient == "deal of the batches"

    def dealt_like_distributed_sampler(deals: sampler.GlobalBatchSampler) -> Iterator[list[tuple[int, int]]]:
        """Each rank takes a block of the permutation, so that global batches depend on the number of ranks."""
        order = np.random.default_rng((deals.seed, deals.epoch)).permutation(deals.num_samples)
        share = deals.micro_batch // world_size
        mine = order[rank * share * len(deals) :]
        for number in range(len(deals)):
            yield [(deals.epoch, int(index)) for index in mine[number * share : (number + 1) * share]]

    return mock.patch.object(sampler.GlobalBatchSampler, "__iter__", dealt_like_distributed_sampler)


def apart(one: Tensor, other: Tensor) -> float:
    """‖a - b‖ / ‖a‖."""
    return float((one - other).norm() / one.norm())
