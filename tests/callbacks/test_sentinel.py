"""The sentinel on ranks that really part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from template.callbacks.sentinel import DivergenceSentinel
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from tests.cases.toy import Toy, batches, trainer, weights
from tests.ranks import run_ranks


class Parts(Callback):
    """Changes something on one rank after its third step."""

    def __init__(self, what: str, rank: int) -> None:
        self.what, self.rank = what, rank

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_rank == self.rank and trainer.global_step == 3:
            if self.what == "lr":
                trainer.optimizers[0].param_groups[0]["lr"] *= 2
            elif self.what:
                with torch.no_grad():
                    pl_module.state_dict()[self.what].view(-1)[0] += 1e-6  # far below what a loss would show


def _fit(rank: int, world_size: int, folder: str, what: str, synchronised: bool, accumulate: int = 1) -> Any:
    module = Toy()
    strategy = SafeDDPStrategy(sync_batchnorm=synchronised)
    run = trainer(
        world_size,
        folder,
        Parts(what, world_size - 1),
        DivergenceSentinel(every_n_steps=2),
        strategy=strategy,
        accumulate_grad_batches=accumulate,
    )
    try:
        run.fit(module, batches(8, seed=rank), batches(1))
    except NamedError as error:
        return error
    return weights(module)


@pytest.mark.parametrize(
    ("world_size", "what", "shown"),
    [
        (2, "net.0.bias", "After step 4 net.0.bias differs between the ranks; its norm is 0."),  # BatchNorm removes it
        (3, "net.3.weight", "After step 4 net.3.weight differs between the ranks"),
        (3, "lr", "After step 4 net.0.weight differs between the ranks and so do "),
    ],
)
def test_ranks_that_part_end_the_run(world_size: int, what: str, shown: str, tmp_path: Path) -> None:
    errors = run_ranks(world_size, _fit, world_size, str(tmp_path), what, True)
    for error in errors:
        assert error.identifier == "ranks-differ"
        assert error.what == errors[0].what
        assert error.what.startswith(shown)
    together = "rank 0" if world_size == 2 else "ranks 0 and 1"
    assert f" on {together}, " in errors[0].what
    assert errors[0].what.endswith(f" on rank {world_size - 1}.")


class _Rates(Callback):
    """A schedule that goes by the rank, and moves nothing yet."""

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        trainer.optimizers[0].param_groups[0]["lr"] = 0.5 if trainer.global_rank else 0.25


def _rates(rank: int, folder: str) -> NamedError | None:
    run = trainer(2, folder, _Rates(), DivergenceSentinel(1))
    try:
        run.fit(Toy(), batches(2), batches(1))
    except NamedError as error:
        return error
    return None


def test_learning_rates_are_compared(tmp_path: Path) -> None:
    for error in run_ranks(2, _rates, str(tmp_path)):
        assert error.what == (
            "After step 1 the learning rate of optimizer 0, group 0 differs between the ranks; its value is 0.25 on "
            "rank 0, 0.5 on rank 1."
        )


@pytest.mark.parametrize(("synchronised", "accumulate"), [(True, 1), (False, 2)])
def test_a_healthy_run_goes_on(synchronised: bool, accumulate: int, tmp_path: Path) -> None:
    # Without synchronised BatchNorm its statistics differ by design.
    one, other = run_ranks(2, _fit, 2, str(tmp_path), "", synchronised, accumulate)
    assert torch.equal(one["net.0.weight"], other["net.0.weight"])


def test_nonsense_is_refused() -> None:
    with pytest.raises(NamedError, match="every_n_steps is -1"):
        DivergenceSentinel(-1)


class _PartsAtOnce(Callback):
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_rank == 1 and trainer.global_step in (0, 2):
            pl_module.net[3].bias.grad += 1.0


def _first_step(rank: int, folder: str, at_once: bool) -> NamedError | None:
    run = trainer(2, folder, *([_PartsAtOnce()] if at_once else [Parts("net.3.bias", 1)]), DivergenceSentinel(0))
    try:
        run.fit(Toy(), batches(8, seed=rank), batches(1))
    except NamedError as error:
        return error
    return None


def test_every_fit_compares_after_its_first_step(tmp_path: Path) -> None:
    errors = run_ranks(2, _first_step, str(tmp_path), True)
    assert all(error is not None and error.what.startswith("After step 1 net.3.bias differs") for error in errors)
    assert run_ranks(2, _first_step, str(tmp_path), False) == [None, None]  # looks only once
