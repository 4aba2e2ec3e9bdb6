from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from template.doctor.cost import (
    CHECKS,
    batchnorm_bytes,
    gradient_bytes,
    measure_exchange,
    ring_factor,
    ring_seconds,
)
from template.doctor.options import Options
from template.doctor.run import Seen, Together
from tests.ranks import run_ranks


def network() -> nn.Module:
    """64 + 8 + 16 trainable numbers, 100 frozen ones."""
    frozen = nn.Linear(10, 10, bias=False).requires_grad_(False)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), frozen)


def test_bytes_of_what_is_trained_and_of_batchnorm() -> None:
    assert gradient_bytes(network()) == 4 * (64 + 8 + 16)
    assert gradient_bytes(network().double()) == 8 * (64 + 8 + 16)
    assert batchnorm_bytes(network()) == 4 * 4 * 8


def test_a_ring_sends_each_byte_almost_twice() -> None:
    assert [ring_factor(n) for n in (1, 2, 4, 8)] == [0.0, 1.0, 1.5, 1.75]
    # 1 GB to and fro over 8 processes on 10 Gbit/s: 1.75 x 8 Gbit / 10 Gbit/s.
    assert ring_seconds(10**9, 8, 10.0) == pytest.approx(1.4)


def together(link_speed: float | None, alone: float = 0.1, here: float = 0.001) -> Together:
    rehearsal: Any = SimpleNamespace(
        options=Options(link_speed=link_speed),
        measured={"step_seconds_alone": alone},
        module=network(),
        trainer=SimpleNamespace(strategy=SimpleNamespace(sync_batchnorm=True)),
    )
    seen = [Seen({}, [], {}, {}, {}, {}, 0, seconds, here) for seconds in (0.06, 0.08)]
    return Together(rehearsal, seen)


def test_what_a_step_takes_and_sends() -> None:
    step, sent = CHECKS[0](together(None))
    assert step.subject == "100 ms on 1 process, 70 ms on 2 here"
    assert sent.subject == "0.5 kB exchanged a step; measured here: 1 ms"  # 352 + 128 bytes
    assert CHECKS[1](together(None)) == []  # without a link there is no arithmetic


def test_the_arithmetic_says_what_it_is_and_warns_where_it_is_most_of_a_step() -> None:
    (found,) = CHECKS[1](together(1.0))
    assert found.check == "cost: link (arithmetic)"
    assert found.status == "pass"
    assert found.subject == "0.00384 ms a step at 1 Gbit/s (here 0.0038 Gbit/s)"  # 480 bytes once, 8 bits each
    (slow,) = CHECKS[1](together(1e-5))
    assert (slow.id, slow.status) == ("slow-exchange", "warn")


def _measured(rank: int) -> float:
    return measure_exchange(network(), SimpleNamespace(sync_batchnorm=True))


def test_the_exchange_is_measured_on_all_ranks(tmp_path: Path) -> None:
    assert all(0 < seconds < 5 for seconds in run_ranks(2, _measured))
