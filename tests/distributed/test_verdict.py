"""Who is to blame, by rules over what the ranks have told: each case worked out by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from template.distributed.alarm import alarm_of
from template.distributed.heartbeat import Beat
from template.distributed.verdict import Alarm, Seen, Verdict, judge

TIMEOUT, STARTUP = timedelta(seconds=30), timedelta(seconds=600)


def rank(still: float = 0.0, call: str = "", age: float = 0.0, gone: bool = False, **fields: Any) -> Seen:
    beat = Beat(
        1, 1, "", "", "node", still=still, call=call, **{"startup": False, "place": "train.py:1 step", **fields}
    )
    return Seen(beat, age, max(0.0, age - 2.0), gone)


def blamed(*ranks: Seen, alarm: Alarm | None = None) -> tuple[str, list[int]] | None:
    verdict = judge(dict(enumerate(ranks)), TIMEOUT, STARTUP, alarm)
    return None if verdict is None else (verdict.identifier, verdict.guilty)


WAITS = rank(still=31, call="all_reduce")


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([rank(), rank()], id="all move"),
        pytest.param([rank(), WAITS], id="one waits for one that moves"),
        pytest.param([rank(still=29), WAITS], id="one stands, not for long enough"),
        pytest.param([rank(still=31), rank()], id="one stands, nobody waits"),
        pytest.param([rank(still=31, startup=True), WAITS], id="start-up may take longer"),
        pytest.param([rank(state="ended"), rank()], id="one has ended, the other still works"),
        pytest.param([rank(state="ended", gone=True), rank(state="ended", gone=True)], id="all have ended"),
        pytest.param([rank(age=20), WAITS], id="a late beat alone"),
    ],
)
def test_nobody_is_blamed_while(ranks: list[Seen]) -> None:
    assert blamed(*ranks) is None


def test_who_stands_elsewhere_while_others_wait() -> None:
    assert blamed(WAITS, rank(still=30), WAITS) == ("hang", [1])


def test_start_up_has_an_end_too() -> None:
    assert blamed(rank(still=601, startup=True), WAITS) == ("hang", [0])


def test_all_stand_elsewhere() -> None:
    assert blamed(rank(still=30), rank(still=40)) == ("hang", [0, 1])


def test_on_a_gpu_who_has_entered_fewer_collectives() -> None:
    # The main threads wait for results, in no collective by their stacks.
    ahead = rank(still=31, counts={"0": 8})
    assert blamed(ahead, rank(still=31, counts={"0": 7}), ahead) == ("hang", [1])


def test_who_is_odd_when_all_wait() -> None:
    there, odd = rank(still=31, call="barrier"), rank(still=31, call="all_reduce")
    assert blamed(there, odd, there) == ("hang", [1])
    assert blamed(rank(still=31, call="x", counts={"0": 5}), rank(still=31, call="x", counts={"0": 4})) == ("hang", [1])


def test_nobody_is_odd() -> None:
    assert blamed(WAITS, WAITS) == ("connection-lost", [0, 1])


def test_a_rank_that_is_gone_at_once() -> None:
    assert blamed(rank(), rank(gone=True)) == ("rank-gone", [1])


def test_a_rank_that_is_gone_because_of_another_is_not_blamed() -> None:
    assert blamed(rank(gone=True, state="victim"), rank(gone=True), WAITS) == ("rank-gone", [1])


def test_no_beat_for_the_timeout() -> None:
    assert blamed(WAITS, rank(age=31)) == ("rank-gone", [1])


@pytest.mark.parametrize(("state", "identifier"), [("ended", "rank-stopped-early"), ("failed", "rank-failed")])
def test_who_left_while_others_wait(state: str, identifier: str) -> None:
    assert blamed(rank(still=9, call="backward"), rank(state=state, gone=True)) == (identifier, [1])
    assert blamed(rank(still=5, call="backward"), rank(state=state, gone=True)) is None


VICTIM = rank(call="all_reduce", state="victim")
BROKEN, TIMED_OUT = Alarm(False, "Connection closed by peer", 7.0), Alarm(True, "Timed out waiting", 0.0)


def test_after_an_alarm_what_is_known_counts_at_once() -> None:
    early = Alarm(False, "Connection closed by peer", 0.0)
    assert blamed(VICTIM, rank(state="failed", reason="no"), alarm=early) == ("rank-failed", [1])
    assert blamed(VICTIM, rank(age=7), alarm=early) is None


def test_a_broken_connection() -> None:
    assert blamed(VICTIM, rank(age=7), alarm=BROKEN) == ("rank-gone", [1])
    assert blamed(VICTIM, VICTIM, alarm=BROKEN) == ("connection-lost", [0, 1])


def test_a_collective_that_waited_too_long() -> None:
    assert blamed(VICTIM, rank(still=4), alarm=TIMED_OUT) == ("hang", [1])
    assert blamed(VICTIM, rank(still=0), alarm=TIMED_OUT) == ("hang", [1])
    assert blamed(VICTIM, rank(call="barrier", state="victim"), VICTIM, alarm=TIMED_OUT) == ("hang", [1])


def test_the_reason_of_a_failure_is_quoted() -> None:
    verdict = judge(
        {0: VICTIM, 1: rank(state="failed", reason="no memory", step=4, phase="validation")}, TIMEOUT, STARTUP, BROKEN
    )
    assert verdict is not None
    assert verdict.what == "Rank 1 failed in step 4 (validation): no memory."
    assert Verdict.load(verdict.dump()) == verdict


@pytest.mark.parametrize(
    ("text", "timed_out"),
    [
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242", False),
        ("[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv", True),
        (
            "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: …",
            False,
        ),
        ("wait timeout after 600000ms, keys: /default_pg/0//agree/folders", True),
    ],
)
def test_errors_that_another_rank_causes(text: str, timed_out: bool) -> None:
    alarm = alarm_of(RuntimeError(text))
    assert alarm is not None
    assert alarm.timed_out == timed_out
    assert alarm.text == text.partition("\n")[0]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Connection closed by peer"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3699, invalid usage, duplicate GPU detected"),
        RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed."),
    ],
)
def test_errors_of_this_rank(error: Exception) -> None:
    assert alarm_of(error) is None
