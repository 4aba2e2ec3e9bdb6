from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from template.doctor.finding import Finding
from template.doctor.table import ordered, show

GRADIENTS, PARITY = "model: gradients", "model: parity"
FINDINGS = [
    Finding("folder-race", "run: files", "pass", "none is written by two ranks"),
    Finding("unused-parameters", GRADIENTS, "fail", "net.aux.weight gets no gradient.", "It is in no loss.", "Use it."),
    Finding("data-unreadable", "data: files", "pass", "96 cases can be read"),
    Finding("parity", PARITY, "warn", f"net.{'b' * 90} differs.", "strategy.sync_batchnorm is off.", "Leave it."),
    Finding("unused-parameters", GRADIENTS, "warn", "net.other.weight [3] gets none.", "", ""),
]


def printed(width: int, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, highlight=False, legacy_windows=False)
    show(FINDINGS, console, 12.3)
    return out.getvalue()


def test_groups_come_in_their_order_and_the_lines_of_a_check_together() -> None:
    assert [one.check for one in ordered(FINDINGS)] == [
        "data: files", "model: gradients", "model: gradients", "model: parity", "run: files",
    ]  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_cut_off_in_eighty_columns(terminal: bool) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(80, terminal))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    words = re.sub(r"\s+", "", text)
    for one in FINDINGS:
        assert re.sub(r"\s+", "", one.subject) in words
    assert "[unused-parameters]" in text  # and not taken for markup
    assert "net.other.weight [3] gets none." in text
    assert "Itisinnoloss." in words
    assert text.rstrip().endswith("2 pass, 2 warn, 1 fail · 12 s · not ready: model: gradients [unused-parameters]")


def test_a_file_is_plain_and_a_terminal_coloured() -> None:
    assert "\x1b" not in printed(80, terminal=False)
    assert "\x1b[1;31mfail" in printed(80, terminal=True)


def test_the_plain_table() -> None:
    assert [line.rstrip() for line in printed(80, terminal=False).splitlines()][:8] == [
        "",
        "data",
        "pass  files      96 cases can be read",
        "",
        "model",
        "fail  gradients  net.aux.weight gets no gradient. [unused-parameters]",
        "        cause    It is in no loss.",
        "        fix      Use it.",
    ]
