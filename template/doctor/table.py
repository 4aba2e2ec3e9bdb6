"""The doctor's table, for a terminal and for a file. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .finding import Finding

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}
#: The groups in the order of the table; others come last.
_GROUPS = ("machine", "data", "model", "run", "cost")


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """The findings by group, and in a group in the order in which they came; those of one check together."""
    groups = [*_GROUPS, *dict.fromkeys(_group(one) for one in findings)]
    checks = list(dict.fromkeys(one.check for one in findings))
    return sorted(findings, key=lambda one: (groups.index(_group(one)), checks.index(one.check)))


def show(findings: Sequence[Finding], console: Console, seconds: float) -> None:
    """Print the table and what it comes to.

    Args:
        findings: In any order.
        console: Where to.
        seconds: That the examination took.
    """
    width = max((len(_name(one)) for one in findings), default=0)
    for group, found in groupby(ordered(findings), _group):
        console.print(Text(f"\n{group}", style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(width=4)
        table.add_column(width=width, no_wrap=True)
        table.add_column(overflow="fold")
        before = ""
        for one in found:
            name = _name(one)
            told = Text(one.subject)
            if one.status != "pass":
                told.append(f" [{one.id}]", style="dim")
            table.add_row(Text(one.status, style=_STYLES[one.status]), "" if name == before else name, told)
            before = name
            for label, text in (("cause", one.cause), ("fix", one.fix)):
                if text and one.status != "pass":
                    # As text: what it quotes may look like markup.
                    table.add_row("", Text(f"  {label}", style="dim"), Text(text))
        _print(table, console)
    counts = {status: sum(one.status == status for one in findings) for status in _STYLES}
    told = Text.assemble(
        "\n", ", ".join(f"{count} {status}" for status, count in counts.items() if count or status != "warn"),
        f" · {seconds:.0f} s",
    )  # fmt: skip
    first = next((one for one in ordered(findings) if one.status == "fail"), None)
    if first is not None:  # far above, in a long table
        told.append(f" · not ready: {first.check} [{first.id}]")
    console.print(told, style=_STYLES["fail" if counts["fail"] else "warn" if counts["warn"] else "pass"])


def _print(table: Table, console: Console) -> None:
    """Print a table; in a file without the blanks that fill up its last column."""
    if console.is_terminal or console.is_jupyter:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    lines = (line.rstrip() for line in captured.get().splitlines())
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _name(finding: Finding) -> str:
    return finding.check.partition(": ")[2] or finding.check


def _group(finding: Finding) -> str:
    return finding.check.partition(":")[0]
