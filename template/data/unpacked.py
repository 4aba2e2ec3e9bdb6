"""Files packed by gzip, to their checksum."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_PACKED = 1 << 16  # bytes that are unpacked at once


def unpacked(path: Path, size: int) -> NDArray[np.uint8]:
    """The first bytes of a packed file; all of it is read, so that its checksum is looked at.

    Python's own gzip, through which nibabel reads, takes a third longer.

    Args:
        path: The file; gzip files may be joined in it, as bgzip's are.
        size: Number of bytes.

    Raises:
        OSError: The file ends before.
        zlib.error: It is damaged.
    """
    content = np.empty(size, np.uint8)
    done, member = 0, zlib.decompressobj(wbits=31)
    with path.open("rb") as file:
        while packed := (member.unused_data if member.eof else b"") or file.read(_PACKED):
            if member.eof:
                if done == size:
                    break
                member = zlib.decompressobj(wbits=31)
            part = np.frombuffer(member.decompress(packed), np.uint8)[: size - done]
            content[done : done + len(part)] = part
            done += len(part)
    if done < size or not member.eof:
        raise OSError(f"it ends after {done} of {size} bytes")
    return content
