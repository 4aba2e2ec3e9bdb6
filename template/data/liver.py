"""Liver and tumour in a real CT: one patient of the LiTS challenge, out of a PyPI package.

The wheel ``liver-ct-segmentation-package==1.6.0`` (author: Luis Kuhn Cuellar) carries case 117 of LiTS (Bilic et al.,
"The Liver Tumor Segmentation Benchmark", arXiv:1901.04056), a crop around the liver resampled to 128³ voxels. The
wheel says MIT and says nothing about the data; LiTS itself is CC BY-NC-ND. For research and teaching.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from ..distributed.faults import NamedError
from .dataset import Case
from .module import SegmentationData, Split
from .transforms import abdominal_window
from .wheels import Wheel, download_wheel, sha256

REQUIREMENT = "liver-ct-segmentation-package==1.6.0"
WHEEL = "liver_ct_segmentation_package-1.6.0-py2.py3-none-any.whl"
#: SHA-256 of the wheel and of the two members that are read; nothing else of it is unpacked and nothing is run.
SHA256 = {
    WHEEL: "67ffa526d8500ce5e3d9f2c96c1690543d811d352d93d531301d35791b9d6bba",
    "img_117.mrc": "6519548844be8c92a6f37dff22961800ec4baad72a4efbb9f7061ffd265e1780",
    "lab_117.mrc": "0f4950afdb218ae1a8790c2367a3f1bffe3d68cf186239cdfae897e4d4f99240",
}
IMAGE, LABELS = "img_117.mrc", "lab_117.mrc"
_MEMBERS = "liver_ct_segmentation_package/data/"

#: An MRC file is a header of this many bytes and little-endian data; this one is a cube of ``SIDE`` voxels.
_HEADER = 1024
SIDE = 128

#: The axial slices are cut into blocks; these two blocks are held out, and ``MARGIN`` slices on each side of both
#: belong to no split, because neighbouring slices are nearly equal.
BLOCK, VAL_BLOCK, TEST_BLOCK, MARGIN = 16, 2, 6, 2


def split_slices() -> dict[Split, list[int]]:
    """Axial slice numbers of each split: 88 for training, 16 and 16 held out, 8 left out between them."""
    held: dict[Split, range] = {
        "val": range(VAL_BLOCK * BLOCK, (VAL_BLOCK + 1) * BLOCK),
        "test": range(TEST_BLOCK * BLOCK, (TEST_BLOCK + 1) * BLOCK),
    }
    near = {k for block in held.values() for k in range(block.start - MARGIN, block.stop + MARGIN)}
    return {"train": [k for k in range(SIDE) if k not in near], **{split: list(b) for split, b in held.items()}}


def fetch(folder: Path) -> None:
    """Make sure that the image and its labels lie in a folder.

    Taken in this order: the two ``.mrc`` files in the folder, the wheel in the folder, the wheel from the package
    index that pip is configured for.

    Args:
        folder: Where they lie or shall lie; made if missing.

    Raises:
        NamedError: ``download`` when the wheel cannot be had, ``data-unreadable`` when a file is not the expected
            one, ``folder-not-writable`` when the folder cannot be written.
    """
    if all((folder / name).is_file() for name in (IMAGE, LABELS)):
        return  # load() checks them, on every process
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Files are made beside their place and renamed: whole or not there, also when two runs do this at once.
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            if not (folder / WHEEL).is_file():
                rank_zero_info(
                    f"Fetching a CT (4.5 MB, {REQUIREMENT}) to {folder.resolve()}: for research and teaching."
                )
                wheel = Wheel(REQUIREMENT, WHEEL, SHA256[WHEEL])
                instead = f", or {IMAGE} and {LABELS} out of it,"
                download_wheel(wheel, Path(temporary), folder, instead).replace(folder / WHEEL)
            with zipfile.ZipFile(io.BytesIO(_verified(folder / WHEEL))) as archive:
                for name in (IMAGE, LABELS):
                    member = Path(temporary) / name
                    member.write_bytes(archive.read(_MEMBERS + name))
                    member.replace(folder / name)
    except OSError as error:
        raise NamedError("folder-not-writable", f"The CT cannot be stored in {folder.resolve()}: {error}.") from error


def load(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Read image and labels.

    Returns:
        Hounsfield units (-1063 to 1877), float32, and labels (0 background, 1 liver, 2 tumour), uint8; both
        [128, 128, 128] with the axes right to left, anterior to posterior, inferior to superior.

    Raises:
        NamedError: ``data-missing`` or ``data-unreadable``, naming the file.
    """
    cube = (SIDE, SIDE, SIDE)
    image = np.frombuffer(_verified(folder / IMAGE), "<f4", offset=_HEADER).reshape(cube)
    labels = np.frombuffer(_verified(folder / LABELS), "<u2", offset=_HEADER).reshape(cube)
    return image.astype(np.float32), labels.astype(np.uint8)


def _verified(path: Path) -> bytes:
    """Content of one of the files of :data:`SHA256`, once its checksum is right."""
    if not path.is_file():
        raise NamedError("data-missing", f"{path.resolve()} does not exist.")
    content = path.read_bytes()
    if (found := sha256(content)) != SHA256[path.name]:
        raise NamedError(
            "data-unreadable",
            f"{path.resolve()} ({len(content)} bytes) has the SHA-256 {found}, not {SHA256[path.name]}.",
            cause="The file is damaged, cut off, or another version.",
            fix=f"Delete it; the next run takes it out of {REQUIREMENT} again.",
        )
    return content


class LiverCT(SegmentationData):
    """128 axial slices of one patient with liver and tumours.

    Classes are background, liver and tumour; scored are ``liver`` (labels 1 and 2, as LiTS counts it) and ``tumour``.
    The held-out slabs (:func:`split_slices`) are of the same patient: scores say nothing about new patients.

    Args:
        folder: Where the CT lies or is put on first use.
        context: Neighbouring slices on each side, given as further channels (lowest first); 0 or 1. With 1, no slice
            is seen by two splits, not even as a neighbour.
        **kwargs: As of :class:`SegmentationData`: ``batch_size``, ``num_workers``, ``preprocess``, ``augment``,
            ``predict``, ``seed``.

    Raises:
        NamedError: ``config``, when ``context`` reaches into the next split.
    """

    def __init__(self, folder: str = "data/liver_ct", context: int = 0, **kwargs: Any) -> None:
        if not 0 <= context < MARGIN:
            raise NamedError("config", f"data.context is {context}; it must be 0 to {MARGIN - 1}.")
        super().__init__(
            classes=["background", "liver", "tumour"],
            in_channels=1 + 2 * context,
            regions={"liver": [1, 2], "tumour": [2]},
            **kwargs,
        )
        self.folder = Path(folder)
        self.context = context

    def prepare_data(self) -> None:
        """Fetch the CT, on one process a machine."""
        fetch(self.folder)

    def setup(self, stage: str) -> None:
        """Read the CT (10 MB) and list the slices."""
        _ = self._volumes
        super().setup(stage)

    def cases(self, split: Split) -> list[Case]:
        """Cases ``slice_000`` (lowest) to ``slice_127``; the source is the slice's number."""
        return [Case(f"slice_{k:03d}", k) for k in split_slices()[split]]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read a slice as radiologists look at it: front up, the patient's right on the left.

        Returns:
            Hounsfield units [1 + 2 * context, 128, 128]; the outermost slice stands in for neighbours past it. Labels
            [128, 128].
        """
        image, labels = self._volumes
        near = np.clip(np.arange(case.source - self.context, case.source + self.context + 1), 0, SIDE - 1)
        return (
            torch.from_numpy(np.ascontiguousarray(image[:, :, near].transpose(2, 1, 0))),
            torch.from_numpy(np.ascontiguousarray(labels[:, :, case.source].T)),
        )

    def display(self, image: Tensor) -> Tensor:
        """The slice itself, without its neighbours, in the abdominal window."""
        return super().display(abdominal_window(image[self.context : self.context + 1]))

    def baseline(self) -> dict[str, float]:
        """Dice of mere thresholding on the test slices, for comparison with a network.

        For each region the interval of Hounsfield units that is best on the training slices, after a Gaussian of
        one pixel.
        """
        train_image, train_labels = self._smoothed("train")
        test_image, test_labels = self._smoothed("test")
        return {
            name: threshold_dice(
                train_image,
                torch.isin(train_labels, torch.tensor(labels)),
                test_image,
                torch.isin(test_labels, torch.tensor(labels)),
            )
            for name, labels in self.regions.items()
        }

    @cached_property
    def _volumes(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        return load(self.folder)

    def _smoothed(self, split: Split) -> tuple[Tensor, Tensor]:
        image, labels = (torch.from_numpy(volume[:, :, split_slices()[split]]) for volume in self._volumes)
        return F.gaussian_blur(image.permute(2, 1, 0), [9, 9], [1.0, 1.0]), labels.permute(2, 1, 0)


def threshold_dice(train_image: Tensor, train_truth: Tensor, test_image: Tensor, test_truth: Tensor) -> float:
    """Dice on test images of the interval of values that has the best Dice on training images.

    Args:
        train_image: Values, any shape; intervals begin and end at whole numbers from -200 to 400.
        train_truth: True where the structure is, same shape.
        test_image: As ``train_image``.
        test_truth: As ``train_truth``.

    Returns:
        Dice on the test images, 0 to 1.
    """
    edges = torch.arange(-200.0, 401.0)

    def below(values: Tensor) -> Tensor:
        """How many values lie below each edge, float64."""
        return torch.searchsorted(values.sort().values, edges).double()

    hits, marked = below(train_image[train_truth]), below(train_image.flatten())
    # Entry [low, high]: Dice of the interval; reversed intervals hold a negative number of voxels and are left out.
    inside, chosen = hits[None] - hits[:, None], marked[None] - marked[:, None]
    dice = 2 * inside / (chosen + train_truth.sum()).clamp(min=1)
    low, high = (int(i) for i in torch.unravel_index(dice.triu().argmax(), dice.shape))
    found = (test_image >= edges[low]) & (test_image < edges[high])
    return float(2 * (found & test_truth).sum() / (found.sum() + test_truth.sum()))
