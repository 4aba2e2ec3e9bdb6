from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from template.data.seeding import draw_from_torch_alone, seeded
from template.data.transforms import RandomIntensity, RandomWarp, Standardize


class Own(RandomWarp):
    """May draw from anything."""


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


@pytest.mark.parametrize(
    ("modules", "alone"),
    [
        ([], True),
        ([RandomWarp(), RandomIntensity(), Standardize()], True),
        ([v2.RandomHorizontalFlip(), v2.ColorJitter(0.2), v2.RandomErasing()], True),
        ([RandomWarp(), Own()], False),
        ([nn.Identity()], False),
        ([v2.Lambda(lambda image: image + np.random.rand())], False),
        ([v2.Compose([RandomWarp()])], False),
        ([v2.RandomApply([Own()])], False),
    ],
)
def test_what_draws_from_torch_alone_is_known_and_not_guessed(modules: list[nn.Module], alone: bool) -> None:
    assert draw_from_torch_alone(modules) == alone


def test_torch_alone_draws_the_same_and_leaves_the_others() -> None:
    with seeded(1, 2, 3):
        every = drawn()
    np.random.seed(7)
    random.seed(7)
    undisturbed = float(np.random.rand()), random.random()
    np.random.seed(7)
    random.seed(7)
    before = torch.get_rng_state()
    with seeded(1, 2, 3, torch_alone=True):
        assert torch.rand(()).item() == every[0]
        assert (float(np.random.rand()), random.random()) == undisturbed
    assert torch.equal(torch.get_rng_state(), before)
