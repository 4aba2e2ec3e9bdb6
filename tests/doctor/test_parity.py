"""The comparison itself, on traces that are made up; real ones are in the broken projects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from template.doctor.finding import Finding
from template.doctor.parity import Pair, one_process_and_several_agree
from template.doctor.trace import Trace


def trace(**changes: Any) -> Trace:
    made = Trace(
        samples=[{"a": (1.0, 2.0), "b": (3.0, 4.0)}, {"c": (5.0, 6.0), "d": (7.0, 8.0)}],
        layers={"net.conv": {"a": (1.0, 1.0), "b": (2.0, 2.0)}, "net.norm": {"a": (0.5, 1.0), "b": (0.25, 1.0)}},
        classes={"net.conv": "Conv2d", "net.norm": "InstanceNorm2d"},
        losses=[1.5, 1.25],
        gradients={"net.conv.weight": torch.full((4,), 0.5), "net.conv.bias": torch.full((2,), 1e-17)},
        weights={"net.conv.weight": torch.full((4,), 2.0), "net.conv.bias": torch.full((2,), 0.125)},
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def compared(many: Trace, one: Trace | None = None, double: bool = True, reasons: tuple[str, ...] = ()) -> Finding:
    (found,) = one_process_and_several_agree(Pair(one or trace(), many, 2, double, reasons))
    return found


def test_equal_runs_pass_with_their_distance() -> None:
    weights = {**trace().weights, "net.conv.weight": torch.tensor([2.0, 2.0, 2.0, 2.0 + 4e-12], dtype=torch.float64)}
    found = compared(trace(weights=weights))
    assert found.status == "pass"
    assert "weights 1e-12 apart (float64)" in found.subject  # 4e-12 / ‖(2, 2, 2, 2)‖


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"samples": [{"a": (1.0, 2.0), "z": (3.0, 4.0)}, {}]}, ["Micro-batch 0", "other samples", "b is missing"]),
        (
            {"samples": [trace().samples[0], {"c": (5.0, 6.0), "d": (7.0, 8.1)}]},
            ["The sample 'd' of micro-batch 1", "augmented"],
        ),
        (
            {"layers": {**trace().layers, "net.norm": {"a": (0.5, 1.0)}}},
            ["net.norm (", "'b' only on one"],
        ),
        (
            {"layers": {**trace().layers, "net.norm": {"a": (0.5, 1.0), "b": (0.25, 1.001)}}},
            ["net.norm (InstanceNorm2d)", "'b'", "the other samples of the batch"],
        ),
        ({"losses": [1.6, 1.25]}, ["1.5 on one process and 1.6 on 2", "global_sum"]),
        ({"gradients": {"net.conv.bias": trace().gradients["net.conv.bias"]}}, ["net.conv.weight", "none on rank 0"]),
        (
            {"gradients": {**trace().gradients, "net.conv.weight": torch.full((4,), 0.25)}},
            ["The gradient of net.conv.weight is 5.0e-01 apart"],
        ),
        ({"losses": [1.5, 1.3]}, ["micro-batch 1 is 1.25 on one process and 1.3 on 2", "The first step was the same"]),
        (
            {"weights": {**trace().weights, "net.conv.weight": torch.full((4,), 2.2)}},
            ["net.conv.weight is 1.0e-01 apart", "the worst one"],
        ),
    ],
)
def test_the_first_thing_that_differs_is_named(changes: dict[str, Any], named: list[str]) -> None:
    found = compared(trace(**changes))
    assert (found.id, found.status) == ("parity", "fail")
    text = f"{found.subject} {found.cause} {found.fix}"
    assert [name for name in named if name not in text] == []


def test_gradients_of_rounding_alone_and_what_moves_by_them_do_not_count() -> None:
    many = trace(
        gradients={**trace().gradients, "net.conv.bias": torch.full((2,), -3e-17)},
        weights={**trace().weights, "net.conv.bias": torch.full((2,), 0.126)},
    )
    assert compared(many).status == "pass"


def test_a_layer_that_draws_random_numbers_is_told_so() -> None:
    layers = {**trace().layers, "net.conv": {"a": (1.0, 1.0), "b": (2.5, 2.0)}}
    found = compared(trace(layers=layers), trace(random=["net.conv"], lines=["net.py:5 forward"]))
    assert found.status == "warn"
    assert "Random numbers are drawn at net.py:5 forward" in found.cause


def test_float32_is_looked_at_less_closely() -> None:
    many = trace(losses=[1.5 + 1e-5, 1.25])
    assert compared(many, double=False).status == "pass"
    assert compared(many).status == "fail"


def test_settings_of_the_users_that_explain_it_make_it_a_warning() -> None:
    found = compared(trace(losses=[1.6, 1.25]), reasons=("strategy.sync_batchnorm is off",))
    assert found.status == "warn"
    assert found.cause == "strategy.sync_batchnorm is off."
