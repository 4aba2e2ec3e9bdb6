"""NIfTI volumes: read in one orientation, and written back in their own.

Files store their voxels in any of 48 orders of the axes, oblique to the body or not, and say in an affine matrix where
they lie. In the program a volume is [D, H, W] as radiologists look at it: D from the feet to the head, H from front to
back, W from the patient's right to the left (the first slice, row and column are inferior, anterior and right), along
the file's axes that come closest to these directions. Nothing is resampled by that.
"""

from __future__ import annotations

import math
import stat
import zlib
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..distributed.faults import NamedError
from .nifti_forms import Forms, forms_of
from .orientation import orientation_of
from .unpacked import unpacked

SUFFIXES = (".nii.gz", ".nii")
#: Parts of a voxel by which the corners of an image and its mask may lie apart. Programs write affine matrices rounded
#: to float32, and some round millimetres to three digits.
TOLERANCE = 0.1
#: What a damaged file makes zlib, NumPy and the operating system raise.
_FAULTS = (OSError, ValueError, TypeError, EOFError, zlib.error, OverflowError, MemoryError)


class Geometry(NamedTuple):
    """Where the voxels of a file are.

    Attributes:
        shape: Of the file's three spatial axes.
        affine: float64 [4, 4]: voxel indices of the file to its unit of length, RAS+.
        forms: The unit, and what else of the header is written back.
    """

    shape: tuple[int, int, int]
    affine: NDArray[np.float64]
    forms: Forms = Forms()

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Size of a voxel along D, H and W, in mm."""
        sizes = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)) * self.forms.millimetres
        x, y, z = (float(sizes[axis]) for axis in self._file_axes())
        return z, y, x

    @property
    def size(self) -> tuple[int, int, int]:
        """D, H and W."""
        x, y, z = (self.shape[axis] for axis in self._file_axes())
        return z, y, x

    def to_program(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """A file's array [x, y, z, …] in the program's order [D, H, W, …]; a view."""
        nibabel = need_nibabel()
        ras = nibabel.orientations.apply_orientation(voxels, self._orientation())
        return ras[::-1, ::-1].swapaxes(0, 2)  # type: ignore[no-any-return]

    def to_file(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """An array [D, H, W, …] of the program in the file's order; the inverse of :meth:`to_program`."""
        nibabel = need_nibabel()
        ras = voxels.swapaxes(0, 2)[::-1, ::-1]
        back = nibabel.orientations.ornt_transform(nibabel.orientations.axcodes2ornt("RAS"), self._orientation())
        return nibabel.orientations.apply_orientation(ras, back)  # type: ignore[no-any-return]

    @property
    def program_affine(self) -> NDArray[np.float64]:
        """float64 [4, 4]: indices along D, H and W to the file's unit, RAS+."""
        width, height = self.size[2], self.size[1]
        to_ras = np.array([[0, 0, -1, width - 1], [0, -1, 0, height - 1], [1, 0, 0, 0], [0, 0, 0, 1]], np.float64)
        to_file = need_nibabel().orientations.inv_ornt_aff(self._orientation(), self.shape)
        return self.affine @ to_file @ to_ras  # type: ignore[no-any-return]

    def distance(self, other: Geometry) -> float:
        """Largest distance of the eight corners of two volumes of one size, in voxels of the first.

        The order of the axes in the files does not matter; nor does the unit, where one lacks it or has a wrong one.
        """
        corners = np.array(np.meshgrid(*[(0, n - 1) for n in self.size], indexing="ij")).reshape(3, -1)
        points = np.vstack([corners, np.ones(corners.shape[1])])
        unit = self.forms.millimetres
        factors = {1.0, other.forms.millimetres / unit if self.forms.known and other.forms.known else 1.0}
        apart = [(self.program_affine - factor * other.program_affine) @ points for factor in factors]
        return min(float(np.linalg.norm(one[:3], axis=0).max()) for one in apart) * unit / min(self.spacing)

    def _orientation(self) -> NDArray[Any]:
        need_nibabel()
        return orientation_of(np.asarray(self.affine, np.float64).tobytes())

    def _file_axes(self) -> tuple[int, int, int]:
        """The file's axes that run along x, y and z."""
        along = [int(axis) for axis in self._orientation()[:, 0]]
        return along.index(0), along.index(1), along.index(2)


def need_nibabel() -> Any:
    """The library that reads and writes NIfTI.

    Raises:
        NamedError: ``not-installed``.
    """
    try:
        import nibabel
    except ImportError as error:
        raise NamedError(
            "not-installed", "nibabel, which reads and writes NIfTI, is not installed.",
            fix="Install the extra: pip install '.[medical]'.",
        ) from error  # fmt: skip
    return nibabel


def read_header(path: Path) -> tuple[Geometry, int]:
    """Geometry and number of channels of a NIfTI file, without its voxels.

    Args:
        path: A three-dimensional file, or one of four dimensions whose last are the channels.

    Raises:
        NamedError: ``data-unreadable``, with the file.
    """
    return _checked_header(path, _load(path))


def read_volume(path: Path) -> tuple[NDArray[Any], Geometry]:
    """Read an image.

    Returns:
        [C, D, H, W] in the file's unit, slope and intercept applied (Hounsfield units in a CT), and its geometry. Int16
        where the file's numbers and its slope say that all values are such whole numbers, else float32.

    Raises:
        NamedError: ``data-unreadable``, with the file.
    """
    image = _load(path)
    geometry, channels = _checked_header(path, image)
    stored, slope, intercept = _stored(path, image)
    stored = np.moveaxis(geometry.to_program(stored.reshape(*geometry.shape, channels)), -1, 0)
    as_stored = (slope, intercept) == (1, 0)
    small = stored.dtype.kind in "iub" and slope.is_integer() and intercept.is_integer()
    if small and not (as_stored and np.can_cast(stored.dtype, np.int16)):
        ends = [int(end) * slope + intercept for end in (stored.min(), stored.max())]
        small = min(ends) >= np.iinfo(np.int16).min and max(ends) <= np.iinfo(np.int16).max
    values = np.empty(stored.shape, np.int16 if small else np.float32)
    for of_channel, of_file in zip(values, stored, strict=True):
        for plane, numbers in zip(of_channel, of_file, strict=True):  # in double precision a volume is four times large
            plane[:] = numbers if as_stored else numbers * np.float64(slope) + np.float64(intercept)
    return values, geometry


def read_labels(path: Path) -> tuple[NDArray[Any], Geometry]:
    """Read a mask.

    Returns:
        The file's values, integers of any type [D, H, W]; its geometry.

    Raises:
        NamedError: ``data-unreadable``; ``mask-values`` where they are no whole numbers.
    """
    image = _load(path)
    geometry, channels = _checked_header(path, image)
    if channels != 1:
        raise NamedError(
            "data-size-mismatch", f"The mask '{path}' has {channels} channels; it must be one volume of class numbers.",
            fix="Export it again as one volume in which each voxel holds its class.",
        )  # fmt: skip
    stored, slope, intercept = _stored(path, image)
    stored = geometry.to_program(stored.reshape(geometry.shape))
    if stored.dtype.kind in "iub" and (slope, intercept) == (1, 0):
        return np.ascontiguousarray(stored), geometry
    labels = np.empty(stored.shape, np.int32)
    for plane, numbers in zip(labels, stored, strict=True):
        values = numbers * np.float64(slope) + np.float64(intercept)
        whole = np.rint(values)
        if np.isfinite(values).all() and np.abs(values - whole).max() <= 1e-3 and np.abs(whole).max() < 2**31:
            plane[:] = whole
            continue
        some = ", ".join(f"{value:g}" for value in np.unique(stored * slope + intercept)[:5])
        raise NamedError(
            "mask-values",
            f"The mask '{path}' has the values {some} …, which are no whole numbers.",
            cause="A program has interpolated it, or written it with a slope and an intercept (scl_slope, scl_inter).",
            fix="Resample masks by their nearest neighbour, and write them as integers with a slope of 1.",
        )
    return labels, geometry


def write_labels(path: Path, labels: NDArray[np.uint8], geometry: Geometry) -> None:
    """Write a mask with the geometry of the image that it belongs to.

    Args:
        path: ``.nii`` or ``.nii.gz``.
        labels: uint8 [D, H, W], in the image's size.
        geometry: Of the image.
    """
    nibabel = need_nibabel()
    image = nibabel.Nifti1Image(geometry.to_file(labels), geometry.affine)  # a view, which is written slice by slice
    geometry.forms.write(image, geometry.affine)
    nibabel.save(image, path)


def check_same_place(image: Path, of_image: Geometry, mask: Path, of_mask: Geometry, what: str = "mask") -> None:
    """Refuse a mask that does not lie on its image; their axes may be in other orders.

    Args:
        image: File of the image.
        of_image: Its geometry.
        mask: File of the mask.
        of_mask: Its geometry.
        what: ``mask``, or what else has to lie there.

    Raises:
        NamedError: ``data-size-mismatch`` or ``data-geometry``, with both files.
    """
    if of_image.size != of_mask.size:
        # Of files with axes in another order the shapes may be the same.
        sizes = [one.shape if of_image.shape != of_mask.shape else one.size for one in (of_image, of_mask)]
        told = f"The image '{image}' has {_times(sizes[0])} voxels, its {what} '{mask}' {_times(sizes[1])}."
        raise NamedError("data-size-mismatch", told)
    apart = of_image.distance(of_mask)
    if not apart <= TOLERANCE:
        raise NamedError(
            "data-geometry",
            f"The image '{image}' and its {what} '{mask}' lie {apart:.3g} voxels apart: their affine matrices are "
            f"{_matrix(of_image)} and {_matrix(of_mask)}.",
        )


def stem(path: Path) -> str:
    """The name of a file without ``.nii`` or ``.nii.gz``."""
    return next((path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix)), path.stem)


def list_volumes(path: Path, what: str) -> list[Path]:
    """NIfTI files: one, those of a folder and its subfolders, or those of a pattern with ``*``, sorted.

    Hidden files are passed over, such as the ``._*`` that macOS leaves in archives.

    Args:
        path: File, folder or pattern.
        what: Key of the configuration, for messages.

    Raises:
        NamedError: ``data-missing``, or ``data-unreadable``.
    """
    try:
        if any(sign in str(path) for sign in "*?[") and not path.exists():
            files = sorted(Path(name) for name in glob(str(path), recursive=True))  # noqa: PTH207 - it has a root
        elif path.is_dir():
            files = sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
        elif path.exists() or path.is_symlink():
            files = [path]
        else:
            raise NamedError("data-missing", f"{what}: '{path}' does not exist.")
    except OSError as error:
        raise _unreadable(path, _reason(error)) from error
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        raise NamedError("data-missing", f"{what}: there is no NIfTI file (.nii, .nii.gz) in '{path}'.")
    return files


def _load(path: Path) -> Any:
    nibabel = need_nibabel()
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # to open it would wait for ever
            raise _unreadable(path, "it is a pipe")
        image = nibabel.load(path)
    except FileNotFoundError as error:
        raise NamedError("data-missing", f"'{path}' does not exist.") from error
    except (*_FAULTS, nibabel.filebasedimages.ImageFileError, nibabel.spatialimages.HeaderDataError) as error:
        raise _unreadable(path, _reason(error)) from error
    if not hasattr(image, "affine"):
        raise _unreadable(path, "it is no volume")
    return image


def _checked_header(path: Path, image: Any) -> tuple[Geometry, int]:
    shape = tuple(int(n) for n in image.shape)
    while len(shape) > 4 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) not in (3, 4) or min(shape, default=0) < 1:
        raise _unreadable(path, f"its shape is {list(image.shape)}; it must have three axes, or four with the channels")
    affine = np.asarray(image.affine, dtype=np.float64)
    geometry = Geometry(shape[:3], affine, forms_of(image.header))  # type: ignore[arg-type]
    unit = max(1.0, geometry.forms.millimetres)  # a microscope's voxels are small in metres
    singular = not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3] * unit)) < 1e-12
    if singular or np.isnan(geometry._orientation()).any():  # axes that nearly coincide
        raise _unreadable(path, f"its affine matrix {affine[:3].round(3).tolist()} does not say where the voxels are")
    return geometry, shape[3] if len(shape) == 4 else 1


def _stored(path: Path, image: Any) -> tuple[NDArray[Any], float, float]:
    """Numbers as they are in the file, and the slope and intercept that make values of them."""
    nibabel = need_nibabel()
    data = image.dataobj
    plain = type(data) is nibabel.arrayproxy.ArrayProxy  # else a format with slopes of its own
    try:
        stored = _numbers(path, image) if plain else np.asanyarray(data)
    except (*_FAULTS, nibabel.filebasedimages.ImageFileError) as error:
        raise _unreadable(path, _reason(error)) from error
    if stored.dtype.kind not in "iufb":
        raise _unreadable(path, f"its voxels are {stored.dtype}, no real numbers")
    return (stored, float(data.slope), float(data.inter)) if plain else (stored, 1.0, 0.0)


def _numbers(path: Path, image: Any) -> NDArray[Any]:
    if not path.name.endswith(".nii.gz"):
        return image.dataobj.get_unscaled()  # type: ignore[no-any-return]
    data = image.dataobj
    size = data.offset + math.prod(map(int, data.shape)) * data.dtype.itemsize
    return np.ndarray(data.shape, data.dtype, unpacked(path, size).data, data.offset, order="F")


def _unreadable(path: Path, reason: str) -> NamedError:
    return NamedError("data-unreadable", f"'{path}' cannot be read: {reason.rstrip('.')}.")


def _reason(error: Exception) -> str:
    told = error.strerror if isinstance(error, OSError) else None
    return told or " ".join(str(error).split())[:200] or type(error).__name__


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _matrix(geometry: Geometry) -> str:
    return str(geometry.affine[:3].round(4).tolist())
