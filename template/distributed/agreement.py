"""Compares between the ranks what must be the same on all of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Trainer

from .collectives import group, world_size
from .faults import NamedError
from .told import ranks
from .world import current_store


def gathered(value: Any) -> list[Any]:
    """A value of every rank, by rank; called on all of them. The value can be pickled, and is small."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value, group=group())
    return values


def by_rank(values: Iterable[Any]) -> str:
    """``3.0 on rank 0, 1.0 on ranks 1 and 2``: equal values together, in the order of the ranks."""
    places: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        places.setdefault(str(value), []).append(rank)
    return ", ".join(f"{value} on {ranks(where)}" for value, where in places.items())


def told_by_all(key: str, text: str, seconds: float = 3.0) -> dict[int, str]:
    """What each rank has to tell, of those that tell it within some seconds; no collective, so that none must come.

    Args:
        key: Of the question, asked once in a run.
        text: What this rank tells.
        seconds: Longest wait for the others.
    """
    if world_size() == 1:
        return {0: text}
    store = _store()
    rank, keys = dist.get_rank(), [f"told/{key}/{rank}" for rank in range(world_size())]
    store.set(keys[rank], text)
    deadline = time.monotonic() + seconds
    while not store.check(keys) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {rank: store.get(key).decode() for rank, key in enumerate(keys) if store.check([key])}


def _store() -> Any:
    return current_store() or dist.distributed_c10d._get_default_store()


class StreamLengths:
    """Finds the rank whose loader ends first, where loaders do not know their lengths beforehand.

    Each rank says in the store, before a batch, how many it has got: a message to the store a step, no collective. One
    that has no more waits until the others have none either, or one has got another.
    """

    def got(self, epoch: int, batches: int) -> None:
        """A rank has got so many batches in an epoch."""
        self._say(epoch, batches, 0)

    def ended(self, epoch: int, batches: int, seconds: float = 30.0) -> None:
        """A rank gets no more.

        Args:
            epoch: The epoch.
            batches: How many it got.
            seconds: Longest wait for the others, which are a step behind at most.

        Raises:
            NamedError: Another rank has got more.
        """
        self._say(epoch, batches, 1)
        store, deadline = _store(), time.monotonic() + seconds
        waited_for = set(range(world_size())) - {dist.get_rank()}
        while waited_for and time.monotonic() < deadline:
            for rank in sorted(waited_for):
                if not store.check([self._key(rank)]):
                    continue
                its_epoch, its_batches, its_end = map(int, store.get(self._key(rank)).decode().split())
                if its_epoch == epoch and its_batches > batches:
                    raise NamedError(
                        "batches-differ",
                        f"The training loader ended after {batches} batches on rank {dist.get_rank()}, and rank "
                        f"{rank} has got another.",
                    )
                if its_epoch > epoch or (its_epoch == epoch and its_end):
                    waited_for.discard(rank)
            time.sleep(0.02)

    def _say(self, *numbers: int) -> None:
        _store().set(self._key(dist.get_rank()), " ".join(map(str, numbers)))

    def _key(self, rank: int) -> str:
        return f"batches/{rank}"


class LoggedNames:
    """Sees to it that all ranks reduce the same logged values in the same order.

    Reductions are matched by their order and not by name: Lightning would mix values without a word. The comparison
    comes before the first reduction at the end of a phase, and on a rank that has nothing to reduce in
    :class:`~..callbacks.agreement.Agreement`, so that both meet.
    """

    def __init__(self) -> None:
        self._agreed: list[str] | None = None

    def begin(self) -> None:
        """A phase begins, or goes on: there may be other names at its end."""
        self._agreed = None

    def check(self, trainer: Trainer) -> None:
        """Compare the names that are reduced at the end of a phase; called on every rank.

        Raises:
            NamedError: They differ.
        """
        connector: Any = trainer._logger_connector
        results: Any = trainer._results
        if world_size() == 1 or results is None or connector._first_loop_iter is not None:  # inside of the phase
            return
        names = [
            metric.meta.name for _, metric in results.valid_items() if not metric.is_tensor or metric.meta.sync.should
        ]
        if names == self._agreed:
            return
        everywhere = gathered(names)
        if any(other != names for other in everywhere):
            lists = by_rank(f"[{', '.join(some)}]" for some in everywhere)
            raise NamedError(
                "metrics-differ", f"The ranks have logged different metrics, or in another order: {lists}."
            )
        self._agreed = names
