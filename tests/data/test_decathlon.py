from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from template.data.decathlon import Decathlon

from . import volume_sets
from .refused import refused
from .volume_runs import PATCHES, check_on_image, trained_and_predicted

pytestmark = pytest.mark.filterwarnings("default")  # of a run of a second


def data(root: Path, **arguments: Any) -> Decathlon:
    return Decathlon(str(root), cache_dir=str(root.parent / "cache"), **arguments)


def edit(root: Path, **changes: Any) -> Path:
    content = json.loads((root / "dataset.json").read_text("utf-8"))
    (root / "dataset.json").write_text(json.dumps({**content, **changes}), encoding="utf-8")
    return root


@pytest.mark.slow
def test_the_shipped_configuration_trains_scores_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = volume_sets.decathlon(Path("data/Task09_Spleen"))
    masks = trained_and_predicted("decathlon", f"{root}/imagesTs", *PATCHES)
    assert [mask.name for mask in masks] == ["volume-5.nii.gz"]
    check_on_image(masks[0], root / "imagesTs" / "volume-5.nii.gz", {0, 1, 2})


def test_everything_comes_from_dataset_json(tmp_path: Path) -> None:
    found = data(volume_sets.decathlon(tmp_path / "Task 01 脑", 4, channels=2), val_fraction=0.0, test_fraction=0.0)
    assert found.classes == ["background", "liver", "tumour"]
    assert found.in_channels == 2
    assert [volume.name for volume in found.volumes()] == [f"volume-{n}" for n in range(4)]
    case = found.cases("train")[25]
    assert case.name == "volume-2_slice_005"
    image, mask = found.read(case)
    voxels, labels = volume_sets.body(2)
    # The file is RAS+ [x, y, z, channel]: rows go to the back, columns to the left.
    assert np.array_equal(image[0], voxels[::-1, ::-1, 5].T)
    assert np.array_equal(image[1], (voxels // 2)[::-1, ::-1, 5].T)
    assert mask is not None
    assert np.array_equal(mask, labels[::-1, ::-1, 5].T)


def test_ids_with_gaps_are_counted_and_written_back(tmp_path: Path) -> None:
    root = edit(volume_sets.decathlon(tmp_path / "Task", 3), labels={"2": "tumour", "0": "background", "1": "liver"})
    assert data(root).classes == ["background", "liver", "tumour"]
    for file in (root / "labelsTr").glob("v*"):
        stored = nibabel.load(file)
        table = np.array([0, 4, 9], np.uint8)
        nibabel.save(nibabel.Nifti1Image(table[np.asanyarray(stored.dataobj)], stored.affine), file)
    edit(root, labels={"0": "background", "4": "liver", "9": "tumour"})
    found = data(root, val_fraction=0.0, test_fraction=0.0)
    _, mask = found.read(found.cases("train")[5])
    assert mask is not None
    assert sorted(mask.unique().tolist()) == [0, 1, 2]
    (case,) = found.predict_cases(root / "imagesTs")
    (tmp_path / "out").mkdir()
    volume = mask.expand(10, -1, -1)
    written = nibabel.load(found.write(case, volume, tmp_path / "out"))
    assert sorted(np.unique(written.dataobj)) == [0, 4, 9]
    joined = data(root, classes=["background", "organ"], mask_values={0: 0, 4: 1, 9: 1})
    assert joined.num_classes == 2


@pytest.mark.parametrize(
    ("changes", "identifier", "word"),
    [
        ({"labels": None}, "data-unreadable", "no 'labels'"),
        ({"labels": {"0": "background"}}, "data-unreadable", "two are needed"),
        ({"labels": {"1": "a", "2": "b"}}, "data-unreadable", "one of them 0"),
        ({"labels": {"0": "background", "1": "a", "01": "b"}}, "data-unreadable", "twice"),
        ({"labels": {"0": "background", "x": "a"}}, "data-unreadable", "'x: a'"),
        ({"modality": {}}, "data-unreadable", "'modality'"),
        ({"training": 5}, "data-unreadable", "'training'"),
        ({"training": [{"image": "./a.nii.gz"}]}, "data-unreadable", "place 0"),
        ({"training": []}, "data-missing", "no case"),
        ({"modality": {"0": "a", "1": "b"}}, "image-channels", "volume-0.nii.gz"),
    ],
)  # fmt: skip
def test_a_dataset_json_that_does_not_fit_is_named(
    changes: dict[str, Any], identifier: str, word: str, tmp_path: Path
) -> None:
    root = edit(volume_sets.decathlon(tmp_path / "Task", 1), **changes)
    refused(identifier, lambda: data(root).cases("train"), word)


@pytest.mark.parametrize(
    ("content", "identifier"),
    [(None, "data-missing"), (b"", "data-unreadable"), (b'{"labels": {"0"', "data-unreadable"),
     (b"\xff\xfe\x00", "data-unreadable"), (b"[1, 2]", "data-unreadable"),
     (b'{"labels": {"0": "a", "1": "b", "1": "c"}}', "data-unreadable"), (b"[" * 100_000, "data-unreadable")],
)  # fmt: skip
def test_a_dataset_json_that_cannot_be_read_is_named(content: bytes | None, identifier: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "dataset.json").write_bytes(content)
    refused(identifier, lambda: Decathlon(str(tmp_path)), "dataset.json")
