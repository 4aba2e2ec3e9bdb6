"""Text files that list names, one a line."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

from ..distributed.faults import NamedError
from .splits import Split


def read_names(path: Path, key: str, name_of: Callable[[str], str] = str) -> list[str]:
    """Read the names that a text file lists.

    Args:
        path: The file, UTF-8 with or without its mark. Empty lines are passed over.
        key: The configuration's key that names it, for messages.
        name_of: What of a line is the name; default: all of it.

    Returns:
        The names in the file's order, each letter written as one character (NFC).

    Raises:
        NamedError: ``data-missing``: it is not there, or lists nothing; ``data-unreadable``; ``data-unpaired``: a name
            twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NamedError("data-missing", f"{key}: the list '{path}' does not exist.") from error
    except OSError as error:
        raise NamedError(
            "data-unreadable",
            f"{key}: the list '{path}' cannot be read: {error.strerror}.",
            cause="",
            fix="Correct the file, its link or its rights.",
        ) from error
    except UnicodeDecodeError as error:
        raise NamedError(
            "data-unreadable",
            f"{key}: the list '{path}' is no text in UTF-8 (byte {error.start}).",
            fix="Give a text file with one name a line.",
        ) from error
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
    where: dict[str, int] = {}
    for number, line in lines:
        if not line:
            continue
        name = unicodedata.normalize("NFC", name_of(line))
        if name in where:
            raise NamedError(
                "data-unpaired",
                f"{key}: '{path}' lists '{name}' twice, in the lines {where[name]} and {number}.",
                cause="Each image is in a split once.",
                fix="Remove one of the lines.",
            )
        where[name] = number
    if not where:
        raise NamedError("data-missing", f"{key}: the list '{path}' is empty.")
    return list(where)


def refuse_shared(lists: Mapping[Split, list[str]], files: Mapping[Split, Path]) -> None:
    """Refuse a name in two splits: what is trained on must not be scored.

    Args:
        lists: Split to its names.
        files: Split to the file that lists them.

    Raises:
        NamedError: ``data-unpaired``, with the first such name.
    """
    first: dict[str, Split] = {}
    for split, names in lists.items():
        for name in names:
            if name in first:
                raise NamedError(
                    "data-unpaired",
                    f"'{name}' is in '{files[first[name]]}' and in '{files[split]}'.",
                    cause="An image of two splits is trained on and scored.",
                    fix="Remove it from one of them, or choose lists that have no image in common.",
                )
            first[name] = split
