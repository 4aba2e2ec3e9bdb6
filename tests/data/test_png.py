from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from template.data import png
from template.data.picture_files import read_pixels, read_values
from template.distributed.faults import NamedError

pytest.importorskip("isal")

_RANDOM = np.random.default_rng(0)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Kind and content of each, its checksum looked at."""
    found, place = [], 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind, inside = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        assert content[place : place + 12 + length] == chunk(kind, inside)
        found.append((kind, inside))
        place += 12 + length
    return found


def by_hand(file: Path, packed: bytes, width: int, height: int, *, interlaced: int = 0) -> Path:
    """A file of 8-bit grey whose pixels are packed in two chunks."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlaced)
    half = len(packed) // 2
    parts = [(b"IHDR", header), (b"IDAT", packed[:half]), (b"IDAT", packed[half:]), (b"IEND", b"")]
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))
    return file


def picture(kind: str, size: tuple[int, int]) -> Image.Image:
    if kind == "I;16":
        return Image.fromarray(_RANDOM.integers(0, 65536, size, dtype=np.uint16))
    channels = {"1": 1, "L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4}[kind]
    values = _RANDOM.integers(0, 256, (*size, channels), dtype=np.uint8)
    if kind == "1":
        return Image.fromarray(values[..., 0] > 127)
    made = Image.fromarray(values if channels > 1 else values[..., 0], None if kind == "P" else kind)
    if kind == "P":
        made.putpalette([level for entry in range(256) for level in (entry, 255 - entry, 7)])
    return made


@pytest.mark.parametrize("size", [(5, 7), (300, 290)])
@pytest.mark.parametrize("kind", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16"])
def test_pixels_are_stored_as_they_are_and_all_else_is_kept(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    file = tmp_path / "a.PNG"
    notes = PngImagePlugin.PngInfo()
    notes.add_text("by", "hand")
    picture(kind, size).save(file, pnginfo=notes)
    before, content = chunks(file.read_bytes()), png.stored(file)
    assert content is not None
    after = chunks(content)
    assert [part for part in after if part[0] != b"IDAT"] == [part for part in before if part[0] != b"IDAT"]
    packed = [b"".join(inside for kind, inside in parts if kind == b"IDAT") for parts in (before, after)]
    assert zlib.decompress(packed[0]) == zlib.decompress(packed[1])
    assert len(packed[1]) > len(zlib.decompress(packed[0])), "nothing is left to unpack"


@pytest.mark.parametrize("kind", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16"])
def test_what_is_read_is_the_same_without(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    made = picture(kind, (40, 30))
    if kind in {"LA", "RGBA"}:
        made.putalpha(255)
    made.save(file)
    reads = [lambda: read_pixels(file), lambda: read_values(file), lambda: read_values(file, color=True)]
    fast = [read() for read in reads]
    monkeypatch.setattr(png, "isal_zlib", None)
    assert png.stored(file) is None
    for one, read in zip(fast, reads, strict=True):
        other = read()
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())


def test_what_may_be_damaged_is_left_to_the_decoder(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + _RANDOM.bytes(20) for _ in range(30))
    packed, file = zlib.compress(rows), tmp_path / "a.png"
    assert png.stored(by_hand(file, packed, 20, 30)) is not None
    for wrong in (packed[:-9], packed[:-1] + bytes([packed[-1] ^ 1]), b"??" + packed[2:], b""):
        assert png.stored(by_hand(file, wrong, 20, 30)) is None
    assert png.stored(by_hand(file, packed, 20, 29)) is None, "there are more rows"
    assert png.stored(by_hand(file, packed, 20, 31)) is None, "there are fewer rows"
    assert png.stored(by_hand(file, packed, 20, 30, interlaced=1)) is None
    whole = by_hand(file, packed, 20, 30).read_bytes()
    for length in range(0, len(whole) - 12, 5):
        file.write_bytes(whole[:length])
        assert png.stored(file) is None, length


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    packed = zlib.compress(bytes(10_000_000))
    assert png.stored(by_hand(file, packed, 20, 30)) is None
    monkeypatch.setattr(png, "_LARGEST", 629)
    assert png.stored(by_hand(file, zlib.compress(bytes(630)), 20, 30)) is None


def test_a_damaged_file_has_the_same_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    picture("RGB", (64, 64)).save(file)
    file.write_bytes(file.read_bytes()[:5000])
    said = []
    for _ in range(2):
        with pytest.raises(NamedError) as caught:
            read_pixels(file)
        said.append(str(caught.value))
        monkeypatch.setattr(png, "isal_zlib", None)
    assert said[0] == said[1]


def test_other_formats_are_left_alone(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.tif"):
        picture("RGB", (8, 8)).save(tmp_path / name)
        assert png.stored(tmp_path / name) is None
    (tmp_path / "a.jpg").rename(tmp_path / "a.png")
    assert png.stored(tmp_path / "a.png") is None
    assert read_pixels(tmp_path / "a.png").shape == (8, 8, 3)
