"""Recognises the catalogue's failures in a text or in an exception. Imports no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from .catalogue.fault import Fault
from .faults import FAULTS, NamedError
from .log_text import Squeezed, Stitcher, readings, split
from .patterns import Pattern, read_values
from .told import text_of

#: Order of a report.
_KINDS = ("cause", "symptom", "consequence", "note")
#: Characters, without white space, before and after a sign in which its names are looked for.
_BEFORE, _AFTER = 160, 4000
#: Signs that begin with fewer characters may be words of any text, and are not put together from two lines.
_LONG = 12
#: Lines in which the other half of a sign is looked for.
_AHEAD = 12


@dataclass(frozen=True)
class Place:
    """Where a failure was found.

    Attributes:
        line: Number of the line, from 1.
        rank: The rank that printed it, as far as the text says.
        names: What the text names: ``{"index": ("3", "4")}``.
        text: The line.
    """

    line: int
    rank: int | None
    names: Mapping[str, tuple[str, ...]]
    text: str


@dataclass(frozen=True)
class Finding:
    """A known failure and all places where it was found."""

    fault: Fault
    places: tuple[Place, ...] = field(default=())

    @property
    def lines(self) -> list[int]:
        """Numbers of the lines."""
        return sorted({place.line for place in self.places})

    @property
    def ranks(self) -> list[int]:
        """Ranks that reported it, as far as the text says."""
        return sorted({place.rank for place in self.places if place.rank is not None})

    @property
    def names(self) -> dict[str, list[str]]:
        """What the text names, over all places, each once."""
        found: dict[str, dict[str, None]] = {}
        for place in self.places:
            for name, values in place.names.items():
                found.setdefault(name, {}).update(dict.fromkeys(values))
        return {name: list(values) for name, values in found.items()}


@dataclass(frozen=True)
class _Sign:
    fault: Fault
    pattern: Pattern


@cache
def _signs() -> tuple[_Sign, ...]:
    return tuple(_Sign(fault, Pattern.compile(sign)) for fault in FAULTS.values() for sign in fault.signs)


@cache
def _stitcher() -> Stitcher:
    return Stitcher((sign.pattern.lead for sign in _signs() if len(sign.pattern.lead) >= _LONG), ahead=_AHEAD)


@cache
def _own_signs(fault: Fault) -> tuple[Pattern, ...]:
    return tuple(sign.pattern for sign in _signs() if sign.fault is fault)


@cache
def _names(fault: Fault) -> tuple[Pattern, ...]:
    return tuple(Pattern.compile(name) for name in fault.names)


def recognize_text(text: str) -> list[Finding]:
    """Find every known failure in a log, a traceback or a paste.

    Args:
        text: Any text.

    Returns:
        First causes first, then symptoms, consequences and notes, each by its first line.
    """
    places: dict[str, dict[tuple[int, int], Place]] = {}
    seen: set[tuple[int, int]] = set()
    lines = split(text)
    *streams, whole = readings(lines)
    for reading in (*streams, whole, *_stitcher()(whole), *_broken(whole)):
        _collect(reading, places, seen)
    findings = [
        Finding(FAULTS[identifier], tuple(place for _, place in sorted(found.items(), key=lambda item: item[0])))
        for identifier, found in places.items()
    ]
    return sorted(findings, key=lambda finding: (_KINDS.index(finding.fault.kind), finding.lines[0]))


def recognize(error: BaseException) -> Finding | None:
    """Find the known failure that an exception, or what led to it, means.

    Args:
        error: The exception.

    Returns:
        The one closest to the first cause, or None.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    for link in reversed(chain):
        if isinstance(link, NamedError):
            return Finding(FAULTS[link.identifier], (Place(1, None, {}, str(link)),))
    text = "\n".join(f"{type(link).__name__}: {text_of(link)}" for link in reversed(chain))
    findings = recognize_text(text)
    return findings[0] if findings else None


def _collect(reading: Squeezed, places: dict[str, dict[tuple[int, int], Place]], seen: set[tuple[int, int]]) -> None:
    """Add what one reading of the text shows, except what another one has shown."""
    hits = sorted([*_sign_hits(reading), *_named_hits(reading)], key=lambda hit: hit[:2])
    starts: dict[int, list[int]] = {}
    for start, order, _, _ in hits:
        starts.setdefault(order, []).append(start)
    claimed: list[tuple[int, int]] = []
    for start, order, end, fault in hits:
        key = reading.key(start)
        # What belongs to a failure that was found is no other failure.
        if any(first <= start < behind for first, behind in claimed[-40:]):
            seen.add(key)
            continue
        following = starts[order]
        index = bisect_left(following, max(end, start + 1))
        next_start = following[index] if index < len(following) else None
        names, spans = _find_names(reading, fault, start, end, next_start)
        claimed += [(start, end), *spans]
        if key in seen:
            continue
        seen.add(key)
        line = reading.lines[reading.line_at(start)]
        rank = int(names.pop("rank")[0]) if "rank" in names else line.rank
        text = line.text.strip() if fault.signs else " ".join(reading.printed(start, end).split())
        places.setdefault(fault.identifier, {})[key] = Place(line.number, rank, names, text[:400])


_Hit = tuple[int, int, int, Fault]


def _sign_hits(reading: Squeezed) -> Iterator[_Hit]:
    """Start, order in the catalogue, end and fault of each sign in the text."""
    text = reading.text
    for order, sign in enumerate(_signs()):
        # Plain search is far faster than a regular expression; that one only looks where the literal text is.
        position = text.find(sign.pattern.lead)
        while position >= 0:
            match = sign.pattern.regex.match(text, position)
            if match:
                yield position, order, match.end(), sign.fault
            position = text.find(sign.pattern.lead, position + 1)


def _broken(reading: Squeezed) -> Iterator[Squeezed]:
    """Lines whose end begins a sign, each with the later line that ends it."""
    text = reading.text
    for sign in _signs():
        if len(sign.pattern.lead) < _LONG:
            continue
        position = text.find(sign.pattern.lead)
        while position >= 0:
            if not sign.pattern.regex.match(text, position):
                index, place = reading.line_at(position), reading.key(position)[1]
                tail = reading.parts[index][place:]
                for other in range(index + 2, min(index + 2 + _AHEAD, len(reading.parts))):
                    match = sign.pattern.regex.match(tail + reading.parts[other])
                    if match and match.end() > len(tail) >= len(sign.pattern.lead):
                        yield Squeezed([reading.lines[index], reading.lines[other]])
                        break
            position = text.find(sign.pattern.lead, position + 1)


def _named_hits(reading: Squeezed) -> Iterator[_Hit]:
    """Messages that end in ``[identifier]``, as this program prints them."""
    text = reading.text
    for identifier, fault in FAULTS.items():
        tag = f"[{identifier}]"
        position = text.find(tag)
        while position >= 0:
            end = position + len(tag)
            begin = max(text.rfind(word, max(0, position - 2000), position) for word in ("rror:", "arning:"))
            sentence = position > 0 and text[position - 1] in ".!?)'\""
            at_end = reading.ends_line(end) and reading.key(position)[1] > 0
            if sentence and (begin >= 0 or at_end):
                start = text.index(":", begin) + 1 if begin >= 0 else position - reading.key(position)[1]
                yield start, -1, end, fault
            position = text.find(tag, end)


def _find_names(
    reading: Squeezed, fault: Fault, start: int, end: int, next_start: int | None
) -> tuple[dict[str, tuple[str, ...]], list[tuple[int, int]]]:
    """What the text names around a sign, and where it does."""
    found: dict[str, dict[str, None]] = {}
    spans: list[tuple[int, int]] = []
    behind = min(end + _AFTER, len(reading.text) if next_start is None else next_start)
    matches = [
        *((pattern, match) for pattern in _own_signs(fault) if (match := pattern.regex.match(reading.text, start))),
        *(
            (pattern, match)
            for pattern in _names(fault)
            for match in pattern.regex.finditer(reading.text, max(0, start - _BEFORE), behind)
            if match.end() > start
        ),
    ]
    for pattern, match in matches:
        spans.append(match.span())
        for name, kind in pattern.types.items():
            printed = reading.printed(*match.span(name))
            # Only numbers are lost with their spaces.
            spaced = kind != "ints" or len(reading.printed(*match.span()).split()) > 1
            values = read_values(printed, kind, name == pattern.last, spaced)
            found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in found.items() if values}, spans
