"""Real volumes out of wheels of the package index, and the layouts that tests write them in."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from template.data import liver
from template.data.wheels import Wheel, download_wheel, sha256
from template.distributed.faults import NamedError

#: MNI152, T1 and maps of grey and white matter, 197 × 233 × 189 voxels of 1 mm.
NILEARN = Wheel(
    "nilearn==0.14.1",
    "nilearn-0.14.1-py3-none-any.whl",
    "725206484e9fb3f6691f9c2d20204a068759d5072f12055324702ee0cb2bbe8a",
)
#: Three vertebrae in a CT and in an MR, 1.5 mm, stored in the orientation P-I-R.
TPTBOX = Wheel(
    "tptbox==1.1.0",
    "tptbox-1.1.0-py3-none-any.whl",
    "975a68f4117ab81fcc2d819d6127f301b1cc50210e08e73df1b9a818ee3be984",
)


def store(config: pytest.Config) -> Path:
    """Where wheels stay from one run of the tests to the next: pytest's cache, which git passes over."""
    cache = getattr(config, "cache", None)
    return Path(tempfile.gettempdir()) / "wheels" if cache is None else Path(cache.mkdir("wheels"))


def unpacked(wheel: Wheel, folder: Path, into: Path) -> Path:
    """NIfTI files of a wheel, in the folders that they have in it.

    Args:
        wheel: Which one.
        folder: Where it stays.
        into: Where its files are put.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / wheel.file
    if not file.is_file() or sha256(file.read_bytes()) != wheel.sha256:
        with fetching(), tempfile.TemporaryDirectory(dir=folder) as temporary:
            download_wheel(wheel, Path(temporary), folder).replace(file)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.endswith(".nii.gz")])
    return into


def liver_ct(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The liver CT in RAS+ order [x, y, z]: Hounsfield units, all multiples of 1/8, and labels."""
    with fetching():
        liver.fetch(folder)
    image, labels = liver.load(folder)
    return image[::-1, ::-1], labels[::-1, ::-1]


@contextmanager
def fetching() -> Iterator[None]:
    """Skip a test where a wheel cannot be had."""
    try:
        yield
    except NamedError as error:
        if error.identifier == "download":
            pytest.skip(str(error))
        raise


def canonical(file: Path | str) -> NDArray[Any]:
    """The file's values in the program's order [D, H, W], as nibabel turns them."""
    turned = nibabel.as_closest_canonical(nibabel.load(file))
    return np.asarray(turned.dataobj)[::-1, ::-1].T


class Patients:
    """The liver CT cut into slabs, as if each were a patient, and written in three layouts.

    Args:
        image: Hounsfield units, RAS+ [x, y, z].
        labels: 0 background, 1 liver, 2 tumour.
        slabs: First slice of each and the one past its last.
    """

    SPACING = (0.75, 0.75, 1.5)

    def __init__(self, image: NDArray[np.float32], labels: NDArray[np.uint8], slabs: list[tuple[int, int]]) -> None:
        self.image, self.labels, self.slabs = image, labels, slabs

    def lits(self, root: Path) -> Path:
        """Unpacked and packed, int16 with slope and intercept as scanners write them, each in another orientation."""
        for number in range(len(self.slabs)):
            codes, suffix = (("RAS", "LPS", "PIR"), (".nii", ".nii.gz", ".nii.gz"))
            for part, name in enumerate(("volume", "segmentation")):
                self._save(root / f"{name}-{number}{suffix[number % 3]}", number, part, codes[number % 3], slope=0.125)
        return root

    def decathlon(self, root: Path) -> Path:
        """Float images, LAS as most of the Decathlon's files."""
        names = [f"volume-{number}" for number in range(len(self.slabs))]
        for number, name in enumerate(names):
            self._save(root / "imagesTr" / f"{name}.nii.gz", number, 0, "LAS")
            self._save(root / "labelsTr" / f"{name}.nii.gz", number, 1, "LAS")
        pairs = [{"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"} for n in names]
        return described(
            root, name="Liver", tensorImageSize="3D", modality={"0": "CT"}, numTraining=len(names), numTest=0,
            labels={"0": "background", "1": "liver", "2": "cancer"}, training=pairs, test=[],
        )  # fmt: skip

    def nnunet(self, root: Path) -> Path:
        """Version 2, images in one orientation and masks in another."""
        for number in range(len(self.slabs)):
            self._save(root / "imagesTr" / f"volume-{number}_0000.nii.gz", number, 0, "RAS")
            self._save(root / "labelsTr" / f"volume-{number}.nii.gz", number, 1, "SPL")
        return described(
            root, channel_names={"0": "CT"}, labels={"background": 0, "liver": 1, "tumour": 2},
            numTraining=len(self.slabs), file_ending=".nii.gz",
        )  # fmt: skip

    def _save(self, file: Path, number: int, part: int, codes: str, slope: float | None = None) -> None:
        first, end = self.slabs[number]
        voxels = (self.image, self.labels)[part][:, :, first:end]
        affine = np.diag([*self.SPACING, 1.0])
        affine[:3, 3] = (-48.0, -47.25, 1.5 * first)
        turn = nibabel.orientations.ornt_transform(
            nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(tuple(codes))
        )
        turned = nibabel.Nifti1Image(voxels, affine).as_reoriented(turn)
        if slope is not None and part == 0:
            stored = (np.asanyarray(turned.dataobj) + 1024) / slope
            turned = nibabel.Nifti1Image(stored.astype(np.int16), turned.affine)
            turned.header.set_slope_inter(slope, -1024)
        file.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(turned, file)


def described(root: Path, **content: Any) -> Path:
    """Write ``dataset.json``."""
    (root / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    return root
