"""Watches that all ranks train the same network."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ..distributed.agreement import by_rank, gathered
from ..distributed.collectives import group, world_size
from ..distributed.faults import NamedError
from ..distributed.sync_batchnorm import unsynchronised

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class DivergenceSentinel(Callback):
    """Compares parameters, buffers and learning rates of all ranks: after the first step, and then every few steps.

    ``fit`` always looks after the first step; more is off unless this callback is asked for.

    A checksum of each is sent, the sum of its bits read as integers, which rounds nothing: 8 bytes for each tensor,
    all in one collective. Statistics of BatchNorm layers that are not synchronised differ by design and are left out.

    Args:
        every_n_steps: Optimizer steps from one comparison to the next; 0: the first step of a start alone.
    """

    def __init__(self, every_n_steps: int = 100) -> None:
        if every_n_steps < 0:
            raise NamedError("config", f"DivergenceSentinel: every_n_steps is {every_n_steps}; it must be 0 or more.")
        self.every_n_steps = every_n_steps
        self._start = self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From which step on the first one is waited for."""
        self._start = self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Compare, if it is time.

        Raises:
            NamedError: The ranks have parted; the first tensor that differs is named.
        """
        step = trainer.global_step
        due = step == self._start + 1 or (self.every_n_steps and step % self.every_n_steps == 0)
        if step == self._step or not due or world_size() == 1:  # a step of an accumulation ends once
            return
        self._step = step
        tensors = dict(_tensors(pl_module))
        rates = dict(_rates(trainer))
        sums = [*map(checksum, tensors.values())]
        here = torch.stack([*sums, *(torch.tensor(_bits(rate), device=pl_module.device) for rate in rates.values())])
        everywhere = [torch.empty_like(here) for _ in range(world_size())]
        dist.all_gather(everywhere, here, group=group())
        # One look at the device.
        different = (torch.stack(everywhere) != here).any(0).nonzero().flatten().tolist()
        if not different:
            return
        names = [*tensors, *rates]
        name = names[different[0]]
        value = rates[name] if name in rates else f"{tensors[name].detach().double().norm().item():.9g}"
        more = f" and so do {len(different) - 1} more" if len(different) > 1 else ""
        raise NamedError(
            "ranks-differ",
            f"After step {step} {name} differs between the ranks{more}; its "
            f"{'value' if name in rates else 'norm'} is {by_rank(gathered(value))}.",
        )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    lazy = (nn.UninitializedParameter, nn.UninitializedBuffer)
    yield from ((name, p) for name, p in module.named_parameters() if not isinstance(p, lazy))
    layers = [layer for layer in unsynchronised(module) if layer.training]
    own = {id(buffer) for layer in layers for buffer in layer.buffers(recurse=False)}
    yield from ((name, b) for name, b in module.named_buffers() if id(b) not in own and not isinstance(b, lazy))


def _rates(trainer: Trainer) -> Iterator[tuple[str, float]]:
    for i, optimizer in enumerate(trainer.optimizers):
        for j, parameters in enumerate(optimizer.param_groups):
            yield f"the learning rate of optimizer {i}, group {j}", float(parameters["lr"])


def checksum(tensor: Tensor) -> Tensor:
    """Sum of a tensor's bits, read as integers: int64, scalar."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def _bits(rate: float) -> int:
    """A float64, read as an integer."""
    return int(struct.unpack("<q", struct.pack("<d", rate))[0])
