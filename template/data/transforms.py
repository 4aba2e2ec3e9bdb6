"""Transforms that torchvision v2 lacks; its own fit in beside them.

Each is a :class:`torchvision.transforms.v2.Transform`: it takes the sample (a dict with ``"image"``, a
``tv_tensors.Image`` float32 ``[C, *S]``, and maybe ``"mask"``, a ``tv_tensors.Mask`` ``[*S]``) and returns it.
Random ones draw from torch's global generator alone, which the data module seeds from (seed, epoch, sample).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..labels import IGNORE_INDEX

#: What RandomWarp moves, beside plain tensors, which torchvision takes for images.
_MOVED = (tv_tensors.Image, tv_tensors.Mask, tv_tensors.Video)


def _drawn(count: int) -> Callable[[float, float], float]:
    """So many numbers of torch's global generator, drawn at once, which gives the same ones and takes a tenth.

    Returns:
        Gives the next one between two ends. One is used up where they are equal too, so that a knob set to 0 shifts no
        draw.
    """
    shares = iter(torch.rand(count).tolist())
    return lambda low, high: low + (high - low) * next(shares)


class _OnImage(v2.Transform):
    """Changes the image's values and leaves the mask alone."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Apply :meth:`intensity` to images; everything else passes through."""
        if not isinstance(inpt, tv_tensors.Image):
            return inpt
        return tv_tensors.wrap(self.intensity(inpt.as_subclass(Tensor), params), like=inpt)

    @abstractmethod
    def intensity(self, image: Tensor, params: dict[str, Any]) -> Tensor:
        """New values of an image ``[C, *S]``, float32."""


class Window(_OnImage):
    """Radiology's window: ``low`` becomes 0, ``high`` becomes 1, values beyond are clamped.

    Args:
        low: Lower end, in the image's unit (CT: Hounsfield units).
        high: Upper end, same unit.

    Raises:
        ValueError: ``high`` is not above ``low``.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        if not high > low:
            raise ValueError(f"Window: high ({high}) must be above low ({low})")
        self.low = low
        self.high = high

    def intensity(self, image: Tensor, params: dict[str, Any]) -> Tensor:
        """Values in [0, 1]."""
        # In place of what it has made itself: volumes are large.
        return (image - self.low).div_(self.high - self.low).clamp_(0.0, 1.0)

    def extra_repr(self) -> str:
        """The two ends."""
        return f"low={self.low}, high={self.high}"


def abdominal_window(image: Tensor) -> Tensor:
    """Hounsfield units in the abdominal window, -160 to 240, as [0, 1], for people to look at.

    Args:
        image: Any shape. An image without values below -200 shows no air and is taken for preprocessed already.
    """
    return Window(-160.0, 240.0).intensity(image, {}) if image.min() < -200 else image


class Standardize(_OnImage):
    """Each channel of each image to mean 0 and standard deviation 1, for images without a fixed unit (MRI, photos).

    Constants for a whole data set are ``torchvision.transforms.v2.Normalize``'s job; volumes, of which training sees
    parts, have ``data.standardize`` in its place.

    Args:
        eps: Smallest standard deviation to divide by; a constant image becomes 0.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def intensity(self, image: Tensor, params: dict[str, Any]) -> Tensor:
        """Standardised values."""
        space = tuple(range(1, image.ndim))
        std, mean = torch.std_mean(image, dim=space, correction=0, keepdim=True)
        return (image - mean).div_(std.clamp_min(self.eps))

    def extra_repr(self) -> str:
        """The floor of the divisor."""
        return f"eps={self.eps}"


class RandomIntensity(_OnImage):
    """Another scanner, another day: gamma, contrast, brightness and noise of the image, in this order.

    Each strength is drawn anew for every sample, uniformly; 0 switches its part off.

    Args:
        gamma: The image, its own range taken as [0, 1], is raised to ``exp(u)``, u from ±gamma.
        contrast: Distances from the image's mean are multiplied by ``1 + u``, u from ±contrast.
        brightness: u from ±brightness is added, in units of the preprocessed image.
        noise: Gaussian noise of a standard deviation from [0, noise] is added, same units.
        probability: Share of samples that are changed at all.
    """

    def __init__(
        self,
        gamma: float = 0.0,
        contrast: float = 0.0,
        brightness: float = 0.0,
        noise: float = 0.0,
        probability: float = 1.0,
    ) -> None:
        super().__init__()
        self.gamma = gamma
        self.contrast = contrast
        self.brightness = brightness
        self.noise = noise
        self.probability = probability

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw the strengths of one sample."""
        uniform = _drawn(5)
        return {
            "apply": uniform(0.0, 1.0) < self.probability,
            "gamma": math.exp(uniform(-self.gamma, self.gamma)),
            "contrast": 1.0 + uniform(-self.contrast, self.contrast),
            "brightness": uniform(-self.brightness, self.brightness),
            "noise": uniform(0.0, self.noise),
        }

    def intensity(self, image: Tensor, params: dict[str, Any]) -> Tensor:
        """Changed values; a constant image has no range and keeps its gamma."""
        if not params["apply"]:
            return image
        # In place of what it has made itself, so that one buffer stays in the processor's cache.
        if params["gamma"] != 1.0:
            low, high = image.aminmax()
            span = high - low
            if span > 0:
                image = (image - low).div_(span).pow_(params["gamma"]).mul_(span).add_(low)
        mean = image.mean()
        image = (image - mean).mul_(params["contrast"]).add_(mean + params["brightness"])
        if params["noise"] > 0:
            image.add_(torch.randn_like(image).mul_(params["noise"]))
        return image

    def extra_repr(self) -> str:
        """All strengths."""
        return (
            f"gamma={self.gamma}, contrast={self.contrast}, brightness={self.brightness}, noise={self.noise}, "
            f"probability={self.probability}"
        )


class RandomWarp(v2.Transform):
    """Crop, flip, scale, shear, rotation, shift and a smooth deformation, resampled once.

    One resampling instead of torchvision's chain of them keeps small structures sharp and takes a quarter of the
    time. Images are read bilinearly, masks by nearest neighbour, both through the same field. In 3D every slice
    ``[H, W]`` gets the same warp: in-plane, as in torchvision, because CT and MRI slices are mostly further apart
    than their pixels.

    Pixels that come from outside the picture are ``fill`` in the image and ``outside`` in the mask. ``outside`` is
    the label that neither loss nor scores count: nobody knows what lies beyond the border, and calling it background
    would teach that an organ cut by the border ends there.

    Args:
        degrees: Rotation, from ±degrees, counter-clockwise as seen on the screen.
        scale: Smallest and largest magnification.
        shear: Shear angle along the rows, from ±shear degrees.
        translate: Shift along each axis, from ±translate times the side.
        horizontal_flip: Probability of a left-right flip.
        vertical_flip: Probability of an up-down flip.
        elastic: Standard deviation of the deformation, as a share of the side, at ``knots`` x ``knots`` control points
            (bicubic in between).
        knots: Control points along each axis.
        fill: Value of unknown image pixels, in units of the image as it arrives here.
        outside: Label of unknown mask pixels.
        crop: Height and width, in pixels, of a part of the picture that becomes the result: it lies anywhere, and is
            warped about its middle. Unlike a crop before the warp, the pixels around it are known. Along a side where
            the picture is smaller it lies in the middle. Default: the whole picture.

    Raises:
        ValueError: ``scale`` is not two positive numbers, smallest first, or ``crop`` not two whole ones.
    """

    #: Value that becomes 1 of images that arrive as integers; None: they stay integers.
    white: float | None = None

    def __init__(
        self,
        degrees: float = 0.0,
        scale: Sequence[float] = (1.0, 1.0),
        shear: float = 0.0,
        translate: float = 0.0,
        horizontal_flip: float = 0.0,
        vertical_flip: float = 0.0,
        elastic: float = 0.0,
        knots: int = 5,
        fill: float = 0.0,
        outside: int = IGNORE_INDEX,
        crop: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if len(scale) != 2 or not 0 < scale[0] <= scale[1]:
            raise ValueError(f"RandomWarp: scale must be two positive numbers, smallest first, not {list(scale)}")
        if crop is not None and (len(crop) != 2 or min(crop) < 1):
            raise ValueError(f"RandomWarp: crop must be a height and a width in pixels, not {list(crop)}")
        self.degrees = degrees
        self.scale = (float(scale[0]), float(scale[1]))
        self.shear = shear
        self.translate = translate
        self.horizontal_flip = horizontal_flip
        self.vertical_flip = vertical_flip
        self.elastic = elastic
        self.knots = knots
        self.fill = fill
        self.outside = outside
        self.crop = None if crop is None else (int(crop[0]), int(crop[1]))

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw the grid of one sample: where in the picture each pixel of the result is read."""
        sides = v2.query_size(flat_inputs)
        uniform = _drawn(9 if self.crop else 7)
        angle = math.radians(uniform(-self.degrees, self.degrees))
        size = uniform(*self.scale)
        slant = math.tan(math.radians(uniform(-self.shear, self.shear)))
        height, width = self.crop or sides
        shift = [uniform(-self.translate, self.translate) * side for side in (width, height)]
        mirror = [
            -1.0 if uniform(0.0, 1.0) < self.horizontal_flip else 1.0,
            -1.0 if uniform(0.0, 1.0) < self.vertical_flip else 1.0,
        ]
        middle = [0.0, 0.0]  # of the part, from that of the picture
        if self.crop:
            for axis, room in enumerate((max(0, sides[1] - width), max(0, sides[0] - height))):
                middle[axis] = min(int(uniform(0.0, room + 1.0)), room) - room / 2
        smooth = None
        if self.elastic > 0:
            knots = torch.randn(1, 2, self.knots, self.knots)
            knots *= self.elastic * torch.tensor([width, height])[:, None, None]
            smooth = torch.nn.functional.interpolate(knots, size=(height, width), mode="bicubic", align_corners=True)[0]
        # Forward map about the middle in pixels, x to the right and y downwards: mirror, scale and shear, rotation,
        # shift. Its inverse says where a point of the result is read: how far to the right and down that place moves
        # with each column, and with each row.
        cos, sin = math.cos(angle), math.sin(angle)
        of_column = (mirror[0] * (cos - slant * sin) / size, mirror[1] * sin / size)
        of_row = (mirror[0] * (-sin - slant * cos) / size, mirror[1] * cos / size)
        box, units, starts = [], [], []
        for axis, side in enumerate((sides[1], sides[0])):
            step, down = of_column[axis], of_row[axis]
            start = (
                middle[axis]
                + (side - 1) / 2
                - step * ((width - 1) / 2 + shift[0])
                - down * ((height - 1) / 2 + shift[1])
            )
            low = start + min(0.0, step * (width - 1)) + min(0.0, down * (height - 1))
            high = start + max(0.0, step * (width - 1)) + max(0.0, down * (height - 1))
            if smooth is not None:
                least, most = torch.aminmax(smooth[axis])
                low, high = low + least.item(), high + most.item()
            # The part of the picture that is read at all, neighbours of each point counted.
            first = min(max(math.floor(low) - 2, 0), side - 1)
            last = max(min(math.ceil(high) + 3, side), first + 1)
            box.append(slice(first, last))
            # For torch the edges of that part, half a pixel from its outermost pixels' middles, are at -1 and 1.
            units.append(2 / (last - first))
            starts.append((start - first + 0.5) * units[axis] - 1)
        # As complex numbers x and y are worked out at once, which is ten times as fast.
        columns = np.arange(width) * complex(of_column[0] * units[0], of_column[1] * units[1]) + complex(*starts)
        rows = np.arange(height)[:, None] * complex(of_row[0] * units[0], of_row[1] * units[1])
        of_x, of_y = (torch.from_numpy(part.astype(np.complex64)) for part in (columns, rows))
        grid = torch.view_as_real(of_x + of_y)[None]
        if smooth is not None:
            grid += smooth.permute(1, 2, 0) * torch.tensor(units)
        return {"grid": grid, "box": (..., box[1], box[0])}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Read images bilinearly and masks by nearest neighbour through the grid.

        Raises:
            TypeError: It is neither an image nor a mask.
        """
        if not isinstance(inpt, Tensor) or (isinstance(inpt, tv_tensors.TVTensor) and not isinstance(inpt, _MOVED)):
            raise TypeError(f"RandomWarp moves tensors of images and masks, and no {type(inpt).__name__}")
        is_mask = isinstance(inpt, tv_tensors.Mask)
        values = inpt.as_subclass(Tensor)
        planes = values[params["box"]]
        # Copied in the order of memory: to read here and there in the whole picture takes three times as long.
        planes = planes.clone() if planes.is_floating_point() else planes.float()
        whole = not values.is_floating_point()
        if whole and self.white is not None and not is_mask:
            planes.div_(self.white)
            whole = False
        # Beyond the border lies zero for torch, so that the fill has to be zero as well.
        fill = float(self.outside if is_mask else self.fill)
        if fill:
            planes.sub_(fill)
        read = torch.nn.functional.grid_sample(
            planes.reshape(1, -1, *planes.shape[-2:]),
            params["grid"].to(planes),
            mode="nearest" if is_mask else "bilinear",
            padding_mode="zeros",
            align_corners=False,
        )
        if fill:
            read.add_(fill)
        if whole:
            read = read.round_()
            # torch makes bytes of integers in a third of the time that it takes to make them of floats.
            read = (read.int() if values.dtype == torch.uint8 else read).to(values.dtype)
        return tv_tensors.wrap(read.reshape(*values.shape[:-2], *read.shape[-2:]), like=inpt)

    def extra_repr(self) -> str:
        """All strengths."""
        return (
            f"degrees={self.degrees}, scale={self.scale}, shear={self.shear}, translate={self.translate}, "
            f"flips=({self.horizontal_flip}, {self.vertical_flip}), elastic={self.elastic}, knots={self.knots}, "
            f"fill={self.fill}, outside={self.outside}, crop={self.crop}"
        )
