"""The verb ``explain``: what the failures in a log mean. Imports no torch."""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .distributed.faults import SECTIONS, NamedError
from .distributed.log_text import split
from .distributed.recognize import Finding, Place, recognize_text

_HEADINGS = {
    "cause": "",
    "symptom": "Symptoms: something else made them happen, often on another rank.",
    "consequence": "Consequences: what a failure elsewhere drags along.",
    "note": "To know:",
}
#: Names of findings that are milliseconds, and what they are called where they are written as a time.
_DURATIONS = {"limit_milliseconds": "limit", "milliseconds": "waited"}
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?$")


def main(arguments: Sequence[str], program: str = "explain") -> int:
    """Run the verb.

    Args:
        arguments: What follows the verb on the command line.
        program: How the verb is called, for the usage.

    Returns:
        0: something was recognised; 1: nothing was; 2: the text cannot be read.
    """
    parser = argparse.ArgumentParser(
        program,
        description="Find the known failures in a log, first causes first.",
        epilog="Exit codes: 0 a known failure was found, 1 none was, 2 the text cannot be read.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a log or traceback; default: standard input")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--list", action="store_true", help="print the catalogue of failures, in Markdown")
    options = parser.parse_args(arguments)
    if options.list:
        _print(catalogue_page())
        return 0
    try:
        text = _read(options.file)
    except NamedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    findings = recognize_text(text)
    if options.json:
        _print(json.dumps([as_object(finding) for finding in findings], indent=2, ensure_ascii=False) + "\n")
    elif findings:
        _print(report(findings, text) + "\n")
    elif text.strip():
        _print("\n".join(["No known failure is in this text.", *_others(text, findings)]) + "\n")
    else:
        print(f"The text is empty. Give it a log: {program} train.log, or COMMAND 2>&1 | {program}", file=sys.stderr)
    return 0 if findings else 1


def _print(text: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A log holds characters that the terminal may not have.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; at its exit Python would complain of the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(file: str | None) -> str:
    """The text of a file or of standard input.

    Raises:
        NamedError: ``log-unreadable``.
    """
    if file is None or file == "-":
        if sys.stdin.isatty():
            print("Paste the text, then press Ctrl-D on a new line.", file=sys.stderr)
        return _decode(sys.stdin.buffer.read(), "The text")
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise NamedError("log-unreadable", f"'{file}' cannot be read: {error.strerror}.") from error
    return _decode(data, f"'{file}'")


def _decode(data: bytes, name: str) -> str:
    # PowerShell redirects in UTF-16.
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data[:8192]:
        raise NamedError("log-unreadable", f"{name} is no text, but binary.")
    return data.decode("utf-8-sig", errors="replace")


def as_object(finding: Finding) -> dict[str, Any]:
    """A finding for ``--json``."""
    fault = finding.fault
    return {
        "id": fault.identifier,
        "kind": fault.kind,
        "title": fault.headline,
        "cause": fault.cause,
        "fix": fault.fix,
        "ranks": finding.ranks,
        "lines": finding.lines,
        "names": finding.names,
        "places": [
            {"line": place.line, "rank": place.rank, "names": dict(place.names), "text": place.text}
            for place in finding.places
        ],
    }


def report(findings: Sequence[Finding], text: str) -> str:
    """The findings for people.

    Args:
        findings: At least one, in the order to print.
        text: What they were found in.
    """
    parts, kind = [], "cause"
    for finding in findings:
        if finding.fault.kind != kind:
            kind = finding.fault.kind
            parts.append(_HEADINGS[kind])
        parts.append("\n".join(_paragraphs(finding)))
    if all(finding.fault.kind in ("symptom", "consequence") for finding in findings):
        parts.append(
            "\n".join(
                _others(text, findings)
                or ["The first cause is not in this text: look at the logs of the other ranks, before these lines."]
            )
        )
    return "\n\n".join(parts)


def _paragraphs(finding: Finding) -> Iterator[str]:
    fault = finding.fault
    yield f"{fault.identifier}: {fault.headline}"
    yield _entry("where", _where(finding.places))
    names = {name: _few(values) for name, values in finding.names.items()}
    if names and len(finding.ranks) > 1:
        # Who said what: ranks often differ, and that is the clue.
        for rank in finding.ranks:
            own = [place.names for place in finding.places if place.rank == rank and place.names]
            if own:
                merged = Finding(fault, tuple(place for place in finding.places if place.rank == rank)).names
                yield _entry("names", f"rank {rank}: " + _listed({name: _few(v) for name, v in merged.items()}))
    elif names:
        yield _entry("names", _listed(names))
    text = finding.places[0].text
    yield _entry("text", text if len(text) <= 240 else f"{text[:240]} …")
    yield _entry("cause", fault.cause)
    yield _entry("fix", fault.fix)


def _entry(label: str, text: str) -> str:
    width = max(60, min(shutil.get_terminal_size((110, 24)).columns, 120))
    return textwrap.fill(
        text, width, initial_indent=f"  {label:<6} ", subsequent_indent=" " * 9, break_on_hyphens=False
    )


def _where(places: Sequence[Place]) -> str:
    by_rank: dict[int | None, dict[str, None]] = {}
    for place in places:
        by_rank.setdefault(place.rank, {})[str(place.line)] = None
    return "; ".join(
        ("" if rank is None else f"rank {rank}, ") + ("line " if len(lines) == 1 else "lines ") + _few(list(lines))
        for rank, lines in sorted(by_rank.items(), key=lambda item: (item[0] is None, item[0] or 0))
    )


def _listed(names: dict[str, str]) -> str:
    return "; ".join(
        f"{_DURATIONS[name]} {_durations(values)}" if name in _DURATIONS else f"{name.replace('_', ' ')} {values}"
        for name, values in names.items()
    )


def _durations(values: str) -> str:
    """``30 min 3 s`` for ``1802779``, milliseconds."""

    def spelled(match: re.Match[str]) -> str:
        seconds = int(match[0]) / 1000
        if seconds < 60:
            return f"{seconds:g} s"
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
        return " ".join(f"{number} {unit}" for number, unit in parts if number)

    return re.sub(r"\d+", spelled, values)


def _few(values: Sequence[str], most: int = 12) -> str:
    return ", ".join(values[:most]) + (f" and {len(values) - most} more" if len(values) > most else "")


def _others(text: str, findings: Sequence[Finding]) -> list[str]:
    """Python errors of the text that are none of the findings: among them may be the first cause."""
    known = {line for finding in findings for line in finding.lines}
    last: dict[str, tuple[int, str, int | None]] = {}
    in_traceback: set[str] = set()
    for line in split(text):
        if line.text.lstrip().startswith("Traceback (most recent call last)"):
            in_traceback.add(line.stream)
        elif line.stream in in_traceback and _ERROR.match(line.text.strip()) and not line.text.startswith("  "):
            in_traceback.discard(line.stream)
            if line.number not in known:
                last.setdefault(line.text.strip(), (line.number, line.text.strip(), line.rank))
    if not last:
        return []
    return [
        "Errors that are not in the catalogue, the first of them perhaps the cause of all:",
        *(
            _entry("line", f"{number}{'' if rank is None else f', rank {rank}'}: {message[:300]}")
            for number, message, rank in list(last.values())[:5]
        ),
    ]


def catalogue_page() -> str:
    """The catalogue as a page of the documentation."""
    parts = [
        "# Known failures",
        (
            "Each has a stable identifier. This program ends its messages with it; `explain` finds it in logs of any "
            "PyTorch program, together with the names that the text holds: parameters, shapes, devices, ranks, files."
        ),
        (
            "Kinds: a *cause*; a *symptom*, which something else caused, often on another rank; a *consequence*, which "
            "follows from a failure elsewhere; a *note*. Reports rank them in this order."
        ),
        "This page is made from the catalogue: `explain --list`.",
    ]
    for heading, faults in SECTIONS.items():
        rows = ["| identifier | what | cause | fix |", "| --- | --- | --- | --- |"]
        for fault in faults:
            kind = "" if fault.kind == "cause" else f"<br>*{fault.kind}*"
            cells = (fault.headline, fault.cause, fault.fix)
            rows.append(f"| `{fault.identifier}`{kind} | " + " | ".join(_cell(cell) for cell in cells) + " |")
        parts += [f"## {heading}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Text that a Markdown table shows as it is."""
    return re.sub(r"([|<>*])", r"\\\1", text)
