"""The table, the stack and the sentence that end a run which stood still."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .faults import NamedError
from .heartbeat import is_library, short, source
from .stacks import read_dump
from .verdict import Seen, Verdict, waiting

WIDTH = 80  # columns, where there is no terminal to ask
#: Seconds that ranks wait for one until a note says so, once.
NOTE_AFTER = 30.0


def with_dump(verdict: Verdict, seen: Seen) -> tuple[Verdict, Seen, str]:
    """Add what the interpreter of a rank that is gone or frozen wrote at its end.

    Returns:
        The verdict, the guilty rank and its stack, made clearer where there was such a file.
    """
    headline, frames = read_dump(seen.beat.stack_file)
    if not frames:
        return verdict, seen, ""
    file, line, function = next((frame for frame in frames if not is_library(frame[0])), frames[0])
    lines = [(f'  File "{file}", line {line}, in {name}', source(file, line)) for file, line, name in reversed(frames)]
    stack = "\n".join(f"{head}\n    {code}" if code else head for head, code in lines)
    place, code = f"{short(file)}:{line} {function}", source(file, line)
    rank, beat = verdict.guilty[0], seen.beat
    step = f" in step {beat.step}" if beat.step is not None else ""
    if headline.startswith("Timeout"):
        verdict = replace(
            verdict,
            identifier="hang",
            what=f"Rank {rank} stood still{step} ({beat.phase}): it was at {place} ({code}).",
            cause="Code in C does not return there, and holds Python's lock, so that nothing else can run.",
            fix="Correct what happens at that line, or raise strategy.timeout if it is only slow.",
        )
    else:
        reason = headline.removeprefix("Fatal Python error: ")
        verdict = replace(
            verdict,
            what=f"Rank {rank} crashed{step} ({beat.phase}) at {place}: {reason}.",
            cause="Code in C broke, in an extension or its libraries.",
            fix="Look at the call at that line; run it alone, on that machine.",
        )
    return verdict, replace(seen, beat=replace(beat, place=place, code=code, call="")), stack


def long_wait(ranks: Mapping[int, Seen], noted: set[tuple[int, str]]) -> str:
    """A note that ranks have waited long for one, or nothing.

    Args:
        ranks: All ranks as last seen.
        noted: Ranks and phases that a note was about; there is one for each.
    """
    waits = waiting(ranks)
    long = [rank for rank in sorted(waits) if ranks[rank].still >= NOTE_AFTER]
    busy = [rank for rank, seen in sorted(ranks.items()) if seen.living and rank not in waits]
    if not long or not busy or (key := (busy[0], ranks[busy[0]].beat.phase)) in noted:
        return ""
    noted.add(key)
    other = ranks[busy[0]].beat
    return (
        f"rank {long[0]} waits for rank {busy[0]} since {ranks[long[0]].still:.0f} s "
        f"({other.phase}, {other.place}: {other.code})\n"
    )


def sentence(verdict: Verdict) -> NamedError:
    """The verdict as an error."""
    return NamedError(verdict.identifier, verdict.what, verdict.cause, verdict.fix)


def own_part(stack: str) -> str:
    """A stack without the libraries' frames; the whole of it where all are the libraries'.

    Args:
        stack: Frames as a traceback has them, or the interpreter's own dump; other lines, such as headings, stay.
    """
    kept, keeps, own = [], True, False
    for line in stack.splitlines():
        if frame := re.match(r'\s*File "(.*)", line \d+', line):
            keeps = not is_library(frame[1])
            own = own or keeps
        elif not line.startswith("    "):
            keeps = True
        if keeps:
            kept.append(line)
    return "\n".join(kept) if own else stack


def write_report(
    out: TextIO, verdict: Verdict, ranks: Mapping[int, Seen], stack: str, with_sentence: bool, whole: str = ""
) -> None:
    """Print the table, the guilty rank's stack and the sentence.

    Args:
        out: A terminal, or a file, where it is plain text of 80 columns.
        verdict: What stopped the run.
        ranks: All ranks as last seen.
        stack: Of the first guilty rank; may be empty.
        with_sentence: False if the caller prints the error itself.
        whole: Where all frames of the stack are; given, only those are printed that are no library's.
    """
    console = Console(file=out, highlight=False)
    if not console.is_terminal:
        console = Console(file=out, highlight=False, width=WIDTH)
    console.show_cursor(True)  # a progress bar may have hidden it
    console.print()
    console.print(_table(verdict, ranks))
    if stack:
        shown = own_part(stack) if whole else stack
        rest = f" (all frames: {whole})" if shown != stack else ""
        heading = f"stack of rank {verdict.guilty[0]}, innermost last{rest}:"
        console.print(Text(heading, style="bold"), soft_wrap=True)
        console.print(Text(shown.rstrip()), soft_wrap=True)
    if with_sentence:
        console.print(Text(f"\nerror: {sentence(verdict)}"), soft_wrap=True)
    out.flush()


def plain_report(verdict: Verdict, ranks: Mapping[int, Seen], stack: str) -> str:
    """The same as text."""
    out = io.StringIO()
    write_report(out, verdict, ranks, stack, with_sentence=True)
    return out.getvalue().strip() + "\n"


def _table(verdict: Verdict, ranks: Mapping[int, Seen]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for name in ("rank", "host", "step", "phase", "since", "place in the code"):
        table.add_column(name, overflow="fold", justify="right" if name in ("rank", "step", "since") else "left")
    waits = waiting(ranks)
    for rank in sorted(ranks, key=lambda rank: (rank not in verdict.guilty, rank)):
        seen = ranks[rank]
        beat, guilty = seen.beat, rank in verdict.guilty
        mark = ">" if guilty else ""
        call = f"waits in {beat.call}\n" if beat.call else "waits\n" if rank in waits and not guilty else ""
        code = f"\n{beat.code}" if guilty and beat.code and not beat.call else ""
        table.add_row(
            f"{mark}{rank}",
            Text(beat.host),
            # What it said last may be of a second before its end.
            "" if beat.step is None else f"≥ {beat.step}" if seen.gone and beat.state == "running" else str(beat.step),
            f"{beat.phase}{_state(seen)}",
            f"{seen.still:.0f} s",
            # Its name alone, so that it fits; the stack and the sentence have the whole path.
            Text(f"{call}{beat.place.rpartition('/')[2]}{code}"),
            style="bold red" if guilty else None,
        )
    return table


def _state(seen: Seen) -> str:
    if seen.beat.state in ("ended", "failed"):
        return f", {seen.beat.state}"
    return ", gone" if seen.gone else "" if seen.living else ", silent"
