"""PNG files unpacked by Intel's ISA-L where it is installed, in less than half of the time that zlib takes."""

from __future__ import annotations

import struct
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    isal_zlib: Any = import_module("isal.isal_zlib")
except ImportError:  # an extra of pyproject.toml, as it is not to be had for every processor
    isal_zlib = None

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Numbers that are stored of a pixel, by the colour type of the header (PNG specification, 11.2.1).
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
#: Larger pictures are left alone: each is held in memory three times for a moment.
_LARGEST = 1 << 27
#: Bytes of a block of what is stored unpacked (RFC 1951, 3.2.4).
_BLOCK = 65535

_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
_STORED = struct.Struct("<BHH")


def stored(path: Path) -> bytes | None:
    """A PNG file with its pixels unpacked, for a decoder to take them from there.

    All else is as in the file, the filters of its rows too, so that what the decoder makes of it is the same. Pillow's
    own unpacking is three quarters of the time that it needs for a photograph.

    Args:
        path: The file.

    Returns:
        The content of such a file; None where the file is to be read as it is: it is none of the PNG files that are
        found in data sets, or damaged, which the decoder then explains, or ISA-L is not installed.

    Raises:
        OSError: It cannot be read.
    """
    if isal_zlib is None or path.suffix.lower() != ".png":
        return None
    content = path.read_bytes()
    if not content.startswith(_SIGNATURE):
        return None
    try:
        size = _unpacked_size(content)
        first, last, packed = _packed(content)
        unpacking = isal_zlib.decompressobj()
        # One byte more than there should be tells a stream that is too long, and keeps it from filling the memory.
        pixels = unpacking.decompress(packed, size + 1) if size <= _LARGEST else b""
    except (struct.error, KeyError, isal_zlib.error):
        return None
    if len(pixels) != size or not unpacking.eof:
        return None
    return b"".join([memoryview(content)[:first], *_as_chunk(pixels), memoryview(content)[last:]])


def _unpacked_size(content: bytes) -> int:
    """Bytes of all rows, each with the number of its filter before it."""
    width, height, depth, color, _, _, interlaced = _HEADER.unpack_from(content, 16)
    if interlaced:
        raise KeyError("rows of seven pictures")
    return int(height * (1 + (width * depth * _CHANNELS[color] + 7) // 8))


def _packed(content: bytes) -> tuple[int, int, bytes | memoryview]:
    """Where the chunks of pixels begin and end, and what is in them."""
    view, place, first = memoryview(content), len(_SIGNATURE), 0
    parts = []
    while True:
        length, kind = _CHUNK.unpack_from(content, place)
        if kind == b"IDAT":
            first = first or place
            parts.append(view[place + 8 : place + 8 + length])
        elif parts:
            return first, place, parts[0] if len(parts) == 1 else b"".join(parts)
        place += length + 12  # its length, its kind, and its checksum


def _as_chunk(pixels: bytes) -> list[Any]:
    """The parts of one chunk of pixels in blocks that are stored unpacked (RFC 1950 and 1951)."""
    view, size = memoryview(pixels), len(pixels)
    parts: list[Any] = [b"IDAT\x78\x01"]
    for start in range(0, size, _BLOCK):
        block = view[start : start + _BLOCK]
        parts += [_STORED.pack(start + _BLOCK >= size, len(block), len(block) ^ _BLOCK), block]
    parts.append(isal_zlib.adler32(pixels).to_bytes(4, "big"))
    checksum = 0
    for part in parts:
        checksum = isal_zlib.crc32(part, checksum)
    length = sum(map(len, parts)) - 4  # the kind is not counted
    return [length.to_bytes(4, "big"), *parts, checksum.to_bytes(4, "big")]
