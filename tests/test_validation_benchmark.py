"""The benchmark of metrics leaves out what it says, and nothing else."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from benchmarks import validation
from benchmarks.steps import ready_batch


@pytest.mark.parametrize(("scores", "loss"), [(True, True), (False, True), (True, False), (False, False)])
def test_what_is_left_out(scores: bool, loss: bool) -> None:
    module, batch = validation.segmenter(2), [ready_batch(2, 32)]
    # The confusion matrix and the losses as they are read at the end of the pass.
    seen: list[int] = []
    compute, of_losses = module.val_scores.compute, module.val_loss.compute
    with (
        patch.object(
            module.val_scores, "compute", lambda: (seen.append(int(module.val_scores.confusion.sum())), compute())
        ),
        patch.object(module.val_loss, "compute", lambda: (seen.append(int(module.val_loss.total > 0)), of_losses())),
    ):
        validation.validate(module, [batch, batch], scores, loss)
    assert seen == [2 * 2 * 32 * 32 * scores, int(loss)]
    assert module.val_scores.confusion.sum() == 0  # the next pass begins anew


def test_all_kinds_of_pass_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "SIZE", 32)
    ticks = iter(range(100))
    found = validation.measure(2, 1, 2, lambda: float(next(ticks)))
    assert {name: one.values for name, one in found.items()} == dict.fromkeys(
        (validation.WHOLE, validation.NO_SCORES, validation.NO_LOSS, validation.BARE), (1.0, 1.0)
    )
