"""What all formats of volumes share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

import template.cli  # noqa: F401  # the imports of the first run would change the environment during a test
from template.__main__ import main
from template.data.dataset import CaseDataset
from template.data.decathlon import Decathlon
from template.data.dicom import Dicom
from template.data.nifti import LiTS, Nifti
from template.data.nnunet import NnUNet
from template.data.seeding import seeded
from template.data.transforms import RandomWarp, Standardize, Window
from template.data.volumes import VolumeData
from template.distributed.faults import NamedError

from . import volume_sets
from .refused import refused
from .volume_runs import SHORT
from .volume_sets import body, save

pytestmark = pytest.mark.filterwarnings("default")  # of a run of a second
ALL: dict[str, Any] = {"val_fraction": 0.0, "test_fraction": 0.0}


def lits(root: Path, **arguments: Any) -> LiTS:
    return LiTS(str(root), cache_dir=str(root / "cache"), **{**ALL, **arguments})


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A data set of one volume: 10 slices of 26 × 28."""
    return volume_sets.lits(tmp_path / "one", 1)


def program(voxels: np.ndarray) -> np.ndarray:
    """RAS+ [x, y, z] as [D, H, W]: rows go to the back, columns to the left."""
    return voxels[::-1, ::-1].T


@pytest.mark.parametrize("view", ["slices", "patches"])
def test_one_set_of_volumes_in_every_layout_gives_the_same_training_batch(view: Any, tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    shared: dict[str, Any] = {
        **ALL, "view": view, "patch": (4, 16, 16), "patches_per_volume": 2, "cache_dir": str(tmp_path / "cache"),
        "spacing": (5.0, 1.5, None),
    }  # fmt: skip
    classes = ["background", "liver", "tumour"]
    dicom = volume_sets.dicom(tmp_path / "d", 3, name="volume-{}")
    sets: list[VolumeData] = [
        LiTS(str(volume_sets.lits(tmp_path / "l", 3)), **shared),
        Decathlon(str(volume_sets.decathlon(tmp_path / "m", 3)), **shared),
        NnUNet(str(volume_sets.nnunet(tmp_path / "n", 3)), **shared),
        NnUNet(str(volume_sets.nnunet(tmp_path / "o", 3, version=1, ending=".nii.gz")), **shared),
        Dicom(images=str(dicom / "dicom"), masks=str(dicom / "masks"), classes=classes, **shared),
    ]
    found = []
    for data in sets:
        dataset = CaseDataset(
            data.cases("train"), data.read, classes=data.classes, in_channels=data.in_channels, seed=1, draw=data.draw,
            preprocess=[Window(-160, 240)], augment=[RandomWarp(degrees=20)],
        )  # fmt: skip
        samples = [dataset[0, number] for number in range(len(dataset))]
        found.append([(sample["case"].name, sample["image"], sample["mask"]) for sample in samples])
    assert len(found[0]) == (15 if view == "slices" else 6)  # 3 volumes of 25 mm in slices of 5 mm
    for other in found[1:]:
        for (name, image, mask), (first_name, first_image, first_mask) in zip(other, found[0], strict=True):
            assert name == first_name
            assert torch.equal(image, first_image)
            assert torch.equal(mask, first_mask)


def test_slices_and_their_neighbours(one: Path) -> None:
    voxels, labels = (program(array) for array in body(0))
    data = lits(one, context=1)
    cases = data.cases("train")
    assert (data.in_channels, data.channels_of(training=False), data.planes, data.window) == (3, 1, 1, None)
    assert [case.name for case in cases] == [f"volume-0_slice_{n:03d}" for n in range(10)]
    for place, planes in (
        (0, [0, 0, 1]),
        (4, [3, 4, 5]),
        (9, [8, 9, 9]),
    ):  # the outermost slice stands for its neighbour
        image, mask = data.read(cases[place])
        assert image.dtype == torch.float32
        assert np.array_equal(image, voxels[planes])
        assert mask is not None
        assert mask.dtype == torch.uint8
        assert np.array_equal(mask, labels[place])
    whole, truth = lits(one, test_fraction=1.0).read(lits(one, test_fraction=1.0).cases("test")[0])
    assert np.array_equal(whole[0], voxels)
    assert truth is not None
    assert np.array_equal(truth, labels)


def test_patches_are_parts_of_the_volume_drawn_anew(one: Path) -> None:
    voxels, labels = (program(array) for array in body(0))
    data = lits(one, view="patches", patch=(4, 8, 12), patches_per_volume=3, foreground=0.5)
    cases = data.cases("train")
    assert [case.name for case in cases] == [f"volume-0_patch_{n}" for n in range(3)]
    assert (data.in_channels, data.window, data.planes) == (1, (4, 8, 12), None)
    starts = set()
    for epoch in range(5):
        with seeded(epoch):
            drawn = data.draw(cases[0])
        a, b, c = drawn.source.start
        starts.add((a, b, c))
        image, mask = data.read(drawn)
        assert mask is not None
        assert np.array_equal(image[0], voxels[a : a + 4, b : b + 8, c : c + 12])
        assert np.array_equal(mask, labels[a : a + 4, b : b + 8, c : c + 12])
    assert len(starts) > 2
    with seeded(0):
        first = data.draw(cases[0])
    with seeded(0):
        assert data.draw(cases[0]) == first
    image, _ = data.read(cases[0])  # not drawn: the middle
    assert np.array_equal(image[0], voxels[3:7, 9:17, 8:20])


@pytest.mark.parametrize("foreground", [0.0, 0.5, 1.0])
def test_patches_are_centred_on_each_class_equally_often(foreground: float, one: Path) -> None:
    """Patches of one voxel show where they are centred."""
    labels = program(body(0)[1])
    data = lits(one, view="patches", patch=(1, 1, 1), foreground=foreground)
    case = data.cases("train")[0]
    with seeded(3):
        found = [labels[data.draw(case).source.start] for _ in range(2000)]
    shares = np.bincount(found, minlength=3) / 2000
    by_chance = np.bincount(labels.ravel(), minlength=3) / labels.size
    expected = (1 - foreground) * by_chance + foreground * np.array([0.0, 0.5, 0.5])
    assert shares == pytest.approx(expected, abs=0.045)  # 4 standard deviations of 2000 draws


def test_a_volume_smaller_than_a_patch_is_continued_and_does_not_count_there(one: Path) -> None:
    voxels, labels = (program(array) for array in body(0))
    data = lits(one, view="patches", patch=(12, 26, 32), foreground=1.0)
    with seeded(0):
        case = data.draw(data.cases("train")[0])
    assert case.source.start == (0, 0, 0)
    image, mask = data.read(case)
    assert mask is not None
    assert image.shape[1:] == mask.shape == (12, 26, 32)
    assert np.array_equal(image[0, :10, :, :28], voxels)
    assert np.array_equal(image[0, 10:, :, :28], voxels[[9, 9]])
    assert np.array_equal(mask[:10, :, :28], labels)
    assert (mask[10:] == 255).all()
    assert (mask[:, :, 28:] == 255).all()


def test_spacing_is_that_of_the_network_and_masks_of_evaluation_stay(one: Path) -> None:
    """10 slices of 2.5 mm become 5 of 5 mm, each the mean of two; the voxels within stay."""
    voxels, labels = (program(array).astype(np.float64) for array in body(0))
    data = lits(one, spacing=(5.0, None, None))
    cases = data.cases("train")
    assert len(cases) == 5
    image, mask = data.read(cases[2])
    assert np.allclose(image[0], (voxels[4] + voxels[5]) / 2)
    assert mask is not None
    assert np.array_equal(mask, labels[5])  # the nearest, of two equally near
    scored = lits(one, spacing=(5.0, 2.0, None), test_fraction=1.0)
    (case,) = scored.cases("test")
    image, mask = scored.read(case)
    assert mask is not None
    assert image.shape == (1, 5, 13, 28)
    assert mask.shape == (10, 26, 28)
    assert scored.mask_size(case) == (10, 26, 28)


def test_slices_patches_and_whole_volumes_are_standardised_alike(one: Path) -> None:
    voxels = program(body(0)[0]).astype(np.float64)
    expected = (voxels - voxels.mean()) / voxels.std()
    image, _ = lits(one, standardize=True, context=1).read(lits(one).cases("train")[4])
    assert np.allclose(image, expected[3:6], atol=1e-5)
    patches = lits(one, standardize=True, view="patches", patch=(4, 8, 12))
    image, _ = patches.read(patches.cases("train")[0])
    assert np.allclose(image[0], expected[3:7, 9:17, 8:20], atol=1e-5)
    scored = lits(one, standardize=True, test_fraction=1.0)
    image, _ = scored.read(scored.cases("test")[0])
    assert np.allclose(image[0], expected, atol=1e-5)


def test_channels_are_standardised_each_for_itself_and_a_constant_one_becomes_0(tmp_path: Path) -> None:
    first, labels = body(0)
    save(tmp_path / "images" / "a.nii", np.stack([first, np.full_like(first, 7)], axis=-1))
    save(tmp_path / "masks" / "a.nii", labels)
    data = Nifti(
        images=str(tmp_path / "images"), masks=str(tmp_path / "masks"), classes=["background", "liver", "tumour"],
        channels=2, standardize=True, cache_dir=str(tmp_path / "cache"), **{**ALL, "test_fraction": 1.0},
    )  # fmt: skip
    image, _ = data.read(data.cases("test")[0])
    assert np.allclose(image[0], (program(first) - first.mean()) / first.std(), atol=1e-5)
    assert (image[1] == 0).all()


def test_standardize_as_a_transform_of_volumes_is_refused(one: Path) -> None:
    with pytest.raises(NamedError, match="data.preprocess holds a Standardize"):
        lits(one, preprocess=[Standardize()])


def test_folds_hold_out_each_patient_once(tmp_path: Path) -> None:
    for patient, scan in itertools.product("abcd", "12"):
        image, labels = body(0, (6, 5, 4))
        save(tmp_path / "i" / f"{patient}_{scan}.nii", image)
        save(tmp_path / "m" / f"{patient}_{scan}.nii", labels)
    held_out = []
    for fold in range(4):
        data = Nifti(
            images=str(tmp_path / "i"), masks=str(tmp_path / "m"), classes=["background", "liver", "tumour"],
            patient=r"(.)_\d", folds=4, fold=fold, test_fraction=0.0, cache_dir=str(tmp_path / "c"),
        )  # fmt: skip
        val = {case.name for case in data.cases("val")}
        train = {case.source.volume.name for case in data.cases("train")}
        assert {name[0] for name in val} & {name[0] for name in train} == set()
        assert len(val) == 2
        held_out += sorted(val)
    assert sorted(held_out) == [f"{patient}_{scan}" for patient in "abcd" for scan in "12"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"context": -1}, "data.context"), ({"view": "patches", "context": 1}, "data.context"),
        ({"patch": (0, 8, 8)}, "data.patch"), ({"patches_per_volume": 0}, "data.patch"),
        ({"foreground": 1.5}, "data.foreground"), ({"spacing": (0.0, 1.0, 1.0)}, "data.spacing"),
        ({"folds": 1}, "data.folds"), ({"fold": 2}, "data.fold"), ({"val_fraction": 2.0}, "data.val_fraction"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], word: str, tmp_path: Path) -> None:
    refused("config", lambda: lits(tmp_path, **arguments), word)


def blobs() -> tuple[np.ndarray, np.ndarray]:
    """A volume without any symmetry, RAS+, and its affine matrix: voxels of 1 × 1.5 × 2.5 mm, turned about two axes."""
    voxels = np.random.default_rng(5).normal(0, 40, (8, 7, 6)).astype(np.float32)
    a, b = np.deg2rad([14.0, -9.0])
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]]) @ np.array(
        [[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]]
    )
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn @ np.diag([1.0, 1.5, 2.5]), (-31.0, 12.0, 77.0)
    return voxels, affine


@pytest.mark.parametrize("view", ["slices", "patches"])
def test_predictions_are_at_the_same_place_in_all_48_orientations(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the whole of predict, with a network that marks what is above 30; with patches also resampled."""
    monkeypatch.chdir(tmp_path)
    voxels, affine = blobs()
    reference = nibabel.Nifti1Image(voxels, affine)
    Path("new").mkdir()
    turns = list(itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)))
    for number, (order, signs) in enumerate(turns):
        turned = reference.as_reoriented(np.array(list(zip(order, signs, strict=True))))
        nibabel.save(turned, f"new/{number:02d}.nii")
    volume_sets.lits(Path("data"), 3)
    two = (body(0)[1] > 0).astype(np.uint8)
    for number in range(3):
        save(Path(f"i/{number}.nii"), body(number)[0])
        save(Path(f"m/{number}.nii"), two)
    config = [
        "--data=Nifti", "--data.images=i", "--data.masks=m", "--data.classes=[background,bright]",
        f"--data.view={view}", "--data.val_fraction=0.34", "--data.test_fraction=0",
        *(["--data.patch=[4,4,8]", "--data.spacing=[2,1.3,null]"] if view == "patches" else ["--data.context=1"]),
        "--model.net=tests.data.volume_nets.Threshold", "--model.optimizer=torch.optim.SGD",
        "--model.optimizer.init_args.lr=0", *SHORT,
    ]  # fmt: skip
    assert main(["fit", *config]) == 0
    assert main(["predict", *config, "--data.predict=new", "--out=masks"]) == 0
    places = []
    for number in range(48):
        image, mask = nibabel.load(f"new/{number:02d}.nii"), nibabel.load(f"masks/{number:02d}.nii")
        assert mask.shape == image.shape
        assert np.allclose(mask.affine, image.affine, atol=1e-5)
        if view == "slices":
            assert np.array_equal(np.asanyarray(mask.dataobj), np.asanyarray(image.dataobj) > 30)
        where = np.argwhere(np.asanyarray(mask.dataobj)) @ mask.affine[:3, :3].T + mask.affine[:3, 3]
        places.append(where[np.lexsort(where.round(2).T)])
    assert len(places[0]) > 20
    for where in places[1:]:  # millimetres
        assert where.shape == places[0].shape
        assert np.allclose(where, places[0], atol=1e-3)
