"""The arithmetic of the benchmark of growth."""

from __future__ import annotations

import pytest

from benchmarks import growth


def test_the_power_of_a_curve() -> None:
    sizes = (1, 10, 100)
    assert growth.power(sizes, [7, 7, 7]) == 0
    assert growth.power(sizes, [3 * n for n in sizes]) == pytest.approx(1)
    assert growth.power(sizes, [n**2 / 5 for n in sizes]) == pytest.approx(2)
    assert growth.power(sizes, [5 / n for n in sizes]) == pytest.approx(-1)
    assert growth.power((64**2, 4096**2), (1, 64)) == pytest.approx(0.5)
    assert growth.power(sizes, [1, 1000, 10]) == pytest.approx(0.5)  # the ends alone count


@pytest.mark.parametrize(
    ("sizes", "values"), [((1, 10), (0, 1)), ((1, 10), (1, 0)), ((5, 5), (1, 2)), ((0, 5), (1, 2))]
)
def test_there_is_no_power_without_two_points(sizes: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="no power goes through"):
        growth.power(sizes, values)


@pytest.mark.parametrize(
    ("exponent", "word"),
    [
        (0.0, "flat"),
        (-0.1, "flat"),
        (1.12, "linear"),
        (0.9, "linear"),
        (0.5, "less than linear"),
        (-0.4, "falls"),
        (1.2, "**more than linear**"),
        (2.0, "**more than linear**"),
    ],
)
def test_a_power_in_a_word(exponent: float, word: str) -> None:
    assert growth.growth(exponent) == word


def test_a_fixed_cost_does_not_hide_what_grows() -> None:
    # 1 + n² / 10⁴: between the ends it looks as if it grew as n.
    sizes = (1.0, 100.0, 10_000.0)
    ((_, *cells),) = growth.rows(sizes, [{"work": 1 + n**2 / 1e4} for n in sizes])
    assert cells == ["1", "2", "1e+04", "1.00", "1.85", "**more than linear**"]


def test_a_short_call_is_measured_as_often_as_it_takes() -> None:
    now = [0.0]

    def work() -> None:
        now[0] += growth.ENOUGH / 4

    assert growth.repeated(work, 3, lambda: now[0]) == pytest.approx(growth.ENOUGH / 4)
    assert now[0] == pytest.approx(growth.ENOUGH / 4 * (1 + 3 * 4))


def test_simulated_ranks_that_share_badly_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "SHARED", 1000)
    growth.check_shares(4)
    evaluated, trained = growth._evaluated, growth._trained
    monkeypatch.setattr(growth, "_evaluated", lambda rank, ranks: evaluated(max(rank, 1), ranks))
    with pytest.raises(RuntimeError, match="4 ranks evaluate 750 of 1000 samples 1000 times"):
        growth.check_shares(4)
    monkeypatch.setattr(growth, "_trained", lambda rank, ranks: trained(0, ranks))
    with pytest.raises(RuntimeError, match="4 ranks train on 240 samples 960 times"):
        growth.check_shares(4)


def test_memory_of_this_process_is_read() -> None:
    before = growth.megabytes("RssAnon")
    block = bytearray(64 << 20)
    assert 60 < growth.megabytes("RssAnon") - before < 70
    del block


def test_costs_of_a_small_data_set_and_of_two_ranks() -> None:
    ticks = iter(range(10_000))
    costs = growth.of_samples(40, 1, lambda: float(next(ticks))) | growth.of_ranks(2, 1, lambda: float(next(ticks)))
    assert len(costs) == 9
    assert all(value > 0 for value in costs.values())
