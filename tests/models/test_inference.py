from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from template.data.nifti import LiTS
from template.data.transforms import Window
from template.labels import IGNORE_INDEX
from template.models.inference import Inference
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.data.volume_sets import lits


@pytest.fixture(autouse=True)
def _silent() -> None:
    silence_known()


def liver(folder: Path, **settings: Any) -> LiTS:
    return LiTS(
        folder=str(lits(folder / "lits")), cache_dir=str(folder / "cache"), batch_size=1, num_workers=0, **settings
    )


def trainer(folder: Path, **settings: Any) -> Trainer:
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **settings)


def together(slabs: Any) -> Tensor:
    return torch.cat([slab for _, slab in slabs], dim=1)


def test_slices_get_their_neighbours_as_in_training() -> None:
    volume = torch.arange(6.0).reshape(1, 6, 1, 1).expand(2, 6, 3, 3) + torch.tensor([0.0, 100.0]).reshape(2, 1, 1, 1)
    seen: list[Tensor] = []

    def run(images: Tensor) -> Tensor:
        seen.extend(images)
        return images[:, 1:2]  # the slice itself, of the first channel

    out = together(Inference(planes=1).logits(volume, (6, 3, 3), run))
    assert torch.equal(out, volume[:1])
    # Channels of the neighbours one after the other; at the ends the slice stands in for what is not there.
    assert seen[0][:, 0, 0].tolist() == [0, 0, 1, 100, 100, 101]
    assert seen[5][:, 0, 0].tolist() == [4, 5, 5, 104, 105, 105]


def test_what_a_window_has_beyond_the_volume_continues_its_edge() -> None:
    """As training does with volumes smaller than a patch: two slices of a CT, and not two between planes of water."""
    volume = torch.tensor([-1000.0, -900.0]).reshape(1, 2, 1, 1).expand(1, 2, 3, 3)
    seen: list[Tensor] = []

    def run(images: Tensor) -> Tensor:
        seen.extend(images)
        return images

    torch.testing.assert_close(together(Inference(window=(6, 3, 3)).logits(volume, (2, 3, 3), run)), volume)
    assert [window[0, :, 0, 0].tolist() for window in seen] == [[-1000, -1000, -1000, -900, -900, -900]]
    seen.clear()
    scan = Inference(window=(5, 5), planes=0)
    torch.testing.assert_close(together(scan.logits(volume, (2, 3, 3), run)), volume)
    assert [window.unique().tolist() for window in seen] == [[-1000], [-900]]


def test_slices_are_brought_to_the_grid_of_the_mask() -> None:
    volume = torch.randn(1, 5, 8, 8)
    out = together(Inference(planes=0).logits(volume, (9, 12, 10), lambda images: torch.cat([images, -images], 1)))
    expected = F.interpolate(torch.cat([volume, -volume])[None], (9, 12, 10), mode="trilinear")[0]
    assert torch.allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize("dims", [2, 3])
def test_flips_are_averaged(dims: int) -> None:
    image = torch.randn(1, *[6] * dims)
    weight = torch.randn(1, 1, *[3] * dims)
    convolve = F.conv2d if dims == 2 else F.conv3d

    def run(images: Tensor) -> Tensor:
        return convolve(images, weight, padding=1)

    mean = weight
    for axis in range(2, 2 + dims):
        mean = (mean + mean.flip(axis)) / 2
    out = together(Inference(flips=True).logits(image, image.shape[1:], run))
    assert torch.allclose(out, convolve(image[None], mean, padding=1)[0], atol=1e-5)


def test_a_network_without_context_gives_the_same_in_windows() -> None:
    network = nn.Conv2d(1, 3, 1)
    image = torch.randn(1, 37, 50)
    whole = network(image[None])[0]
    for how in (Inference(window=(16, 16)), Inference(window=(64, 64), overlap=0.25)):
        assert torch.allclose(together(how.logits(image, (37, 50), network)), whole, atol=1e-5)


class _Threshold(nn.Module):
    """Above 0.6 of the window (80 HU) is liver, 0.45 to 0.6 tumour."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, image: Tensor) -> Tensor:
        value = image[:, image.shape[1] // 2][:, None]
        liver, tumour = (value - 0.6) * 100, 10 - (value - 0.525).abs() * 133
        return torch.cat([torch.zeros_like(value), liver, tumour], 1) + 0 * self.unused


@pytest.mark.parametrize(("view", "context"), [("slices", 0), ("slices", 1), ("patches", 0)])
def test_scores_of_volumes_are_those_of_all_their_voxels(view: Any, context: int, tmp_path: Path) -> None:
    """Against the scores of the same rule applied to the arrays in the files."""
    data = liver(
        tmp_path, view=view, context=context, patch=(6, 12, 12), preprocess=[Window(-160, 240)], val_fraction=0.4
    )
    module = Segmenter(_Threshold(2 if view == "slices" else 3), 3, data.in_channels)
    (scores,) = trainer(tmp_path).validate(module, data, verbose=False)
    overlap = true = predicted = 0
    for case in data.cases("val"):
        image, mask = data.read(case)
        assert mask is not None
        labels = _Threshold(3)(((image + 160) / 400).clamp(0, 1)[None]).argmax(1)[0]
        overlap += int(((labels > 0) & (mask > 0) & (mask != IGNORE_INDEX)).sum())
        true, predicted = true + int((mask > 0).sum()), predicted + int((labels > 0).sum())
    assert scores["val/dice_liver"] == pytest.approx(2 * overlap / (true + predicted), abs=1e-6)
    assert scores["val/dice_liver"] > 0.8


def test_a_window_of_the_users_own_wins_over_the_patches(tmp_path: Path) -> None:
    data = liver(tmp_path, view="patches", patch=(8, 16, 16))
    for asked, window in ((None, (8, 16, 16)), ([4, 8, 8], (4, 8, 8))):
        module = Segmenter(UNet(dims=3, width=4, depth=2), 3, 1, window=asked)
        trainer(tmp_path, limit_val_batches=1).validate(module, data, verbose=False)
        assert module.inference.window == window
