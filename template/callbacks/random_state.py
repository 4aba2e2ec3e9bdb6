"""The state of every generator of random numbers that a process has, in plain types."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """State of the generators of Python, NumPy and torch on the CPU and on the process's device.

    Args:
        device: Where the process trains.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Go on with the numbers that were to come when a state was taken.

    Args:
        state: As of :func:`random_state`.
        device: Where the process trains.
    """
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def seed_from(*words: int) -> None:
    """Seed all generators of this process from non-negative integers, such as (seed, step)."""
    seeds = np.random.SeedSequence(words).generate_state(3)
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])
    torch.manual_seed(int(seeds[2]))
