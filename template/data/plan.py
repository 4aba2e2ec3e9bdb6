"""How a global batch is shared out to processes and accumulation steps."""

from __future__ import annotations

from typing import NamedTuple

from ..distributed.faults import NamedError


class BatchPlan(NamedTuple):
    """How a global batch is shared out.

    Attributes:
        batch_size: Samples of one optimizer step.
        world_size: Processes.
        micro_batch: Samples of one process in one forward pass.
        accumulation: Forward passes in one optimizer step.
        steps: Optimizer steps in an epoch.
        dropped: Samples of the smaller last global batch, which each epoch leaves out.
    """

    batch_size: int
    world_size: int
    micro_batch: int
    accumulation: int
    steps: int
    dropped: int

    def __str__(self) -> str:
        processes = f"{self.world_size} process{'es' if self.world_size > 1 else ''}"
        return (
            f"global batch {self.batch_size} = {processes} × {self.micro_batch} × {self.accumulation} accumulation; "
            f"{self.steps} steps an epoch"
        )


def plan_batches(num_samples: int, batch_size: int, world_size: int, accumulation: int) -> BatchPlan:
    """Share a global batch out to processes and accumulation steps.

    Raises:
        NamedError: ``batch-size`` where it does not divide, ``too-few-samples`` where no whole batch is left.
    """
    unit = world_size * accumulation
    if batch_size < 1 or batch_size % unit:
        below, above = batch_size // unit * unit, (batch_size // unit + 1) * unit
        numbers = f"{below} or {above}" if below > 0 else f"{above}"
        raise NamedError(
            "batch-size",
            f"data.batch_size {batch_size} cannot be shared out to {world_size} processes × {accumulation} "
            "accumulation steps.",
            fix=f"Set data.batch_size to {numbers}, or change trainer.devices or trainer.accumulate_grad_batches.",
        )
    steps, dropped = divmod(num_samples, batch_size)
    if steps == 0:
        none = num_samples == 0
        raise NamedError(
            "too-few-samples",
            f"There are {num_samples or 'no'} training samples for a global batch of {batch_size}.",
            cause="cases('train') lists none." if none else None,
            fix="Look at the folder or the pattern that they are found by." if none else None,
        )
    return BatchPlan(batch_size, world_size, batch_size // unit, accumulation, steps, dropped)
