"""Lengths and sizes of what is segmented, in the unit that a case's file allows, and tables of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..distributed.faults import NamedError
from ..distributed.told import printable


class Unit(NamedTuple):
    """How pixels or voxels of a case are measured.

    Attributes:
        edges: Of a pixel or voxel, along each axis, in the unit of lengths.
        length: Name of the unit of lengths.
        size: Name of the unit of areas or volumes.
        factor: Area or volume of one pixel or voxel.
    """

    edges: tuple[float, ...]
    length: str
    size: str
    factor: float


def unit_of(spacing: Sequence[float] | None, axes: int) -> Unit:
    """The unit of a case: millimetres and millilitres, or mm², where its spacing is known, else pixels or voxels.

    Args:
        spacing: In mm; of a slice of a volume, only that of its own axes counts.
        axes: Of the mask.
    """
    if spacing is None or len(spacing) < axes:
        name = "pixels" if axes == 2 else "voxels"
        return Unit((1.0,) * axes, name, name, 1.0)
    edges = tuple(float(edge) for edge in spacing)[-axes:]
    volume = math.prod(edges)
    return Unit(edges, "mm", "mm²", volume) if axes == 2 else Unit(edges, "mm", "ml", volume / 1000)


def write_table(file: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Write a CSV file; NaN becomes an empty cell.

    Raises:
        NamedError: ``folder-not-writable``.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(columns))
            writer.writeheader()
            writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    except OSError as error:
        raise NamedError("folder-not-writable", f"'{file}' cannot be written: {error.strerror or error}.") from error


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return printable(str(value))
