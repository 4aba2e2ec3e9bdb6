"""Where an exception comes from, as far as it is not a library's line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from .faults import NamedError
from .heartbeat import is_library, is_packages, short, source
from .told import shortened, text_of
from .worker_death import worker_death

#: Where the message of an exception out of a data-loader worker goes over to the worker's traceback.
_IN_WORKER = "Original Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def raised_at(error: BaseException, but: str = "") -> str:
    """``mynet.py:12 forward: x = self.conv(y)``: the innermost frame that is the user's or this project's, or nothing.

    Args:
        error: The exception.
        but: A file that would say nothing: it is the one that called.
    """
    frames = [frame for frame in _frames(error) if not is_library(frame[0])]
    if not frames or frames[-1][0] == but:
        return ""
    file, line, function = frames[-1]
    return f"{short(file)}:{line} {function}: {source(file, line)}"


def own_frames(error: BaseException) -> str:
    """The user's own lines that led to an exception, the innermost last, as a traceback has them; may be empty."""
    frames = (frame for one in _chain(error) if (frame := _users(one)))
    return "".join(
        f'  File "{f}", line {line}, in {name}\n    {source(f, line)}\n' for f, line, name in next(frames, [])
    )


def headline(error: BaseException) -> str:
    """``ValueError: no liver here``: type and text of an exception in one line."""
    if isinstance(error, SystemExit):
        return f"sys.exit({shortened(ascii(error.code), 80)})"
    text = text_of(error)
    if _IN_WORKER in text:
        return shortened(text.strip().splitlines()[-1])
    return shortened(f"{type(error).__name__}: {' '.join(text.split())}".removesuffix(": "))


def said(error: BaseException) -> str:
    """``ValueError: no liver here, raised at mynet.py:12 forward``; a named failure speaks for itself."""
    if isinstance(error, NamedError):
        return str(error)
    if (death := worker_death(error)) is not None:
        return str(death)
    place = next((found for one in _chain(error) if (found := raised_at(one))), "").partition(": ")[0]
    text = headline(error)
    return f"{text.rstrip('.')}, raised at {place}" if place else text


def named(error: BaseException, file: Path | None = None) -> NamedError:
    """An exception of other code as an error of one sentence.

    Args:
        error: The exception.
        file: Where its whole traceback is, where it was written.
    """
    if (death := worker_death(error)) is not None:
        return death
    cause = "That ends a process before its run is done." if isinstance(error, (SystemExit, KeyboardInterrupt)) else ""
    where = f"The whole traceback is in {short(str(file.resolve()))}." if file else ""
    return NamedError("exception", f"{said(error)}.", cause, where)


def _users(error: BaseException) -> list[tuple[str, int, str]]:
    return [frame for frame in _frames(error) if not is_library(frame[0]) and not is_packages(frame[0])]


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of each frame, those in a data-loader worker last."""
    here = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__) if f.lineno is not None]
    _, found, worker = text_of(error).partition(_IN_WORKER)
    there = _FRAME.findall(worker) if found else []
    return [*here, *((file, int(line), name) for file, line, name in there)]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
