"""A user's own callbacks, without those that search for what this program is told in its configuration."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder

from ..distributed.faults import NamedError

_REFUSED: dict[type[Callback], tuple[str, str]] = {
    LearningRateFinder: (
        "It sets an attribute lr of the module, and here the learning rate is an argument of the optimizer.",
        (
            "Remove it, and set model.optimizer.init_args.lr; to compare some, start a run with each: "
            "--model.optimizer.init_args.lr 3e-4 --experiment lr_3e-4."
        ),
    ),
    BatchSizeFinder: (
        "It would set the batch of each process, and a run's result would depend on the memory that it finds.",
        (
            "Remove it, and set data.batch_size, the global batch; where memory is short, share it out with "
            "trainer.accumulate_grad_batches."
        ),
    ),
}


def users_callbacks(given: Any) -> list[Callback]:
    """A user's own callbacks.

    Args:
        given: ``trainer.callbacks``: one, a list, or None.

    Raises:
        NamedError: ``config``: one of them cannot do its work here.
    """
    users: list[Callback] = given if isinstance(given, list) else [] if given is None else [given]
    for callback in users:
        for kind, (cause, fix) in _REFUSED.items():
            if isinstance(callback, kind):
                what = f"trainer.callbacks holds a {type(callback).__name__}, which cannot be used."
                raise NamedError("config", what, cause, fix)
    return users
