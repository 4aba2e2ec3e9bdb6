"""Orders: every rank does the same after the same step, and inside the same validation."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

from template.distributed.stop import Order, Orders


def on_threads(size: int, work: Callable[[Orders, int], None], interval: float = 0.01) -> None:
    """Call ``work`` on ranks that are threads with a store of their own each."""
    store = dist.HashStore()
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            work(Orders(store, rank, size, interval), rank)
        except BaseException as error:  # noqa: BLE001  # told by the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not failures


@pytest.mark.parametrize("asker", [0, 1, 2])
def test_all_stop_after_the_same_step_whoever_is_asked(asker: int) -> None:
    step_ends = threading.Barrier(3)
    stopped = {}

    def work(orders: Orders, rank: int) -> None:
        for step in range(1, 100):
            step_ends.wait(10)  # the sum that ends a step
            if step == 20 and rank == asker:
                orders.ask()
            if orders.after(step, 0.002, lambda: False) == "stop":
                stopped[rank] = step
                return

    on_threads(3, work)
    assert len(stopped) == 3
    (step,) = set(stopped.values())
    assert 20 <= step <= 26  # the next order is due within 10 ms, 5 steps


def test_rank_0_s_clock_decides_when_all_save() -> None:
    step_ends = threading.Barrier(2)
    told: dict[int, list[tuple[int, Order]]] = {0: [], 1: []}

    def work(orders: Orders, rank: int) -> None:
        for step in range(1, 40):
            step_ends.wait(10)
            order = orders.after(step, 0.002, lambda step=step: rank == 1 or step in (16, 21))
            told[rank].append((step, order))

    on_threads(2, work)
    assert told[0] == told[1]
    assert [step for step, order in told[0] if order] == [16, 21]  # orders are due at 1, 6, 11, …


def test_one_process_needs_no_store() -> None:
    orders = Orders(None, 0, 1)
    assert orders.after(1, 1.0, lambda: True) == "save"
    orders.ask()
    assert orders.after(2, 1.0, lambda: True) == "stop"
    assert orders.vote_during()
    assert orders.vote_at_end(lambda: True)


@pytest.mark.parametrize("seed", range(6))
def test_a_validation_is_left_by_all_or_by_none(seed: int) -> None:
    verdicts: dict[int, list[bool]] = {0: [], 1: [], 2: []}

    def work(orders: Orders, rank: int) -> None:
        chance = random.Random(10 * seed + rank)
        for validation in range(4):
            orders.open_vote()
            # From none to six batches: shares differ. One rank is asked to stop in some batch, or when it is done.
            asked = validation == 2 and rank == seed % 3
            batches = chance.randrange(7)
            moment = chance.randrange(batches + 1)
            left = False
            for batch in range(batches):
                time.sleep(0.002 * chance.random())
                if asked and batch == moment:
                    orders.ask()
                if orders.vote_during():
                    left = True
                    break
            if not left:
                left = orders.vote_at_end(lambda asked=asked: asked)
            verdicts[rank].append(left)
            if left:
                return

    on_threads(3, work)
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_no_validation_is_left_without_a_reason() -> None:
    verdicts: list[bool] = []

    def work(orders: Orders, rank: int) -> None:
        orders.open_vote()
        time.sleep(0.05 * rank)
        verdicts.append(orders.vote_during() or orders.vote_at_end(lambda: False))

    on_threads(3, work)
    assert verdicts == [False, False, False]
