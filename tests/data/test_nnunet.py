from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from template.data.nnunet import NnUNet

from . import volume_sets
from .refused import refused
from .volume_runs import PATCHES, check_on_image, trained_and_predicted

pytestmark = pytest.mark.filterwarnings("default")  # of a run of a second
ALL = {"val_fraction": 0.0, "test_fraction": 0.0}


def data(root: Path, **arguments: Any) -> NnUNet:
    return NnUNet(str(root), cache_dir=str(root.parent / "cache"), **arguments)


def edit(root: Path, **changes: Any) -> Path:
    content = json.loads((root / "dataset.json").read_text("utf-8"))
    (root / "dataset.json").write_text(json.dumps({**content, **changes}), encoding="utf-8")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_the_shipped_configuration_trains_scores_and_predicts(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = volume_sets.nnunet(Path("data/Dataset001_Mine"), version=version, channels=version)
    masks = trained_and_predicted("nnunet", f"{root}/imagesTs", *PATCHES)
    assert [mask.name for mask in masks] == ["volume-5.nii.gz"]  # as nnU-Net names it: without the channel
    check_on_image(masks[0], root / "imagesTs" / "volume-5_0000.nii.gz", {0, 1, 2})


@pytest.mark.parametrize(("version", "ending"), [(1, ".nii.gz"), (2, ".nii")])
def test_channels_are_files_and_classes_are_those_of_dataset_json(version: int, ending: str, tmp_path: Path) -> None:
    root = volume_sets.nnunet(tmp_path / "Dataset 001 脑", 3, version=version, channels=2, ending=ending)
    found = data(root, **ALL)
    assert found.classes == ["background", "liver", "tumour"]
    assert found.in_channels == 2
    image, mask = found.read(found.cases("train")[15])
    voxels, labels = volume_sets.body(1)
    assert np.array_equal(image[0], voxels[::-1, ::-1, 5].T)
    assert np.array_equal(image[1], (voxels // 2)[::-1, ::-1, 5].T)
    assert mask is not None
    assert np.array_equal(mask, labels[::-1, ::-1, 5].T)
    # One file stands for its case, with all channels of it.
    (case,) = found.predict_cases(root / "imagesTs" / f"volume-3_0001{ending}")
    assert case.name == "volume-3"
    assert [Path(file).name for file in case.source.images] == [f"volume-3_000{n}{ending}" for n in range(2)]


def test_the_label_ignore_does_not_count(tmp_path: Path) -> None:
    root = edit(volume_sets.nnunet(tmp_path / "D", 1), labels={"background": 0, "liver": 1, "ignore": 2})
    found = data(root, **ALL)
    assert found.classes == ["background", "liver"]
    _, mask = found.read(found.cases("train")[5])
    assert mask is not None
    assert mask.unique().tolist() == [0, 1, 255]


def test_regions_are_scored_and_a_class_is_learned_for_each_value(tmp_path: Path) -> None:
    labels = {"background": 0, "liver": [1, 2], "tumour": [2]}
    found = data(edit(volume_sets.nnunet(tmp_path / "D", 1), labels=labels, regions_class_order=[1, 2]), **ALL)
    assert found.classes == ["background", "label_1", "label_2"]
    assert found.regions == {"liver": (1, 2), "tumour": (2,)}
    _, mask = found.read(found.cases("train")[5])
    assert mask is not None
    assert np.array_equal(mask, volume_sets.body(0)[1][::-1, ::-1, 5].T)
    own = data(tmp_path / "D", regions={"any": [1, 2]}, **ALL)
    assert own.regions == {"any": (1, 2)}


def test_labels_ts_is_the_test(tmp_path: Path) -> None:
    root = volume_sets.nnunet(tmp_path / "D", 4, tests=2)
    for number in (4, 5):
        volume_sets.save(root / "labelsTs" / f"volume-{number}.nii.gz", volume_sets.body(number)[1])
    found = data(root, view="patches", patch=(4, 8, 8), patches_per_volume=1, val_fraction=0.25)
    assert [case.name for case in found.cases("test")] == ["volume-4", "volume-5"]
    val = [case.name for case in found.cases("val")]
    train = [case.source.volume.name for case in found.cases("train")]
    assert len(val) == 1
    assert sorted([*val, *train]) == [f"volume-{n}" for n in range(4)]


def test_nnu_nets_own_folds(tmp_path: Path) -> None:
    root = volume_sets.nnunet(tmp_path / "D", 4)
    names = [f"volume-{n}" for n in range(4)]
    folds = [{"train": [n for n in names if n != name], "val": [name]} for name in names]
    file = tmp_path / "splits_final.json"
    file.write_text(json.dumps(folds), encoding="utf-8")
    for fold in range(4):
        found = data(root, splits_file=str(file), fold=fold)
        assert [case.name for case in found.cases("val")] == [names[fold]]
        assert {case.source.volume.name for case in found.cases("train")} == set(names) - {names[fold]}
    refused("config", lambda: data(root, splits_file=str(file), fold=4).cases("val"), "data.fold is 4", "0 to 3")
    refused("config", lambda: data(root, splits_file=str(file), folds=4), "data.folds")
    file.write_text(json.dumps([{"train": ["volume-9"], "val": []}]), encoding="utf-8")
    refused("data-missing", lambda: data(root, splits_file=str(file)).cases("train"), "volume-9")
    file.write_text(json.dumps([{"train": names, "val": names[:1]}]), encoding="utf-8")
    refused("data-unpaired", lambda: data(root, splits_file=str(file)).cases("train"), "splits_final.json", "volume-0")
    for content in ("{}", "5", "[5]", '[{"train": ["volume-0"]}]', '[{"train": 5, "val": []}]', "[", ""):
        file.write_text(content, encoding="utf-8")
        refused("data-unreadable", lambda: data(root, splits_file=str(file)).cases("train"), "splits_final.json")
    file.unlink()
    refused("data-missing", lambda: data(root, splits_file=str(file)).cases("train"), "splits_final.json")


def test_files_that_dataset_json_lists_lie_anywhere(tmp_path: Path) -> None:
    elsewhere = volume_sets.nnunet(tmp_path / "elsewhere", 1)
    root = tmp_path / "D"
    root.mkdir()
    listed = {"a": {"images": [str(elsewhere / "imagesTr/volume-0_0000.nii.gz")],
                    "label": "../elsewhere/labelsTr/volume-0.nii.gz"}}  # fmt: skip
    (root / "dataset.json").write_bytes((elsewhere / "dataset.json").read_bytes())
    found = data(edit(root, dataset=listed), **ALL)
    assert len(found.cases("train")) == 10
    refused("data-unreadable", lambda: data(edit(root, dataset={"b": {}})).cases("train"), "of 'b'")


@pytest.mark.parametrize(
    ("changes", "identifier", "word"),
    [
        ({"file_ending": ".png"}, "config", "'.png'"),
        ({"file_ending": ".mha"}, "config", "'.mha'"),
        ({"file_ending": ".nii"}, "data-unpaired", "CASE_0000.nii"),
        ({"numTraining": 7}, "data-missing", "numTraining 7"),
        ({"channel_names": {"0": "a", "1": "b"}}, "image-channels", "lacks the channel 0001"),
        ({"channel_names": {}}, "data-unreadable", "'channel_names'"),
        ({"labels": {"background": 0, "a": -1}}, "data-unreadable", "'a: -1'"),
        ({"labels": {"background": 0, "a": 1, "b": 1}}, "data-unreadable", "twice"),
        ({"labels": {"background": 0, "a": ["x"]}}, "data-unreadable", "no numbers"),
    ],
)  # fmt: skip
def test_a_dataset_json_that_does_not_fit_is_named(
    changes: dict[str, Any], identifier: str, word: str, tmp_path: Path
) -> None:
    root = edit(volume_sets.nnunet(tmp_path / "D", 1), **changes)
    refused(identifier, lambda: data(root).cases("train"), word)


def test_channels_that_do_not_lie_on_each_other_are_named(tmp_path: Path) -> None:
    root = volume_sets.nnunet(tmp_path / "D", 1, channels=2)
    file = root / "imagesTr" / "volume-0_0001.nii.gz"
    stored = nibabel.load(file)
    nibabel.save(nibabel.Nifti1Image(np.asanyarray(stored.dataobj), stored.affine + np.diag([0, 0, 1, 0])), file)
    refused("data-geometry", lambda: data(root).cases("train"), "volume-0_0000.nii.gz", "its channel", str(file))


def test_each_of_many_channels_is_looked_at_anew(tmp_path: Path) -> None:
    """What is cached stands for all files of a case, the last one too."""
    root = volume_sets.nnunet(tmp_path / "D", 1, channels=8)
    found = data(root, **ALL)
    (case, *_) = found.cases("train")
    before = found.read(case)[0]
    volume_sets.save(root / "imagesTr" / "volume-0_0007.nii.gz", volume_sets.body(3)[0])
    after = data(root, **ALL).read(case)[0]
    assert np.array_equal(before[:7], after[:7])
    assert np.array_equal(after[7], volume_sets.body(3)[0][::-1, ::-1, 0].T)
