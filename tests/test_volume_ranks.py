"""World size is a detail for volumes too: the same batches of patches, the same scores, and the same masks on disk."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torchvision.transforms import v2

from template.callbacks.case_scores import CaseScores
from template.callbacks.predictions import PredictionWriter
from template.data.nifti import LiTS
from template.data.transforms import RandomIntensity, RandomWarp, Window
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.data.volume_sets import body, save
from tests.parity import OPTIMIZERS, apart
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

#: Voxels (x, y, z) of five volumes: neither 2 nor 3 processes share them evenly, and no two are of one size.
SIZES = [(28, 26, 10), (24, 30, 9), (30, 24, 11), (26, 28, 8), (32, 32, 12)]
VIEWS: dict[str, dict[str, Any]] = {
    "slices": {"view": "slices", "context": 1},
    "patches": {"view": "patches", "patch": (4, 16, 16), "spacing": (3.0, 1.2, None)},
}


class _Batches(Callback):
    """What this rank was trained on."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], Tensor, Tensor]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.seen.append(([case.name for case in batch["case"]], batch["image"].clone(), batch["mask"].clone()))


def volumes(root: Path, number: int = 5) -> Path:
    for place, size in enumerate(SIZES[:number]):
        suffix = (".nii", ".nii.gz")[place % 2]
        for name, voxels in zip(("volume", "segmentation"), body(place, size), strict=True):
            save(root / f"{name}-{place}{suffix}", voxels, ("RAS", "LPS", "PIR")[place % 3])
    return root


def started(
    world_size: int, root: Path, out: Path, view: str, normalization: Literal["batch", "instance"], **more: Any
) -> tuple[Segmenter, LiTS, dict[str, Any]]:
    """A network with the same weights everywhere, the data, and settings of a trainer."""
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(1, workers=True, verbose=False)
    data = LiTS(
        str(root), **VIEWS[view], val_fraction=0.0, cache_dir=str(out / "cache"), num_workers=0, predict=str(root),
        preprocess=[Window(-160, 240)], **more,
    )  # fmt: skip
    module = Segmenter(
        UNet(width=4, depth=2, dims=2 if view == "slices" else 3), 3, data.in_channels, optimizer=OPTIMIZERS["SGD"]
    )
    strategy = SafeDDPStrategy() if world_size > 1 else "auto"
    return module, data, {
        "accelerator": "cpu", "devices": world_size, "strategy": strategy, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "use_distributed_sampler": False, "default_root_dir": str(out),
    }  # fmt: skip


def score_and_predict(rank: int, world_size: int, root: Path, out: Path, view: str) -> dict[str, Any]:
    module, data, options = started(world_size, root, out, view, "instance", test_fraction=1.0)
    trainer = Trainer(callbacks=[CaseScores(out / "test"), PredictionWriter(out / "masks")], **options)
    scores = trainer.test(module, data, verbose=False)[0]
    trainer.predict(module, data, return_predictions=False)
    return dict(scores)


def written(out: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(out)): file.read_bytes() for part in ("test", "masks") for file in (out / part).iterdir()
    }


@pytest.mark.parametrize("view", VIEWS)
def test_masks_and_tables_are_the_same_on_any_number_of_processes(view: str, tmp_path: Path) -> None:
    """Byte for byte: masks, overlays, ``predict.csv``, ``cases.csv`` and the pictures of the worst cases."""
    root = volumes(tmp_path / "set")
    found = {}
    for world_size in (1, 2, 3):
        out = tmp_path / f"on {world_size}"
        scores = run_ranks(world_size, score_and_predict, world_size, root, out, view, timeout=120)
        found[world_size] = (scores[0], written(out))
        assert all(of_rank == pytest.approx(scores[0], nan_ok=True) for of_rank in scores)
    alone, files = found[1]
    assert {name for name in files if name.endswith((".nii", ".nii.gz"))} == {
        f"masks/volume-{n}{('.nii', '.nii.gz')[n % 2]}" for n in range(5)
    }
    for table in ("masks/predict.csv", "test/cases.csv"):
        cases = [line.partition(",")[0] for line in files[table].decode().splitlines()[1:]]
        assert cases == [f"volume-{n}" for n in range(5)]
    predicted = np.asanyarray(nibabel.load(tmp_path / "on 1" / "masks" / "volume-0.nii").dataobj)
    assert len(np.unique(predicted)) > 1  # so that there is something to compare
    for world_size in (2, 3):
        scores, others = found[world_size]
        assert scores == pytest.approx(alone, abs=1e-6, nan_ok=True)
        assert others.keys() == files.keys()
        assert not [name for name in files if others[name] != files[name]]


@pytest.mark.parametrize("view", VIEWS)
def test_one_volume_is_predicted_once_by_two_processes(view: str, tmp_path: Path) -> None:
    root = volumes(tmp_path / "set", 1)
    found = []
    for world_size in (1, 2):
        out = tmp_path / f"on {world_size}"
        scores = run_ranks(world_size, score_and_predict, world_size, root, out, view, timeout=120)
        found.append(written(out))
        assert scores[-1] == pytest.approx(scores[0], nan_ok=True)
    assert found[0] == found[1]
    assert {name for name in found[0] if name.startswith("masks/")} == {
        "masks/volume-0.nii", "masks/volume-0_overlay.png", "masks/predict.csv"
    }  # fmt: skip


def trained(
    rank: int, world_size: int, root: Path, out: Path, view: str
) -> tuple[list[tuple[list[str], Tensor, Tensor]], Tensor]:
    augment: list[nn.Module] = [RandomWarp(degrees=20.0), RandomIntensity(noise=0.05)]
    if view == "slices":  # of several sizes
        augment.append(v2.RandomCrop(24))
    module, data, options = started(
        world_size, root, out, view, "batch", test_fraction=0.0, batch_size=4, augment=augment
    )
    seen = _Batches()
    trainer = Trainer(callbacks=[seen], max_epochs=2, precision="64-true", limit_val_batches=0, **options)
    trainer.fit(module, data)
    return seen.seen, torch.cat([weight.detach().flatten() for weight in module.net.parameters()])


@pytest.mark.parametrize("view", VIEWS)
def test_a_training_on_volumes_is_that_of_one_process(view: str, tmp_path: Path) -> None:
    root = volumes(tmp_path / "set")
    ((alone, expected),) = run_ranks(1, trained, 1, root, tmp_path / "alone", view, timeout=120)
    assert len(alone) == 2 * (5 if view == "patches" else 12)  # of 4 of 20 patches, or of 50 slices
    ranks = run_ranks(2, trained, 2, root, tmp_path / "both", view, timeout=120)
    for number, (names, image, mask) in enumerate(alone):
        shares = [of_rank[number] for of_rank, _ in ranks]
        assert [name for share in shares for name in share[0]] == names
        assert torch.equal(torch.cat([share[1] for share in shares]), image)
        assert torch.equal(torch.cat([share[2] for share in shares]), mask)
    for _, weights in ranks:
        assert apart(expected, weights) < 1e-9
