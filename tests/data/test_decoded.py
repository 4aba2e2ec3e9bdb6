from __future__ import annotations

import os
import pickle
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from template.data.nifti import LiTS, Nifti

from . import volume_sets
from .volume_sets import body, save


@pytest.fixture
def data(tmp_path: Path) -> LiTS:
    """A volume of 10 slices, all of them for training."""
    root = volume_sets.lits(tmp_path / "one", 1)
    return LiTS(str(root), cache_dir=str(tmp_path / "cache"), val_fraction=0, test_fraction=0)


def test_a_map_is_opened_once_and_not_taken_into_another_process(data: LiTS, monkeypatch: pytest.MonkeyPatch) -> None:
    case = data.cases("train")[4]
    first, _ = data.read(case)
    with monkeypatch.context() as patched:
        patched.setattr(data.decoded.cache, "get", lambda *_: pytest.fail("looked up again"))
        assert torch.equal(data.read(case)[0], first)
    assert pickle.loads(pickle.dumps(data.decoded))._mapped == {}  # mapped arrays would be copied into it
    volume = case.source.volume
    file = Path(volume.images[0])
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))  # a file that has changed is another one
    opened: list[str] = []
    get = data.decoded.cache.get
    monkeypatch.setattr(data.decoded.cache, "get", lambda key, make: (opened.append(key), get(key, make))[1])
    assert torch.equal(data.read(case)[0], first)
    assert len(opened) == 2


def test_a_file_that_changes_is_read_anew(data: LiTS) -> None:
    case = data.cases("train")[4]
    first, _ = data.read(case)
    voxels, _ = body(0)
    save(Path(case.source.volume.images[0]), voxels + 1)
    assert torch.equal(data.read(case)[0], first + 1)


def test_no_more_maps_are_kept_than_files_may_be_open(data: LiTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("template.data.decoded._MAPPED", 3)
    for case in data.cases("train"):
        data.read(case)
        assert len(data.decoded._mapped) <= 3


def test_image_and_mask_are_resampled_to_one_grid(tmp_path: Path) -> None:
    """Of 21 voxels of 0.5 mm come 10 of 1 mm, of 0.5001 mm come 11: a rounding that lets a mask lie on its image."""
    voxels = np.random.default_rng(0).normal(size=(21, 21, 21)).astype(np.float32)
    for part, stored, size in (("i", voxels, 0.5001), ("m", (voxels > 0).astype(np.uint8), 0.5)):
        (tmp_path / part).mkdir()
        nibabel.save(nibabel.Nifti1Image(stored, np.diag([size, size, size, 1.0])), tmp_path / part / "a.nii")
    data = Nifti(
        images=str(tmp_path / "i"), masks=str(tmp_path / "m"), classes=["background", "object"],
        spacing=(1.0, 1.0, 1.0), val_fraction=0.0, test_fraction=0.0, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    cases = data.cases("train")
    assert len(cases) == 11
    image, mask = data.read(cases[10])
    assert mask is not None
    assert (image.shape, mask.shape) == ((1, 11, 11), (11, 11))
    assert data.decoded.mask(cases[0].source.volume, resample=False).shape == (21, 21, 21)
