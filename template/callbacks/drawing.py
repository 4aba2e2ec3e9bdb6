"""Pictures of masks: overlays, and panels of image, truth and prediction with a legend.

Pure functions on tensors; torch and Pillow alone, so that training never needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

from ..labels import IGNORE_INDEX, class_color

_PAPER = (255, 255, 255)
_INK = (32, 32, 32)
_IGNORED = (190, 190, 190)
_IGNORED_NAME = "not counted"
_FONT_SIZE = 15  # pixels; readable beside a tile of 256 pixels
_GAP = 8  # pixels between the parts of a panel
_SMALLEST, _LARGEST = 256, 640  # pixels, the longer side of a tile
_MOST_NAMES = 12  # a legend of more classes than this shows only those in the picture


def central_slice(mask: Tensor) -> int:
    """Slice of a volume that shows most: the one with the largest labelled area.

    Args:
        mask: Labels, ``[D, H, W]``. Background and ignored voxels do not count.

    Returns:
        Index along the first axis; the middle where nothing is labelled.
    """
    # One by one they stay in the processor's cache.
    areas = [int(torch.count_nonzero((plane > 0) & (plane != IGNORE_INDEX))) for plane in mask]
    largest = max(areas)
    return areas.index(largest) if largest else mask.shape[0] // 2


def overlay(picture: Tensor, mask: Tensor, classes: Sequence[str], alpha: float = 0.4) -> Tensor:
    """Lay class colours over a picture: filled softly, outlined in full colour.

    Class 0 stays transparent; ignored pixels are hatched in grey.

    Args:
        picture: uint8 ``[3, H, W]``.
        mask: Labels, any integer type, ``[H, W]``.
        classes: Class names; the position is the label.
        alpha: Share of the class colour inside a region, 0 to 1.

    Returns:
        A new picture, uint8 ``[3, H, W]``.

    Raises:
        ValueError: Picture and mask differ in size.
    """
    if picture.shape[1:] != mask.shape:
        raise ValueError(f"a picture of {tuple(picture.shape[1:])} pixels cannot carry a mask of {tuple(mask.shape)}")
    mask = mask.to(picture.device)
    labels = mask.long()
    colors, weights = torch.zeros(3, 256), torch.zeros(256)
    for label in range(1, len(classes)):
        colors[:, label] = torch.tensor(class_color(label), dtype=torch.float32)
        weights[label] = alpha
    colors[:, IGNORE_INDEX] = torch.tensor(_IGNORED, dtype=torch.float32)

    weight = weights.to(labels.device)[labels]
    weight[_outline(mask) & (weight > 0)] = 1.0
    rows = torch.arange(mask.shape[0], device=labels.device)[:, None]
    columns = torch.arange(mask.shape[1], device=labels.device)
    weight[(labels == IGNORE_INDEX) & ((rows + columns) % 6 < 2)] = 1.0
    # One channel at a time: a photograph of 12 megapixels takes 150 MB less.
    channels = [
        torch.lerp(channel.float(), color[labels], weight).round().to(torch.uint8)
        for channel, color in zip(picture, colors.to(labels.device), strict=True)
    ]
    return torch.stack(channels)


def _outline(mask: Tensor) -> Tensor:
    """Pixels within a line's width of a lower label, so that two regions share one line.

    The line is thicker on large pictures, where one pixel is not seen.
    """
    width = max(1, round(max(mask.shape) / 600))
    line = torch.zeros_like(mask, dtype=torch.bool)
    for axis, length in enumerate(mask.shape):
        for shift in range(1, min(width, length - 1) + 1):
            before, after = mask.narrow(axis, 0, length - shift), mask.narrow(axis, shift, length - shift)
            line.narrow(axis, 0, length - shift).logical_or_(before > after)
            line.narrow(axis, shift, length - shift).logical_or_(after > before)
    return line


def panel(
    image: Tensor, truth: Tensor, prediction: Tensor, classes: Sequence[str], *, name: str = "", legend: bool = True
) -> Tensor:
    """Image, truth and prediction side by side, titled, over a legend of class colours and names.

    Small pictures are enlarged by a whole factor to at least 256 pixels, large ones shrunk to 640.

    Args:
        image: uint8 ``[3, h, w]``; brought to the masks' size where it differs.
        truth: Labels, ``[H, W]``.
        prediction: Labels, ``[H, W]``.
        classes: Class names; the position is the label.
        name: What the picture shows; written beside the first title.
        legend: Whether to draw the legend.

    Returns:
        uint8 ``[3, height, width]`` on the CPU.
    """
    truth, prediction = truth.cpu(), prediction.cpu()
    size = _tile_size(truth.shape)
    plain = _resized(image.cpu(), size)
    shown = [_resized(mask[None], size)[0] for mask in (truth, prediction)]
    tiles = [plain, *(overlay(plain, mask, classes) for mask in shown)]
    titles = [f"image  {name}".rstrip(), "truth", "prediction"]

    font = ImageFont.load_default(size=_FONT_SIZE)
    height, width = size
    top = _line_height() + _GAP
    sheet = Image.new("RGB", (3 * width + 4 * _GAP, top + height + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for position, (tile, title) in enumerate(zip(tiles, titles, strict=True)):
        left = _GAP + position * (width + _GAP)
        draw.text((left, _GAP // 2), _shortened(title, width, font), fill=_INK, font=font)
        sheet.paste(Image.fromarray(tile.permute(1, 2, 0).numpy()), (left, top))
    picture = _to_tensor(sheet)
    if not legend:
        return picture
    present = sorted(set(torch.cat([truth.unique(), prediction.unique()]).tolist()))
    return stack([picture, _legend(classes, present, sheet.width)], gap=0)


def stack(pictures: Sequence[Tensor], gap: int = _GAP) -> Tensor:
    """Put pictures of any width under one another on white.

    Args:
        pictures: uint8 ``[3, h, w]`` each.
        gap: Pixels between two pictures.

    Returns:
        uint8 ``[3, sum of heights and gaps, largest width]``.
    """
    width = max(picture.shape[2] for picture in pictures)
    height = sum(picture.shape[1] for picture in pictures) + gap * (len(pictures) - 1)
    sheet = torch.full((3, height, width), 255, dtype=torch.uint8)
    top = 0
    for picture in pictures:
        sheet[:, top : top + picture.shape[1], : picture.shape[2]] = picture
        top += picture.shape[1] + gap
    return sheet


def _legend(classes: Sequence[str], present: Sequence[int], width: int) -> Tensor:
    """Coloured squares and names, in as many lines as they need; uint8 ``[3, h, width]``."""
    labels = list(range(1, len(classes)))
    if len(labels) > _MOST_NAMES:
        labels = [label for label in labels if label in present]
    entries = [(classes[label], class_color(label)) for label in labels]
    if IGNORE_INDEX in present:
        entries.append((_IGNORED_NAME, _IGNORED))

    font = ImageFont.load_default(size=_FONT_SIZE)
    line, square = _line_height(), _FONT_SIZE - 2
    places, left, top = [], _GAP, 0
    for name, color in entries:
        text = _shortened(name, width - square - 3 * _GAP, font)
        needed = square + _GAP + round(font.getlength(text)) + 2 * _GAP
        if left > _GAP and left + needed > width:
            left, top = _GAP, top + line
        places.append((left, top, text, color))
        left += needed
    sheet = Image.new("RGB", (width, top + line + _GAP if places else _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for left, top, text, color in places:
        draw.rectangle((left, top + 3, left + square - 1, top + 2 + square), fill=color)
        draw.text((left + square + _GAP, top), text, fill=_INK, font=font)
    return _to_tensor(sheet)


def _line_height() -> int:
    return _FONT_SIZE + 6


def _shortened(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The text, its end replaced by dots where it does not fit in ``width`` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def _tile_size(shape: Sequence[int]) -> tuple[int, int]:
    height, width = shape
    longer = max(height, width)
    if longer < _SMALLEST:
        factor = -(-_SMALLEST // longer)
        return height * factor, width * factor
    shrink = min(1.0, _LARGEST / longer)
    return max(1, round(height * shrink)), max(1, round(width * shrink))


def _resized(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring uint8 ``[C, H, W]`` to a size: whole pixels when enlarging and for labels, smooth when shrinking."""
    if tuple(picture.shape[1:]) == size:
        return picture
    smooth = picture.shape[0] == 3 and picture.shape[1] > size[0]
    mode = "bilinear" if smooth else "nearest-exact"
    resized = interpolate(picture[None].float(), size=size, mode=mode, antialias=smooth)[0]
    return resized.round().to(picture.dtype)


def _to_tensor(sheet: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1).contiguous()
