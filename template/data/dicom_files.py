"""DICOM series: the slices of a folder as one volume."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..distributed.faults import NamedError
from ..distributed.told import listed
from .volume_files import Geometry

SUFFIXES = (".dcm", ".dicom", ".ima")
#: Part of the usual distance of slices by which a distance may differ; positions are written with few digits.
_UNEVEN = 0.1
#: What else lies in the folder of a series, and is no slice of it.
_NO_SLICES = {"SEG", "RTSTRUCT", "RTDOSE", "RTPLAN", "PR", "SR", "KO", "REG", "DOC"}
_READ = [
    "ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing", "Rows", "Columns", "SamplesPerPixel", "Modality",
    "NumberOfFrames", "SeriesInstanceUID", "SeriesDescription", "PatientID", "ImageType", "SliceThickness",
    "SpacingBetweenSlices",
]  # fmt: skip


class Series(NamedTuple):
    """A series of a folder.

    Attributes:
        files: Its slices, by their position.
        geometry: Of the array [column, row, slice].
        patient: Its PatientID; may be empty.
    """

    files: tuple[Path, ...]
    geometry: Geometry
    patient: str


def need_pydicom() -> Any:
    """The library that reads DICOM.

    Raises:
        NamedError: ``not-installed``.
    """
    try:
        import pydicom
    except ImportError as error:
        raise NamedError(
            "not-installed", "pydicom, which reads DICOM, is not installed.",
            fix="Install the extra: pip install '.[medical]'.",
        ) from error  # fmt: skip
    return pydicom


def series_folders(path: Path, what: str) -> list[Path]:
    """Folders that hold series: this one and those below it, sorted. Those of localizers and the like are passed over.

    Args:
        path: A folder, or a file of a series.
        what: Key of the configuration, for messages.

    Raises:
        NamedError: ``data-missing`` or ``data-unreadable``.
    """
    try:
        if path.is_file():
            return [path.parent]
        if not path.is_dir():
            raise NamedError("data-missing", f"{what}: the folder '{path}' does not exist.")
        folders = [path, *(folder for folder in path.rglob("*") if folder.is_dir())]
        found = sorted(folder for folder in folders if _dicom_files(folder))
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    if not found:
        raise NamedError("data-missing", f"{what}: there is no DICOM file in '{path}' and the folders below it.")
    series = [folder for folder in found if _read(folder) is not None]
    if not series:
        raise _no_slices(path)
    return series


def read_series(folder: Path) -> Series:
    """Read where the slices of a series are, without their pixels.

    They are put in order by their positions along the normal of their plane, as instance numbers may run anyhow.
    Localizers, and objects that are no slices (SEG, RTSTRUCT and the like), are passed over.

    Raises:
        NamedError: ``data-missing``, ``data-unreadable`` or ``data-geometry``, with the files.
    """
    series = _read(folder)
    if series is None:
        raise _no_slices(folder)
    return series


def read_voxels(series: Series) -> NDArray[np.float32]:
    """Voxels of a series, float32 [column, row, slice], RescaleSlope and RescaleIntercept of each slice applied.

    Raises:
        NamedError: ``data-unreadable``, with the file.
    """
    voxels: NDArray[np.float32] | None = None
    for number, file in enumerate(series.files):
        slice_ = load(file)
        try:
            # A slope of 0 or an empty one is none.
            slope, intercept = (float(slice_.get(key) or 0) for key in ("RescaleSlope", "RescaleIntercept"))
            pixels = slice_.pixel_array.T * np.float32(slope or 1) + np.float32(intercept)
            # Not before the first slice is there: a damaged header may ask for any size.
            voxels = np.empty(series.geometry.shape, np.float32) if voxels is None else voxels
            voxels[:, :, number] = pixels
        except (ValueError, TypeError, AttributeError, KeyError, RuntimeError, EOFError, OSError, MemoryError) as error:
            raise unreadable(file, _reason(error)) from error
    assert voxels is not None
    return voxels


def series_key(folder: Path, settings: dict[str, Any]) -> str:
    """Names what is made of a series: by place, names, sizes and times of its files, and by settings."""
    digest = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=20)
    for file in read_series(folder).files:
        stat = file.stat()
        digest.update(repr((file.name, stat.st_size, stat.st_mtime_ns)).encode("utf-8", "surrogateescape"))
    digest.update(repr(sorted(settings.items())).encode())
    return digest.hexdigest()


def load(file: Path, **options: Any) -> Any:
    """Read a DICOM file.

    Raises:
        NamedError: ``data-unreadable``, with the file.
    """
    pydicom = need_pydicom()
    try:
        return pydicom.dcmread(file, **options)
    except pydicom.errors.InvalidDicomError as error:
        raise unreadable(file, "it is no DICOM file, or its beginning is lost") from error
    except Exception as error:  # a damaged header makes pydicom raise anything
        raise unreadable(file, _reason(error)) from error


def unreadable(file: Path, reason: str, cause: str | None = None, fix: str | None = None) -> NamedError:
    """A file that cannot be read."""
    return NamedError("data-unreadable", f"'{file}' cannot be read: {reason.rstrip('.')}.", cause, fix)


def _read(folder: Path) -> Series | None:
    """The series of a folder; None where it holds nothing but localizers and the like."""
    try:
        files = _dicom_files(folder)
        stamps = tuple((file, stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()])
    except OSError as error:
        raise unreadable(Path(error.filename or folder), error.strerror or str(error)) from error
    if not files:
        raise NamedError("data-missing", f"There is no DICOM file in '{folder}'.")
    return _series(folder, stamps)


def _no_slices(folder: Path) -> NamedError:
    return NamedError("data-missing", f"'{folder}' holds no slices of a volume, but localizers and the like.")


def _dicom_files(folder: Path) -> list[Path]:
    """Files that are called as DICOM files are, or begin as such."""
    found = []
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or file.name.upper().startswith("DICOMDIR"):
            continue
        if file.is_dir() or file.is_fifo():  # to open a pipe would wait for ever
            continue
        if file.suffix.lower() in SUFFIXES or (_may_be_dicom(file) and _begins_as_dicom(file)):
            found.append(file)
    return found


def _may_be_dicom(file: Path) -> bool:
    """Names without a known ending; scanners number them, or name them by a UID (``1.2.840.113619…``)."""
    return file.suffix == "" or file.suffix[1:].isdigit()


def _begins_as_dicom(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(132)[128:] == b"DICM"


@lru_cache(maxsize=10_000)
def _series(folder: Path, stamps: tuple[tuple[Path, int, int], ...]) -> Series | None:
    """Headers are read once by each process, as long as the files stay as they are."""
    slices = []
    for file, *_ in stamps:
        header = load(file, stop_before_pixels=True, specific_tags=_READ)
        localizer = "LOCALIZER" in [str(word).upper() for word in header.get("ImageType") or ()]
        if not localizer and str(header.get("Modality", "")) not in _NO_SLICES:
            slices.append((file, header))
    if not slices:
        return None
    _check_one_series(folder, slices)
    for file, header in slices:
        _check_slice(file, header)
    first = slices[0][1]
    along_row, along_column = _directions(first)
    normal = np.cross(along_row, along_column)
    for file, header in slices:
        if not np.allclose(_directions(header), (along_row, along_column), atol=1e-3):
            raise _misplaced(f"'{file}' lies in another direction than '{slices[0][0]}'", "ImageOrientationPatient")
        for name in ("Rows", "Columns", "PixelSpacing"):
            if not np.allclose(np.array(header[name].value, float), np.array(first[name].value, float), rtol=1e-3):
                raise NamedError(
                    "data-size-mismatch",
                    f"'{file}' has {name} {header[name].value}, '{slices[0][0]}' {first[name].value}.",
                    cause="All slices of a volume have one size.",
                    fix="Keep one series in a folder.",
                )
    positions = np.array([header.ImagePositionPatient for _, header in slices], np.float64)
    order = np.argsort(positions @ normal, kind="stable")
    files = tuple(slices[n][0] for n in order)
    step = _step(files, positions[order], normal, first)
    across, down = (float(n) for n in (first.PixelSpacing[1], first.PixelSpacing[0]))  # rows lie [0] apart
    affine = np.eye(4)
    affine[:3] = np.column_stack([along_row * across, along_column * down, step, positions[order[0]]])
    # DICOM's axes grow to the left, the back and the head; NIfTI's to the right, the front and the head.
    affine[:2] *= -1
    shape = (int(first.Columns), int(first.Rows), len(files))
    return Series(files, Geometry(shape, affine), str(first.get("PatientID") or ""))


def _step(
    files: Sequence[Path], positions: NDArray[np.float64], normal: NDArray[np.float64], first: Any
) -> NDArray[np.float64]:
    """From a slice to the next, in mm; with a tilted gantry, it is not along the normal."""
    if len(files) == 1:
        thickness = float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
        return normal * abs(thickness)
    apart = np.diff(positions @ normal)
    usual = float(np.median(apart))
    doubled = int(apart.argmin())
    if apart[doubled] <= max(1e-3, _UNEVEN * usual):
        raise _misplaced(
            f"'{files[doubled]}' and '{files[doubled + 1]}' lie at the same place",
            "A slice is there twice, or the folder holds several phases or reconstructions.",
        )
    uneven = int(np.abs(apart - usual).argmax())
    if abs(apart[uneven] - usual) > _UNEVEN * usual:
        raise _misplaced(
            f"'{files[uneven]}' and '{files[uneven + 1]}' lie {apart[uneven]:.4g} mm apart, "
            f"other slices {usual:.4g} mm",
            "A slice is missing, or the slices have two distances.",
        )
    step: NDArray[np.float64] = (positions[-1] - positions[0]) / (len(files) - 1)
    off = np.linalg.norm(positions - positions[0] - np.arange(len(files))[:, None] * step, axis=1)
    if off.max() > usual / 2:
        raise _misplaced(
            f"'{files[int(off.argmax())]}' lies {off.max():.3g} mm off the line of the other slices",
            "The patient's table moved.",
        )
    return step


def _check_one_series(folder: Path, slices: Sequence[tuple[Path, Any]]) -> None:
    series: dict[str, list[Any]] = {}
    for _, header in slices:
        series.setdefault(str(header.get("SeriesInstanceUID", "")), []).append(header)
    if len(series) > 1:
        told = [
            f"{headers[0].get('SeriesDescription') or uid!r} ({len(headers)} files)" for uid, headers in series.items()
        ]
        raise NamedError(
            "data-unpaired",
            f"'{folder}' holds {len(series)} series: {listed(told, 5)}.",
            cause="A folder stands for one volume.",
            fix="Put each series into a folder of its own.",
        )


def _check_slice(file: Path, header: Any) -> None:
    for name in ("ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing", "Rows", "Columns"):
        value = header.get(name)
        if value is None or (isinstance(value, Sequence) and not value):
            frames = int(header.get("NumberOfFrames") or 1)
            raise unreadable(
                file,
                f"it is one file of {frames} slices" if frames > 1 else f"it has no {name}",
                "Read are series of one file a slice, which say where each slice lies.",
                "Convert it to NIfTI, for example with dcm2niix, and use configs/nifti.yaml.",
            )
    numbers = [*header.ImageOrientationPatient, *header.ImagePositionPatient, *header.PixelSpacing]
    across, down = _directions(header)
    if len(numbers) != 11 or not np.isfinite(np.array(numbers, float)).all() or min(header.PixelSpacing) <= 0:
        raise unreadable(file, "its position, orientation or PixelSpacing are no such numbers")
    if abs(across @ down) > 1e-2 or abs(across @ across - 1) > 1e-2 or abs(down @ down - 1) > 1e-2:
        raise unreadable(file, f"its ImageOrientationPatient {list(header.ImageOrientationPatient)} has no right angle")
    if header.get("SamplesPerPixel", 1) != 1:
        raise unreadable(file, "it is a colour picture")
    _check_decoder(file, header)


def _check_decoder(file: Path, header: Any) -> None:
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None or not syntax.is_compressed or syntax.is_deflated:
        return
    from pydicom.pixels.decoders.base import get_decoder

    try:
        available = get_decoder(syntax).is_available
    except NotImplementedError:
        available = False
    if not available:
        raise unreadable(
            file,
            f"it is compressed as {syntax.name}, and no decoder of that is installed",
            "pydicom leaves compressed pixels to other packages.",
            "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg; or decompress the files with dcmdjpeg.",
        )


def _directions(header: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit vectors in which the columns' and the rows' numbers grow, in DICOM's axes."""
    numbers = np.array([float(n) for n in header.ImageOrientationPatient], np.float64)
    return numbers[:3], numbers[3:]


def _misplaced(what: str, cause: str) -> NamedError:
    return NamedError("data-geometry", f"{what}.", cause, "Export the series again, each into a folder of its own.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
