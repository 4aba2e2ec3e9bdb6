from __future__ import annotations

from template.doctor.finding import Finding
from template.doctor.part import SOLO, STEPS
from template.doctor.verdicts import joined, not_checked, spoken


def fail(identifier: str, subject: str = "It.", check: str = STEPS) -> Finding:
    return Finding(identifier, check, "fail", subject, "", "")


def test_the_watchdogs_report_becomes_its_last_sentence() -> None:
    report = (
        "rank   host   step\n  >1   vm   3\nstack of rank 1: …\n"
        "error: Rank 1 stood still in step 3 at net.py:5 forward. Code there does not return. Correct it. [hang]\n"
    )
    found = spoken(report)
    assert found.id == "hang"
    assert found.subject == "Rank 1 stood still in step 3 at net.py:5 forward."
    assert (found.cause, found.fix) == ("Code there does not return.", "Correct it.")
    assert spoken("Nothing known").id == "rank-failed"


def test_what_all_ranks_say_is_said_once_and_what_some_say_with_their_names() -> None:
    same, alone = fail("unused-parameters"), fail("exception", "ValueError: no liver here.")
    told = [("rank 0", same), ("rank 1", same), ("rank 1", alone)]
    assert joined(told, 2) == [same, alone._replace(subject="On rank 1: ValueError: no liver here.")]


def test_what_all_ranks_say_each_of_itself_is_said_once() -> None:
    told = [(f"rank {n}", fail("ready-twice", f"net.body is ready twice on rank {n}.")) for n in (1, 0)]
    assert [one.subject for one in joined(told, 2)] == ["net.body is ready twice on all ranks."]
    assert [one.subject for one in joined(told, 3)] == ["net.body is ready twice on ranks 0 and 1."]
    # Ranks that a finding holds against each other stay.
    same = fail("monitor-differs", "val/a is 1 on rank 0, 2 on rank 1.")
    assert joined([("rank 0", same), ("rank 1", same)], 2) == [same]


def test_what_a_check_has_found_is_not_told_once_more_by_the_steps() -> None:
    found, step = fail("network-output", "For 2 images.", "model: output"), fail("network-output", "For 4 images.")
    assert joined([(SOLO, found), (SOLO, step)], 1) == [found]
    # All that a user's own code may raise has this identifier.
    read, other = fail("exception", "In read.", "data: shares"), fail("exception", "In forward.")
    assert joined([(SOLO, read), (SOLO, other)], 1) == [read, other]


def test_the_first_cause_stays_and_the_avalanche_goes() -> None:
    cause = fail("exception", "ValueError: no liver here.")
    told = [("rank 0", fail("rank-failed")), ("rank 1", cause), ("rank 2", fail("connection-closed"))]
    assert joined(told, 3) == [cause._replace(subject="On rank 1: ValueError: no liver here.")]
    # Without a cause, one of them is told.
    assert len(joined([("rank 0", fail("rank-gone")), ("rank 1", fail("rank-gone", "Another."))], 2)) == 1


def test_what_one_process_has_shown_is_not_told_again() -> None:
    alone = fail("unregistered-module", "In one process.", "model: registered")
    told = [(SOLO, alone), ("rank 0", fail("unregistered-module", "In several."))]
    assert joined(told, 1) == [alone]


def test_a_damaged_case_is_told_by_the_checks_of_the_data_alone() -> None:
    case = fail("mask-values", "The mask 'a.png' has the value 7.", "data: files")
    told = [(SOLO, case), (SOLO, fail("mask-values", "The mask 'b.png' has the value 7.", "model: learns"))]
    assert joined(told, 1) == [case]


def test_what_several_checks_come_upon_is_told_by_the_first() -> None:
    first, second = (fail("batch-form", "A tuple.", check) for check in ("model: output", "model: learns"))
    other = fail("batch-form", "A list.", "model: learns")
    assert joined([(SOLO, first), (SOLO, second), (SOLO, other)], 1) == [first, other]


def test_what_was_not_checked_is_said() -> None:
    left_out = not_checked(2, started=False, explained=True)
    assert left_out.status == "warn"
    assert "one process alone does not come so far" in left_out.subject
    # Without a failure that explains it, it is one: nothing may pass unseen.
    unexplained = not_checked(4, started=True, explained=False)
    assert unexplained.status == "fail"
    assert "4 processes" in unexplained.subject


def test_a_pass_explains_no_failure() -> None:
    """The check of the files passes in this process, and reading fails in a worker of a rank."""
    read = Finding("data-unreadable", "data: files", "pass", "96 cases can be read")
    failed = fail("data-unreadable", "'a.png' cannot be read.")
    assert joined([(SOLO, read), ("rank 0", failed), ("rank 1", failed)], 2) == [read, failed]
