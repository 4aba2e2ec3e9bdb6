from __future__ import annotations

from collections.abc import Iterator

import pytest

from template.distributed.faults import FAULTS, NamedError
from template.doctor.finding import Finding, check, failure, of_error, passed, warning


@check("data: files", "data-unreadable")
def looks(behaviour: str) -> Iterator[Finding]:
    yield passed("3 files read")
    if behaviour == "warns":
        yield warning("mask-values", "'a.png' has the value 7.", fix="Name it.")
    elif behaviour == "fails":
        raise NamedError("sizes-differ", "'a' and 'b' differ.", "They do.", "Resize.")
    elif behaviour == "raises":
        raise ValueError("no liver here")
    elif behaviour == "exits":
        raise SystemExit(3)
    elif behaviour == "stops":
        raise KeyboardInterrupt


def test_a_pass_takes_name_and_identifier_of_its_check() -> None:
    assert looks("") == [Finding("data-unreadable", "data: files", "pass", "3 files read")]
    assert looks.name == "data: files"  # type: ignore[attr-defined]


def test_cause_and_fix_come_from_the_catalogue_where_nothing_else_is_said() -> None:
    found = looks("warns")[1]
    assert found == Finding(
        "mask-values", "data: files", "warn", "'a.png' has the value 7.", FAULTS["mask-values"].cause, "Name it."
    )
    assert failure("hang", "It hangs.").fix == FAULTS["hang"].fix


def test_what_a_check_raises_is_a_finding_beside_those_before() -> None:
    assert looks("fails")[1:] == [
        Finding("sizes-differ", "data: files", "fail", "'a' and 'b' differ.", "They do.", "Resize.")
    ]
    raised = looks("raises")
    assert [one.status for one in raised] == ["pass", "fail"]
    assert raised[1].id == "exception"
    assert "ValueError: no liver here" in raised[1].subject
    assert "test_finding.py" in raised[1].subject


def test_an_exit_in_the_users_code_ends_nothing() -> None:
    assert "sys.exit(3)" in looks("exits")[1].subject


def test_ctrl_c_does() -> None:
    with pytest.raises(KeyboardInterrupt):
        looks("stops")


def test_an_identifier_that_the_catalogue_lacks_is_a_fault_of_the_check() -> None:
    with pytest.raises(KeyError):
        failure("no-such-thing", "…")
    assert of_error(NamedError("config", "x", "y", "z"), "warn")[2:] == ("warn", "x", "y", "z")
