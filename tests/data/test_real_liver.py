"""The real liver CT as LiTS, as a task of the Decathlon and as a raw data set of nnU-Net; nibabel is the reference."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from template.data.decathlon import Decathlon
from template.data.nifti import LiTS
from template.data.nnunet import NnUNet
from template.data.transforms import RandomIntensity, RandomWarp, Window
from template.data.volumes import VolumeData

from . import real_volumes
from .real_volumes import Patients, canonical

pytestmark = pytest.mark.slow
Layouts = list[tuple[type[VolumeData], Path]]


@pytest.fixture(scope="module")
def patients(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Patients, Layouts]:
    """Four slabs of the CT, of 12 slices, in three layouts."""
    store = real_volumes.store(request.config)
    written = Patients(*real_volumes.liver_ct(store), [(20, 32), (40, 52), (64, 76), (90, 102)])
    root = tmp_path_factory.mktemp("liver")
    layouts: Layouts = [
        (LiTS, written.lits(root / "LiTS" / "Training Batch 1")),
        (Decathlon, written.decathlon(root / "Task03_Liver")),
        (NnUNet, written.nnunet(root / "Dataset003_Liver")),
    ]
    return written, layouts


def batches(data: VolumeData, epochs: int = 2) -> list[dict[str, Any]]:
    """All training batches of some epochs, with the loader of a training."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        world_size=1, global_rank=0, accumulate_grad_batches=1, num_devices=1, strategy=strategy
    )
    data.prepare_data()
    data.setup("fit")
    loader, found = data.train_dataloader(), []
    for epoch in range(epochs):
        loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        found += [data.on_before_batch_transfer(batch, 0) for batch in loader]
    return found


def settings(tmp_path: Path, view: str, **more: Any) -> dict[str, Any]:
    return {
        "view": view, "patch": (8, 48, 40), "patches_per_volume": 3, "batch_size": 4, "seed": 7, "val_fraction": 0.25,
        "test_fraction": 0.0, "cache_dir": str(tmp_path / "cache"), **more,
    }  # fmt: skip


KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "slices": ({"view": "slices"}, 0),
    "slices from workers": ({"view": "slices"}, 2),
    "2.5D": ({"view": "slices", "context": 1}, 0),
    "patches": ({"view": "patches"}, 0),
    "patches from workers": ({"view": "patches"}, 2),
    "resampled": ({"view": "patches", "spacing": (3.0, 1.0, None)}, 0),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_liver_gives_the_same_batches_in_every_layout(
    name: str, patients: tuple[Patients, Layouts], tmp_path: Path
) -> None:
    """Bit by bit: images, masks, their order, and what augmentation draws."""
    kind, workers = KINDS[name]
    augment = [RandomWarp(degrees=20.0, scale=(0.8, 1.25)), RandomIntensity(contrast=0.1, noise=0.05)]
    shared = settings(tmp_path, **kind, num_workers=workers, preprocess=[Window(-160, 240)], augment=augment)
    found = [batches(layout(str(root), **shared), epochs=2) for layout, root in patients[1]]
    # Of four patients three are trained on: 36 slices make 9 batches of 4, and 9 patches make 2.
    assert len(found[0]) == 2 * (2 if kind["view"] == "patches" else 9)
    for of_layout in found[1:]:
        for batch, expected in zip(of_layout, found[0], strict=True):
            assert [case.name for case in batch["case"]] == [case.name for case in expected["case"]]
            assert torch.equal(batch["image"], expected["image"])
            assert torch.equal(batch["mask"], expected["mask"])
    assert {int(value) for value in torch.cat([batch["mask"].unique() for batch in found[0]])} >= {0, 1, 2}


@pytest.mark.parametrize("view", ["slices", "patches"])
def test_what_the_liver_gives_is_what_nibabel_reads(
    view: str, patients: tuple[Patients, Layouts], tmp_path: Path
) -> None:
    written, layouts = patients
    root = dict(layouts)[LiTS]
    pairs = {}
    for number, (first, end) in enumerate(written.slabs):
        files = [next(root.glob(f"{name}-{number}.nii*")) for name in ("volume", "segmentation")]
        pairs[f"volume-{number}"] = tuple(canonical(file) for file in files)
        assert np.array_equal(pairs[f"volume-{number}"][0], written.image[::-1, ::-1, first:end].T)  # slope and all
    seen = 0
    for batch in batches(LiTS(str(root), **settings(tmp_path, view))):
        for case, image, mask in zip(batch["case"], batch["image"], batch["mask"], strict=True):
            voxels, labels = pairs[case.source.volume.name]
            if view == "slices":
                where: tuple[Any, ...] = (case.source.number,)
            else:
                start = _place(image[0], voxels)
                where = tuple(slice(a, a + n) for a, n in zip(start, (8, 48, 40), strict=True))
            assert np.array_equal(image[0], voxels[where])
            assert np.array_equal(mask, labels[where])
            seen += 1
    assert seen >= 16


def _place(patch: Tensor, voxels: NDArray[Any]) -> tuple[int, ...]:
    """Where a patch lies in a volume: its middle row is found nowhere else."""
    row = patch.numpy()[4, 24]
    windows = np.lib.stride_tricks.sliding_window_view(voxels, len(row), axis=2)
    (found,) = np.argwhere((windows == row).all(axis=-1))
    return int(found[0]) - 4, int(found[1]) - 24, int(found[2])
