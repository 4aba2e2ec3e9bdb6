"""Volumes, decoded, turned to one orientation and resampled once, and then mapped from the cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX
from .cache import ArrayCache
from .mask_values import MaskValues
from .resampling import compact, grid_of, resampled
from .volume_files import Geometry, check_same_place
from .volume_reader import VolumeReader

#: Arrays that a process keeps mapped, as to find and map one takes longer than to read a slice. Each holds a file open;
#: a process may often have 1024.
_MAPPED = 128
#: Labelled voxels of a class that are kept of a volume, to centre patches on.
_CENTRES = 2000


class Volume(NamedTuple):
    """One volume of a data set.

    Attributes:
        name: Unique.
        images: Its files: one, or one for each channel.
        mask: File of its labels; None where it has none.
        patient: Whose it is: all volumes of one are in one split. Default: the volume stands for itself.
    """

    name: str
    images: tuple[str, ...]
    mask: str | None = None
    patient: str = ""


class DecodedVolumes:
    """Images and labels of volumes as arrays.

    Args:
        cache: Where they are kept.
        values: What the numbers in masks mean.
        channels: That every image must have.
        spacing: Size of a voxel that they are resampled to, in mm; None, or None in a place: left as it is.
        standardize: Whether the network sees each channel of each volume with mean 0 and standard deviation 1.
        reader: Reads the files.
    """

    def __init__(
        self,
        cache: ArrayCache,
        values: MaskValues,
        channels: int,
        spacing: Sequence[float | None] | None,
        standardize: bool,
        reader: VolumeReader,
    ) -> None:
        self.cache = cache
        self.values = values
        self.channels = channels
        self.spacing = spacing
        self.standardize = standardize
        self.reader = reader
        self._mapped: dict[tuple[Any, ...], NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is mapped behind, which would be copied whole into another process."""
        return {**self.__dict__, "_mapped": {}}

    def image(self, volume: Volume) -> NDArray[Any]:
        """[C, D, H, W] on the network's grid, mapped: int16 where the file's values are such, else float32."""
        return self._cached("image", volume.images, lambda: self._decoded_image(volume))

    def mask(self, volume: Volume, resample: bool) -> NDArray[np.uint8]:
        """Labels, uint8 [D, H, W], mapped: on the network's grid, or on the file's."""
        assert volume.mask is not None
        kind = "mask" if resample else "truth"
        # A DICOM SEG is put onto the grid of its image.
        files = (volume.mask, volume.images[0])
        return self._cached(kind, files, lambda: self._decoded_mask(volume, resample))

    def centres(self, volume: Volume) -> NDArray[np.int32]:
        """Labelled voxels of each class but the background, int32 [n, 4]: class, and place on the network's grid."""
        assert volume.mask is not None
        files = (volume.mask, volume.images[0])
        return self._cached("centres", files, lambda: _centres_of(self.mask(volume, resample=True)))

    def statistics(self, volume: Volume) -> NDArray[np.float64]:
        """Mean and standard deviation of each channel over the whole volume, [C, 2]."""
        return self._cached("statistics", volume.images, lambda: _statistics_of(self.image(volume)))

    def forget(self) -> None:
        """Close what is mapped; who has been given an array keeps it."""
        self._mapped.clear()

    def for_network(self, volume: Volume, voxels: NDArray[Any]) -> NDArray[np.float32]:
        """A copy of voxels [C, …] out of a volume's image, as the network sees them."""
        image = np.array(voxels, dtype=np.float32, order="C")
        if self.standardize:
            statistics = self.statistics(volume).astype(np.float32)
            mean, spread = statistics.T.reshape(2, -1, *[1] * (image.ndim - 1))
            image -= mean
            image /= np.maximum(spread, 1e-6)  # a constant channel becomes 0
        return image

    def _cached(self, kind: str, files: tuple[str, ...], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        stamps = tuple(map(_stamp, files))
        array = self._mapped.pop((kind, files, stamps), None)
        if array is None:
            # A plain view: slices of np.memmap are memory maps again, which takes longer than to copy them.
            array = self.cache.get(self._key(kind, files, stamps), make).view(np.ndarray)
            if len(self._mapped) >= _MAPPED:
                del self._mapped[next(iter(self._mapped))]  # used longest ago
        self._mapped[kind, files, stamps] = array
        return array

    def _key(self, kind: str, files: tuple[str, ...], stamps: tuple[tuple[int, int], ...]) -> str:
        settings = {"kind": kind, "classes": sorted(self.values.meaning.items()), "spacing": self.spacing}
        told = tuple(sorted((k, repr(v)) for k, v in settings.items()))
        keys = [_key(self.reader, file, stamp, told) for file, stamp in zip(files, stamps, strict=True)]
        # One of all files, however many channels there are: a file's name has 255 bytes.
        return f"{kind}_{hashlib.blake2b(''.join(keys).encode(), digest_size=20).hexdigest()}"

    def _decoded_image(self, volume: Volume) -> NDArray[Any]:
        parts, geometry = [], None
        for file in map(Path, volume.images):
            voxels, place = self.reader.image(file)
            if geometry is not None:
                check_same_place(Path(volume.images[0]), geometry, file, place, "channel")
            geometry = geometry or place
            if (
                voxels.dtype.kind == "f" and not np.isfinite([voxels.min(), voxels.max()]).all()
            ):  # NaN is the smallest and the largest
                raise NamedError("data-not-finite", f"'{file}' has voxels that are NaN or infinite.")
            parts.append(voxels)
        assert geometry is not None
        image = parts[0] if len(parts) == 1 else np.concatenate(parts)
        del parts, voxels  # each as large as the volume
        self.check_channels(Path(volume.images[0]), len(image))
        return compact(resampled(image, self.grid(geometry)))

    def _decoded_mask(self, volume: Volume, resample: bool) -> NDArray[np.uint8]:
        file = Path(str(volume.mask))
        values, _ = self.reader.labels(file, Path(volume.images[0]))
        labels = np.empty(values.shape, np.uint8)
        try:
            for plane, of_file in zip(labels, values, strict=True):
                plane[:] = self.values.to_classes(of_file, file)
        except NamedError:  # says which values there are: in all of the file, and not only as far as it was read
            self.values.to_classes(values.reshape(len(values), -1), file)
            raise
        if not resample:
            return labels
        # The image's own grid: of an affine matrix that is rounded in another way, one more voxel could come.
        geometry, _ = self.reader.header(Path(volume.images[0]))
        on_grid: NDArray[np.uint8] = resampled(labels[None], self.grid(geometry))[0]
        return on_grid

    def grid(self, geometry: Geometry) -> tuple[int, int, int]:
        """D, H and W of a volume for the network, after it is resampled."""
        return grid_of(geometry.size, geometry.spacing, self.spacing)

    def check(self, volume: Volume) -> None:
        """See from the headers whether a volume has its channels and lies on its mask.

        Raises:
            NamedError: ``image-channels``, ``data-size-mismatch`` or ``data-geometry``; with a file that is missing or
                cannot be read.
        """
        first, *others = map(Path, volume.images)
        geometry, channels = self.reader.header(first)
        for file in others:
            place, more = self.reader.header(file)
            check_same_place(first, geometry, file, place, "channel")
            channels += more
        self.check_channels(first, channels)
        if volume.mask is not None:
            check_same_place(first, geometry, Path(volume.mask), self.reader.mask_geometry(Path(volume.mask), first))

    def check_channels(self, file: Path, found: int) -> None:
        """Refuse an image of another number of channels.

        Raises:
            NamedError: ``image-channels``.
        """
        if found != self.channels:
            raise NamedError(
                "image-channels",
                f"'{file}' has {found} channel{'s' * (found != 1)}; data.channels is {self.channels}.",
                fix="Set data.channels to what the files have.",
            )


def _stamp(file: str) -> tuple[int, int]:
    try:
        stat = os.stat(file)  # noqa: PTH116 - for each slice that is read
    except OSError as error:
        raise NamedError("data-unreadable", f"'{file}' cannot be read: {error.strerror}.") from error
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=100_000)
def _key(reader: VolumeReader, file: str, stamp: tuple[int, int], settings: tuple[tuple[str, str], ...]) -> str:
    """A file is looked into once by each process, as long as it stays as it is."""
    return reader.key(Path(file), **dict(settings))


def _centres_of(labels: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Some voxels of each class but the background, the same ones each time."""
    found = []
    for label in np.unique(labels):
        if label not in (0, IGNORE_INDEX):
            places = np.argwhere(labels == label)
            chosen = np.random.default_rng(0).permutation(len(places))[:_CENTRES]
            found.append(np.hstack([np.full((len(chosen), 1), label), places[chosen]]).astype(np.int32))
    return np.concatenate(found) if found else np.zeros((0, 4), np.int32)


def _statistics_of(image: NDArray[Any]) -> NDArray[np.float64]:
    """By planes, each in double precision, so that no copy of the volume is made."""
    mean = np.array([np.mean([plane.mean(dtype=np.float64) for plane in channel]) for channel in image])
    squares = [
        np.mean([np.square(plane - centre).mean() for plane in channel])
        for channel, centre in zip(image, mean, strict=True)
    ]
    return np.stack([mean, np.sqrt(squares)], axis=1)
