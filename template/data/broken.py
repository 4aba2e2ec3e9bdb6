"""What ``predict`` passes over: cases that cannot be read, told when all others are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..distributed.faults import NamedError
from ..distributed.told import listed

#: What may be wrong with one case while others are good. A full disk, or a library that is missing, is not among them.
OF_A_CASE = frozenset(
    {
        "data-geometry",
        "data-missing",
        "data-not-finite",
        "data-size-mismatch",
        "data-unreadable",
        "image-channels",
        "mask-values",
        "transform",
    }
)


class Broken(NamedTuple):
    """A case that cannot be read, in the place of its sample.

    Attributes:
        case: The :class:`Case`.
        error: What is wrong with it.
    """

    case: Any
    error: NamedError


def broken(case: Any, error: NamedError) -> Broken:
    """A case and its failure.

    Raises:
        NamedError: The failure, where it is not one of a case.
    """
    if error.identifier not in OF_A_CASE:
        raise error
    # Another one of the same words: the traceback of this one holds what was read of the case.
    return Broken(case, NamedError(error.identifier, error.what, error.cause, error.fix))


def parted(batch: Any) -> tuple[Any, list[Broken]]:
    """A batch without its broken cases, and these."""
    if not isinstance(batch, list):
        return batch, []
    return [part for part in batch if not isinstance(part, Broken)], [
        part for part in batch if isinstance(part, Broken)
    ]


def refusal(failures: Sequence[NamedError], names: Sequence[str], good: int) -> NamedError:
    """One failure for all broken cases.

    Args:
        failures: Of the broken cases, at least one; the first one speaks for all.
        names: Of the broken cases.
        good: Number of the cases that were predicted.
    """
    first = failures[0]
    others = [f"'{name}'" for name in names[1:]]
    told = f"{first.what} Not predicted either: {listed(others)}." if others else first.what
    told += f" Predicted: {good} of {good + len(names)} cases." if good else ""
    return NamedError(first.identifier, told, first.cause, first.fix)
