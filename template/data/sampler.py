"""Which sample goes into which batch on which process: a function of the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


class GlobalBatchSampler(Sampler[list[tuple[int, int]]]):
    """Deals the global batches of a seeded permutation; each process takes its share.

    A global batch is cut into ``accumulation`` global micro-batches, and each of these into equal shares for the
    processes. Which samples form a global (micro-)batch does not depend on the number of processes. A smaller last
    global batch is dropped.

    Args:
        num_samples: Number of training samples.
        batch_size: Samples in one global batch (one optimizer step).
        accumulation: Micro-batches per global batch.
        rank: This process.
        world_size: Number of processes. ``batch_size`` must be a multiple of ``accumulation * world_size``.
        seed: Seed of the run; the permutation of an epoch is drawn from (seed, epoch).

    Yields:
        One list of (epoch, sample index) for each micro-batch of this process. The epoch travels with the index so
        that a data-loader worker, which never hears of epochs, can seed the augmentation.
    """

    def __init__(
        self, num_samples: int, batch_size: int, accumulation: int, rank: int, world_size: int, seed: int
    ) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0
        self.first = 0
        # Lightning calls set_epoch on `loader.batch_sampler.sampler`.
        self.sampler = self

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch over all processes."""
        return self.batch_size // self.accumulation

    def set_epoch(self, epoch: int) -> None:
        """Deal the batches of another epoch from its first one."""
        if epoch != self.epoch:
            self.epoch, self.first = epoch, 0

    def set_position(self, epoch: int, first: int) -> None:
        """Deal next the micro-batch ``first`` of ``epoch``, as a resumed run needs it."""
        self.epoch, self.first = epoch, first

    def __len__(self) -> int:
        """Micro-batches of a whole epoch on each process."""
        return self.num_samples // self.batch_size * self.accumulation

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, first = self.epoch, self.first
        order = np.random.default_rng((self.seed, epoch)).permutation(self.num_samples)
        share = self.micro_batch // self.world_size
        for number in range(first, len(self)):
            start = number * self.micro_batch + self.rank * share
            yield [(epoch, int(index)) for index in order[start : start + share]]


class EvaluationBatchSampler(Sampler[list[int]]):
    """Deals every sample to exactly one process: nothing padded, nothing dropped.

    Shares may differ in length by one. A process without a sample gets one empty batch, so that it still takes part
    in what follows the loop.

    Args:
        num_samples: Number of samples.
        batch_size: Most samples in one batch of one process.
        rank: This process.
        world_size: Number of processes.
    """

    def __init__(self, num_samples: int, batch_size: int, rank: int, world_size: int) -> None:
        self.indices: Sequence[int] = range(rank, num_samples, world_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Batches of this process."""
        return max(1, -(-len(self.indices) // self.batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, max(1, len(self.indices)), self.batch_size):
            yield list(self.indices[start : start + self.batch_size])
