"""Messages of the configuration parser, made readable."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNKNOWN_KEY = (
    r"does not accept option '(?P<key>[\w.\-]+)'",
    r"[Kk]ey[s]? \"?'?(?P<key>[\w.\-]+)'?\"? is not (?:expected|accepted)",
    r"[Uu]nrecogni[sz]ed arguments: --(?P<key>[\w.\-]+)",
    r"Option '(?P<key>[\w.\-]+)' is not accepted",
)


def readable(message: str, known: Iterable[str]) -> tuple[str, str]:
    """Turn a parser's message into a sentence and a fix.

    Args:
        message: What jsonargparse says, which may run over many lines.
        known: Keys that would have been accepted.

    Returns:
        What is wrong, and what to do.
    """
    fix = "--help and --print_config show what is accepted."
    for pattern in _UNKNOWN_KEY:
        if match := re.search(pattern, message):
            key = match["key"]
            close = difflib.get_close_matches(key, list(known), n=1) or difflib.get_close_matches(
                key.rpartition(".")[2], list(known), n=1
            )
            return f"The key '{key}' is unknown.", f"Did you mean '{close[0]}'?" if close else fix
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return " ".join(lines[:2] if len(lines) < 4 else [lines[0], _cause(lines)]), fix


def _cause(lines: list[str]) -> str:
    """The most telling line of a long listing: an import that failed, else the last."""
    telling = [line for line in lines if re.search(r"No module named|has no attribute|not a subclass|mport", line)]
    return (telling or lines)[-1]
