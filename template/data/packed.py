"""Cases of a data set as one block of memory, which loader processes share."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Generic, TypeVar, overload

import numpy as np

T = TypeVar("T", bound=tuple[Any, ...])

#: Fewer are left as they are: to unpack one takes some microseconds.
_FEW = 1000


class Packed(Sequence[T], Generic[T]):
    """A read-only list of named tuples, each made when it is asked for.

    A loader process gets the memory of the training process as it is at the start, page by page as either writes to it.
    Python writes to an object whenever it is looked at (it counts who holds it), so that with a list of a million cases
    each loader process soon has one of its own, of 0.4 GB. Into this block nobody writes.

    Args:
        items: Named tuples of one type that survive pickling.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self._make: Callable[[Any], T] = type(items[0])._make  # type: ignore[attr-defined]
        packed = [pickle.dumps(tuple(item), pickle.HIGHEST_PROTOCOL) for item in items]
        self._ends = np.fromiter(itertools.accumulate(map(len, packed), initial=0), np.int64, len(packed) + 1)
        self._block = b"".join(packed)

    def __len__(self) -> int:
        """Number of items."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        """One item, or a list of some."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._make(pickle.loads(memoryview(self._block)[self._ends[place] : self._ends[place + 1]]))


def packed(items: Sequence[T]) -> Sequence[T]:
    """Many items as one block of memory.

    Args:
        items: Named tuples of one type.

    Returns:
        The items; as they are where there are few, or where the first one holds other things than numbers, texts,
        paths and tuples of them: an array would be copied at each look, and a thing with a state would lose it.
    """
    return Packed(items) if len(items) >= _FEW and _is_plain(items[0]) else items


def _is_plain(thing: Any) -> bool:
    if isinstance(thing, tuple):
        return all(map(_is_plain, thing))
    return thing is None or isinstance(thing, str | bytes | int | float | PurePath)
