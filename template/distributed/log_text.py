"""The text of a log, in the ways that it may have to be read. Imports no torch.

Lines of several ranks are mixed and carry prefixes; lines are wrapped; a paste has lost its spaces or line breaks. So
text is searched without any white space, in the order of the lines and for each rank's own lines; what is found is
shown as it was printed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Pages and word processors put these in place of what was printed.
_PUNCTUATION = str.maketrans("‘’“”：（），；［］＝／", "''\"\":(),;[]=/")
_TIME = re.compile(
    r"\s*[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ]?)?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?"
    r"(?:[:,]? |\s*\|\s)"
)
_RANK = re.compile(
    r"\s*(?:"
    r"\[(?:rank|Rank|RANK)[ :_]{0,2}(?P<torch>\d+)\]:?|"  # torch's excepthook and C++ log; Lightning
    r"\[(?:default|trainer|worker|node|local_rank)_?(?P<role>\d+)\]:|"  # torchrun --tee, --log-line-prefix-template
    r"\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:|"  # mpirun --tag-output
    r"\((?P<ray>\w+ pid=\d+)(?:, ip=[\d.]+)?\)|"  # Ray
    r"(?P<compose>[\w.-]+-\d+)\s+\|"  # docker compose
    r") ?"
)
#: Characters of a part of a long line.
_PART = 500
_SRUN = re.compile(r"\s{0,4}(?P<task>\d{1,4}): ?")  # srun --label


@dataclass(frozen=True)
class Line:
    """A line, or a part of a long one, without its prefixes.

    Attributes:
        index: Place among all lines and parts.
        number: The line's, counted from 1.
        text: What is left.
        stream: Who wrote it, as the prefix says; empty without one.
        rank: The rank that the prefix says, if any.
    """

    index: int
    number: int
    text: str
    stream: str = ""
    rank: int | None = None


def split(text: str) -> list[Line]:
    """Cut a text into lines and take the prefixes off.

    Args:
        text: Any text.
    """
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    if not text.isascii():
        text = text.translate(_PUNCTUATION)
    # A progress bar goes back with \r. A paste that lost its line breaks is one long line, and quick to walk in parts.
    raw = [
        (number, part[start : start + _PART])
        for number, line in enumerate(text.split("\n"), 1)
        for part in line.split("\r")
        for start in range(0, len(part), _PART)
    ]
    tasks = [match["task"] for _, part in raw if (match := _SRUN.match(part))]
    # A number and a colon is a prefix only where nearly every line has one.
    labelled = len(tasks) > 0.8 * len(raw) and len(raw) > 1
    return [_line(index, number, part, labelled) for index, (number, part) in enumerate(raw)]


def _line(index: int, number: int, text: str, labelled: bool) -> Line:
    stream, rank, position = "", None, 0
    if labelled and (match := _SRUN.match(text)):
        stream, rank, position = match["task"], int(match["task"]), match.end()
    for _ in range(3):
        if match := _RANK.match(text, position):
            stream = match[0].strip()
            found = match["torch"] or match["role"] or match["mpi"]
            rank = int(found) if found else rank
        else:
            match = _TIME.match(text, position)
        if match is None:
            break
        position = match.end()
    return Line(index, number, text[position:], stream, rank)


class Squeezed:
    """Lines joined without white space, with the way back to what was printed.

    Args:
        lines: The lines.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)
        parts = ["".join(line.text.split()) for line in self.lines]
        self.parts = parts
        self.text = "".join(parts)
        self._starts: list[int] = []
        position = 0
        for part in parts:
            self._starts.append(position)
            position += len(part)

    def line_at(self, position: int) -> int:
        """Index of the line that holds a position."""
        return bisect_right(self._starts, position) - 1

    def key(self, position: int) -> tuple[int, int]:
        """The line's index and the place in it: the same in every reading of a text."""
        index = self.line_at(position)
        return self.lines[index].index, position - self._starts[index]

    def ends_line(self, end: int) -> bool:
        """Whether a line ends there."""
        return end >= len(self.text) or self._starts[self.line_at(end)] == end

    def printed(self, start: int, end: int) -> str:
        """What was printed between two positions, with its spaces and line breaks."""
        first, last = self.line_at(start), self.line_at(max(start, end - 1))
        head = _column(self.lines[first].text, start - self._starts[first])
        tail = _column(self.lines[last].text, end - 1 - self._starts[last]) + 1
        if first == last:
            return self.lines[first].text[head:tail]
        inner = [line.text for line in self.lines[first + 1 : last]]
        return "\n".join([self.lines[first].text[head:], *inner, self.lines[last].text[:tail]])


def _column(text: str, position: int) -> int:
    """Index of the character of a line that has so many characters, white space not counted, before it."""
    for column, character in enumerate(text):
        if not character.isspace():
            if position == 0:
                return column
            position -= 1
    return len(text)


def readings(lines: list[Line]) -> Iterator[Squeezed]:
    """Each rank's own lines, where prefixes tell them apart, and last all lines in their order."""
    streams: dict[str, list[Line]] = {}
    for line in lines:
        streams.setdefault(line.stream, []).append(line)
    if len(streams) > 1:
        for own in streams.values():
            yield Squeezed(own)
    yield Squeezed(lines)


class Stitcher:
    """Finds words that a line break cut in two, with other ranks' lines in between.

    Args:
        words: What to look for, without white space.
        least: Characters of a word that a line must end with, to be taken for its beginning.
        ahead: Lines in which the other half is looked for.
    """

    def __init__(self, words: Iterable[str], least: int = 10, ahead: int = 12) -> None:
        self.least, self.ahead = least, ahead
        self._halves: dict[str, list[tuple[str, str]]] = {}
        for word in sorted(set(words)):
            for cut in range(least, len(word)):
                self._halves.setdefault(word[cut - least : cut], []).append((word[:cut], word[cut:]))

    def __call__(self, whole: Squeezed) -> Iterator[Squeezed]:
        """Yield each such word's lines, put together, with what follows them."""
        for index, part in enumerate(whole.parts):
            for beginning, rest in self._halves.get(part[-self.least :], ()):
                if part.endswith(beginning):
                    chain = self._chain(whole, index, rest)
                    if chain:
                        yield Squeezed(whole.lines[i] for i in chain)

    def _chain(self, whole: Squeezed, index: int, rest: str) -> list[int]:
        chain = [index]
        while rest:
            following = range(chain[-1] + 1, min(chain[-1] + 1 + self.ahead, len(whole.parts)))
            for other in following:
                part = whole.parts[other]
                if part.startswith(rest) or (len(part) >= self.least and rest.startswith(part)):
                    chain.append(other)
                    rest = rest[len(part) :]
                    break
            else:
                return []
        if chain == list(range(index, index + len(chain))):
            return []  # nothing lies in between: the plain reading finds it
        return chain + list(range(chain[-1] + 1, min(chain[-1] + 7, len(whole.parts))))
