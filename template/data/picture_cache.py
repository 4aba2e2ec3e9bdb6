"""Decoded pictures on disk, memory-mapped."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import mmap
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from ..distributed.faults import NamedError

#: A change of what is stored under a key makes all old entries another key's.
_FORMAT = 1
#: Part of the disk that is left to others.
_SPARE = 0.05
#: The sizes of all entries are added up again when this part of the room that there was has been used by this process
#: alone, so that as many processes as its inverse together do not go beyond the limit.
_PART = 1 / 16
#: Enough for the header that ``np.save`` writes of an array of few dimensions.
_HEADER = 128


class PictureCache:
    """What is made of picture files, as ``.npy`` files in a folder.

    When it is full, what is in it stays and nothing is added. Each epoch needs each picture once, in another order: to
    let those go that were used longest ago would let most go shortly before they are needed. Any number of processes
    may share it; two that want one entry at the same time make it twice.

    Args:
        folder: Made when it is first written to; None: nothing is kept.
        limit: Bytes of all entries together.
    """

    def __init__(self, folder: Path | None, limit: float) -> None:
        self.folder = folder
        self.limit = limit
        self._room: float | None = None
        self._written = 0
        self._full = False

    def get(self, file: Path, kind: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """What is made of a file.

        Args:
            file: The file; an entry is that of its place, size and time.
            kind: What is made of it, and how.
            make: Makes it.

        Returns:
            The array, read-only where it is mapped from the cache.

        Raises:
            NamedError: ``folder-not-writable``; whatever ``make`` raises.
        """
        if self.folder is None:
            return make()
        try:
            entry = self.folder / _name(file, kind)
        except OSError:  # it cannot be read, and make says why
            return make()
        if (found := _mapped(entry)) is not None:
            return found
        array = make()
        if not self._full:
            self._keep(entry, np.ascontiguousarray(array))
        return array

    def _keep(self, entry: Path, array: NDArray[Any]) -> None:
        part = entry.with_name(f"{entry.name}.{os.getpid()}.part")
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            if not self._has_room(array.nbytes):
                return
            try:
                with part.open("wb") as out:
                    np.save(out, array, allow_pickle=False)
                part.replace(entry)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise NamedError(
                "folder-not-writable",
                f"data.cache_dir '{self.folder}' cannot be written: {error.strerror or error}.",
                fix="Choose another folder with --data.cache_dir, or leave it out.",
            ) from error

    def _has_room(self, size: int) -> bool:
        assert self.folder is not None
        if self._room is None or self._written + size > self._room * _PART:
            self._room, self._written = self.limit - _used(self.folder), 0
        disk = shutil.disk_usage(self.folder)
        if size > self._room or disk.free - size < _SPARE * disk.total:
            self._full = True
            why = f"full ({self.limit / 1e9:.3g} GB, data.cache_gb)" if size > self._room else "on a disk nearly full"
            rank_zero_info(
                f"The cache '{self.folder}' is {why}: further pictures are decoded in each epoch. If it holds "
                "pictures of data that you no longer use, delete it."
            )
            return False
        self._written += size
        return True


def _name(file: Path, kind: str) -> str:
    status = os.stat(file)  # noqa: PTH116 - for each picture that is read
    # The device and the file's number stand for its place, whichever way a path leads there.
    told = f"{_FORMAT} {kind} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {file.name}"
    digest = hashlib.blake2b(told.encode(errors="surrogateescape"), digest_size=20).hexdigest()
    return f"{digest[:2]}/{digest}.npy"  # no folder of a million files


def _used(folder: Path) -> int:
    total = 0
    for part in os.scandir(folder):
        if part.is_dir() and len(part.name) == 2:
            for entry in os.scandir(part):
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
    return total


def _mapped(entry: Path) -> NDArray[Any] | None:
    """An entry's array; None where there is none, or a damaged one, which is made again."""
    # Not np.load, which takes as long for the header as a picture of 512 x 512 takes to be made a float image.
    try:
        with open(entry, "rb") as file:  # noqa: PTH123 - for each picture that is read
            shape, dtype, offset = _layout(file.read(_HEADER))
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray(shape, dtype, content, offset)
    except (OSError, ValueError, TypeError):  # TypeError: it is shorter than its header says
        return None


@lru_cache(maxsize=1024)
def _layout(header: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type and place of the array in a file that begins so."""
    start = io.BytesIO(header)
    if np.lib.format.read_magic(start) != (1, 0):
        raise ValueError("not what this cache has written")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(start)
    if fortran or dtype.hasobject or math.prod(shape) == 0:
        raise ValueError("not what this cache has written")
    return shape, dtype, start.tell()
