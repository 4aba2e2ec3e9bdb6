"""The doctor's checks of data on volumes: training cases are slices or patches, the others whole volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from template.data.nifti import LiTS
from template.data.transforms import RandomWarp, Window
from template.doctor import files, repeats, samples
from template.models.unet import UNet

from ..data import volume_sets
from .rehearsed import examine


@pytest.mark.parametrize(
    "settings",
    [
        {"context": 1},
        {"spacing": (5.0, 1.5, 1.5)},
        {"view": "patches", "patch": (4, 16, 16), "spacing": (5.0, 1.0, None), "foreground": 0.8},
    ],
    ids=["neighbours", "resampled slices", "patches"],
)
def test_a_healthy_data_set_of_volumes_passes(settings: dict[str, Any], tmp_path: Path) -> None:
    data = LiTS(
        str(volume_sets.lits(tmp_path / "data", 5, ("RAS", "LPS"))), cache_dir=str(tmp_path / "cache"), batch_size=4,
        num_workers=0, preprocess=[Window(-160, 240)], augment=[RandomWarp(degrees=10)], **settings,
    )  # fmt: skip
    net = UNet(width=4, depth=2, dims=3 if "view" in settings else 2)
    found = examine([*files.CHECKS, *samples.CHECKS, *repeats.CHECKS], tmp_path, net=net, data=data)
    assert [one for one in found if one.status != "pass"] == []
