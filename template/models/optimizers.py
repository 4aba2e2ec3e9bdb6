"""Optimizer and schedule as the configuration says, in the form that suits the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from ..distributed.faults import NamedError

#: Optimizers of torch that can do a step in one go on a GPU; other classes may mean something else by the argument.
_FUSE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def configured(key: str, make: Callable[[Any], Any], argument: Any) -> Any:
    """Make the optimizer or the schedule; what it does not accept is a matter of the configuration."""
    try:
        return make(argument)
    except (ValueError, TypeError) as error:
        raise NamedError("config", f"{key} is refused: {error}.", cause="", fix="Correct its init_args.") from error


def fused(optimizer: Optimizer, clips: bool) -> Optimizer:
    """The optimizer as one kernel a step where that is safe: on GPUs, and where the user has chosen no other form.

    The result differs by rounding alone. Without it torch computes a step in several kernels (``foreach``), each
    of which reads and writes all parameters.

    Args:
        optimizer: As built, without a state.
        clips: Whether Lightning clips its gradients in 16-bit mixed precision; it refuses to do so for a fused one.

    Returns:
        The optimizer itself, or one of its class with the same parameter groups and ``fused=True``.
    """
    free = all(
        group.get("fused") is None and group.get("foreach") is None and not group.get("differentiable")
        for group in optimizer.param_groups
    )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if clips or not free or type(optimizer) not in _FUSE or not all(map(_suits, parameters)):
        return optimizer
    arguments = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in arguments}
    groups = [{**group, "fused": True} for group in optimizer.param_groups]
    return type(optimizer)(groups, **{**settings, "fused": True})


def _suits(parameter: torch.Tensor) -> bool:
    return parameter.is_cuda and parameter.is_floating_point()
