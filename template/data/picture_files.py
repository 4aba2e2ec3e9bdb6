"""Reading and writing picture files: exact for 8 and 16 bit, palettes and 1-bit masks, in their size as viewed.

A camera's JPEG may lie on its side and say so in its EXIF orientation. Viewers and annotation tools turn it upright,
so masks are drawn on, and expected for, the upright picture: it is turned on reading, and masks are written upright.
TIFF's orientation tag is followed as well (by Pillow itself); PNG, BMP and GIF are taken as they are stored.
"""

from __future__ import annotations

import io
import stat
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from ..distributed.faults import NamedError
from .png import stored

#: What counts as a picture in a folder; other files are passed over.
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")

# What decoders raise on damaged files, collected from Pillow's plugins.
_DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, RuntimeError, struct.error,
    zlib.error,
)  # fmt: skip
# Grey of 2 and 4 bits is spread to 0-255 by Pillow; a mask needs the stored numbers.
_SPREAD = {"L;2": 85, "L;4": 17}
# ITU-R BT.601, as Pillow's and torchvision's conversion to grey.
_LUMA = (0.299, 0.587, 0.114)


def list_pictures(folder: str | Path, key: str) -> list[Path]:
    """Picture files of a folder in the order of their names, hidden files left out.

    Args:
        folder: The folder; folders in it are not searched.
        key: The configuration's key that names it, for messages.

    Raises:
        NamedError: ``data-missing``: the folder cannot be read, or holds no picture.
    """
    try:
        entries = sorted(Path(folder).iterdir(), key=lambda entry: entry.name)
        # A link that leads nowhere is kept: opening it names it.
        files = [
            entry
            for entry in entries
            if not entry.name.startswith(".") and entry.suffix.lower() in SUFFIXES and not entry.is_dir()
        ]
    except OSError as error:
        raise NamedError("data-missing", f"{key}: the folder '{folder}' cannot be read: {error.strerror}.") from error
    if not files:
        raise NamedError(
            "data-missing",
            f"{key}: the folder '{folder}' holds no picture, and {len(entries)} other entries.",
            cause=f"Pictures are files that end in {', '.join(SUFFIXES)}; folders in it are not searched.",
        )
    return files


def picture_size(path: Path) -> tuple[int, int]:
    """Height and width of a picture as viewed, from its header alone.

    Raises:
        NamedError: ``data-unreadable``.
    """
    with _opened(path) as picture:
        width, height = picture.size
        # Orientations 5 to 8 lie on their side (EXIF 2.32, tag 274).
        lies = picture.format in {"JPEG", "MPO"} and picture.getexif().get(ExifTags.Base.Orientation) in {5, 6, 7, 8}
        return (width, height) if lies else (height, width)


def read_image(path: Path, channels: int, white: float | None = None) -> Tensor:
    """Read a picture as an image.

    Args:
        path: The file.
        channels: 1 for grey (colour becomes its luma), 3 for colour (grey is repeated). Transparency is dropped.
        white: File value that becomes 1; default: 255 for 8-bit files, 65535 for 16-bit files, 1 for floating-point
            files and for integers of more than 16 bits or with a sign, which so keep their values.

    Returns:
        float32 [channels, H, W], 0 is black and 1 is white.

    Raises:
        NamedError: ``data-unreadable``.
    """
    return as_image(read_pixels(path), channels, white)


def read_pixels(path: Path) -> npt.NDArray[Any]:
    """Read what a picture stores, upright.

    Args:
        path: The file.

    Returns:
        [H, W] of a grey picture, [H, W, 3] of colours: uint8 and uint16 where 255 and 65535 are white, else int32 or
        float32.

    Raises:
        NamedError: ``data-unreadable``.
    """
    with _opened(path, decoded=True) as picture:
        values, full = _pixels(picture, path)
    kind = {255.0: np.uint8, 65535.0: np.uint16}.get(full, values.dtype.newbyteorder("="))
    return values.astype(kind, copy=False)


def as_image(pixels: npt.NDArray[Any], channels: int, white: float | None = None) -> Tensor:
    """An image out of the pixels of a file.

    Args:
        pixels: As of :func:`read_pixels`.
        channels: As of :func:`read_image`.
        white: As of :func:`read_image`.

    Returns:
        float32 [channels, H, W]. Its memory is laid out as the pixels are, colours side by side: to turn it over takes
        longer than all that is done with an image on the way to a batch, which is laid out anew in any case.
    """
    full = {"u1": 255.0, "u2": 65535.0}.get(pixels.dtype.str[1:], 1.0) if white is None else white
    image = torch.from_numpy(pixels.astype(np.float32))
    image = (image[None] if image.ndim == 2 else image.permute(2, 0, 1)).div_(full)
    if channels == 1 and len(image) == 3:
        image = torch.tensordot(torch.tensor([_LUMA]), image, dims=1)
    return image.expand(channels, -1, -1).contiguous() if len(image) < channels else image


def read_values(path: Path, color: bool = False) -> npt.NDArray[Any]:
    """Read the numbers that a mask file stores.

    Args:
        path: The file.
        color: Whether colours are meant: a palette is then looked up instead of its index taken.

    Returns:
        Integers [H, W]: grey values, palette indices, 0 and 1 of a 1-bit file, or a colour file's common value where
        its channels agree everywhere. Else uint8 [H, W, 3]: red, green, blue. Transparency is dropped.

    Raises:
        NamedError: ``data-unreadable``; ``mask-values`` where a floating-point file holds fractions, or all that is
            drawn is in the transparency.
    """
    with _opened(path, decoded=True) as picture:
        rawmode = _rawmode(picture)
        picture.load()
        if color:
            return np.asarray(_upright(picture.convert("RGB"), picture))
        if picture.mode in {"LA", "La", "PA"}:
            values = np.asarray(picture.getchannel(0))
        elif picture.mode[0] in "1LPIF" and picture.mode != "LAB":
            values = np.asarray(_upright(picture, picture))
        else:
            values = np.asarray(_upright(picture.convert("RGB"), picture))
        alpha = picture.getchannel("A").getextrema() if "A" in picture.getbands() and picture.mode != "LAB" else (0, 0)
    if alpha[0] != alpha[1] and (values == values[0, 0]).all():
        raise NamedError(
            "mask-values",
            f"The mask '{path}' has one value everywhere, {values[0, 0].tolist()}, and is drawn in its transparency.",
            cause="Transparency is dropped: all of the mask would be one class.",
            fix="Flatten it in the program that made it, and save it without an alpha channel.",
        )
    if values.ndim == 3:
        return values[..., 0] if (values == values[..., :1]).all() else values
    if values.dtype.kind == "f":
        if not np.isfinite(values).all() or (values != np.rint(values)).any():
            raise NamedError("mask-values", f"The mask '{path}' has values that are no whole numbers.")
        return values.astype(np.int64)
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    return values // _SPREAD[rawmode] if rawmode in _SPREAD else values


def write_values(path: Path, values: npt.NDArray[Any], palette: Sequence[Sequence[int]] | None = None) -> None:
    """Write the numbers of a mask without loss, in the format that the path's suffix names.

    Args:
        path: The file: PNG, TIFF or BMP (8 bits only).
        values: uint8 or uint16 [H, W], or uint8 [H, W, 3] for colours.
        palette: Colours (RGB, 0-255) of the values 0, 1, 2 …: the file stores the values and is shown in colour.
            Without one, grey.

    Raises:
        OSError: The file cannot be written.
    """
    picture = Image.fromarray(np.ascontiguousarray(values))
    if palette is not None:
        # All 256 entries, since Pillow packs the values of a shorter palette into fewer bits than they may need.
        levels = [level for entry in palette for level in entry]
        picture.putpalette(levels + [0] * (768 - len(levels)))
    picture.save(path, **({"compression": "tiff_lzw"} if path.suffix.lower() in {".tif", ".tiff"} else {}))


@contextmanager
def _opened(path: Path, decoded: bool = False) -> Iterator[Image.Image]:
    """Open a picture's header, its pixels to follow or not; what a decoder raises inside becomes one named failure."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise _unreadable(path, "it is not a file")
        if status.st_size == 0:
            raise _unreadable(path, "it is empty (0 bytes)")
        content = stored(path) if decoded else None
        with Image.open(path if content is None else io.BytesIO(content)) as picture:
            frames = getattr(picture, "n_frames", 1)
            if frames > 1 and picture.format != "MPO":  # MPO: a camera's JPEG with a preview behind it
                raise _unreadable(path, f"it holds {frames} pictures", fix="Save each of them as a file of its own.")
            yield picture
    except UnidentifiedImageError as error:
        raise _unreadable(path, "it is not a picture") from error
    except Image.DecompressionBombError as error:
        raise _unreadable(path, f"{error}", fix="Cut it into smaller pictures.") from error
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.strerror:
            raise _unreadable(path, error.strerror, fix="Correct the file, its link or its rights.") from error
        raise _unreadable(path, str(error) or type(error).__name__) from error


def _unreadable(path: Path, reason: str, fix: str | None = None) -> NamedError:
    # Where the fix is a special one, the catalogue's cause ("damaged, cut off") is not what happened.
    reason = " ".join(reason.split()).rstrip(".")
    return NamedError("data-unreadable", f"'{path}' cannot be read: {reason}.", cause="" if fix else None, fix=fix)


def _rawmode(picture: Image.Image) -> str:
    """How the file stores its pixels, in Pillow's words, such as ``RGB;16B``; known before they are decoded."""
    arguments = picture.tile[0].args if picture.tile else ""  # type: ignore[attr-defined]
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""


def _pixels(picture: Image.Image, path: Path) -> tuple[npt.NDArray[Any], float]:
    """Pixels [H, W] or [H, W, 3], and the value of white."""
    if picture.mode.startswith(("I", "F")):
        deep = picture.mode.startswith("I;16") or picture.format == "PNG"  # older Pillows open 16-bit PNG as "I"
        picture.load()
        return np.asarray(picture), 65535.0 if deep else 1.0
    # For 16-bit TIFF in separate planes Pillow's raw modes are those of 8 bits: the tag tells.
    bits = picture.tag_v2.get(ExifTags.Base.BitsPerSample, (8,)) if isinstance(picture, TiffImageFile) else (8,)
    if ";16" in _rawmode(picture) or max(bits) > 8:
        return _deep_color(picture, path), 65535.0
    mode = "L" if picture.mode in {"1", "L", "LA", "La"} else "RGB"
    # To convert a picture into its own mode copies it.
    pixels = picture if picture.mode == mode else picture.convert(mode)
    return np.asarray(_upright(pixels, picture)), 255.0


def _deep_color(picture: Image.Image, path: Path) -> npt.NDArray[np.uint16]:
    """Pixels [H, W, 3] of 16-bit colour.

    Pillow knows colour of 8 bits only and keeps the high byte of each 16; told the other byte order, the low one.
    """
    raw = _rawmode(picture)
    base, _, order = raw.partition(";16")
    native, foreign = ("L", "B") if sys.byteorder == "little" else ("B", "L")
    other = {native: foreign, foreign: native, "N": foreign}.get(order)
    if base not in {"RGB", "RGBA", "RGBX"} or other is None:
        raise _unreadable(path, f"its 16-bit pixels are stored as '{raw}'", fix="Convert it to 16-bit RGB.")
    with Image.open(path) as again:
        again.tile = [tile._replace(args=_replaced(tile.args, raw, f"{base};16{other}")) for tile in again.tile]
        again.load()
        low = np.asarray(again)[..., :3]
    high = np.asarray(picture)[..., :3]
    both: npt.NDArray[np.uint16] = high.astype(np.uint16) << 8 | low
    return both


def _replaced(arguments: Any, old: str, new: str) -> Any:
    return new if isinstance(arguments, str) else tuple(new if part == old else part for part in arguments)


def _upright(pixels: Image.Image, picture: Image.Image) -> Image.Image:
    if picture.format not in {"JPEG", "MPO"}:
        return pixels
    return ImageOps.exif_transpose(pixels)
