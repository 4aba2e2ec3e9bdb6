"""Failure reports about gradients, losses and frozen layers, as a run meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from template.callbacks.sentinel import DivergenceSentinel
from template.callbacks.thawed import ThawedLayers
from template.data.phantom import Phantom
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from tests.ranks import run_ranks

from .toy import Toy, batches, failure, messages, trainer, weights


def data(**settings: Any) -> Phantom:
    return Phantom(
        **{"train_cases": 8, "val_cases": 1, "test_cases": 1, "size": 32, "batch_size": 4, "num_workers": 0, **settings}
    )


class Aux(nn.Module):
    """A network with a head that is called on some ranks only, from some step on."""

    def __init__(self, ranks: tuple[int, ...], first: int = 0) -> None:
        super().__init__()
        self.net = nn.Conv2d(1, 3, 3, padding=1)
        self.aux = nn.Conv2d(3, 3, 1)
        self.ranks, self.first, self.calls = ranks, first, 0

    def forward(self, image: Tensor) -> Any:
        logits = self.net(image)
        rank = torch.distributed.get_rank()
        self.calls += 1
        return self.aux(logits) if rank in self.ranks or self.calls <= self.first else logits


def _aux(rank: int, folder: str, knob: Any, ranks: tuple[int, ...], first: int) -> Any:
    told = messages()
    strategy = SafeDDPStrategy(find_unused_parameters=knob)
    run = trainer(2, folder, strategy=strategy, max_epochs=1)
    module = Segmenter(Aux(ranks, first), 3, 1)
    try:
        run.fit(module, datamodule=data())
    except NamedError as error:
        return told, error
    except RuntimeError as error:  # the rank that waits for the one that failed
        return told, error
    return told, weights(module)


@pytest.mark.case("A1")
def test_a_layer_that_the_loss_does_not_reach_is_named_before_the_first_step(tmp_path: Path) -> None:
    for _, error in run_ranks(2, _aux, str(tmp_path), False, (), 0):
        assert error.identifier == "unused-parameters"
        assert "aux.weight, net.aux.bias (its module is not called in forward" in error.what
        assert "Remove the layer" in error.fix
        assert "find_unused_parameters" in error.fix


@pytest.mark.case("A2")
def test_a_branch_that_one_rank_skips_names_the_rank(tmp_path: Path) -> None:
    for _, error in run_ranks(2, _aux, str(tmp_path), False, (0,), 0):
        assert error.identifier == "unused-parameters"
        assert "net.aux.weight, net.aux.bias on rank 1 alone (a branch that is taken on other ranks only" in error.what


@pytest.mark.case("A2")
def test_with_auto_the_ranks_stay_equal(tmp_path: Path) -> None:
    (told, one), (_, other) = run_ranks(2, _aux, str(tmp_path), "auto", (0,), 0)
    assert "net.aux.weight, net.aux.bias on rank 1 alone" in " ".join(told)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.case("A2")
def test_a_branch_that_one_rank_skips_later_names_rank_and_samples(tmp_path: Path) -> None:
    # The first step takes the branch; passes that are discarded are not counted.
    (_, _innocent), (_, error) = run_ranks(2, _aux, str(tmp_path), "auto", (0,), 1)
    assert error.identifier == "unused-parameters"
    assert "net.aux.weight, net.aux.bias got no gradient on rank 1, at the samples train_000" in error.what
    assert "loss + 0 * out.sum()" in error.fix


class Spare(Toy):
    """Has a head that is in no loss, and no method that a probe step could call."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Conv2d(4, 3, 1)


def _spare(rank: int, folder: str) -> NamedError:
    return failure(lambda: trainer(2, folder).fit(Spare(), batches(1), batches(1)))


@pytest.mark.case("A1")
def test_a_module_of_ones_own_is_checked_in_its_first_step(tmp_path: Path) -> None:
    # One batch: DDP itself would complain in the second one.
    for rank, error in enumerate(run_ranks(2, _spare, str(tmp_path))):
        assert error.what == f"In step 0 aux.weight, aux.bias got no gradient on rank {rank}."
        assert "Remove the layer" in error.fix


class Skips(Toy):
    """Returns None on rank 1 in its second step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if (self.global_rank, batch_idx) == (1, 1) else super().training_step(batch, batch_idx)


def _skips(rank: int, folder: str) -> NamedError | None:
    try:
        trainer(2, folder).fit(Skips(), batches(3), batches(1))
    except NamedError as error:
        return error
    except RuntimeError:  # the other rank's connection is closed
        return None
    raise AssertionError


@pytest.mark.case("A5")
def test_a_skipped_step_names_the_rank(tmp_path: Path) -> None:
    error = run_ranks(2, _skips, str(tmp_path))[1]
    assert error.identifier == "step-skipped"
    assert error.what == "training_step returned None on rank 1 in step 1."
    assert "return a loss of zero" in error.fix


class Checkpointed(nn.Module):
    """A block under gradient checkpointing."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.reentrant = reentrant

    def forward(self, image: Tensor) -> Any:
        return self.head(checkpoint(self.block, self.stem(image), use_reentrant=self.reentrant))


def _checkpointed(rank: int, folder: str, reentrant: bool, knob: Any) -> Any:
    run = trainer(2, folder, strategy=SafeDDPStrategy(find_unused_parameters=knob), max_epochs=1)
    module = Segmenter(Checkpointed(reentrant), 3, 1)
    try:
        run.fit(module, datamodule=data())
    except NamedError as error:
        return error
    return weights(module)


@pytest.mark.case("A7")
def test_reentrant_checkpointing_with_the_search_is_refused_at_the_start(tmp_path: Path) -> None:
    for rank, error in enumerate(run_ranks(2, _checkpointed, str(tmp_path), True, True)):
        assert error.identifier == "ready-twice"
        assert error.what.startswith("The gradient of net.block.")
        assert error.what.endswith(f"on rank {rank}.")
        assert "use_reentrant=False" in error.fix


@pytest.mark.case("A7")
def test_other_checkpointing_trains(tmp_path: Path) -> None:
    for reentrant, knob in ((True, "auto"), (False, True)):
        one, other = run_ranks(2, _checkpointed, str(tmp_path), reentrant, knob)
        assert all(torch.equal(one[name], other[name]) for name in one)


class Thaws(Callback):
    """Freezes the first layer before the run and trains it from epoch 1 on, or the other way round."""

    def __init__(self, trained_first: bool) -> None:
        self.trained_first = trained_first

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.layer(pl_module).requires_grad_(self.trained_first)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            self.layer(pl_module).requires_grad_(not self.trained_first)

    @staticmethod
    def layer(module: Any) -> nn.Module:
        return next(layer for layer in module.net.modules() if isinstance(layer, nn.Conv2d))


class Finetuning(BaseFinetuning):
    """Lightning's own way."""

    def freeze_before_training(self, pl_module: LightningModule) -> None:
        self.freeze(Thaws.layer(pl_module))

    def finetune_function(self, pl_module: LightningModule, epoch: int, optimizer: Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(Thaws.layer(pl_module), optimizer, lr=0.1)


class AllTrained(Segmenter):
    """Its optimizer has frozen parameters as well."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def _thaw(rank: int, world_size: int, folder: str, how: str, accumulate: int = 1, epochs: int = 3, **fit: Any) -> Any:
    told = messages()
    finetuning = how == "finetuning"
    callback: Callback = Finetuning() if finetuning else Thaws(how == "freeze")
    run = trainer(
        world_size,
        folder,
        callback,
        DivergenceSentinel(1),
        ThawedLayers(),
        precision="64-true",
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
    )
    make = Segmenter if finetuning else AllTrained
    module = make(UNet(width=4, depth=2), 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    name = next(name for name, p in module.named_parameters() if p is Thaws.layer(module).weight)
    start = weights(module)[name]
    run.fit(module, datamodule=data(), **fit)
    if epochs == 2:
        run.save_checkpoint(f"{folder}/end.ckpt")
    return told, weights(module), name, start


@pytest.mark.case("A8", "A9")
@pytest.mark.parametrize(("how", "accumulate"), [("unfreeze", 1), ("finetuning", 1), ("freeze", 1), ("unfreeze", 2)])
def test_layers_frozen_or_freed_during_a_run_are_averaged(how: str, accumulate: int, tmp_path: Path) -> None:
    ((_, alone, name, start),) = run_ranks(1, _thaw, 1, str(tmp_path / "1"), how, accumulate)
    (told, one, _, _), (_, other, _, _) = run_ranks(2, _thaw, 2, str(tmp_path / "2"), how, accumulate)
    assert not torch.equal(one[name], start.double())  # it was trained
    for each in alone:
        assert torch.equal(one[each], other[each]), each
        torch.testing.assert_close(one[each], alone[each], rtol=1e-9, atol=1e-9, msg=each)
    change = "frozen" if how == "freeze" else "became trainable"
    assert any(line.startswith(f"{name} {change} at epoch 1, step 2") for line in told), told


def _resumed(rank: int, folder: str, how: str) -> Any:
    whole = _thaw(rank, 2, folder, how)[1]
    torch.distributed.barrier()
    _thaw(rank, 2, folder, how, epochs=2)
    return whole, _thaw(rank, 2, folder, how, ckpt_path=f"{folder}/end.ckpt")[1]


@pytest.mark.case("A8", "A9")
@pytest.mark.parametrize("how", ["unfreeze", "finetuning", "freeze"])
def test_so_are_those_of_a_resumed_run(how: str, tmp_path: Path) -> None:
    for whole, resumed in run_ranks(2, _resumed, str(tmp_path), how):
        for name in whole:
            assert torch.equal(whole[name], resumed[name]), name


class Spoils(Callback):
    """Ignores all pixels of rank 1 in its second batch, or makes its image infinite."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == 1 and batch_idx == 1:
            if self.what == "image":
                batch["image"][0] = float("inf")
            else:
                batch["mask"][:] = 255


def _spoilt(rank: int, folder: str, what: str, loss: nn.Module | None) -> Any:
    run = trainer(2, folder, Spoils(what), max_epochs=1)
    module = Segmenter(UNet(width=4, depth=2), 3, 1, loss=loss)
    try:
        run.fit(module, datamodule=data())
    except NamedError as error:
        return error
    except RuntimeError:  # the other rank's connection is closed
        return None
    return weights(module)


@pytest.mark.case("A4")
def test_a_rank_without_a_labelled_pixel_spoils_nothing(tmp_path: Path) -> None:
    one, other = run_ranks(2, _spoilt, str(tmp_path), "mask", None)
    for name in one:
        assert one[name].isfinite().all(), name
        assert torch.equal(one[name], other[name]), name


@pytest.mark.case("A4")
def test_a_loss_of_all_ranks_names_the_rank_and_sample_that_spoils_it(tmp_path: Path) -> None:
    for error in run_ranks(2, _spoilt, str(tmp_path), "image", None):
        assert error.identifier == "loss-not-finite"
        assert "in step 1, at the samples train_000" in error.what
        assert error.what.count("train_") == 1
        assert error.what.endswith(" of rank 1, whose images are not finite.")


@pytest.mark.case("A4")
def test_a_loss_of_the_ranks_own_names_the_rank_and_its_samples(tmp_path: Path) -> None:
    _, error = run_ranks(2, _spoilt, str(tmp_path), "mask", nn.CrossEntropyLoss(ignore_index=255))
    assert error.identifier == "loss-not-finite"
    assert error.what.startswith("The loss is nan in step 1, at the samples train_000")
    assert error.what.endswith(" of rank 1.")
    assert "zero where nothing is labelled" in error.fix


class Buggy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        if torch.distributed.get_rank() == 1:
            raise ValueError("odd")  # here
        return self.conv(image)


def _buggy(rank: int, folder: str) -> NamedError | None:
    run = trainer(2, folder, max_epochs=1)
    try:
        run.fit(Segmenter(Buggy(), 3, 1), datamodule=data())
    except NamedError as error:
        return error
    except RuntimeError:  # the other rank's connection is closed
        return None
    raise AssertionError


def test_an_exception_in_the_network_names_rank_and_line(tmp_path: Path) -> None:
    error = run_ranks(2, _buggy, str(tmp_path))[1]
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# here"))
    assert error.what.startswith("The network Buggy fails on its first batch of images [2, 1, 32, 32] on rank 1: Value")
    assert error.what.endswith(f'test_training.py:{line} forward: raise ValueError("odd")  # here.')
