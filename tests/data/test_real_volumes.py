"""Real CT and MR volumes, from their files to masks; nibabel alone is the reference."""

from __future__ import annotations

import csv
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import template.cli  # noqa: F401  # the imports of the first run would change the environment during a test
from template.__main__ import main
from template.data.nifti import Nifti
from template.data.nnunet import NnUNet

from . import real_volumes
from .real_volumes import NILEARN, TPTBOX, canonical
from .volume_runs import SHORT, check_on_image

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of a run of a second

FIXED = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.init_args.lr=0"]
NETS = "tests.data.volume_nets"


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest) -> Path:
    return real_volumes.store(request.config)


def world(file: Path | str, value: int) -> NDArray[np.float64]:
    """Centre of the voxels that have a value, in mm."""
    image = nibabel.load(file)
    places = np.argwhere(np.asanyarray(image.dataobj) == value)
    return nibabel.affines.apply_affine(image.affine, places).mean(axis=0)  # type: ignore[no-any-return]


def rows(file: str) -> list[dict[str, str]]:
    with Path(file).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


# MNI152 with grey and white matter ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brain(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of nnU-Net of one patient: T1 and both maps as channels, and the mask that they make."""
    files = real_volumes.unpacked(NILEARN, store, tmp_path_factory.mktemp("nilearn")) / "nilearn/datasets/data"
    root = tmp_path_factory.mktemp("Dataset152_Brain")
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir()
    maps = []
    for number, kind in enumerate(("t1", "gm", "wm")):
        file = files / f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
        file.rename(root / "imagesTr" / f"mni_{number:04d}.nii.gz")
        maps.append(nibabel.load(root / "imagesTr" / f"mni_{number:04d}.nii.gz"))
    grey, white = (np.asanyarray(one.dataobj).astype(np.int16) for one in maps[1:])
    labels = np.argmax([np.full_like(grey, 127), grey, white], axis=0).astype(np.uint8)
    nibabel.save(nibabel.Nifti1Image(labels, maps[0].affine), root / "labelsTr" / "mni.nii.gz")
    real_volumes.described(
        root, channel_names={"0": "T1", "1": "grey", "2": "white"}, numTraining=1, file_ending=".nii.gz",
        labels={"background": 0, "grey": 1, "white": 2},
    )  # fmt: skip
    return root


#: Counted once with numpy on the files: voxels of grey and of white matter, each of 1 mm³.
GREY, WHITE = 1_079_599, 632_004


def test_the_brain_is_read_at_its_place(brain: Path, tmp_path: Path) -> None:
    data = NnUNet(str(brain), val_fraction=0.0, test_fraction=1.0, cache_dir=str(tmp_path / "cache"))
    (case,) = data.cases("test")
    image, mask = data.read(case)
    assert mask is not None
    assert image.shape == (3, 189, 233, 197)
    assert torch.bincount(mask.flatten()).tolist()[1:] == [GREY, WHITE]
    t1 = nibabel.load(brain / "imagesTr" / "mni_0000.nii.gz")
    assert nibabel.aff2axcodes(t1.affine) == ("R", "A", "S")
    stored = np.asanyarray(t1.dataobj)
    # Millimetres of MNI: the anterior commissure, both putamina, and the frontal lobe. The atlas is symmetric.
    for place in ((0, 2, -4), (-26, 2, 0), (26, 2, 0), (0, 60, 10)):
        x, y, z = np.rint(nibabel.affines.apply_affine(np.linalg.inv(t1.affine), place)).astype(int)
        # The first row is in front, the first column on the right.
        d, h, w = z, 232 - y, 196 - x
        assert image[0, d, h, w] == stored[x, y, z]
        assert np.allclose(data.geometry(case).program_affine @ (d, h, w, 1), (*place, 1))


def test_the_brain_trains_two_steps_and_volumes_are_those_of_the_header(
    brain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that returns the truth shows that millilitres, scores and the mask on disk are right."""
    monkeypatch.chdir(tmp_path)
    config = [
        "--data=NnUNet", f"--data.root={brain}", "--data.val_fraction=0", "--data.cache_dir=cache",
        f"--model.net={NETS}.LargestChannel", "--model.net.value=127", *FIXED, *SHORT,
    ]  # fmt: skip
    assert main(["fit", *config, "--data.test_fraction=0"]) == 0
    assert main(["test", *config, "--data.test_fraction=1"]) == 0
    image = brain / "imagesTr" / "mni_0000.nii.gz"
    assert main(["predict", *config, "--data.test_fraction=0", f"--data.predict={image}", "--out=masks"]) == 0
    mask = Path("masks/mni.nii.gz")
    check_on_image(mask, image, {0, 1, 2})
    truth = nibabel.load(brain / "labelsTr" / "mni.nii.gz")
    assert np.array_equal(np.asanyarray(nibabel.load(mask).dataobj), np.asanyarray(truth.dataobj))
    assert rows("masks/predict.csv") == [
        {
            "case": "mni",
            "file": "mni.nii.gz",
            "input": str(image),
            "grey": f"{GREY / 1000:.6g}",
            "white": f"{WHITE / 1000:.6g}",
            "unit": "ml",
        }
    ]
    (scores,) = rows(str(next(Path("runs").rglob("cases.csv"))))
    assert scores["case"] == "mni"
    assert [float(scores[key]) for key in ("dice_grey", "iou_white", "hd95_grey", "volume_error_white")] == [1, 1, 0, 0]


@pytest.mark.parametrize("view", ["slices", "patches"])
def test_a_unet_trains_on_the_brain_and_predicts_it(
    view: str, brain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = [
        "--data=NnUNet", f"--data.root={brain}", "--data.val_fraction=0", "--data.test_fraction=0",
        "--data.cache_dir=cache", f"--data.view={view}", "--data.patch=[32,64,64]", "--model.net=UNet",
        "--model.net.width=2", "--model.net.depth=2", f"--model.net.dims={2 if view == 'slices' else 3}",
        "--model.overlap=0.0", "--data.spacing=[3,3,3]", *SHORT,
    ]  # fmt: skip
    assert main(["fit", *config]) == 0
    image = brain / "imagesTr" / "mni_0000.nii.gz"
    assert main(["predict", *config, f"--data.predict={image}", "--out=masks"]) == 0
    check_on_image(Path("masks/mni.nii.gz"), image, {0, 1, 2})
    assert nibabel.aff2axcodes(nibabel.load("masks/mni.nii.gz").affine) == ("R", "A", "S")


# Vertebrae in P-I-R ---------------------------------------------------------------------------------------------------

#: Modality: folder, suffix of image and mask, values of the vertebrae in the middle and on both sides.
SPINES = {
    "ct": ("sample_ct", "_label-22_ct", "_seg-vert_label-22_msk", (21, 22, 23)),
    "mri": ("sample_mri", "_label-6_T2w", "_seg-vert_label-6_msk", (5, 6, 7)),
}
#: Centre of the middle vertebra in mm, RAS+, worked out once with nibabel on the file.
CENTRES = {"ct": (-25.377, -174.101, -65.604), "mri": (-7.336, 75.189, 120.468)}


@pytest.fixture(scope="module")
def spines(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_volumes.unpacked(TPTBOX, store, tmp_path_factory.mktemp("tptbox")) / "TPTBox" / "tests"


def spine(spines: Path, kind: str) -> tuple[list[str], Path, Path]:
    """Arguments that read the folder as it comes, and the files of image and mask."""
    folder, image, mask, values = SPINES[kind]
    meaning = {0: 0, **{value: number for number, value in enumerate(values, 1)}}
    if kind == "mri":  # discs and end plates
        meaning |= dict.fromkeys((105, 106, 205, 206, 207), 0)
    told = "{" + ", ".join(f"{key}: {value}" for key, value in meaning.items()) + "}"
    arguments = [
        "--data=Nifti", f"--data.images={spines / folder}", f"--data.masks={spines / folder}",
        f"--data.image_suffix={image}", f"--data.mask_suffix={mask}", f"--data.mask_values={told}",
        "--data.classes=[background,above,middle,below]", "--data.val_fraction=0", "--data.cache_dir=cache", *SHORT,
    ]  # fmt: skip
    return arguments, *(spines / folder / f"sub-{kind}{suffix}.nii.gz" for suffix in (image, mask))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", SPINES)
def test_a_spine_stored_in_another_orientation_is_read_upright(kind: str, spines: Path, tmp_path: Path) -> None:
    _, file, of_mask = spine(spines, kind)
    folder, image_suffix, mask_suffix, values = SPINES[kind]
    assert nibabel.aff2axcodes(nibabel.load(file).affine) == ("P", "I", "R")
    meaning = {int(value): 0 for value in np.unique(canonical(of_mask))}
    data = Nifti(
        images=str(spines / folder), masks=str(spines / folder), image_suffix=image_suffix, mask_suffix=mask_suffix,
        classes=["background", "above", "middle", "below"], val_fraction=0.0, test_fraction=1.0,
        mask_values=meaning | {value: n for n, value in enumerate(values, 1)}, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    (case,) = data.cases("test")
    assert case.name == f"sub-{kind}"
    image, mask = data.read(case)
    assert mask is not None
    assert np.array_equal(image[0], canonical(file))
    for label, value in enumerate(values, 1):
        assert np.array_equal(mask == label, canonical(of_mask) == value)
    # Vertebrae are numbered from the head to the feet, and the first slice is at the feet.
    heights = [float((mask == label).nonzero()[:, 0].float().mean()) for label in (1, 2, 3)]
    assert heights == sorted(heights, reverse=True)
    centre = (mask == 2).nonzero().double().mean(dim=0)
    assert np.allclose((data.geometry(case).program_affine @ [*centre, 1])[:3], CENTRES[kind], atol=0.01)


@pytest.mark.parametrize("kind", SPINES)
def test_a_predicted_vertebra_is_where_it_is_in_the_world(
    kind: str, spines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is given as the image, in its own and in four more orientations; what comes back is the mask."""
    monkeypatch.chdir(tmp_path)
    arguments, _, truth = spine(spines, kind)
    _, _, _, values = SPINES[kind]
    stored = nibabel.load(truth)
    wanted = nibabel.Nifti1Image(np.where(np.isin(stored.dataobj, values), stored.dataobj, 0), stored.affine)
    Path("new").mkdir()
    for codes in ("PIR", "RAS", "LPS", "SAL", "IRP"):
        turn = nibabel.orientations.ornt_transform(
            nibabel.io_orientation(stored.affine), nibabel.orientations.axcodes2ornt(tuple(codes))
        )
        nibabel.save(wanted.as_reoriented(turn), f"new/{codes}.nii.gz")
    numbers = ",".join(map(str, (0, *values)))
    config = [*arguments, f"--model.net={NETS}.Lookup", f"--model.net.values=[{numbers}]", *FIXED]
    assert main(["fit", *config, "--data.test_fraction=0"]) == 0
    assert main(["predict", *config, "--data.predict=new", "--out=masks"]) == 0
    for codes in ("PIR", "RAS", "LPS", "SAL", "IRP"):
        given, mask = nibabel.load(f"new/{codes}.nii.gz"), nibabel.load(f"masks/{codes}.nii.gz")
        assert "".join(nibabel.aff2axcodes(mask.affine)) == codes
        assert np.allclose(mask.affine, given.affine, atol=1e-5)
        assert np.array_equal(np.asanyarray(mask.dataobj), np.asanyarray(given.dataobj))
        assert np.allclose(world(f"masks/{codes}.nii.gz", values[1]), CENTRES[kind], atol=0.01)
    # 1.5 mm in each direction.
    for row in rows("masks/predict.csv"):
        for name, value in zip(("above", "middle", "below"), values, strict=True):
            assert float(row[name]) == pytest.approx(np.count_nonzero(wanted.dataobj == value) * 3.375e-3, rel=1e-5)


@pytest.mark.parametrize(("kind", "view"), [("ct", "slices"), ("mri", "patches")])
def test_a_unet_trains_on_a_spine_and_predicts_it(
    kind: str, view: str, spines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, image, truth = spine(spines, kind)
    config = [
        *arguments, f"--data.view={view}", "--data.patch=[32,32,32]", "--model.net=UNet", "--model.net.width=4",
        "--model.net.depth=2", f"--model.net.dims={2 if view == 'slices' else 3}",
    ]  # fmt: skip
    assert main(["fit", *config, "--data.test_fraction=0"]) == 0
    assert main(["predict", *config, "--data.test_fraction=0", f"--data.predict={image}", "--out=masks"]) == 0
    mask = Path("masks") / image.name
    check_on_image(mask, image, {0, *SPINES[kind][3]})
    # On the truth's grid as well, which belongs to the image.
    assert np.allclose(nibabel.load(mask).affine, nibabel.load(truth).affine, atol=1e-4)
