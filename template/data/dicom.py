"""DICOM series, with masks as NIfTI or DICOM SEG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..distributed.faults import NamedError
from .dataset import Case
from .decoded import Volume
from .dicom_files import SUFFIXES, read_series, read_voxels, series_folders, series_key
from .dicom_seg import read_seg
from .nifti import paired
from .splits import grouped
from .volume_files import SUFFIXES as NIFTI
from .volume_files import Geometry, list_volumes, stem
from .volume_reader import VolumeReader
from .volumes import VolumeData


class DicomReader(VolumeReader):
    """Reads folders of DICOM slices, with masks as NIfTI or DICOM SEG."""

    @override
    def header(self, image: Path) -> tuple[Geometry, int]:
        return read_series(image).geometry, 1

    @override
    def image(self, image: Path) -> tuple[NDArray[np.float32], Geometry]:
        series = read_series(image)
        return np.ascontiguousarray(series.geometry.to_program(read_voxels(series)))[None], series.geometry

    @override
    def mask_geometry(self, mask: Path, image: Path) -> Geometry:
        return super().mask_geometry(mask, image) if mask.name.endswith(NIFTI) else self.header(image)[0]

    @override
    def labels(self, mask: Path, image: Path) -> tuple[NDArray[np.int64], Geometry]:
        if mask.name.endswith(NIFTI):
            return super().labels(mask, image)
        geometry = self.header(image)[0]
        return read_seg(mask, image, geometry), geometry

    @override
    def key(self, path: Path, **settings: Any) -> str:
        return series_key(path, settings) if path.is_dir() else super().key(path, **settings)


class Dicom(VolumeData):
    """DICOM series, one in a folder, with their masks in a folder of their own.

    ::

        data/dicom/anna/ct/000001.dcm …       any names; a series is called by its folders: anna_ct
        data/masks/anna_ct.nii.gz             or anna/ct.nii.gz; or a DICOM SEG, anna_ct.dcm or anna/ct/1-1.dcm

    The slices are put in order by their positions, not by their numbers, and RescaleSlope and RescaleIntercept are
    applied (Hounsfield units in a CT). Localizers, and objects that are no slices, are passed over. A folder with
    several series, a missing or doubled slice, and files of several frames are refused by name. A NIfTI mask may have
    its axes in another order, as dcm2niix writes it; it must lie on the slices. In a DICOM SEG, read by highdicom, the
    value of a voxel is its segment's number. Predictions are NIfTI.

    Args:
        images: Folder of the series' folders.
        masks: Folder of the masks.
        classes: Class names; the position is the label in the masks.
        patient: Regular expression on the names; its first parentheses are the patient, whose volumes are all in one
            split. Default: the PatientID in the files; where that is empty, each series is a patient.
        **kwargs: As of :class:`VolumeData`.
    """

    reader = DicomReader()

    def __init__(
        self, *, images: str, masks: str, classes: list[str], patient: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(classes=classes, **kwargs)
        self.images, self.masks = Path(images).expanduser(), Path(masks).expanduser()
        self.patient = patient

    def volumes(self) -> list[Volume]:
        """Series with their masks, in the order of their names.

        Raises:
            NamedError: ``data-missing``, ``data-unreadable`` or ``data-unpaired``, with the files.
        """
        images = _named(series_folders(self.images, "data.images"), self.images)
        masks = self._mask_files(images)
        volumes = paired(images, masks)
        if self.patient is not None:
            patients = grouped(images, self.patient, "data.patient")
        else:
            patients = {name: read_series(folder).patient for name, folder in images.items()}
        return [volume._replace(patient=patients[volume.name]) for volume in volumes]

    @override
    def predict_cases(self, path: Path) -> list[Case]:
        """New series: those of a folder and its subfolders; a file stands for its series.

        Raises:
            NamedError: ``data-missing``, or what is wrong with a series.
        """
        folders = _named(series_folders(path, "data.predict"), path if path.is_dir() else path.parent)
        return self.new_cases([Volume(name, (str(folder),)) for name, folder in folders.items()])

    @override
    def folders_of_masks(self) -> list[Path]:
        return [self.masks]

    def _mask_files(self, images: dict[str, Path]) -> dict[str, Path]:
        """Masks by the names of their series; each other file by its own, which no series has."""
        found: dict[str, Path] = {}
        if not self.masks.is_dir():
            raise NamedError("data-missing", f"data.masks: the folder '{self.masks}' does not exist.")
        for file in sorted(self.masks.rglob("*")):
            if file.name.startswith(".") or not (file.name.endswith(NIFTI) or file.suffix.lower() in SUFFIXES):
                continue
            inner = file.relative_to(self.masks)
            name = _joined(inner.with_name(stem(file)))
            if name not in images and _joined(inner.parent) in images:
                name = _joined(inner.parent)
            if name in found:
                raise NamedError(
                    "data-unpaired", f"'{name}' has two masks: '{found[name]}' and '{file}'.", fix="Remove one of them."
                )
            found[name] = file
        if not found:
            list_volumes(self.masks, "data.masks")
        return found


def _named(folders: list[Path], root: Path) -> dict[str, Path]:
    """Series by their folders' names below the root, which is called by its own."""
    found: dict[str, Path] = {}
    for folder in folders:
        name = _joined(folder.relative_to(root)) or root.resolve().name
        if name in found:
            raise NamedError(
                "data-unpaired", f"Two series are called '{name}': '{found[name]}' and '{folder}'.",
                fix="Rename one of the folders.",
            )  # fmt: skip
        found[name] = folder
    return found


def _joined(path: Path) -> str:
    return "_".join(path.parts)
