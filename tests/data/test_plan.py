"""Batch arithmetic."""

from __future__ import annotations

import pytest

from template.data.plan import plan_batches
from template.distributed.faults import NamedError


def test_the_plan_reads_as_a_sentence() -> None:
    assert str(plan_batches(88, 8, 2, 1)) == "global batch 8 = 2 processes × 4 × 1 accumulation; 11 steps an epoch"
    assert str(plan_batches(88, 8, 1, 2)) == "global batch 8 = 1 process × 4 × 2 accumulation; 11 steps an epoch"
    assert plan_batches(91, 8, 2, 2)[2:] == (2, 2, 11, 3)


@pytest.mark.case("notes/dataparallel")
@pytest.mark.parametrize(("batch_size", "offer"), [(30, "28 or 32"), (3, "to 4,"), (0, "to 4,")])
def test_a_batch_that_cannot_be_shared_out_is_refused_with_numbers_that_can(batch_size: int, offer: str) -> None:
    with pytest.raises(NamedError, match=offer) as caught:
        plan_batches(100, batch_size, 2, 2)
    assert caught.value.identifier == "batch-size"
    assert caught.value.exit_code == 2


def test_an_epoch_without_a_whole_batch_is_refused() -> None:
    with pytest.raises(NamedError, match="7 training samples for a global batch of 8") as caught:
        plan_batches(7, 8, 2, 1)
    assert caught.value.identifier == "too-few-samples"
