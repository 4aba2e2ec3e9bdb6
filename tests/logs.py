"""Recorded texts of failures and of healthy runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

LOGS = Path(__file__).parent / "assets" / "logs"


def known_texts(identifier: str = "*") -> list[tuple[str, str]]:
    """Identifier and text of each recorded failure; a line ``%%`` separates the texts of a file."""
    return [
        (file.stem, text)
        for file in sorted((LOGS / "known").glob(f"{identifier}.txt"))
        for text in file.read_text(encoding="utf-8").rstrip("\n").split("\n%%\n")
    ]


def wrapped(text: str, width: int) -> str:
    """As a terminal breaks lines: anywhere."""
    return "\n".join(line[i : i + width] for line in text.split("\n") for i in range(0, max(1, len(line)), width))


def prefixed(text: str, prefix: str) -> str:
    """Each line behind a prefix."""
    return "\n".join(prefix + line for line in text.split("\n"))


def interleaved(*texts: str | Sequence[str]) -> str:
    """The lines of several texts in turn."""
    rows = [text.split("\n") if isinstance(text, str) else list(text) for text in texts]
    longest = max(len(row) for row in rows)
    return "\n".join(row[i] for i in range(longest) for row in rows if i < len(row))


def healthy_lines(count: int) -> list[str]:
    """Lines of a training that goes well."""
    return [
        f"step {i} lr=1.0e-03 find_unused_parameters=False timeout: 30m unused parameters: none "
        f"train/dice=0.{i % 1000:03d} data/wait=0.001"
        for i in range(count)
    ]
