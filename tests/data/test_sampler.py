"""Global batches are a function of the seed and the epoch; processes only share them out."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from template.data.sampler import EvaluationBatchSampler, GlobalBatchSampler


def global_micro_batches(world_size: int, accumulation: int = 1, epoch: int = 0, first: int = 0) -> list[list[int]]:
    """The micro-batches of all processes put together, in order."""
    per_rank = []
    for rank in range(world_size):
        sampler = GlobalBatchSampler(22, 8, accumulation, rank, world_size, seed=3)
        sampler.set_position(epoch, first)
        per_rank.append(list(sampler))
    return [[index for _, index in chain(*shares)] for shares in zip(*per_rank, strict=True)]


@pytest.mark.case("notes/sampler")
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_world_size_deals_the_same_global_batches(world_size: int) -> None:
    assert global_micro_batches(world_size) == global_micro_batches(1)


@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_cuts_the_same_global_batch(accumulation: int) -> None:
    whole = global_micro_batches(1)
    cut = global_micro_batches(2, accumulation)
    assert [sum(cut[i : i + accumulation], []) for i in range(0, len(cut), accumulation)] == whole


def test_an_epoch_sees_no_sample_twice_and_drops_the_smaller_last_batch() -> None:
    batches = global_micro_batches(2)
    seen = sum(batches, [])
    assert [len(batch) for batch in batches] == [8, 8]  # 22 samples: 6 are dropped
    assert len(set(seen)) == 16
    assert seen == np.random.default_rng((3, 0)).permutation(22)[:16].tolist()


@pytest.mark.case("notes/sampler")
def test_epochs_differ_and_seeds_differ() -> None:
    assert global_micro_batches(1, epoch=0) != global_micro_batches(1, epoch=1)
    one, other = (list(GlobalBatchSampler(22, 8, 1, 0, 1, seed)) for seed in (0, 1))
    assert one != other


def test_keys_carry_their_epoch() -> None:
    sampler = GlobalBatchSampler(22, 8, 1, 0, 1, seed=0)
    sampler.set_epoch(5)
    assert {epoch for batch in sampler for epoch, _ in batch} == {5}


def test_a_positioned_sampler_goes_on_inside_the_epoch() -> None:
    assert global_micro_batches(2, 2, epoch=4, first=3) == global_micro_batches(2, 2, epoch=4)[3:]


def test_the_next_epoch_begins_at_its_start() -> None:
    sampler = GlobalBatchSampler(22, 8, 1, 0, 1, seed=0)
    sampler.set_position(1, 1)
    sampler.set_epoch(1)  # Lightning repeats the epoch it resumes in
    assert len(list(sampler)) == 1
    sampler.set_epoch(2)
    assert len(list(sampler)) == len(sampler) == 2


@pytest.mark.case("notes/sampler")
@pytest.mark.parametrize("samples", [0, 1, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_evaluation_deals_every_sample_once(samples: int, world_size: int) -> None:
    dealt = [list(EvaluationBatchSampler(samples, 2, rank, world_size)) for rank in range(world_size)]
    assert sorted(chain(*chain(*dealt))) == list(range(samples))
    assert all(len(batch) <= 2 for batches in dealt for batch in batches)


def test_a_process_without_a_sample_gets_one_empty_batch() -> None:
    sampler = EvaluationBatchSampler(1, 2, rank=1, world_size=2)
    assert list(sampler) == [[]]
    assert len(sampler) == 1
