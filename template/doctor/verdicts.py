"""What became of the doctor's processes, as findings. Imports no torch."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from ..distributed.faults import FAULTS
from ..distributed.heartbeat import is_library, is_packages, short, source
from ..distributed.stacks import frames_of
from ..distributed.told import listed, ranks, shortened
from .finding import Finding, failure, warning
from .part import SOLO, STEPS
from .processes import STACK, Process

#: What follows from another rank's failure.
_AVALANCHE = ("rank-failed", "rank-gone", "connection-lost", "connection-closed", "collective-timeout", "hang")
#: What is wrong with a case of the data is told by the checks of the data, and not by all that reads it after them.
_DATA = "data: "
_OF_CASES = (
    "data-unreadable",
    "data-unpaired",
    "image-channels",
    "data-not-finite",
    "data-size-mismatch",
    "mask-values",
    "transform",
)
#: The signals that have a name; others are of real time.
_SIGNALS = {int(one) for one in signal.Signals}
#: Bytes of output that nobody reads.
_FLOOD = 1_000_000
#: Identifiers that different faults share.
_ANY = ("exception", "config")
_RANK = re.compile(r"\brank \d+\b")


def hanging(process: Process, seconds: float) -> Finding:
    """A process that gives no sign of life."""
    place = _place(process.stack())
    at = f", at {place}" if place else ""
    return failure(
        "hang",
        f"{_who(process)} stood still for {seconds:.0f} s{at}, during: {process.doing}.",
        "The code there does not return, or needs longer than --timeout.",
        "Correct what happens at that line, or raise --timeout if it is only slow.",
    )._replace(check="run: processes")


def gone(process: Process) -> Finding:
    """A process that ended without a word."""
    code = process.code or 0
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name if -code in _SIGNALS else f'signal {-code}'}"
        cause = None if -code == signal.SIGKILL else "Code in C has crashed, or something has sent it the signal."
    else:
        how = f"ended with exit code {code}"
        cause = "Code of the network or the data has called os._exit, or C code has ended the process."
    file = process.folder / STACK.format(process.name)
    place = _place(frames_of(file.read_text(encoding="utf-8", errors="replace"))) if file.exists() else ""
    last = shortened(process.tail(1), 120)
    return failure(
        "rank-gone",
        f"{_who(process)} {how}{f', at {place}' if place else ''}, during: {process.doing}.",
        f"{cause or FAULTS['rank-gone'].cause}{f' The last it printed: {last}' if last else ''}",
        "Raise an exception instead, and it is told where." if code >= 0 else None,
    )._replace(check="run: processes")


def staying(process: Process) -> Finding:
    """A process that has done its work and does not end."""
    place = _place(process.stack())
    what = f"{_who(process)} has done its work and does not end{f': it is at {place}' if place else ''}."
    cause = "A thread that is no daemon, or a process that is waited for at the exit, keeps it."
    return warning(
        "processes-left", what, cause, "Start threads with daemon=True, and join them in teardown."
    )._replace(check="run: processes")


def spoken(text: str) -> Finding:
    """The sentence that the ranks' watchdog came to; it is the last line of its report."""
    line = next((one for one in reversed(text.splitlines()) if one.startswith("error: ")), text.strip())
    found = re.fullmatch(r"(?:error: )?(.*?) ?\[([a-z-]+)\]", line, re.DOTALL)
    sentence, identifier = (found[1], found[2]) if found and found[2] in FAULTS else (line, "rank-failed")
    what, _, rest = sentence.partition(". ")
    cause, _, fix = rest.partition(". ")
    return Finding(identifier, "run: processes", "fail", f"{what.rstrip('.')}.", f"{cause}." if fix else cause, fix)


def flood(processes: Sequence[Process]) -> list[Finding]:
    """Processes that print without end."""
    most = max(processes, key=lambda one: one.printed)
    if most.printed < _FLOOD:
        return []
    last = shortened(most.tail(1), 60)
    what = f"{_who(most)} printed {most.printed / 1e6:.0f} MB in a few steps: {last}"
    return [warning("output-flood", what)._replace(check="run: output")]


def left_behind(commands: Sequence[str]) -> list[Finding]:
    """Processes that live on after the run."""
    if not commands:
        return []
    told = listed([shortened(one, 60) for one in commands], 2)
    return [warning("processes-left", f"Still running after the run: {told}.")._replace(check="run: processes")]


def not_checked(processes: int, started: bool, explained: bool) -> Finding:
    """The checks that an earlier failure left out.

    Args:
        processes: Number of ranks.
        started: Whether they have begun to train.
        explained: Whether a failure has been told; without one, this is it.
    """
    why = "they did not come to their end" if started else "one process alone does not come so far"
    what = f"What {processes} processes do together was not checked in full: {why}."
    found = warning("not-checked", what, "", "Mend what fails first.") if explained else failure("not-checked", what)
    return found._replace(check="run: processes")


def joined(told: Sequence[tuple[str, Finding]], processes: int) -> list[Finding]:
    """What all processes have told, each thing once, and nothing that follows from something else.

    Args:
        told: Name of the process and its finding, in the order of time.
        processes: Number of ranks.
    """
    alone = {one.id for name, one in told if name == SOLO and one.status == "fail"}
    cases = {one.id for _, one in told if one.status == "fail" and one.check.startswith(_DATA) and one.id in _OF_CASES}
    causes = [one for name, one in told if name != SOLO and one.status == "fail" and one.id not in _AVALANCHE]
    kept: list[Finding] = []
    steps: list[Finding] = []
    for name, one in told:
        finding = one
        if one.id in cases and not one.check.startswith(_DATA):
            continue
        if name != SOLO and one.status == "fail":
            if one.id in alone or (one.id in _AVALANCHE and (causes or any(one.id == other.id for other in kept))):
                continue
            if one.check == STEPS:
                if any(_alike(one, before) for before in steps):
                    continue
                steps.append(one)
                finding = _placed(one, told, processes)
        # What a check has found may end the steps as well.
        told_before = one.check == STEPS and any(
            one.id == before.id and (before.subject == one.subject or (before.status == "fail" and one.id not in _ANY))
            for before in kept
            if before.check != STEPS
        )
        # Nor is a failure told by each check that comes upon it.
        again = any(finding._replace(check=before.check) == before for before in kept if before.status != "pass")
        if finding not in kept and not told_before and not again:
            kept.append(finding)
    return kept


def _placed(one: Finding, told: Sequence[tuple[str, Finding]], processes: int) -> Finding:
    """A finding with the ranks that have told it."""
    same = {int(name.removeprefix("rank ")): other for name, other in told if name != SOLO and _alike(one, other)}
    where = "all ranks" if len(same) == processes else ranks(sorted(same))
    if any(other != one for other in same.values()):  # each speaks of itself
        return one._replace(subject=_RANK.sub(where, one.subject))
    return one if len(same) == processes else one._replace(subject=f"On {where}: {one.subject}")


def _alike(one: Finding, other: Finding) -> bool:
    """Whether two ranks tell the same, but for their own numbers."""
    return (one.check, one.id, _RANK.sub("", one.subject)) == (other.check, other.id, _RANK.sub("", other.subject))


def _who(process: Process) -> str:
    return "The run on one process" if process.name == SOLO else f"R{process.name[1:]}"


def _place(frames: Sequence[tuple[str, int, str]]) -> str:
    """The innermost line that is the user's, else this package's, of frames with the innermost first."""
    users = [f for f in frames if not is_library(f[0])]
    first = next((f for f in users if not is_packages(f[0])), users[0] if users else None)
    if first is None:
        return ""
    file, line, function = first
    code = source(file, line)
    return f"{short(file)}:{line} {function}{f' ({code})' if code else ''}"
