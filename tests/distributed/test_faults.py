from __future__ import annotations

import pickle

import pytest

from template.distributed.catalogue import AREAS
from template.distributed.catalogue.fault import Fault
from template.distributed.faults import FAULTS, SECTIONS, NamedError
from template.distributed.patterns import Pattern
from tests.logs import known_texts

WITH_SIGNS = [fault for fault in FAULTS.values() if fault.signs]


def test_identifiers_are_unique() -> None:
    listed = [fault.identifier for faults in SECTIONS.values() for fault in faults]
    assert len(listed) == len(set(listed)) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.identifier)
def test_each_fault_says_what_why_and_what_to_do(fault: Fault) -> None:
    assert fault.identifier == fault.identifier.lower().replace(" ", "-").replace("_", "-")
    assert fault.headline
    assert fault.cause.endswith(".")
    assert fault.fix.endswith((".", ":"))
    assert fault.exit_code in (1, 2)


def test_faults_of_other_programs_can_be_recognised() -> None:
    assert not [fault.identifier for faults in AREAS.values() for fault in faults if not fault.signs]


@pytest.mark.parametrize("fault", WITH_SIGNS, ids=lambda fault: fault.identifier)
def test_signs_and_names_are_patterns(fault: Fault) -> None:
    for sign in fault.signs:
        # Found by plain search for the words before the first place: too few of them are in any text.
        assert len(Pattern.compile(sign).lead) >= 6, sign
    for name in fault.names:
        assert Pattern.compile(name).types, name


@pytest.mark.parametrize("fault", WITH_SIGNS, ids=lambda fault: fault.identifier)
def test_each_fault_has_a_recorded_text(fault: Fault) -> None:
    assert known_texts(fault.identifier)


def test_no_recorded_text_is_without_its_fault() -> None:
    assert {identifier for identifier, _ in known_texts()} == {fault.identifier for fault in WITH_SIGNS}


def test_a_number_that_ends_a_sign_is_whole() -> None:
    pattern = Pattern.compile("MEMBER: 1/1")
    assert pattern.regex.match("MEMBER:1/1----")
    assert not pattern.regex.match("MEMBER:1/16")


def test_a_named_error_ends_in_its_identifier_and_survives_pickling() -> None:
    error = NamedError("hang", "Rank 1 stands still.", fix="Look there.")
    assert str(error) == f"Rank 1 stands still. {FAULTS['hang'].cause} Look there. [hang]"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.exit_code == 1


def test_an_unknown_identifier_is_refused() -> None:
    with pytest.raises(KeyError):
        NamedError("no-such-fault", "What.")
