from __future__ import annotations

import re
from pathlib import Path

from template.distributed.faults import FAULTS
from template.doctor import checks
from template.doctor.parity import one_process_and_several_agree

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
ALL = [*checks.ALONE, *checks.TOGETHER, *checks.LATE, one_process_and_several_agree]


def test_the_page_lists_the_checks_in_their_order() -> None:
    groups = ["machine", "data", "model", "run", "cost"]
    names = sorted((one.name for one in ALL), key=lambda name: groups.index(name.partition(":")[0]))
    rows = re.findall(r"^\| ((?:machine|data|model|run|cost): .*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == names


def test_names_are_short_and_unlike_each_other() -> None:
    names = [one.name for one in ALL]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 26


def test_each_check_says_what_is_right_and_looks_for_a_known_failure() -> None:
    for one in ALL:
        assert (one.__doc__ or "").splitlines()[0].endswith(".")
        assert one.identifier in FAULTS
