from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from template.data.nifti import LiTS, Nifti

from . import volume_sets
from .refused import refused
from .volume_runs import check_on_image, trained_and_predicted

pytestmark = pytest.mark.filterwarnings("default")  # of a run of a second


def test_lits_trains_scores_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = volume_sets.lits(Path("data/lits"))
    masks = trained_and_predicted("lits", str(folder))
    assert [mask.name for mask in masks] == [
        "volume-0.nii", "volume-1.nii.gz", "volume-2.nii", "volume-3.nii.gz", "volume-4.nii",
    ]  # fmt: skip
    for number, mask in enumerate(masks):
        check_on_image(mask, folder / f"Training Batch {number % 2 + 1}" / mask.name, {0, 1, 2})


@pytest.mark.slow
def test_nifti_pairs_train_score_and_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        image, labels = volume_sets.body(number)
        volume_sets.save(Path(f"data/both/{number} 肝_ct.nii.gz"), image, ("RAS", "LPI")[number % 2])
        # The axes of a mask may be in another order than those of its image.
        volume_sets.save(Path(f"data/both/{number} 肝_seg.nii.gz"), labels, ("ASL", "LPI")[number % 2])
    volume_sets.save(Path("new/a.nii"), volume_sets.body(7)[0], "SLP")
    suffixes = ["--data.image_suffix=_ct", "--data.mask_suffix=_seg", "--data.classes=[background,liver,tumour]"]
    masks = trained_and_predicted("nifti", "new", "--data.images=data/both", "--data.masks=data/both", *suffixes)
    assert [mask.name for mask in masks] == ["a.nii"]
    check_on_image(masks[0], Path("new/a.nii"), {0, 1, 2})


def pairs(root: Path, **arguments: Any) -> Nifti:
    defaults = {"val_fraction": 0.0, "test_fraction": 0.0, "classes": ["background", "liver", "tumour"]}
    given = {**defaults, "images": str(root), "masks": str(root), "mask_suffix": "_seg", **arguments}
    return Nifti(cache_dir=str(root / "cache"), **given)


def test_lits_is_the_same_in_every_orientation(tmp_path: Path) -> None:
    data = LiTS(str(volume_sets.lits(tmp_path)), cache_dir=str(tmp_path / "cache"), val_fraction=0.0, test_fraction=0.0)
    assert data.regions == {"liver": (1, 2), "tumour": (2,)}
    cases = data.cases("train")
    assert [case.name for case in cases[:2]] == ["volume-0_slice_000", "volume-0_slice_001"]
    for number in range(5):
        image, mask = data.read(cases[10 * number + 4])
        voxels, labels = volume_sets.body(number)
        assert np.array_equal(image[0], voxels[::-1, ::-1, 4].T)
        assert mask is not None
        assert np.array_equal(mask, labels[::-1, ::-1, 4].T)
        assert data.spacing(cases[10 * number]) == pytest.approx((2.5, 1.0, 1.0))
    assert sorted(case.name for case in data.predict_cases(tmp_path)) == [f"volume-{n}" for n in range(5)]


def test_a_mask_with_its_axes_in_another_order_lies_on_its_image(tmp_path: Path) -> None:
    image, labels = volume_sets.body(0)
    volume_sets.save(tmp_path / "a.nii", image, "LPS")
    volume_sets.save(tmp_path / "a_seg.nii", labels, "SRA")
    data = pairs(tmp_path)
    for number, case in enumerate(data.cases("train")):
        _, mask = data.read(case)
        assert mask is not None
        assert np.array_equal(mask, labels[::-1, ::-1, number].T)
    # Of one shape in its file, but not after it is turned.
    cut = nibabel.Nifti1Image(np.zeros((28, 26, 10), np.uint8), nibabel.load(tmp_path / "a_seg.nii").affine)
    nibabel.save(cut, tmp_path / "a_seg.nii")
    refused("data-size-mismatch", lambda: pairs(tmp_path).cases("train"), "10 × 26 × 28", "28 × 10 × 26", "a_seg.nii")


def test_black_and_white_are_no_two_classes(tmp_path: Path) -> None:
    image, labels = volume_sets.body(0)
    volume_sets.save(tmp_path / "a.nii", image)
    volume_sets.save(tmp_path / "a_seg.nii", (labels > 0).astype(np.uint8) * 255)
    two: dict[str, Any] = {"classes": ["background", "liver"]}
    data = pairs(tmp_path, **two)
    refused("mask-values", lambda: data.read(data.cases("train")[5]), "a_seg.nii", "0, 255")
    told = pairs(tmp_path, **two, mask_values={0: 0, 255: 1})
    _, mask = told.read(told.cases("train")[5])
    assert mask is not None
    assert mask.unique().tolist() == [0, 1]
    (case,) = told.predict_cases(tmp_path / "a.nii")
    (tmp_path / "out").mkdir()
    written = nibabel.load(told.write(case, mask.expand(10, -1, -1), tmp_path / "out"))
    assert np.unique(written.dataobj).tolist() == [0, 255]
    refused("config", lambda: told.write(case, mask.expand(10, -1, -1), tmp_path), "folder of their images")


def test_folders_that_fit_nothing_are_named(tmp_path: Path) -> None:
    refused("data-missing", lambda: pairs(tmp_path / "gone").cases("train"), "gone")
    (tmp_path / "void").mkdir()
    refused("data-missing", lambda: pairs(tmp_path / "void").cases("train"), "void")
    refused("data-missing", lambda: LiTS(str(tmp_path / "void")).cases("train"), "void")
    refused("data-missing", lambda: LiTS(str(tmp_path / "gone")).cases("train"), "gone")
    refused("config", lambda: pairs(tmp_path, mask_suffix=""), "same folder")
    volume_sets.save(tmp_path / "a.nii", volume_sets.body(0)[0])
    refused("data-missing", lambda: pairs(tmp_path).cases("train"), "_seg")
    refused("data-missing", lambda: pairs(tmp_path).predict_cases(tmp_path / "*.nii.gz"), "*.nii.gz")
