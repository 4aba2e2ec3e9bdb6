"""What ranks compare, and tell each other without a collective."""

from __future__ import annotations

import time

import pytest

from template.distributed.agreement import StreamLengths, by_rank, gathered, told_by_all
from template.distributed.faults import NamedError
from tests.ranks import run_ranks


def test_values_are_listed_by_rank() -> None:
    assert by_rank([3.0, 1.0, 1.0, 1.0]) == "3.0 on rank 0, 1.0 on ranks 1, 2 and 3"


def test_one_process_tells_itself() -> None:
    assert gathered("a") == ["a"]
    assert told_by_all("question", "a") == {0: "a"}


def _tell(rank: int) -> tuple[dict[int, str], float]:
    start = time.monotonic()
    told = told_by_all("question", f"rank {rank}", seconds=0.5) if rank != 1 else {}
    return told, time.monotonic() - start


def test_ranks_that_do_not_come_are_left_out() -> None:
    results = run_ranks(3, _tell)
    assert results[0][0] == results[2][0] == {0: "rank 0", 2: "rank 2"}


def _stream(rank: int) -> NamedError | None:
    lengths = StreamLengths()
    for count in (1, 2, 3)[: 3 - rank]:
        lengths.got(4, count)
    try:
        lengths.ended(4, 3 - rank, seconds=5)
    except NamedError as error:
        return error
    return None


def test_the_rank_that_ends_first_is_named() -> None:
    longest, shorter = run_ranks(2, _stream)
    assert longest is None or longest.identifier == "batches-differ"
    assert shorter is not None
    assert shorter.what == "The training loader ended after 2 batches on rank 1, and rank 0 has got another."


def _slow_stream(rank: int) -> float:
    lengths = StreamLengths()
    lengths.got(0, 1)
    time.sleep(rank)
    start = time.monotonic()
    lengths.ended(0, 1, seconds=20)
    return time.monotonic() - start


@pytest.mark.parametrize("world_size", [2, 3])
def test_slower_ranks_are_waited_for(world_size: int) -> None:
    assert run_ranks(world_size, _slow_stream)[0] > 0.5
