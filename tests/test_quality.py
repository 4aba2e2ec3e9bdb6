"""The scorer, the clock and the table of the comparison with other libraries."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from benchmarks import cpu_clock, plain_loop, quality
from benchmarks.cpu_clock import CpuClock
from benchmarks.dice import region_dice
from benchmarks.plain_loop import Budget
from benchmarks.quality import Result
from template.data.dataset import Case
from template.models.metrics import SegmentationScores

ROOT = Path(__file__).parent.parent
REGIONS = {"liver": [1, 2], "tumour": [2]}


def test_dice_is_of_all_pixels_of_all_cases_together() -> None:
    first = np.array([[1, 2, 0, 0]]), np.array([[1, 1, 0, 0]])
    second = np.array([[2, 2]]), np.array([[0, 2]])
    # Liver: 2 and 1 pixels in common, 2 + 2 found, 2 + 1 true. Tumour: 0 and 1 in common, 1 + 2 found, 0 + 1 true.
    assert region_dice([first, second], REGIONS) == {"liver": 2 * 3 / (4 + 3), "tumour": 2 * 1 / (3 + 1)}


def test_dice_of_what_is_nowhere_is_not_a_number() -> None:
    nothing = np.zeros((2, 2), np.uint8)
    assert np.isnan(region_dice([(nothing, nothing)], REGIONS)["tumour"])
    assert region_dice([(nothing + 2, nothing)], REGIONS)["tumour"] == 0.0


def test_dice_refuses_masks_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"\(1, 4\) for a mask of \(2, 2\)"):
        region_dice([(np.zeros((1, 4)), np.zeros((2, 2)))], REGIONS)


def test_the_scorer_agrees_with_the_programs_own_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, true = torch.randint(0, 3, (2, 4, 8, 8), generator=generator)
    scores = SegmentationScores(3, REGIONS)
    scores.update(predicted, true)
    found = region_dice(zip(predicted.numpy(), true.numpy(), strict=True), REGIONS)
    assert found["liver"] == pytest.approx(scores.compute()["dice_liver"].item())
    assert found["tumour"] == pytest.approx(scores.compute()["dice_tumour"].item())


def test_masks_are_scored_from_their_files(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 2], [2, 1]], np.uint8)).save(tmp_path / "b.png")
    data = SimpleNamespace(
        regions=REGIONS,
        cases=lambda split: [Case("b", None)] if split == "test" else [],
        read=lambda case: (torch.zeros(1, 2, 2), torch.tensor([[0, 2], [1, 1]], dtype=torch.uint8)),
    )
    assert quality.score(tmp_path, data) == {"liver": 1.0, "tumour": pytest.approx(2 / 3)}


def test_a_budget_does_not_count_what_is_off_the_clock() -> None:
    now = [100.0]
    budget = Budget(5.0, lambda: now[0])
    now[0] += 2
    assert budget.spent == 2
    budget.off(lambda: now.__setitem__(0, now[0] + 50))
    assert budget.spent == 2
    now[0] += 3
    assert budget.spent == budget.seconds


def test_the_rate_falls_along_a_cosine_to_0_at_the_end_of_the_time() -> None:
    assert [plain_loop.rate(share) for share in (0, 1 / 3, 0.5, 1, 1.1)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 0, 0])


def test_a_plain_training_ends_with_its_budget_and_keeps_its_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = yaml.safe_load((ROOT / "configs" / "phantom.yaml").read_text(encoding="utf-8"))
    config["data"]["init_args"] |= {"train_cases": 10, "val_cases": 1, "size": 16}
    tiny = torch.nn.Conv2d(1, 3, 1)
    monkeypatch.setitem(plain_loop.NETWORKS, "tiny", lambda classes: (tiny, torch.nn.CrossEntropyLoss()))
    training = plain_loop.Training("tiny", config, 0, "both")
    ticks = [0.0]
    weights = []

    def step(rate: float) -> None:
        ticks[0] += 1.0
        before(rate)
        assert training.optimizer.param_groups[0]["lr"] == rate
        weights.append(tiny.weight.detach().clone())

    def score(pairs: object, regions: object) -> dict[str, float]:
        ticks[0] += 100.0  # off the clock
        return {"liver": 1.0 if len(weights) == 3 else 0.5}

    before = training.step
    monkeypatch.setattr(training, "step", step)
    monkeypatch.setattr(plain_loop, "region_dice", score)
    assert training.fit(Budget(6.0, lambda: ticks[0])) == 6
    assert torch.equal(tiny.weight, weights[2])
    assert not torch.equal(tiny.weight, weights[5])


def test_the_clock_counts_from_the_first_batch_to_the_end_of_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 14.0, 19.0])
    monkeypatch.setattr(cpu_clock.time, "process_time", lambda: next(times))
    net = torch.nn.Linear(2, 3)
    net.bias.requires_grad_(False)
    clock, trainer = CpuClock(str(tmp_path / "told.json")), SimpleNamespace(global_step=22)
    clock.on_train_epoch_start(trainer, net)
    clock.on_train_epoch_start(trainer, net)
    clock.on_fit_end(trainer, net)
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert told == {"seconds": 9.0, "epochs": [4.0, 5.0], "steps": 22, "parameters": 6}


def test_as_many_epochs_as_fit_into_the_time() -> None:
    assert quality.epochs_for(60.0, [2.5, 3.5]) == 20
    assert quality.epochs_for(1.0, [2.5, 3.5]) == 1


def test_a_schedule_is_stretched_with_the_epochs() -> None:
    step = {
        "model": {"lr_scheduler": {"init_args": {"max_lr": 1e-3, "total_steps": 880}}},
        "trainer": {"max_epochs": 80},
    }
    assert quality.stretched(step, 20) == ["--trainer.max_epochs=20", "--model.lr_scheduler.init_args.total_steps=220"]
    epoch = {"model": {"lr_scheduler": {"init_args": {"T_max": 15}}}, "trainer": {"max_epochs": 15}}
    assert quality.stretched(epoch, 7) == ["--trainer.max_epochs=7", "--model.lr_scheduler.init_args.T_max=7"]


@pytest.mark.parametrize("name", quality.DATA)
def test_the_shipped_configurations_are_those_that_the_measurement_reads(name: str) -> None:
    config = yaml.safe_load(quality.DATA[name][0].read_text(encoding="utf-8"))
    assert len(quality.stretched(config, 3)) == 2
    assert config["data"]["init_args"]["preprocess"][0]["class_path"] == "Window"
    assert config["data"]["init_args"]["batch_size"] == plain_loop.BATCH


def test_every_method_has_a_title() -> None:
    assert set(quality.TITLES) == {"template", *plain_loop.NETWORKS}


def test_the_table_has_the_median_and_the_range() -> None:
    results = [
        Result("liver", "template", seed, {"liver": liver, "tumour": 0.5}, 60.0, 100 + seed, 1_940_000)
        for seed, liver in enumerate([0.9, 0.97, 0.95])
    ]
    assert quality.table(results).splitlines()[2] == (
        "| liver | this template, its defaults | 0.950 (0.900–0.970) | 0.500 | 60 | 101 (100–102) | 1.9 M |"
    )
