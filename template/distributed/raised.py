"""Where an exception comes from, as far as it is not a library's line."""

from __future__ import annotations

import traceback

from .heartbeat import is_library, short, source


def raised_at(error: BaseException, but: str = "") -> str:
    """``mynet.py:12 forward: x = self.conv(y)``: the innermost frame that is the user's or this project's, or nothing.

    Args:
        error: The exception.
        but: A file that would say nothing: it is the one that called.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    if not frames or frames[-1].filename == but or frames[-1].lineno is None:
        return ""
    file, line = frames[-1].filename, frames[-1].lineno
    return f"{short(file)}:{line} {frames[-1].name}: {source(file, line)}"
