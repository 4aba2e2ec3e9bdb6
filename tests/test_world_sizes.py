"""World size is a detail: the same training and the same scores on 1, 2, 3 and 4 processes."""

from __future__ import annotations

import itertools
import logging
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
from tests.parity import STEPS, Setting, UnevenlyLabelled, apart, train
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
INGREDIENTS = ["global denominators", "SyncBatchNorm", "seeds of samples", "deal of the batches"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[tuple[list[float], Tensor]]]:
    """What every setting leads to, for each number of processes."""
    folder = str(tmp_path_factory.mktemp("runs"))
    settings = [setting for setting, _, _ in GRID]
    found = {}
    for world_size in (1, 2, 4):
        ranks = run_ranks(world_size, train, world_size, folder, settings, timeout=900)
        for rank in ranks[1:]:
            for (of_steps, weights), (expected, same) in zip(rank, ranks[0], strict=True):
                assert of_steps == expected
                assert torch.equal(weights, same)
        found[world_size] = ranks[0]
    return found


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("number", range(len(GRID)), ids=[str(setting) for setting, _, _ in GRID])
def test_a_training_is_that_of_one_process(number: int, world_size: int, runs: dict[int, Any]) -> None:
    setting, losses, weights = GRID[number]
    (alone, expected), (of_steps, found) = runs[1][number], runs[world_size][number]
    assert len(alone) == STEPS * setting.accumulation
    assert of_steps == pytest.approx(alone, abs=losses)
    assert apart(expected, found) < weights


def test_workers_change_nothing(runs: dict[int, Any]) -> None:
    for number, (setting, _, _) in enumerate(GRID):
        twin = next((n for n, (s, _, _) in enumerate(GRID) if s == Setting(**{**vars(setting), "workers": 2})), number)
        for world_size in runs:
            assert torch.equal(runs[world_size][number][1], runs[world_size][twin][1])


def test_each_ingredient_is_needed(runs: dict[int, Any], tmp_path: Path) -> None:
    """The comparison above sees when one of them is turned off."""
    settings = [Setting(without=ingredient) for ingredient in INGREDIENTS]
    expected = runs[1][[setting for setting, _, _ in GRID].index(Setting())]
    mutated = run_ranks(2, train, 2, str(tmp_path), settings, timeout=300)[0]
    for ingredient, (of_steps, weights) in zip(INGREDIENTS, mutated, strict=True):
        assert apart(expected[1], weights) > 1e-4, ingredient
        assert max(abs(one - other) for one, other in zip(expected[0], of_steps, strict=True)) > 1e-4, ingredient


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
