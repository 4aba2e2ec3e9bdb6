"""World size is a detail: the same training and the same scores on 1, 2, 3 and 4 processes."""

from __future__ import annotations

import functools
import itertools
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor

from template.data.transforms import Window
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.parity import SAVED_AT, STEPS, Setting, UnevenlyLabelled, apart, train
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

#: Optimizer, precision, and how far losses and weights may be apart: what issue reports call equal, and rounding.
KINDS = [("SGD", "64-true", 1e-9, 1e-9), ("AdamW", "64-true", 1e-9, 1e-9), ("SGD", "32-true", 1e-5, 1e-4)]
GRID = [
    (Setting(optimizer, precision, workers, accumulation), losses, weights)
    for (optimizer, precision, losses, weights), workers, accumulation in itertools.product(KINDS, (0, 2), (1, 2))
]
GRID += [
    (Setting("SGD", clip=0.1), 1e-9, 1e-9),
    (Setting("AdamW", deep_supervision=True, accumulation=2), 1e-9, 1e-9),
    (Setting("AdamW", class_weights=(0.2, 1.0, 5.0)), 1e-9, 1e-9),
]


@functools.cache
def trained(setting: Setting, world_size: int) -> tuple[list[float], Tensor]:
    """Losses and weights of a training, the same on every rank unless an ingredient is missing."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(world_size, train, world_size, folder, setting, timeout=240)
    for of_steps, weights in ranks[1:] if not setting.without else []:
        assert of_steps == ranks[0][0]
        assert torch.equal(weights, ranks[0][1])
    of_steps, weights = ranks[0]
    assert len(of_steps) == STEPS * setting.accumulation
    return of_steps, weights


@pytest.mark.parametrize(("setting", "losses", "weights"), GRID, ids=str)
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_training_is_that_of_one_process(setting: Setting, losses: float, weights: float, world_size: int) -> None:
    (alone, expected), (of_steps, found) = trained(setting, 1), trained(setting, world_size)
    assert of_steps == pytest.approx(alone, abs=losses)
    assert apart(expected, found) < weights
    # Who loads the samples changes nothing at all.
    assert torch.equal(trained(replace(setting, workers=0), world_size)[1], found)


@pytest.mark.parametrize(
    "ingredient", ["global denominators", "SyncBatchNorm", "seeds of samples", "deal of the batches"]
)
def test_the_comparison_sees_a_missing_ingredient(ingredient: str) -> None:
    (alone, expected), (of_steps, found) = trained(Setting(), 1), trained(Setting(without=ingredient), 2)
    assert apart(expected, found) > 1e-4
    assert max(abs(one - other) for one, other in zip(alone, of_steps, strict=True)) > 1e-4


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_goes_on_with_another_number_of_processes(
    before: int, after: int, accumulation: int, tmp_path: Path
) -> None:
    setting = Setting("AdamW", accumulation=accumulation)
    alone, expected = trained(setting, 1)
    run_ranks(before, train, before, str(tmp_path), setting, timeout=240)
    resumed = run_ranks(after, train, after, str(tmp_path), setting, f"{tmp_path}/middle.ckpt", timeout=240)
    for of_steps, found in resumed:
        assert of_steps == pytest.approx(alone[SAVED_AT * accumulation :], abs=1e-9)
        assert apart(expected, found) < 1e-9


class _Seen(Callback):
    """Names of the cases that this rank has scored."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *rest: Any
    ) -> None:
        self.names += [case.name for group in batch for case in group["case"]]

    on_test_batch_end = on_validation_batch_end


def evaluate(rank: int, world_size: int, folder: str) -> list[dict[str, Any]]:
    """Score the same weights on data sets of several sizes, with the loaders of ``validate`` and of ``test``."""
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found = []
    for cases in (2, 7, 13):
        seed_everything(0, workers=True, verbose=False)
        module = Segmenter(UNet(width=4, depth=2), 3, 1)
        seen = _Seen()
        trainer = Trainer(
            accelerator="cpu",
            devices=world_size,
            strategy=SafeDDPStrategy() if world_size > 1 else "auto",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[seen],
            default_root_dir=folder,
        )
        data = UnevenlyLabelled(
            train_cases=8,
            val_cases=cases,
            test_cases=cases,
            size=32,
            batch_size=12,
            num_workers=0,
            preprocess=[Window(-160, 240)],
        )
        scores = {**trainer.validate(module, data, verbose=False)[0], **trainer.test(module, data, verbose=False)[0]}
        found.append({"cases": cases, "scores": scores, "names": seen.names})
    return found


def test_every_case_is_scored_once_whatever_the_number_of_processes(tmp_path: Path) -> None:
    alone = run_ranks(1, evaluate, 1, str(tmp_path))[0]
    for world_size in (2, 3, 4):
        ranks = run_ranks(world_size, evaluate, world_size, str(tmp_path))
        for number, expected in enumerate(alone):
            names = [name for rank in ranks for name in rank[number]["names"]]
            assert len(names) == 2 * expected["cases"]  # of the validation, and of the test
            assert sorted(names) == sorted(expected["names"])
            for rank in ranks:
                assert rank[number]["scores"] == pytest.approx(expected["scores"], abs=1e-6, nan_ok=True)
