"""What the seed does not reach is named; what it reaches is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from template.data.dataset import Case
from template.data.transforms import RandomIntensity, RandomWarp, Standardize
from template.doctor import repeats

from .rehearsed import examine
from .shapes import Pair, Shapes

Sample = dict[str, Any]
SHARED = np.random.default_rng(3)


class Adds(nn.Module):
    """Adds a number to the image, drawn as each subclass does."""

    def draw(self) -> float:
        return 0.0

    def forward(self, sample: Sample) -> Sample:
        return {**sample, "image": sample["image"] + self.draw()}


class OwnGenerator(Adds):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def draw(self) -> float:
        return float(self.rng.random())


class OwnTorchGenerator(Adds):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def draw(self) -> float:
        return float(torch.rand((), generator=self.generator))


class GeneratorOfTheFile(Adds):
    def draw(self) -> float:
        return float(SHARED.random())


class NewGenerator(Adds):
    def draw(self) -> float:
        return float(np.random.default_rng().random())


class Global(Adds):
    def draw(self) -> float:
        return float(torch.rand(())) + float(np.random.rand()) + random.random()


class RandomButFixed(Adds):
    def draw(self) -> float:
        return float(np.random.default_rng(0).random())


@pytest.mark.parametrize(
    ("transform", "copied"),
    [(OwnGenerator, True), (OwnTorchGenerator, True), (GeneratorOfTheFile, False), (NewGenerator, False)],
)
def test_a_transform_with_a_generator_of_its_own_is_named(
    transform: Callable[[], nn.Module], copied: bool, tmp_path: Path
) -> None:
    data = Shapes(augment=[RandomWarp(degrees=10), Global(), transform()])
    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=data)
    assert (found.id, found.status, found.check) == ("own-random-numbers", "fail", "data: augmentation")
    assert found.subject == (
        f"data.augment[2], {transform.__name__}, changes 'train_0' in another way when it is made again "  # type: ignore[attr-defined]
        "with the same seed."
    )
    assert ("all of them draw the same numbers" in found.cause) is copied


@pytest.mark.parametrize(
    "augment",
    [
        [],
        [Global()],
        [v2.RandomHorizontalFlip(0.5)],
        [v2.RandomApply([v2.GaussianBlur(3)], 0.1)],
        [RandomWarp(degrees=10), RandomIntensity(noise=0.1)],
        [v2.CenterCrop(8)],
        [v2.RandomCrop(8)],
    ],
    ids=["none", "global", "flip", "seldom", "ours", "crop at the centre", "random crop"],
)
def test_transforms_of_the_global_generators_pass(augment: list[nn.Module], tmp_path: Path) -> None:
    data = Shapes(augment=augment, preprocess=[Standardize()])
    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=data)
    assert found.status == "pass"


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        ([RandomWarp()], "(RandomWarp) changes nothing"),
        ([v2.RandomHorizontalFlip(0.0), RandomIntensity()], "(RandomHorizontalFlip, RandomIntensity) changes nothing"),
        ([nn.Identity()], "(Identity) changes nothing"),
        ([RandomButFixed()], "(RandomButFixed) changes all epochs in one and the same way"),
    ],
)
def test_an_augmentation_without_effect_is_told(augment: list[nn.Module], words: str, tmp_path: Path) -> None:
    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=Shapes(augment=augment))
    assert (found.id, found.status) == ("no-augmentation", "warn")
    assert words in found.subject


@pytest.mark.parametrize("transform", [Global(), v2.RandomCrop(8), OwnGenerator()])
def test_chance_in_preprocess_is_named(transform: nn.Module, tmp_path: Path) -> None:
    data = Shapes(preprocess=[Standardize(), transform])
    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=data)
    assert (found.id, found.status) == ("own-random-numbers", "fail")
    assert found.subject.startswith(f"data.preprocess[1], {type(transform).__name__}, changes 'train_0' ")
    assert found.fix == "Move it to data.augment."


@pytest.mark.parametrize("of_mask", [False, True], ids=["image", "mask"])
def test_chance_in_read_is_named(of_mask: bool, tmp_path: Path) -> None:
    class Noisy(Shapes):
        def broken(self, case: Case, image: Tensor, mask: Tensor) -> Pair:
            if of_mask:
                return image, mask.roll(int(torch.randint(1, 9, ())), 0)
            return image + torch.randn(image.shape), mask

    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=Noisy())
    assert (found.id, found.status) == ("own-random-numbers", "fail")
    assert found.subject == "Noisy.read gives another image or mask of 'train_0' when it is called again."


def test_broken_cases_are_passed_over(tmp_path: Path) -> None:
    class Broken(Shapes):
        good: Sequence[str] = ("train_7",)

        def broken(self, case: Case, image: Tensor, mask: Tensor) -> Pair:
            return image if case.name in self.good else image[:, :0], mask

    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=Broken())
    assert (found.status, found.subject) == ("pass", "1 sample, made twice, is the same; no augment")
    none = Broken()
    none.good = ()
    (found,) = examine(repeats.samples_can_be_made_again, tmp_path, data=none)
    assert (found.id, found.status) == ("not-checked", "warn")
