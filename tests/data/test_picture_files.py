from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from template.data.picture_files import list_pictures, picture_size, read_image, read_values, write_values
from template.distributed.faults import NamedError

_GREY = np.array([[0, 51, 102], [153, 204, 255]], dtype=np.uint8)


def _png(path: Path, rows: list[bytes], width: int, depth: int, color_type: int) -> Path:
    """A PNG written by hand, since Pillow writes neither 16-bit colour nor 4-bit grey."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, len(rows), depth, color_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    return path


def _tiff(path: Path, pixels: np.ndarray, sample_format: int = 1, deflate: bool = False) -> Path:
    """A TIFF [H, W] or [H, W, 3] written by hand (TIFF 6.0), in the byte order of the pixels."""
    height, width, *rest = pixels.shape
    order = ">" if pixels.dtype.byteorder == ">" else "<"
    channels, bits = (rest or [1])[0], pixels.dtype.itemsize * 8
    data = zlib.compress(pixels.tobytes()) if deflate else pixels.tobytes()
    short = {">": 16, "<": 0}[order]  # a short fills the first half of its 4-byte field
    bits_field = bits << short if channels == 1 else 8 + len(data)
    tags = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, bits_field),
        (259, 3, 1, (8 if deflate else 1) << short), (262, 3, 1, (2 if channels == 3 else 1) << short),
        (273, 4, 1, 8), (277, 3, 1, channels << short), (278, 4, 1, height), (279, 4, 1, len(data)),
        (339, 3, 1, sample_format << short),
    ]  # fmt: skip
    counts = struct.pack(f"{order}{channels}H", *[bits] * channels)
    entries = b"".join(struct.pack(f"{order}HHII", *tag) for tag in tags)
    directory = struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
    start = {">": b"MM", "<": b"II"}[order] + struct.pack(f"{order}HI", 42, 8 + len(data) + len(counts))
    path.write_bytes(start + data + counts + directory)
    return path


def _error(call: object, *arguments: object) -> NamedError:
    with pytest.raises(NamedError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp", ".gif"])
def test_8_bit_grey_is_divided_by_255(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(_GREY).save(tmp_path / f"a{suffix}")
    image = read_image(tmp_path / f"a{suffix}", 1)
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, torch.tensor([[[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]]]))
    torch.testing.assert_close(read_image(tmp_path / f"a{suffix}", 3), image.repeat(3, 1, 1))
    assert picture_size(tmp_path / f"a{suffix}") == (2, 3)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_grey_is_divided_by_65535_or_by_white(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    Image.fromarray(np.array([[0, 1, 4095, 65535]], dtype=np.uint16)).save(file)
    torch.testing.assert_close(read_image(file, 1), torch.tensor([[[0.0, 1 / 65535, 4095 / 65535, 1.0]]]))
    assert read_image(file, 1, white=4095)[0, 0, 2] == 1.0


def test_16_bit_color_png_keeps_its_lower_8_bits(tmp_path: Path) -> None:
    file = _png(tmp_path / "a.png", [struct.pack(">6H", 1, 2, 3, 65535, 256, 257)], 2, 16, 2)
    image = read_image(file, 3) * 65535
    torch.testing.assert_close(image[:, 0].T, torch.tensor([[1.0, 2, 3], [65535, 256, 257]]))
    with_alpha = _png(tmp_path / "b.png", [struct.pack(">4H", 1, 2, 3, 9)], 1, 16, 6)
    torch.testing.assert_close(read_image(with_alpha, 3)[:, 0, 0] * 65535, torch.tensor([1.0, 2, 3]))
    grey_alpha = _png(tmp_path / "c.png", [struct.pack(">2H", 257, 9)], 1, 16, 4)
    assert "LA" in _error(read_image, grey_alpha, 1).what


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_16_bit_color_tiff_keeps_its_lower_8_bits(tmp_path: Path, order: str, deflate: bool) -> None:
    pixels = np.array([[[1, 2, 3], [65535, 256, 257]]], dtype=f"{order}u2")
    image = read_image(_tiff(tmp_path / "a.tif", pixels, deflate=deflate), 3)
    torch.testing.assert_close(image[:, 0].T * 65535, torch.tensor([[1.0, 2, 3], [65535, 256, 257]]))


def test_signed_and_floating_point_tiff_keep_their_values(tmp_path: Path) -> None:
    signed = _tiff(tmp_path / "a.tif", np.array([[-1000, 300]], dtype="<i2"), sample_format=2)
    assert read_image(signed, 1).tolist() == [[[-1000.0, 300.0]]]
    real = _tiff(tmp_path / "b.tif", np.array([[-0.5, 2.0]], dtype="<f4"), sample_format=3)
    assert read_image(real, 1).tolist() == [[[-0.5, 2.0]]]
    assert read_image(real, 1, white=2.0).tolist() == [[[-0.25, 1.0]]]


def test_color_becomes_its_luma_and_loses_its_transparency(tmp_path: Path) -> None:
    Image.new("RGBA", (1, 1), (255, 0, 51, 7)).save(tmp_path / "a.png")
    torch.testing.assert_close(read_image(tmp_path / "a.png", 3)[:, 0, 0], torch.tensor([1.0, 0.0, 0.2]))
    torch.testing.assert_close(read_image(tmp_path / "a.png", 1), torch.full((1, 1, 1), 0.299 + 0.114 * 0.2))
    Image.new("LA", (1, 1), (51, 7)).save(tmp_path / "b.png")
    torch.testing.assert_close(read_image(tmp_path / "b.png", 1), torch.full((1, 1, 1), 0.2))


def test_palette_image_is_looked_up(tmp_path: Path) -> None:
    picture = Image.new("P", (1, 1), 1)
    picture.putpalette([0, 0, 0, 255, 51, 0])
    picture.save(tmp_path / "a.png")
    torch.testing.assert_close(read_image(tmp_path / "a.png", 3)[:, 0, 0], torch.tensor([1.0, 0.2, 0.0]))
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "b.png")
    assert read_image(tmp_path / "b.png", 1).tolist() == [[[1.0, 0.0]]]


# Left half white, right half black; turned by the viewer so that it stands: orientation 6 is a quarter turn clockwise.
@pytest.mark.parametrize(("orientation", "white_side"), [(1, "left"), (3, "right"), (6, "top"), (8, "bottom")])
def test_a_camera_s_picture_is_turned_upright(tmp_path: Path, orientation: int, white_side: str) -> None:
    pixels = np.zeros((16, 32), dtype=np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[274] = orientation
    for mode in ("L", "CMYK"):
        Image.fromarray(pixels).convert(mode).save(tmp_path / "a.jpg", exif=exif)
        image = read_image(tmp_path / "a.jpg", 1)[0]
        assert picture_size(tmp_path / "a.jpg") == tuple(image.shape)
        white = {
            "left": image[:, :8], "right": image[:, -8:], "top": image[:8], "bottom": image[-8:],
        }[white_side]  # fmt: skip
        assert white.min() > 0.9
        assert 0.45 < image.mean() < 0.55


def test_mask_numbers_are_what_is_stored(tmp_path: Path) -> None:
    labels = np.array([[0, 1, 2]], dtype=np.uint8)
    palette = Image.fromarray(labels)
    palette.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    for suffix in (".png", ".gif", ".tif", ".bmp"):
        palette.save(tmp_path / f"p{suffix}")
        Image.fromarray(labels).save(tmp_path / f"g{suffix}")
        assert read_values(tmp_path / f"p{suffix}").tolist() == [[0, 1, 2]]
        assert read_values(tmp_path / f"g{suffix}").tolist() == [[0, 1, 2]]
    assert read_values(tmp_path / "p.png", color=True).tolist() == [[[0, 0, 0], [128, 0, 0], [0, 128, 0]]]
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "b.png")
    assert read_values(tmp_path / "b.png").tolist() == [[1, 0]]
    assert read_values(_png(tmp_path / "4.png", [b"\x01\x23"], 4, 4, 0)).tolist() == [[0, 1, 2, 3]]
    assert read_values(_png(tmp_path / "2.png", [b"\x1b"], 4, 2, 0)).tolist() == [[0, 1, 2, 3]]
    Image.fromarray(np.array([[0, 700]], dtype=np.uint16)).save(tmp_path / "16.png")
    assert read_values(tmp_path / "16.png").tolist() == [[0, 700]]
    assert read_values(_tiff(tmp_path / "f.tif", np.array([[0, 3]], dtype="<f4"), 3)).tolist() == [[0, 3]]
    Image.new("LA", (1, 1), (3, 9)).save(tmp_path / "la.png")
    assert read_values(tmp_path / "la.png").tolist() == [[3]]


def test_a_mask_saved_as_grey_in_three_channels_is_numbers_and_a_colorful_one_is_not(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 1), (255, 255, 255, 0)).save(tmp_path / "a.png")
    assert read_values(tmp_path / "a.png").tolist() == [[255, 255]]
    Image.new("RGB", (1, 1), (128, 0, 0)).save(tmp_path / "b.png")
    assert read_values(tmp_path / "b.png").tolist() == [[[128, 0, 0]]]


def test_fractions_in_a_mask_are_refused(tmp_path: Path) -> None:
    error = _error(read_values, _tiff(tmp_path / "f.tif", np.array([[0.5]], dtype="<f4"), 3))
    assert error.identifier == "mask-values"
    assert "f.tif" in error.what


def test_written_numbers_come_back(tmp_path: Path) -> None:
    small = np.array([[0, 1], [2, 255]], dtype=np.uint8)
    large = np.array([[0, 60000]], dtype=np.uint16)
    for suffix in (".png", ".tif", ".TIFF", ".bmp"):
        for palette in (None, [(0, 0, 0), (1, 2, 3), (4, 5, 6)]):
            write_values(tmp_path / f"a{suffix}", small, palette)
            assert (read_values(tmp_path / f"a{suffix}") == small).all()
        assert read_values(tmp_path / f"a{suffix}", color=True)[:, :1].tolist() == [[[0, 0, 0]], [[4, 5, 6]]]
        if suffix != ".bmp":
            write_values(tmp_path / f"b{suffix}", large)
            assert (read_values(tmp_path / f"b{suffix}") == large).all()


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp", ".gif"])
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a b 图{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(file)
    whole = file.read_bytes()
    for length in (len(whole) // 2, 20, 3):
        file.write_bytes(whole[:length])
        for read in (lambda: read_image(file, 1), lambda: read_values(file)):
            error = _error(read)
            assert error.identifier == "data-unreadable"
            assert file.name in error.what
            assert "\n" not in str(error)


def test_a_truncated_16_bit_color_png_is_named(tmp_path: Path) -> None:
    file = _png(tmp_path / "a.png", [os.urandom(64 * 6) for _ in range(64)], 64, 16, 2)
    file.write_bytes(file.read_bytes()[:5000])
    assert "a.png" in _error(read_image, file, 3).what


def test_what_is_not_a_picture_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    file.touch()
    assert "empty" in _error(picture_size, file).what
    file.write_text("not a picture")
    assert "not a picture" in _error(picture_size, file).what
    file.unlink()
    file.symlink_to(file)
    assert "symbolic links" in _error(picture_size, file).what
    file.unlink()
    file.symlink_to(tmp_path / "gone.png")
    assert "No such file" in _error(picture_size, file).what
    file.unlink()
    os.mkfifo(file)
    assert "not a file" in _error(picture_size, file).what
    file.unlink()
    Image.new("L", (4, 4)).save(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)
    assert "exceeds limit" in _error(picture_size, file).what

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Image, "open", denied)
    error = _error(picture_size, file)
    assert error.what == f"'{file}' cannot be read: Permission denied."
    assert "rights" in error.fix


def test_a_file_of_several_pictures_is_refused(tmp_path: Path) -> None:
    pages = [Image.fromarray(_GREY), Image.fromarray(255 - _GREY)]
    for suffix in (".tif", ".gif", ".png"):
        pages[0].save(tmp_path / f"a{suffix}", save_all=True, append_images=pages[1:])
        assert "2 pictures" in _error(picture_size, tmp_path / f"a{suffix}").what


def test_a_folder_lists_its_pictures_by_name(tmp_path: Path) -> None:
    for name in ("b.PNG", "a 图.jpeg", ".hidden.png", "._b.png", "Thumbs.db", "notes.txt", "loop.tif"):
        (tmp_path / name).touch()
    (tmp_path / "loop.tif").unlink()
    (tmp_path / "loop.tif").symlink_to(tmp_path / "loop.tif")
    (tmp_path / "folder.png").mkdir()
    assert [file.name for file in list_pictures(tmp_path, "data.images")] == ["a 图.jpeg", "b.PNG", "loop.tif"]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "empty").mkdir()
    reasons = {"gone": "No such file", "file": "Not a directory", "loop": "symbolic links", "empty": "no picture"}
    for name, reason in reasons.items():
        error = _error(list_pictures, tmp_path / name, "data.images")
        assert error.identifier == "data-missing"
        assert error.what.startswith("data.images: ")
        assert str(tmp_path / name) in error.what
        assert reason in error.what


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_a_mask_drawn_in_its_transparency_is_refused(mode: str, tmp_path: Path) -> None:
    """As a layer of a drawing program, black on nothing: without its alpha channel all of it would be background."""
    layer = Image.new(mode, (3, 2))
    layer.putpixel((1, 1), (0,) * (len(mode) - 1) + (255,))
    layer.save(tmp_path / "a.png")
    error = _error(read_values, tmp_path / "a.png")
    assert error.identifier == "mask-values"
    assert "a.png" in error.what
    layer.putpixel((1, 1), (1,) * (len(mode) - 1) + (255,))
    layer.save(tmp_path / "a.png")
    assert read_values(tmp_path / "a.png").tolist() == [[0, 0, 0], [0, 1, 0]]
