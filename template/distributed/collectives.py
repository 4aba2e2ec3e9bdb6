"""Sums over all processes, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_group: dist.ProcessGroup | None = None
_local = False


def world_size() -> int:
    """Number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def use_group(group: dist.ProcessGroup | None) -> None:
    """Give the collectives of losses and normalisation layers a process group of their own.

    DDP sends gradients through the default group while the backward pass still runs; a group apart
    keeps the order of the two kinds of collectives from mixing.
    """
    global _group
    _group = group


def group() -> dist.ProcessGroup | None:
    """The group set by :func:`use_group`; ``None`` is the default group."""
    return _group


@contextmanager
def local_sums() -> Iterator[None]:
    """Within it :func:`global_sum` leaves the process alone, as evaluation needs, where shares differ in length."""
    global _local
    before, _local = _local, True
    try:
        yield
    finally:
        _local = before


class _GlobalSum(torch.autograd.Function):
    """All-reduce whose gradient needs no communication.

    Every process computes the same loss L from the sum S of its shares s_r, so dL/ds_r = dL/dS on each.
    DDP then averages the parameters' gradients over W processes; the factor W turns its average
    of the shares' gradients into their sum, which is the gradient of L.
    """

    @staticmethod
    def forward(ctx: Any, share: Tensor) -> Tensor:
        total = share.clone()
        dist.all_reduce(total, group=group())
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return grad_outputs[0] * world_size()


def global_sum(share: Tensor) -> Tensor:
    """Sum a tensor over all processes; differentiable for losses that are equal on all of them.

    Args:
        share: This process's share, any shape and floating dtype; same shape on every process.

    Returns:
        The sum, same shape and dtype; ``share`` itself with one process and within :func:`local_sums`.
    """
    if _local or world_size() == 1:
        return share
    summed: Tensor = _GlobalSum.apply(share)
    return summed
