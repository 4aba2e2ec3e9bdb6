"""Samples: seeded by (seed, epoch, sample), checked, and named when something is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from template.data.dataset import Case, CaseDataset, collate, collate_by_shape, moved_to
from template.data.seeding import seeded
from template.distributed.faults import NamedError
from template.labels import IGNORE_INDEX

CASES = [Case(f"case_{i}", i) for i in range(4)]


def read(case: Case) -> tuple[Tensor, Tensor]:
    image = torch.full((1, 4, 6), float(case.source))
    mask = torch.zeros(4, 6, dtype=torch.uint8)
    mask[0, 0], mask[1, 1] = 1, IGNORE_INDEX
    return image, mask


class Draws(nn.Module):
    """Adds one draw of each library's global generator to the image."""

    def forward(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": sample["image"] + torch.rand(1) + np.random.rand() + random.random()}


def dataset(
    reader: Callable[[Case], Any] = read, augment: list[nn.Module] | None = None, seed: int = 0, **settings: Any
) -> CaseDataset:
    defaults: dict[str, Any] = {"classes": ["background", "organ"], "in_channels": 1, "preprocess": []}
    return CaseDataset(CASES, reader, augment=augment, seed=seed, **{**defaults, **settings})


def test_augmentation_depends_on_seed_epoch_and_sample_alone() -> None:
    def draw(seed: int, key: tuple[int, int]) -> float:
        torch.rand(3), np.random.rand(3), random.random()  # whatever happened before does not matter
        return float(dataset(augment=[Draws()], seed=seed)[key]["image"][0, 0, 0]) - key[1]

    assert draw(0, (2, 1)) == draw(0, (2, 1))
    assert len({draw(0, (2, 1)), draw(0, (3, 1)), draw(0, (2, 2)), draw(1, (2, 1))}) == 4


def test_augmentation_in_workers_equals_that_in_the_training_process() -> None:
    def load(workers: int) -> list[Tensor]:
        keys = [[(7, 0), (7, 3)], [(7, 1), (7, 2)]]
        loader: Any = DataLoader(
            dataset(augment=[Draws()]), batch_sampler=keys, collate_fn=collate, num_workers=workers
        )  # type: ignore[arg-type]
        return [batch["image"] for batch in loader]

    assert all(map(torch.equal, load(0), load(2)))


def test_seeding_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with seeded(4, 5, 6):
        torch.rand(9), np.random.rand(9), random.random()
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_seeding_leaves_the_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Dropout on a GPU would draw the same numbers in every step, since nobody puts its generator back.
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a GPU's generator was seeded"))
    with seeded(4, 5, 6):
        first = torch.rand(3)
    with seeded(4, 5, 6):
        assert torch.equal(torch.rand(3), first)


def test_evaluation_keeps_the_mask_at_its_own_size() -> None:
    small = [v2.Resize((2, 3))]
    evaluated, trained = dataset(preprocess=small)[0], dataset(preprocess=small, augment=[])[(0, 0)]
    assert (evaluated["image"].shape, evaluated["mask"].shape, evaluated["size"]) == ((1, 2, 3), (4, 6), (4, 6))
    assert (trained["image"].shape, trained["mask"].shape) == ((1, 2, 3), (2, 3))
    assert type(evaluated["image"]) is Tensor


def test_a_training_batch_is_stacked() -> None:
    batch = collate(dataset(augment=[]).__getitems__([(0, 1), (0, 2)]))
    assert not isinstance(batch, NamedError)
    assert batch["image"].shape == (2, 1, 4, 6)
    assert batch["image"][:, 0, 0, 0].tolist() == [1, 2]
    assert batch["mask"].dtype == torch.uint8
    assert [case.name for case in batch["case"]] == ["case_1", "case_2"]


def test_an_evaluation_batch_is_grouped_by_shape() -> None:
    def reader(case: Case) -> tuple[Tensor, None]:
        return torch.zeros(1, 4 + case.source % 2, 6), None

    groups = collate_by_shape(dataset(reader).__getitems__([0, 1, 2]))
    assert not isinstance(groups, NamedError)
    assert [[case.source for case in group["case"]] for group in groups] == [[0, 2], [1]]
    assert "mask" not in groups[0]
    assert collate_by_shape([]) == []


def _raise(case: Case) -> Any:
    raise OSError("image file is truncated")


FAULTS: dict[str, tuple[Callable[[Case], Any], str]] = {
    "data-unreadable": (_raise, "OSError: image file is truncated"),
    "image-channels": (lambda case: (torch.zeros(3, 4, 6), None), "[3, 4, 6]; data.in_channels is 1"),
    "data-not-finite": (lambda case: (torch.full((1, 4, 6), float("nan")), None), "NaN"),
    "data-size-mismatch": (lambda case: (torch.zeros(1, 4, 6), torch.zeros(4, 5).byte()), "[4, 6], its mask [4, 5]"),
    "mask-values": (lambda case: (torch.zeros(1, 4, 6), torch.full((4, 6), 7).byte()), "[7]; data.classes names 2"),
}


@pytest.mark.parametrize("identifier", FAULTS)
def test_what_is_wrong_is_named(identifier: str) -> None:
    reader, words = FAULTS[identifier]
    with pytest.raises(NamedError) as caught:
        dataset(reader)[2]
    assert caught.value.identifier == identifier
    assert "'case_2'" in caught.value.what
    assert words in caught.value.what


@pytest.mark.parametrize(
    ("read", "identifier", "words"),
    [
        (lambda case: (np.zeros((1, 4, 6)), None), "data-unreadable", "read as a ndarray"),
        (lambda case: (torch.zeros(1, 4, 6), np.zeros((4, 6))), "data-unreadable", "mask of 'case_0' is read as a nd"),
        (lambda case: (torch.zeros(1, 0, 6), None), "data-unreadable", "empty image of shape [1, 0, 6]"),
        (lambda case: (torch.zeros(1, 4, 6), torch.zeros(2, 4, 6)), "data-size-mismatch", "and no channels"),
        (lambda case: (torch.zeros(1, 4, 6), -torch.ones(4, 6).long()), "mask-values", "the values [-1]"),
        (lambda case: (torch.zeros(1, 4, 6), torch.arange(24).view(4, 6)), "mask-values", "9 and 14 more]"),
    ],
    ids=["image of numpy", "mask of numpy", "empty", "channels", "negative", "many"],
)
def test_other_forms_are_named(read: Callable[[Case], Any], identifier: str, words: str) -> None:
    with pytest.raises(NamedError) as caught:
        dataset(read).checked(CASES[0])
    assert caught.value.identifier == identifier
    assert words in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failure_leaves_a_worker_whole(workers: int) -> None:
    reader, _ = FAULTS["mask-values"]
    loader: Any = DataLoader(dataset(reader), batch_size=2, collate_fn=collate, num_workers=workers)
    (failure, *_) = list(loader)
    assert isinstance(failure, NamedError)
    assert failure.identifier == "mask-values"
    assert failure.what.startswith("The mask of 'case_0'")


def test_training_images_of_different_sizes_are_named() -> None:
    def reader(case: Case) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, 4 + case.source, 6), torch.zeros(4 + case.source, 6, dtype=torch.uint8)

    failure = collate(dataset(reader, augment=[]).__getitems__([(0, 0), (0, 2)]))
    assert isinstance(failure, NamedError)
    assert failure.identifier == "sizes-differ"
    assert "'case_0' has the shape [1, 4, 6] and 'case_2' [1, 6, 6]" in failure.what


def test_training_without_a_mask_is_named() -> None:
    def reader(case: Case) -> tuple[Tensor, None]:
        return torch.zeros(1, 4, 6), None

    with pytest.raises(NamedError) as caught:
        dataset(reader, augment=[])[(0, 1)]
    assert (caught.value.identifier, caught.value.what) == ("data-unpaired", "'case_1' has no mask.")
    assert "mask" not in dataset(reader)[1]  # evaluation does without


class _Changes(nn.Module):
    def __init__(self, change: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, sample: dict[str, Any]) -> Any:
        return self.change(sample)


@pytest.mark.parametrize("key", ["preprocess", "augment"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda sample: None, "gives no image and no mask of 'case_1' back."),
        (lambda sample: {"image": sample["image"]}, "gives no mask of 'case_1' back."),
        (lambda sample: {key: sample.pop(key) for key in ("image",)}, "gives no mask of 'case_1' back."),
        (
            lambda sample: {**sample, "image": sample["image"][..., 1:]},
            "makes an image of shape [1, 4, 5] and a mask of [4, 6] out of 'case_1'.",
        ),
    ],
)
def test_a_transform_that_spoils_a_sample_is_named(key: str, change: Callable[[Any], Any], what: str) -> None:
    settings: dict[str, Any] = {"augment": [], key: [nn.Identity(), _Changes(change)]}
    with pytest.raises(NamedError) as caught:
        dataset(**settings)[(0, 1)]
    assert (caught.value.identifier, caught.value.what) == ("transform", f"data.{key}[1], _Changes, {what}")


def test_what_read_raises_is_told_with_its_line() -> None:
    def reader(case: Case) -> tuple[Tensor, None]:
        raise KeyError(case.source)

    with pytest.raises(
        NamedError, match=r"^'case_1' cannot be read: KeyError: 1, raised at .*test_dataset.py:\d+ reader\."
    ):
        dataset(reader)[1]


@pytest.mark.parametrize("key", ["preprocess", "augment"])
def test_a_transform_that_fails_is_named(key: str) -> None:
    settings: dict[str, Any] = {"augment": [], key: [nn.Identity(), v2.RandomCrop(9)]}
    with pytest.raises(NamedError) as caught:
        dataset(**settings)[(0, 1)]
    assert caught.value.identifier == "transform"
    assert caught.value.what.startswith(f"data.{key}[1], RandomCrop, fails on 'case_1' of shape [1, 4, 6]: ValueError")


def test_tensors_of_a_batch_are_moved_and_names_are_not_touched() -> None:
    meta, image, cases = torch.device("meta"), torch.zeros(2, 1, 4, 6), [Case("a", 0), Case("b", 1)]
    moved = moved_to({"image": image, "case": cases, "size": [(4, 6)] * 2}, meta)
    assert moved is not None
    assert (moved["image"].device, moved["image"].shape, moved["size"]) == (meta, image.shape, [(4, 6)] * 2)
    assert moved["case"] is cases
    groups = moved_to([{"image": image, "case": cases}] * 2, meta)
    assert groups is not None
    assert [group["image"].device for group in groups] == [meta, meta]
    assert moved_to([], meta) == []  # a share of no samples
    assert moved_to({"image": image}, meta) is None  # of a loader of one's own: Lightning moves it
    assert moved_to((image, image), meta) is None
