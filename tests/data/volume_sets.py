"""Tiny volumes of a liver with a tumour, written as data sets of the usual layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

#: Columns of affine matrices by orientation; voxels of 1 × 1 × 2.5 mm (x, y, z).
SPACING = (1.0, 1.0, 2.5)


def body(number: int, size: tuple[int, int, int] = (28, 26, 10)) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """A CT in RAS+ order [x, y, z], Hounsfield units, and its labels: liver on the right, a tumour in it."""
    rng = np.random.default_rng(number)
    x, y, z = np.meshgrid(*[np.arange(n) for n in size], indexing="ij")
    liver = ((x - size[0] * 0.68) / 6) ** 2 + ((y - size[1] * 0.5) / 7) ** 2 + ((z - size[2] * 0.5) / 4) ** 2 < 1
    tumour = ((x - size[0] * 0.68 - 1) / 2.5) ** 2 + ((y - size[1] * 0.5) / 2.5) ** 2 + ((z - 5) / 2) ** 2 < 1
    labels = liver.astype(np.uint8) + (tumour & liver)
    image = np.select([labels == 1, labels == 2], [110.0, 40.0], -50.0) + rng.normal(0, 10, size)
    return image.round().astype(np.int16), labels


def oriented(voxels: NDArray[Any], codes: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """RAS+ voxels [x, y, z] in another orientation such as ``LPS``, and their affine matrix."""
    ras = np.diag([*SPACING, 1.0])
    ras[:3, 3] = (-20.0, -15.0, 100.0)
    image = nibabel.Nifti1Image(voxels, ras)
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(tuple(codes))
    )
    turned = image.as_reoriented(turn)
    return np.asanyarray(turned.dataobj), turned.affine


def save(path: Path, voxels: NDArray[Any], codes: str = "RAS") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    turned, affine = oriented(voxels, codes)
    nibabel.save(nibabel.Nifti1Image(turned, affine), path)
    return path


def lits(folder: Path, cases: int = 5, orientations: tuple[str, ...] = ("RAS", "LPS", "PIR")) -> Path:
    """``volume-N.nii`` and ``segmentation-N.nii`` in two subfolders, packed or not, in several orientations."""
    for number in range(cases):
        image, labels = body(number)
        codes, suffix = orientations[number % len(orientations)], (".nii", ".nii.gz")[number % 2]
        batch = folder / f"Training Batch {number % 2 + 1}"
        save(batch / f"volume-{number}{suffix}", image, codes)
        save(batch / f"segmentation-{number}{suffix}", labels, codes)
    return folder


def decathlon(root: Path, cases: int = 5, *, channels: int = 1, tests: int = 1) -> Path:
    """A task of the Decathlon: paths with ``./``, ids as text, files of macOS beside the real ones."""
    names = [f"volume-{number}" for number in range(cases + tests)]
    for number, name in enumerate(names):
        part = "Tr" if number < cases else "Ts"
        image, labels = body(number)
        voxels = image if channels == 1 else np.stack([image, *[image // (n + 1) for n in range(1, channels)]], -1)
        save(root / f"images{part}" / f"{name}.nii.gz", voxels)
        (root / f"images{part}" / f"._{name}.nii.gz").write_bytes(b"\x00\x05\x16\x07 of macOS")
        if part == "Tr":
            save(root / "labelsTr" / f"{name}.nii.gz", labels)
            (root / "labelsTr" / f"._{name}.nii.gz").write_bytes(b"\x00\x05\x16\x07 of macOS")
    content = {
        "name": "Liver", "tensorImageSize": "3D" if channels == 1 else "4D",
        "modality": {str(n): f"channel {n}" for n in range(channels)},
        "labels": {"0": "background", "1": "liver", "2": "tumour"},
        "numTraining": cases, "numTest": tests,
        "training": [
            {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names[:cases]
        ],
        "test": [f"./imagesTs/{name}.nii.gz" for name in names[cases:]],
    }  # fmt: skip
    (root / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    return root


def nnunet(
    root: Path, cases: int = 5, *, version: int = 2, channels: int = 1, ending: str = ".nii.gz", tests: int = 1
) -> Path:
    """A raw data set of nnU-Net: one file a channel."""
    names = [f"volume-{number}" for number in range(cases + tests)]
    for number, name in enumerate(names):
        part = "Tr" if number < cases else "Ts"
        image, labels = body(number)
        for channel in range(channels):
            save(root / f"images{part}" / f"{name}_{channel:04d}{ending}", image // (channel + 1))
        if part == "Tr":
            save(root / "labelsTr" / f"{name}{ending}", labels)
    titles = {str(n): "CT" for n in range(channels)}
    content: dict[str, Any] = {"numTraining": cases, "file_ending": ending, "channel_names": titles}
    content["labels"] = {"background": 0, "liver": 1, "tumour": 2}
    if version == 1:
        content = {"numTraining": cases, "numTest": tests, "modality": titles}
        content["labels"] = {"0": "background", "1": "liver", "2": "tumour"}
        content["training"] = [
            {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names[:cases]
        ]
        content["test"] = [f"./imagesTs/{name}.nii.gz" for name in names[cases:]]
    (root / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    return root


def dicom_series(
    folder: Path,
    voxels: NDArray[np.int16],
    *,
    affine: NDArray[np.float64] | None = None,
    patient: str = "",
    series: str | None = None,
    ending: str = ".dcm",
    **tags: Any,
) -> Path:
    """Slices of RAS+ voxels [x, y, z] as a scanner writes them: stored numbers are Hounsfield units + 1024.

    Args:
        folder: Where to.
        voxels: Hounsfield units.
        affine: Of [column, row, slice] in DICOM's axes; default: rows from right to left, columns from front to back.
        patient: PatientID.
        series: SeriesInstanceUID.
        ending: Of the files.
        **tags: Further tags of all slices.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True, exist_ok=True)
    x, y, z = SPACING
    if affine is None:
        affine = np.array([[x, 0, 0, -7.0], [0, y, 0, -12.0], [0, 0, z, 100.0], [0, 0, 0, 1]])
    array = voxels[::-1, ::-1]  # columns go to the left, rows to the back
    series = series or generate_uid(entropy_srcs=[str(folder)])
    for number in range(array.shape[2]):
        one = Dataset()
        one.file_meta = FileMetaDataset()
        one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = CTImageStorage
        uid = generate_uid(entropy_srcs=[str(folder), str(number)])
        one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = uid
        one.SeriesInstanceUID, one.StudyInstanceUID, one.FrameOfReferenceUID = series, "1.2.3", "1.2.4"
        one.Modality, one.PatientID, one.ImageType = "CT", patient, ["ORIGINAL", "PRIMARY", "AXIAL"]
        one.PatientName, one.PatientBirthDate, one.PatientSex, one.StudyID = "A^B", "", "", "1"
        one.StudyDate, one.StudyTime, one.AccessionNumber, one.ReferringPhysicianName = "", "", "", ""
        one.InstanceNumber = (number * 7) % array.shape[2] + 1  # in no order
        steps = np.linalg.norm(affine[:3, :3], axis=0)
        one.PixelSpacing = [float(steps[1]), float(steps[0])]
        one.SliceThickness = float(steps[2])
        one.ImageOrientationPatient = [float(n) for n in (affine[:3, :2] / steps[:2]).T.ravel()]
        one.ImagePositionPatient = [float(n) for n in affine[:3, 3] + number * affine[:3, 2]]
        one.Rows, one.Columns, one.SamplesPerPixel = array.shape[1], array.shape[0], 1
        one.PhotometricInterpretation = "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 0
        one.RescaleSlope, one.RescaleIntercept = 1, -1024
        one.PixelData = (array[:, :, number].T + 1024).astype("<u2").tobytes()
        for name, value in tags.items():
            setattr(one, name, value)
        # In no order either.
        one.save_as(folder / f"{(number * 3) % array.shape[2]:03d}{ending}", enforce_file_format=True)
    return folder


def dicom(root: Path, cases: int = 5, name: str = "patient {}/ct") -> Path:
    """Series of patients in ``dicom``, their masks as NIfTI in another order of the axes in ``masks``."""
    for number in range(cases):
        image, labels = body(number)
        dicom_series(root / "dicom" / name.format(number), image, patient=f"P{number}")
        voxels, affine = oriented(labels, ("RAS", "LAS")[number % 2])
        # The last voxel in RAS+ is the first of the series, which lies at (-7, -12, 100) to the left and the back.
        shift = np.eye(4)
        shift[:2, 3] = np.array([7.0, 12.0]) - np.array([-20.0, -15.0]) - (np.array(image.shape[:2]) - 1)
        (root / "masks").mkdir(exist_ok=True)
        nibabel.save(
            nibabel.Nifti1Image(voxels, shift @ affine),
            root / "masks" / f"{name.format(number).replace('/', '_')}.nii.gz",
        )
    return root
