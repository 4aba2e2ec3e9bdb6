"""From an exception of torch to the failure with a name: numbers and shapes become parameters and buffers."""

from __future__ import annotations

import re

from torch import nn

from .faults import NamedError
from .probe import trainable_names

_UNUSED = re.compile(r"Expected to have finished reduction in the prior iteration")
_INDICES = re.compile(r"did not receive grad for rank (\d+)\s*:\s*((?:\d+\s*)+)")
_TWICE = re.compile(r"Expected to mark a variable ready only once.*?Parameter at index (\d+)", re.DOTALL)
_INPLACE = re.compile(r"modified by an inplace operation: \[[\w.]*Tensor \[([\d, ]*)\]\]")


def diagnose(error: BaseException, module: nn.Module, rank: int) -> NamedError | None:
    """Name what an exception of a training step means.

    Args:
        error: The exception.
        module: The module that DDP wraps, whose parameters it numbers.
        rank: This rank.

    Returns:
        The named failure, or None for an exception that is none of DDP's.
    """
    text = str(error)
    if _UNUSED.search(text):
        return _unused(text, module, rank)
    if match := _TWICE.search(text):
        names = _named(module, [int(match[1])])
        return NamedError("ready-twice", f"The gradient of {names} is ready twice in one step on rank {rank}.")
    if match := _INPLACE.search(text):
        shape = [int(number) for number in re.findall(r"\d+", match[1])]
        same = [name for name, buffer in module.named_buffers() if list(buffer.shape) == shape]
        same += [name for name, parameter in module.named_parameters() if list(parameter.shape) == shape]
        which = f"one of {', '.join(same[:10])}" if same else "none of the network's own tensors"
        return NamedError(
            "changed-in-place", f"A tensor of shape {shape} was changed in place before its backward pass: {which}."
        )
    return None


def _unused(text: str, module: nn.Module, rank: int) -> NamedError:
    """DDP complains one step late, with parameter numbers at best."""
    match = _INDICES.search(text)
    names = _named(module, [int(number) for number in match[2].split()]) if match else "some trainable parameters"
    where = int(match[1]) if match else rank
    return NamedError(
        "unused-parameters",
        f"In an earlier step {names} got no gradient on rank {where}, although the first step used them all.",
        cause="A branch of the network or of the loss was not taken for this rank's samples, or the parameters were "
        "frozen after the start.",
    )


def _named(module: nn.Module, indices: list[int]) -> str:
    names = trainable_names(module)
    found = [names[index] if index < len(names) else f"parameter {index}" for index in indices]
    return ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
