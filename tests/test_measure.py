"""What all benchmarks share."""

from __future__ import annotations

from benchmarks.measure import Measured, interleaved, machine, ratio, table, turns


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    ticks = iter(range(100))
    found = interleaved(
        {name: lambda name=name: calls.append(name) for name in "abc"}, 3, clock=lambda: float(next(ticks))
    )
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"  # once unmeasured, and each first in a round of its own
    assert found["b"].values == (1.0, 1.0, 1.0)


def test_turns_leave_the_first_round_out() -> None:
    values = {"a": iter([9.0, 1.0, 2.0]), "b": iter([9.0, 3.0, 5.0])}
    found = turns({name: lambda name=name: next(values[name]) for name in values}, 2)  # type: ignore[misc]
    assert {name: one.values for name, one in found.items()} == {"a": (1.0, 2.0), "b": (3.0, 5.0)}


def test_ratios_are_those_of_single_rounds() -> None:
    slow, fast = Measured((2.0, 8.0, 6.0)), Measured((1.0, 4.0, 2.0))
    found = ratio(slow, fast)  # the second round met a busy machine
    assert (found.low, found.median, found.high) == (2.0, 2.0, 3.0)
    assert found.told() == "2 (2 to 3)"
    assert fast.each(lambda seconds: 8 / seconds).values == (8.0, 2.0, 4.0)
    assert slow.plain() == {"median": 6.0, "low": 2.0, "high": 8.0, "rounds": 3}


def test_a_table_in_markdown() -> None:
    assert table(["a", "b"], [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_machine_is_told() -> None:
    assert all(machine().values())
