from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from template.doctor.finding import Finding
from template.doctor.schedule import the_schedule_fits_the_steps
from tests.doctor.rehearsed import examine


def told(folder: Path, make: Callable[[Any], Any] | None, interval: str = "step", **asked: Any) -> Finding:
    """Of a run of 3 epochs of 2 steps, unless it is asked for something else."""
    (found,) = examine(
        the_schedule_fits_the_steps,
        folder,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        lr_scheduler=make,
        lr_interval=interval,
        asked=asked,
    )
    return found


def test_a_schedule_that_ends_before_the_run_fails(tmp_path: Path) -> None:
    found = told(tmp_path, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=4))
    assert (found.id, found.status) == ("schedule", "fail")
    assert found.subject.startswith("OneCycleLR ends after ")
    assert " of the run's 6 steps" in found.subject
    assert "total_steps to 6" in found.fix


def test_one_that_ends_with_the_run_passes(tmp_path: Path) -> None:
    found = told(tmp_path, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6))
    assert found.status == "pass"
    # max_lr / 25 to max_lr / 25 / 1e4, PyTorch's defaults.
    assert found.subject == "OneCycleLR: 2.0e-02 to 2.0e-06 in 6 steps, 5.0e-01 at most"


@pytest.mark.parametrize(("length", "status"), [(6, "pass"), (60, "warn"), (3, "warn")])
def test_a_cosine_of_another_length_is_a_warning(length: int, status: str, tmp_path: Path) -> None:
    found = told(tmp_path, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=length))
    assert found.status == status
    if status == "warn":
        assert f"is made for {length} steps, and the run has 6" in found.subject
        assert "T_max to 6" in found.fix


@pytest.mark.parametrize(
    ("asked", "interval", "total"),
    [
        ({"max_epochs": 10}, "epoch", "10 epochs"),
        ({"max_epochs": 10}, "step", "20 steps"),
        ({"max_epochs": None}, "epoch", "1000 epochs"),
        ({"max_epochs": -1, "max_steps": 7}, "step", "7 steps"),
        ({"max_epochs": 10, "limit_train_batches": 1}, "step", "10 steps"),
        ({"max_epochs": 10, "limit_train_batches": 0.5}, "step", "10 steps"),
        ({"max_epochs": 10, "accumulate_grad_batches": 2}, "step", "20 steps"),
    ],
)
def test_the_length_of_the_run_is_that_of_the_whole_one(
    asked: dict[str, Any], interval: str, total: str, tmp_path: Path
) -> None:
    found = told(tmp_path, lr_scheduler.ConstantLR, interval, **asked)
    assert f" in {total}," in found.subject


def test_without_a_schedule_or_an_end_there_is_nothing_to_find(tmp_path: Path) -> None:
    assert "stays as it is" in told(tmp_path, None).subject
    endless = told(tmp_path, lr_scheduler.ConstantLR, max_epochs=-1)
    assert endless.status == "pass"
    plateau = told(tmp_path, lr_scheduler.ReduceLROnPlateau)
    assert plateau.subject == "ReduceLROnPlateau, by its metric"


def test_playing_it_through_does_not_move_the_real_one(tmp_path: Path) -> None:
    made: list[Any] = []

    def make(optimizer: Any) -> Any:
        made.append(lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6))
        return made[-1]

    told(tmp_path, make)
    assert made[0].last_epoch == 0
    assert made[0].optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
