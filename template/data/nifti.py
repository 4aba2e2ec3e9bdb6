"""NIfTI images and masks of any names, and those of the LiTS challenge."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typing_extensions import override

from ..distributed.faults import NamedError
from ..distributed.told import listed
from .decoded import Volume
from .splits import grouped
from .volume_files import list_volumes, stem
from .volumes import VolumeData


class Nifti(VolumeData):
    """NIfTI images and masks in two folders, or in one, matched by the part of their names that they share.

    ``.nii`` and ``.nii.gz`` in folders and their subfolders; four-dimensional files hold their channels last. Files are
    in any orientation; masks must lie on their images.

    Args:
        images: Folder of the images.
        masks: Folder of the masks; may be the same folder.
        classes: Class names; the position is the label in the masks.
        image_suffix: What an image's stem has more than the common stem, such as ``_ct``; other files are passed over.
        mask_suffix: The same for masks, such as ``_seg``.
        patient: Regular expression on the common stem; its first parentheses are the patient, whose volumes are all in
            one split. Default: each volume is a patient.
        **kwargs: As of :class:`VolumeData`.
    """

    def __init__(
        self,
        *,
        images: str,
        masks: str,
        classes: list[str],
        image_suffix: str = "",
        mask_suffix: str = "",
        patient: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(classes=classes, **kwargs)
        if image_suffix == mask_suffix and Path(images).expanduser() == Path(masks).expanduser():
            raise NamedError(
                "config",
                f"data.images and data.masks are the same folder '{images}', with nothing to tell them apart.",
                fix="Set data.mask_suffix, for example _seg.",
            )
        self.images, self.masks = Path(images).expanduser(), Path(masks).expanduser()
        self.image_suffix, self.mask_suffix = image_suffix, mask_suffix
        self.patient = patient

    def volumes(self) -> list[Volume]:
        """Pairs, in the order of their common stems.

        Raises:
            NamedError: ``data-missing`` or ``data-unpaired``, with the files.
        """
        images = _by_stem(self._files(self.images, "data.images", self.image_suffix, self.mask_suffix), "images")
        masks = _by_stem(self._files(self.masks, "data.masks", self.mask_suffix, self.image_suffix), "masks")
        return paired(images, masks, self.patient)

    @override
    def folders_of_masks(self) -> list[Path]:
        return [self.masks]

    def _files(self, folder: Path, key: str, suffix: str, other: str) -> list[tuple[str, Path]]:
        shared = self.images == self.masks
        found = []
        for file in list_volumes(folder, key):
            name = stem(file)
            of_other = shared and len(other) > len(suffix) and name.endswith(other)
            if name.endswith(suffix) and not of_other:
                found.append((name.removesuffix(suffix), file))
        if not found:
            raise NamedError(
                "data-missing", f"{key}: no NIfTI file in '{folder}' has a name that ends in '{suffix}'.",
                fix=f"Correct {key[:-1]}_suffix.",
            )  # fmt: skip
        return found


class LiTS(VolumeData):
    """The layout of the LiTS challenge (Bilic et al., arXiv:1901.04056): ``volume-N.nii``, ``segmentation-N.nii``.

    Searched in the folder and its subfolders, packed or not, matched by N. Hounsfield units; labels 0 background,
    1 liver, 2 tumour; scored are ``liver`` (1 and 2, as LiTS counts it) and ``tumour``. The files' orientations differ,
    and in some the table lies above the patient: they are turned to one here, and predictions back.

    Args:
        folder: With the files in it.
        **kwargs: As of :class:`VolumeData`.
    """

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(classes=["background", "liver", "tumour"], regions={"liver": [1, 2], "tumour": [2]}, **kwargs)
        self.folder = Path(folder).expanduser()

    def volumes(self) -> list[Volume]:
        """Pairs, in the order of N.

        Raises:
            NamedError: ``data-missing`` or ``data-unpaired``, with the files.
        """
        files = list_volumes(self.folder, "data.folder")
        images = _by_stem(_numbered(files, "volume"), "images")
        masks = _by_stem(_numbered(files, "segmentation"), "masks")
        if not images:
            raise NamedError(
                "data-missing", f"data.folder: there is no volume-N.nii or volume-N.nii.gz in '{self.folder}'."
            )
        return sorted(paired(images, masks), key=lambda volume: int(volume.name.rpartition("-")[2]))

    @override
    def new_files(self, path: Path) -> list[Path]:
        return [file for file in super().new_files(path) if not stem(file).startswith("segmentation-")]


def paired(images: dict[str, Path], masks: dict[str, Path], patient: str | None = None) -> list[Volume]:
    """Volumes of images and masks of one name, sorted.

    Args:
        images: Files by name.
        masks: Files by name.
        patient: Regular expression on the names that finds the patient.

    Raises:
        NamedError: ``data-unpaired``.
    """
    for have, lack, what in ((images, masks, "images have no mask"), (masks, images, "masks have no image")):
        lonely = [str(file) for name, file in have.items() if name not in lack]
        if lonely:
            raise NamedError("data-unpaired", f"{len(lonely)} of {len(have)} {what}: {listed(lonely, 3)}.")
    patients = grouped(sorted(images), patient, "data.patient")
    return [Volume(name, (str(images[name]),), str(masks[name]), patients[name]) for name in sorted(images)]


def _numbered(files: Iterable[Path], word: str) -> list[tuple[str, Path]]:
    matches = ((re.fullmatch(rf"{word}-(\d+)", stem(file)), file) for file in files)
    return [(f"volume-{int(match[1])}", file) for match, file in matches if match]


def _by_stem(files: Iterable[tuple[str, Path]], what: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, file in files:
        if name in found:
            raise NamedError(
                "data-unpaired", f"Two {what} are called '{name}': '{found[name]}' and '{file}'.",
                fix="Remove one of them.",
            )  # fmt: skip
        found[name] = file
    return found
