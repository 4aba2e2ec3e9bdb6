"""The catalogue's patterns: text with typed places, for text without white space. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_NAME = r"[A-Za-z_][\w.]*"
#: What a place of a pattern matches, in text without white space.
_TYPES = {
    "": r".{0,600}?",
    "text": r".{1,200}?",
    "int": r"\d+",
    "signed": r"-?\d+",
    "ints": r"\d+",
    "hex": r"[0-9a-f]+",
    "word": r"\w+",
    "words": r"[\w.]+",
    "name": r"[\w.\-:]+",
    "names": rf"{_NAME}?(?:,{_NAME}?)*(?=Parameterindices|Inaddition|[^\w.,]|$)",
    "local": r"[^']+",
    "device": r"(?:cpu|cuda|mps|xpu|meta)(?::\d+)?",
    "shape": r"\[[\d,]*\]",
    "list": r"\[[^\]]*\]",
    "size": r"[\d.]+(?:GiB|MiB|KiB|GB|MB|bytes)",
    "scalar": r"'?(?:torch\.)?(?:BFloat16|Half|Float|Double|Long|Int|Short|Char|Byte|Bool)'?",
    "ranks": r"\d+(?:,\d+)*",
    "pids": r"\d+(?:,\d+)*",
    "version": r"\d+\.\d+\.\d+",
    "host": r"[\w.\-:\[\]]+?",
    "address": r"\[[^\]]+\]:\d+",
    "path": r"(?:'[^']{1,400}'|\"[^\"]{1,400}\")",
    "ckpt": r"(?:'[^']{1,400}\.(?:ckpt|pth?)'|\"[^\"]{1,400}\.(?:ckpt|pth?)\")",
    "quoted": r"(?:'[^']*'|None)",
    "metric": r"[\w./\-]+?",
    "keys": r"\"[^\"]{1,200}\"(?:,\"[^\"]{1,200}\")*",
    "prefix": r"(?:module|_orig_mod)",
    "launch": r"--(?:local[-_]rank|node[-_]rank|world[-_]size|rank(?![\w-]))(?:=\d+)?",
    "argument": r"-{1,2}[\w.\-]+(?:=[^\s]{0,80})?",
    "launchvar": r"(?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|LOCAL_WORLD_SIZE)",
}
_PLACE = re.compile(r"\{(?:(?P<name>\w+):(?P<type>\w+)|\.\.\.)\}")


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern.

    Attributes:
        lead: Its literal text before the first place, without white space.
        regex: The whole, for text without white space.
        types: Name of each place -> its type.
        last: Name of the place that ends the pattern, if one does.
    """

    lead: str
    regex: re.Pattern[str]
    types: dict[str, str]
    last: str

    @staticmethod
    def compile(text: str) -> Pattern:
        """Compile a pattern of the catalogue.

        Args:
            text: See :class:`~.catalogue.fault.Fault`.

        Raises:
            KeyError: A place is of an unknown type.
        """
        parts, types, position, last = [], {}, 0, ""
        for place in _PLACE.finditer(text):
            parts.append(_literal(text[position : place.start()]))
            name, kind = place["name"] or "", place["type"] or ""
            parts.append(f"(?P<{name}>{_TYPES[kind]})" if name else f"(?:{_TYPES['']})")
            if name:
                types[name] = kind
            position = place.end()
            last = name if position == len(text) else ""
        tail = _literal(text[position:])
        # A number at the end must not be the beginning of a longer one: 1/1 is not 1/16.
        parts.append(tail + (r"(?!\d)" if tail[-1:].isdigit() else ""))
        lead = "".join(text[: m.start() if (m := _PLACE.search(text)) else None].split())
        return Pattern(lead, re.compile("".join(parts), re.DOTALL), types, last)


def _literal(text: str) -> str:
    return re.escape("".join(text.split()))


def read_values(printed: str, kind: str, open_end: bool, spaced: bool) -> list[str]:
    """The names in a piece of printed text.

    Args:
        printed: What a place of a pattern matched, with its spaces and line breaks.
        kind: The place's type.
        open_end: Nothing of the pattern follows the place.
        spaced: The text around has not lost its spaces.
    """
    if kind == "ints":
        return _ascending(printed, spaced)
    if kind in ("path", "ckpt", "text", "quoted", "local"):
        return [printed.replace("\n", "").strip("'\" ")]
    if kind in ("shape", "list"):
        return [", ".join("".join(printed.split()).split(","))]
    if kind in ("names", "keys", "ranks", "pids"):
        *items, last = printed.split(",")
        items.append(_first_word(last) if open_end else last)
        return ["".join(item.split()).strip('"') for item in items]
    if open_end and kind != "launch":
        return [_first_word(printed).strip("'\"")]
    return [("" if kind != "words" else " ").join(printed.split()).strip("'\"")]


def _first_word(printed: str) -> str:
    """Where nothing of a pattern follows, the next words of the text may have been taken for a part of the place."""
    return "".join(printed.split(maxsplit=1)[:1])


def _ascending(printed: str, spaced: bool) -> list[str]:
    """Indices, which ascend. A number cut by a line break is put together, a run without spaces is taken apart."""
    if not spaced and len(printed) > 1:
        return _consecutive(printed) or [printed]
    numbers: list[str] = []
    pending = ""
    for line in printed.split("\n"):
        words = line.split()
        if not words:
            continue
        if pending and not line[:1].isspace():
            words[0] = pending + words[0]
        elif pending:
            numbers.append(pending)
        pending = ""
        if not line[-1:].isspace() and len(words) > 1 and int(words[-1]) <= int(words[-2]):
            pending = words.pop()
        numbers += words
    numbers += [pending] if pending else []
    kept = [number for before, number in pairwise(["-1", *numbers]) if int(number) > int(before)]
    return kept if len(kept) == len(numbers) else numbers[: _first_descent(numbers)]


def _first_descent(numbers: list[str]) -> int:
    return next((i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if int(b) <= int(a)), len(numbers))


def _consecutive(digits: str) -> list[str]:
    """``789101112`` -> 7 to 12; empty if the digits are no such run of at least three numbers."""
    for length in range(1, min(5, len(digits) // 3 + 1)):
        first = int(digits[:length])
        run: list[str] = []
        while len("".join(run)) < len(digits):
            run.append(str(first + len(run)))
        if "".join(run) == digits and len(run) >= 3:
            return run
    return []
