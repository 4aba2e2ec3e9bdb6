"""What is known about one failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``cause``: a first cause. ``symptom``: something else caused it, often on another rank. ``consequence``: part of the
#: avalanche that follows. ``note``: no failure by itself. Reports rank them in this order.
Kind = Literal["cause", "symptom", "consequence", "note"]


@dataclass(frozen=True)
class Fault:
    """One known failure.

    Signs and names are patterns: text as it is printed, with places such as ``{port:int}`` for what differs from case
    to case (their types are in :mod:`..recognize`) and ``{...}`` for anything in between. White space in them and in
    the text that is searched does not count.

    Attributes:
        identifier: Stable name, printed with every message.
        cause: Why it happens, one sentence.
        fix: What to do, one sentence.
        exit_code: 1 for a failure of the run, 2 for wrong usage or configuration.
        kind: How close it is to the first cause.
        title: What it is, in a few words; default: the identifier.
        signs: Patterns of which any one tells this failure. Each starts with literal text.
        names: Patterns that find the culprit's name near a sign.
    """

    identifier: str
    cause: str
    fix: str
    exit_code: int = 1
    kind: Kind = "cause"
    title: str = ""
    signs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The title, or the identifier as words."""
        return self.title or self.identifier.replace("-", " ").capitalize()
