"""A run resumed inside an epoch goes on with the batches that are left."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import Dataset

from template.data.loader import PositionedLoader
from template.data.sampler import GlobalBatchSampler
from template.distributed.faults import NamedError


class Keys(Dataset[Any]):
    """Returns what it is asked for."""

    def __getitem__(self, key: Any) -> Any:
        return key

    def __len__(self) -> int:
        return 22


def loader(workers: int = 0, batch_size: int = 4, world_size: int = 1) -> PositionedLoader:
    deals = GlobalBatchSampler(22, batch_size, 1, 0, world_size, seed=3)
    return PositionedLoader(Keys(), deals, collate_fn=list, num_workers=workers, persistent_workers=workers > 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_where_the_state_was_taken(workers: int) -> None:
    whole = list(loader())
    first = loader(workers)
    batches = iter(first)
    seen = [next(batches), next(batches)]  # workers have fetched more than these by now
    state = first.state_dict()
    assert state == {"epoch": 0, "samples": 8, "micro_batch": 4}
    resumed = loader(workers)
    resumed.load_state_dict(state)
    assert seen + list(resumed) == whole
    assert len(resumed) == len(whole) == 5


def test_after_an_epoch_comes_the_next() -> None:
    first = loader()
    list(first)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    resumed.deals.set_epoch(1)  # as Lightning does
    following = loader()
    following.deals.set_epoch(1)
    assert list(resumed) == list(following)


def test_the_position_holds_for_another_number_of_processes() -> None:
    resumed = loader(world_size=2)
    resumed.load_state_dict({"epoch": 0, "samples": 8, "micro_batch": 4})
    assert [key for batch in resumed for key in batch] == [key for batch in list(loader())[2:] for key in batch[:2]]


@pytest.mark.parametrize("batch_size", [2, 6])
def test_inside_an_epoch_other_batches_are_refused(batch_size: int) -> None:
    with pytest.raises(NamedError, match=f"8 samples into an epoch of micro-batches of 4; now they have {batch_size}"):
        loader(batch_size=batch_size).load_state_dict({"epoch": 0, "samples": 8, "micro_batch": 4})


def test_after_an_epoch_other_batches_are_taken() -> None:
    resumed = loader(batch_size=2)
    resumed.load_state_dict({"epoch": 0, "samples": 20, "micro_batch": 4})
    assert (resumed.deals.epoch, resumed.deals.first) == (1, 0)
