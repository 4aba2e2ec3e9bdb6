"""Loaders of a data set's own: trained with as they are, told of, or refused by name."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from template.callbacks.probe import ProbeStep
from template.callbacks.summary import StartSummary
from template.data.dataset import Case
from template.data.own_loader import evaluation_batch, told_of_loader, training_batch
from template.data.phantom import Phantom
from template.distributed.faults import NamedError
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from tests.cases.toy import failure, trainer, weights
from tests.ranks import run_ranks


class Pairs(Dataset[dict[str, torch.Tensor]]):
    """Images and masks, and nothing else."""

    def __init__(self, count: int = 8) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        if not 0 <= number < self.count:
            raise IndexError(number)
        image = torch.zeros(1, 16, 16)
        image[:, : number + 4] = 1
        return {"image": image, "mask": image[0].long()}


class Own(Phantom):
    """Loaders in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__(train_cases=8, val_cases=2, test_cases=1, size=16, batch_size=4, num_workers=0)
        self.how = how

    def train_dataloader(self) -> Any:
        rank = self._trainer().global_rank
        if self.how == "loader":
            return DataLoader(Pairs(), 2)
        if self.how == "distributed":
            return DataLoader(Pairs(), 2, sampler=DistributedSampler(Pairs(), self._trainer().world_size, rank))
        if self.how == "stream":
            return Stream(4)
        if self.how == "super":
            return super().train_dataloader()
        if self.how == "tuples":
            return DataLoader([(one["image"], one["mask"]) for one in Pairs()], 2)  # type: ignore[arg-type]
        # The dataset of the class, torch's own collation, and fewer samples on rank 1.
        return DataLoader(Subset(super().train_dataloader().dataset, range(8 - 4 * rank)), 2)

    def val_dataloader(self) -> Any:
        return super().val_dataloader() if self.how == "super" else DataLoader(Pairs(3), 2)


class Stream:
    """Nobody knows how many batches come."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for one in list(Pairs())[: self.count]:
            yield {"image": one["image"][None], "mask": one["mask"][None]}


def fit(how: str, world_size: int, folder: str) -> dict[str, Any]:
    run = trainer(world_size, folder, ProbeStep(), StartSummary(Path(folder)), max_epochs=1)
    module = Segmenter(UNet(width=4, depth=1), 3, 1)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run.fit(module, datamodule=Own(how))
    assert run.callback_metrics["val/loss"].isfinite()
    return {"weights": weights(module), "steps": run.global_step, "output": output.getvalue()}


@pytest.mark.parametrize(
    ("how", "steps", "told"),
    [
        ("loader", 4, "4 batches an epoch × 1 process, 1 accumulation"),
        ("stream", 4, "an unknown number of batches an epoch × 1 process, 1 accumulation"),
        ("super", 2, "global batch 4 = 1 process × 4 × 1 accumulation; 2 steps an epoch"),
        ("subset", 4, "4 batches an epoch"),
    ],
)
def test_one_process_trains_and_tells_what_is_lost(how: str, steps: int, told: str, tmp_path: Path) -> None:
    # In a rank of its own, as the strategy opens a process group.
    (found,) = run_ranks(1, _fit_one, how, str(tmp_path))
    assert found["steps"] == steps
    assert told in found["output"]
    assert ("a run resumed inside an epoch begins the loader anew" in found["output"]) is (how != "super")


def _fit_one(rank: int, how: str, folder: str) -> dict[str, Any]:
    return fit(how, 1, folder)


def _fit_two(rank: int, how: str, folder: str) -> Any:
    try:
        return fit(how, 2, folder)
    except NamedError as error:
        return error


@pytest.mark.parametrize("how", ["distributed", "loader"])
def test_two_processes_train(how: str, tmp_path: Path) -> None:
    one, other = run_ranks(2, _fit_two, how, str(tmp_path))
    assert one["steps"] == {"distributed": 2, "loader": 4}[how]
    assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])
    assert f"{one['steps']} batches an epoch × 2 processes" in one["output"]
    assert ("every process reads all samples" in one["output"]) is (how == "loader")


def test_a_loader_that_is_shorter_on_one_rank_is_named(tmp_path: Path) -> None:
    for error in run_ranks(2, _fit_two, "subset", str(tmp_path)):
        assert error.identifier == "batches-differ"
        assert error.what == "The training loader has 4 batches on rank 0, 2 batches on rank 1."


def _fails(rank: int, folder: str) -> NamedError:
    return failure(lambda: fit("tuples", 1, folder))


def test_batches_of_another_form_are_refused_by_name(tmp_path: Path) -> None:
    (error,) = run_ranks(1, _fails, str(tmp_path))
    assert error.identifier == "batch-form"
    assert error.what == "Own.train_dataloader gives a list of 2 as a batch."
    assert "'image', float [N, C, …], and 'mask', integer labels" in error.fix


IMAGE, MASK = torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"image": IMAGE, "label": MASK}, "L gives no tensor 'mask', but only 'image', 'label'."),
        ({"image": IMAGE, "mask": "a.png"}, "L gives no tensor 'mask', but a str."),
        ({"image": IMAGE.byte(), "mask": MASK}, "L gives images [2, 1, 4, 4] of torch.uint8."),
        ({"image": IMAGE[:, 0], "mask": MASK}, "L gives images [2, 4, 4] of torch.float32."),
        ({"image": IMAGE, "mask": MASK[:, None]}, "L gives masks [2, 1, 4, 4] of torch.uint8 for images [2, 1, 4, 4]."),
        ({"image": IMAGE, "mask": MASK.float()}, "L gives masks [2, 4, 4] of torch.float32 for images [2, 1, 4, 4]."),
        ({"image": IMAGE, "mask": MASK[:, :2]}, "L gives images of the size [4, 4] with masks of [2, 4]."),
    ],
)
def test_what_is_no_training_batch_is_named(batch: Any, told: str) -> None:
    with pytest.raises(NamedError) as caught:
        training_batch(batch, "L")
    assert caught.value.identifier == "batch-form"
    assert caught.value.what == told


def test_names_of_samples_are_found_in_any_form() -> None:
    cases = [Case("a", 0), Case("b", 1)]
    for given in (cases, ["a", "b"], ("a", "b"), torch.utils.data.default_collate(cases)):
        batch = training_batch({"image": IMAGE, "mask": MASK, "case": given}, "L")
        assert [case.name for case in batch["case"]] == ["a", "b"]
    for given in (None, ["a"], 3):
        assert "case" not in training_batch({"image": IMAGE, "mask": MASK, "case": given}, "L")


def test_batches_of_evaluation_are_completed() -> None:
    (group,) = evaluation_batch({"image": IMAGE, "mask": MASK[:, :2]}, "L")
    assert [case.name for case in group["case"]] == ["sample 0", "sample 1"]
    assert group["size"] == [(4, 4), (4, 4)]
    assert evaluation_batch([], "L") == []
    with pytest.raises(NamedError, match="L gives no 'case'") as caught:
        evaluation_batch({"image": IMAGE}, "L", predicts=True)
    assert caught.value.identifier == "batch-form"


def test_a_loader_that_deals_is_not_said_to_read_all() -> None:
    pairs = Pairs()
    assert len(told_of_loader(DataLoader(pairs, 2, sampler=DistributedSampler(pairs, 2, 0)), 2, 1, 2)) == 2
    assert len(told_of_loader(Stream(2), float("inf"), 1, 2)) == 2
    assert len(told_of_loader(DataLoader(pairs, 2, shuffle=True), 4, 1, 2)) == 3
