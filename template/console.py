"""Where tables are printed. Imports no torch."""

from __future__ import annotations

from rich.console import Console

_FILE_WIDTH = 80


def make_console() -> Console:
    """Console on standard output; in a file plain text of 80 columns."""
    console = Console(highlight=False)
    return console if console.is_terminal or console.is_jupyter else Console(highlight=False, width=_FILE_WIDTH)
