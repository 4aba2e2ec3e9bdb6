"""The text of an exception: of any length, in any letters, even where it cannot be made. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

#: In a rank's folder: what it failed with.
ERROR_FILE = "error.txt"
#: Characters of an exception's text that are printed; ``error.txt`` has all of them.
LONGEST = 500


def text_of(error: BaseException) -> str:
    """``str(error)``; where the exception's class has a fault, what kept its text from being made."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - another one's code, of which nothing is known
        return f"(no text: its __str__ raises {type(fault).__name__})"


def shortened(text: str, limit: int = LONGEST) -> str:
    """The first characters of a text, and how many there are, where there are more."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()} … ({len(text)} characters in all)"


def printable(text: str) -> str:
    r"""A text that UTF-8 can hold: a file name in another encoding has halves of characters (``\udcfc``) in it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def listed(names: Sequence[str], most: int = 10) -> str:
    """The first names of a list in a sentence, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def ranks(numbers: list[int]) -> str:
    """``rank 1``, or ``ranks 1, 2 and 5``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
