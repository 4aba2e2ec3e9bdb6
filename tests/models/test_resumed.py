"""Settings given at a resume against those in the checkpoint; learning rates by the formulas of the schedules."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, ReduceLROnPlateau, StepLR

from template.models.resumed import Settings


def stepped(optimizer: Optimizer, schedule: Any = None, steps: int = 0) -> None:
    """Take steps, each moving the schedule."""
    for _ in range(steps):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if schedule is not None:
            schedule.step()


def resumed(before: Optimizer, after: Optimizer, schedule: Any = None, new_schedule: Any = None) -> list[str]:
    """Load the state of one optimizer and schedule into others, as a resume does."""
    settings = Settings(after, new_schedule)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    if schedule is not None:
        new_schedule.load_state_dict(copy.deepcopy(schedule.state_dict()))
    return settings.restore(after, new_schedule)


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]


def test_the_same_settings_change_nothing() -> None:
    before, after = AdamW(parameters(), lr=0.1, weight_decay=0.3), AdamW(parameters(), lr=0.1, weight_decay=0.3)
    stepped(before, steps=3)
    assert resumed(before, after) == []
    assert after.param_groups[0]["lr"] == 0.1
    assert after.state_dict()["state"][0]["step"] == 3


def test_what_is_given_wins_and_is_told() -> None:
    before, after = AdamW(parameters(), lr=0.1), AdamW(parameters(), lr=0.02, betas=(0.8, 0.99), weight_decay=0.5)
    stepped(before, steps=3)
    told = resumed(before, after)
    group = after.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.02, (0.8, 0.99), 0.5)
    assert [line.partition(",")[0] for line in told] == [
        "model.optimizer.lr is 0.02",
        "model.optimizer.betas is (0.8",
        "model.optimizer.weight_decay is 0.5",
    ]
    assert told[0] == "model.optimizer.lr is 0.02, and was 0.1 when the checkpoint was written: 0.02 is used"
    # The moments of the checkpoint are kept.
    assert after.state_dict()["state"][0]["step"] == 3


def test_every_group_keeps_its_own() -> None:
    one, two = parameters()
    before = SGD([{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.2}], momentum=0.9)
    one, two = parameters()
    after = SGD([{"params": [one], "lr": 0.3}, {"params": [two], "lr": 0.2}], momentum=0.8)
    told = resumed(before, after)
    assert [(group["lr"], group["momentum"]) for group in after.param_groups] == [(0.3, 0.8), (0.2, 0.8)]
    assert len(told) == 2  # momentum is told once


@pytest.mark.parametrize("done", [0, 1, 4])
def test_a_schedule_goes_on_from_another_learning_rate(done: int) -> None:
    before, after = SGD(parameters(), lr=0.4), SGD(parameters(), lr=0.1)
    schedule, new_schedule = CosineAnnealingLR(before, T_max=10), CosineAnnealingLR(after, T_max=10)
    stepped(before, schedule, done)
    (line,) = resumed(before, after, schedule, new_schedule)
    assert line.startswith("model.optimizer.lr is 0.1, and was 0.4")
    for epoch in range(done, 10):
        # Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, with a lowest rate of 0.
        assert after.param_groups[0]["lr"] == pytest.approx(0.1 * (1 + math.cos(math.pi * epoch / 10)) / 2)
        stepped(after, new_schedule, 1)


def test_a_schedule_of_another_length_or_factor() -> None:
    before, after = SGD(parameters(), lr=0.8), SGD(parameters(), lr=0.8)
    schedule, new_schedule = StepLR(before, step_size=2, gamma=0.5), StepLR(after, step_size=3, gamma=0.1)
    stepped(before, schedule, 2)
    told = resumed(before, after, schedule, new_schedule)
    assert [line.partition(",")[0] for line in told] == [
        "model.lr_scheduler.step_size is 3",
        "model.lr_scheduler.gamma is 0.1",
    ]
    assert after.param_groups[0]["lr"] == 0.4  # what was reached
    stepped(after, new_schedule, 1)
    assert after.param_groups[0]["lr"] == pytest.approx(0.04)  # the third step


def test_milestones_are_settings() -> None:
    before, after = SGD(parameters(), lr=1.0), SGD(parameters(), lr=1.0)
    schedule, new_schedule = MultiStepLR(before, [5]), MultiStepLR(after, [1])
    (line,) = resumed(before, after, schedule, new_schedule)
    assert "model.lr_scheduler.milestones" in line
    stepped(after, new_schedule, 1)
    assert after.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_rate_that_a_plateau_has_lowered_stays() -> None:
    before, after = SGD(parameters(), lr=1.0), SGD(parameters(), lr=1.0)
    schedule, new_schedule = ReduceLROnPlateau(before, patience=0), ReduceLROnPlateau(after, patience=2)
    for loss in (1.0, 2.0):
        schedule.step(loss)
    assert before.param_groups[0]["lr"] == pytest.approx(0.1)
    told = resumed(before, after, schedule, new_schedule)
    assert after.param_groups[0]["lr"] == pytest.approx(0.1)
    assert [line.partition(",")[0] for line in told] == ["model.lr_scheduler.patience is 2"]
    assert new_schedule.best == 1.0
