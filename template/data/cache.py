"""Decoded and resampled arrays on disk, memory-mapped: each file is decoded once, by one process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from ..distributed.faults import NamedError

#: A change of what is stored under a key makes all old entries another key's.
_FORMAT = 2
#: Bytes at the beginning and at the end of a file that stand for its content, beside its size and time.
_LOOKED_AT = 1 << 16


class ArrayCache:
    """Arrays by key, as ``.npy`` files in a folder.

    Safe with any number of processes: one that finds no entry makes it under a lock, writes it beside its place and
    renames it; the others wait and map the same file. A process that is killed meanwhile leaves the lock to the next.

    Args:
        folder: Made when it is first written to.
        limit: Bytes of all entries together. Those that have not been used for the longest time go first.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self.limit = limit
        self._told = False

    def get(self, key: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """An array, mapped into memory and read-only.

        Args:
            key: Of :func:`key_of`.
            make: Called where there is no entry.

        Raises:
            NamedError: ``folder-not-writable``; whatever ``make`` raises.
        """
        file = self.folder / f"{key}.npy"
        if (found := _mapped(file)) is not None:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / f"{key}.lock") as alone:
                if (found := _mapped(file)) is None:
                    if alone:  # what is left of a process that was killed while it wrote
                        for part in self.folder.glob(f"{key}.*.part"):
                            part.unlink(missing_ok=True)
                    self._write(file, make())
                    found = _mapped(file)
        except OSError as error:
            raise NamedError(
                "folder-not-writable",
                f"data.cache_dir '{self.folder}' cannot be written: {error.strerror or error}.",
                fix="Choose another folder with --data.cache_dir, or make room.",
            ) from error
        if found is None:  # taken away at once by another process that makes room
            return make()
        return found

    def _write(self, file: Path, array: NDArray[Any]) -> None:
        self._make_room(array.nbytes)
        part = file.with_name(f"{file.stem}.{os.getpid()}.part")
        try:
            with part.open("wb") as out:
                np.save(out, array, allow_pickle=False)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        entries = []
        for file in self.folder.glob("*.npy"):
            with contextlib.suppress(FileNotFoundError):
                stat = file.stat()
                entries.append((max(stat.st_atime_ns, stat.st_mtime_ns), stat.st_size, file))
        total = size + sum(entry[1] for entry in entries)
        if total > self.limit and not self._told:
            self._told = True
            rank_zero_info(
                f"The cache '{self.folder}' is full ({self.limit / 1e9:.3g} GB): the entries used longest ago "
                "go. If it is smaller than the data, each epoch decodes them again; raise data.cache_gb."
            )
        for _, stored, file in sorted(entries):
            if total <= self.limit:
                break
            # Who has mapped it keeps what it has mapped.
            file.unlink(missing_ok=True)
            total -= stored


def key_of(file: Path, **settings: Any) -> str:
    """Names what is made of a file: by its place, size, time and content, and the settings it is made with.

    The place is in it since the ends of unpacked masks are often all background, on one grid and of one moment, as an
    archive unpacks them: whatever is between would be taken from the first of them.
    """
    stat = file.stat()
    digest = hashlib.blake2b(os.fsencode(file.resolve()), digest_size=20)
    with file.open("rb") as content:
        digest.update(content.read(_LOOKED_AT))
        content.seek(max(0, stat.st_size - _LOOKED_AT))
        digest.update(content.read(_LOOKED_AT))
    digest.update(json.dumps([_FORMAT, stat.st_size, stat.st_mtime_ns, settings], sort_keys=True).encode())
    return digest.hexdigest()


def _mapped(file: Path) -> NDArray[Any] | None:
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):  # of another program, or damaged: it is made again
        file.unlink(missing_ok=True)
        return None
    except OSError:  # it is not there; one that cannot be read is replaced, or the folder named
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # access times are not kept everywhere
    return array


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Hold a lock that ends with its process; False without one: processes do the same work at the same time."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    while True:
        with file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Who waited holds a file that the one before has removed, while a third has made and locked a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                    try:
                        yield True
                    finally:
                        file.unlink(missing_ok=True)
                    return
