"""The random numbers of one sample: set by what it is, never by the worker or the process that makes it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from . import transforms

#: torchvision's own transforms draw from torch's generator; these may hold others, or a user's function.
_OF_TORCHVISION = "torchvision.transforms.v2._"
_HOLDING = ("_container", "_misc")


def draw_from_torch_alone(modules: Sequence[nn.Module]) -> bool:
    """Whether it is known of all of these transforms that they draw from torch's generator and from no other one."""
    return all(_from_torch(type(module).__module__) for module in modules)


def _from_torch(home: str) -> bool:
    of_torchvision = home.startswith(_OF_TORCHVISION) and not home.endswith(_HOLDING)
    return of_torchvision or home == transforms.__name__


@contextmanager
def seeded(*words: int, torch_alone: bool = False) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and restore them afterwards.

    Transforms of any library then draw numbers that depend on the words alone, never on the worker or the process.

    Args:
        words: Non-negative integers, such as (seed, epoch, sample).
        torch_alone: Leave numpy's and Python's as they are: to keep and restore them takes a tenth of the time that a
            sample out of a cache takes.
    """
    seeds = np.random.SeedSequence(words).generate_state(3)
    torch_state = torch.default_generator.get_state()
    python_state, numpy_state = (None, None) if torch_alone else (random.getstate(), np.random.get_state())
    # Not torch.manual_seed: it would seed the GPUs too, where dropout would then draw the same numbers in every step,
    # and for each GPU to come it writes down the stack, which takes more than a millisecond.
    torch.default_generator.manual_seed(int(seeds[0]))
    if not torch_alone:
        np.random.seed(seeds[1])
        random.seed(int(seeds[2]))
    try:
        yield
    finally:
        if python_state is not None and numpy_state is not None:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)
