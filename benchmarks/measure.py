"""What all benchmarks share: candidates measured in turns, medians and ranges, and tables of them.

Candidates take turns within each round, so that whatever else the machine does meets all of them, and ratios are those
of single rounds: on a busy machine a ratio stays where it is while the seconds do not.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch


class Measured(NamedTuple):
    """A value of each round: seconds, or what is made of them.

    Attributes:
        values: In the order of the rounds.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the rounds have less."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The least."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The most."""
        return max(self.values)

    def each(self, of: Callable[[float], float]) -> Measured:
        """Something else of each round, such as ``lambda seconds: slices / seconds``."""
        return Measured(tuple(map(of, self.values)))

    def told(self, form: str = ".3g") -> str:
        """Median and range, for a cell of a table."""
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"

    def plain(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "low": self.low, "high": self.high, "rounds": len(self.values)}


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measured]:
    """Measure candidates in turns, each round beginning with another one.

    Args:
        candidates: What is called, by name.
        rounds: How often.
        warm: Whether each is called once before, unmeasured.
        clock: Seconds; wall time unless ``time.process_time`` or another is given.

    Returns:
        Seconds of each candidate.
    """
    names = list(candidates)
    if warm:
        for call in candidates.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            candidates[name]()
            seconds[name].append(clock() - start)
    return {name: Measured(tuple(values)) for name, values in seconds.items()}


def turns(candidates: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Measured]:
    """Let candidates take turns that measure themselves, such as the seconds of a step within a whole training.

    Args:
        candidates: Each gives what it has measured, by name.
        rounds: How often; there is one more before, which does not count.

    Returns:
        What each candidate gave.
    """
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, call in candidates.items():
            value = call()
            if number:
                values[name].append(value)
    return {name: Measured(tuple(found)) for name, found in values.items()}


def ratio(one: Measured, other: Measured) -> Measured:
    """How many times the other the one is, round by round."""
    return Measured(tuple(a / b for a, b in zip(one.values, other.values, strict=True)))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> dict[str, str]:
    """What the numbers depend on: processor, cores and threads in use, versions."""
    processor = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line[:10] == "model name"]
        processor = next(iter(names), processor)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": processor or platform.machine(),
        "cores": str(cores),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
