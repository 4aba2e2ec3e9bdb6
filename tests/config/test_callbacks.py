"""Callbacks that look for a learning rate or a batch size are refused before the start, with what to set instead."""

from __future__ import annotations

import pytest
from lightning.pytorch.callbacks import BatchSizeFinder, EarlyStopping, LearningRateFinder

from template.config.callbacks import users_callbacks
from template.distributed.faults import NamedError


@pytest.mark.parametrize(
    ("kind", "key"),
    [(LearningRateFinder, "model.optimizer.init_args.lr"), (BatchSizeFinder, "data.batch_size")],
)
def test_finders_are_refused_with_the_key_to_set(
    kind: type[LearningRateFinder] | type[BatchSizeFinder], key: str
) -> None:
    with pytest.raises(NamedError) as caught:
        users_callbacks([EarlyStopping("val/loss"), kind()])
    assert caught.value.identifier == "config"
    assert kind.__name__ in caught.value.what
    assert key in caught.value.fix


def test_one_none_and_several() -> None:
    one = EarlyStopping("val/loss")
    assert users_callbacks(None) == []
    assert users_callbacks(one) == users_callbacks([one]) == [one]
