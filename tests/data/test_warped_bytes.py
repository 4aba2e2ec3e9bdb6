"""A crop within the warp that comes first takes pictures as bytes: faster, and the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from template.data.dataset import Case, CaseDataset
from template.data.folder import Folder
from template.data.transforms import RandomIntensity, RandomWarp
from template.distributed.faults import NamedError


def warp(crop: tuple[int, int] | None = (20, 24), **more: Any) -> RandomWarp:
    return RandomWarp(20.0, (0.7, 1.4), translate=0.2, horizontal_flip=0.5, elastic=0.02, crop=crop, **more)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    pictures = {
        "colour.png": rng.integers(0, 256, (40, 50, 3), dtype=np.uint8),
        "colour.jpg": rng.integers(0, 256, (40, 50, 3), dtype=np.uint8),
        "transparent.png": rng.integers(0, 256, (40, 50, 4), dtype=np.uint8),
        "grey.png": rng.integers(0, 256, (40, 50), dtype=np.uint8),
        "deep.png": rng.integers(0, 65536, (40, 50), dtype=np.uint16),
        "small.png": rng.integers(0, 256, (9, 31, 3), dtype=np.uint8),
    }
    for name, pixels in pictures.items():
        stem = name.replace(".", "_")
        for part, values in (("images", pixels), ("masks", rng.integers(0, 3, pixels.shape[:2], dtype=np.uint8))):
            file = tmp_path / part / (stem + (Path(name).suffix if part == "images" else ".png"))
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(values).save(file)
    return tmp_path


def folder(
    root: Path, augment: list[nn.Module], kind: type[Folder] = Folder, **more: Any
) -> tuple[Folder, CaseDataset]:
    data = kind(
        images=str(root / "images"), masks=str(root / "masks"), classes=["background", "one", "two"], seed=0,
        val_fraction=0, test_fraction=0, augment=augment, **more,
    )  # fmt: skip
    return data, data._dataset(data.cases("train"), data.augment)


def samples(dataset: CaseDataset) -> list[tuple[Tensor, Tensor]]:
    made = [dataset[epoch, index] for epoch in range(3) for index in range(len(dataset))]
    return [(sample["image"], sample["mask"]) for sample in made]


@pytest.mark.parametrize("more", [{}, {"white": 100.0}, {"cache": True}], ids=["as it is", "white", "cached"])
@pytest.mark.parametrize("fill", [0.0, 0.3])
def test_the_samples_are_those_of_floats(more: dict[str, Any], fill: float, root: Path) -> None:
    settings = {"cache_dir": str(root / "cache")} if more.get("cache") else more
    data, dataset = folder(root, [warp(fill=fill), RandomIntensity(contrast=0.2)], **settings)
    assert dataset.read_bytes is not None
    fast = samples(dataset)
    dataset.read_bytes, dataset.augment = None, data.augment
    for one, other in zip(fast, samples(dataset), strict=True):
        assert one[0].dtype == torch.float32
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    dtypes = {data._read_bytes(case)[0].dtype for case in dataset.cases}
    assert dtypes == {torch.uint8, torch.float32}, "grey and deep pictures are read as before"


def test_what_is_checked_or_augmented_later_is_floats(root: Path) -> None:
    data, dataset = folder(root, [warp()])
    case = dataset.cases[0]
    image, mask = data.read(case)
    assert mask is not None
    assert torch.equal(dataset.checked(case)[0], image)
    dataset.defers = True
    assert torch.equal(dataset[0, 0]["image"], image)


class Inverted(Folder):
    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        image, mask = super().read(case)
        return 1 - image, mask


@pytest.mark.parametrize(
    ("augment", "kind", "more"),
    [
        ([warp(None)], Folder, {}),
        ([RandomIntensity(), warp()], Folder, {}),
        ([], Folder, {}),
        ([warp()], Folder, {"size": (40, 40)}),
        ([warp()], Folder, {"in_channels": 1}),
        ([warp()], Inverted, {}),
    ],
    ids=["no crop", "not the first", "nothing", "resized", "grey", "another read"],
)
def test_else_pictures_are_read_as_floats(
    augment: list[nn.Module], kind: type[Folder], more: dict[str, Any], root: Path
) -> None:
    assert folder(root, augment, kind, batch_size=1, **more)[1].read_bytes is None


def test_a_missing_mask_is_named(root: Path) -> None:
    _, dataset = folder(root, [warp()])
    dataset.cases = [Case(case.name, (case.source[0], None)) for case in dataset.cases]
    with pytest.raises(NamedError) as caught:
        dataset[0, 0]
    assert caught.value.identifier == "data-unpaired"
