"""Transforms that torchvision v2 lacks; its own fit in beside them.

Each is a :class:`torchvision.transforms.v2.Transform`: it takes the sample (a dict with ``"image"``, a
``tv_tensors.Image`` float32 ``[C, *S]``, and maybe ``"mask"``, a ``tv_tensors.Mask`` ``[*S]``) and returns it.
Random ones draw from torch's global generator alone, which the data module seeds from (seed, epoch, sample).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from ..labels import IGNORE_INDEX


def _uniform(low: float, high: float) -> float:
    """A number from torch's global generator, also where ``low == high``, so that a knob set to 0 shifts no draw."""
    return low + (high - low) * torch.rand(()).item()


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
        return {
            "apply": _uniform(0.0, 1.0) < self.probability,
            "gamma": math.exp(_uniform(-self.gamma, self.gamma)),
            "contrast": 1.0 + _uniform(-self.contrast, self.contrast),
            "brightness": _uniform(-self.brightness, self.brightness),
            "noise": _uniform(0.0, self.noise),
        }

    def intensity(self, image: Tensor, params: dict[str, Any]) -> Tensor:
        """Changed values; a constant image has no range and keeps its gamma."""
        if not params["apply"]:
            return image
        low, high = image.aminmax()
        span = high - low
        if params["gamma"] != 1.0 and span > 0:
            image = ((image - low) / span).pow(params["gamma"]) * span + low
        mean = image.mean()
        image = (image - mean) * params["contrast"] + (mean + params["brightness"])
        if params["noise"] > 0:
            image = image + params["noise"] * torch.randn_like(image)
        return image

    def extra_repr(self) -> str:
        """All strengths."""
        return (
            f"gamma={self.gamma}, contrast={self.contrast}, brightness={self.brightness}, noise={self.noise}, "
            f"probability={self.probability}"
        )


class RandomWarp(v2.Transform):
    """Flip, scale, shear, rotation, shift and a smooth deformation, resampled once.

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

    Raises:
        ValueError: ``scale`` is not two positive numbers, smallest first.
    """

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
    ) -> None:
        super().__init__()
        if len(scale) != 2 or not 0 < scale[0] <= scale[1]:
            raise ValueError(f"RandomWarp: scale must be two positive numbers, smallest first, not {list(scale)}")
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

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw the field of one sample: where each pixel of the result is read, as an offset."""
        height, width = v2.query_size(flat_inputs)
        angle = math.radians(_uniform(-self.degrees, self.degrees))
        size = _uniform(*self.scale)
        slant = math.tan(math.radians(_uniform(-self.shear, self.shear)))
        shift = [_uniform(-self.translate, self.translate) * side for side in (width, height)]
        mirror = [
            -1.0 if _uniform(0.0, 1.0) < self.horizontal_flip else 1.0,
            -1.0 if _uniform(0.0, 1.0) < self.vertical_flip else 1.0,
        ]
        # Forward map about the centre in pixels, x to the right and y downwards: first the mirror, the shift last.
        cos, sin = math.cos(angle), math.sin(angle)
        rotation = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
        stretch = torch.tensor([[size * mirror[0], size * slant * mirror[1]], [0.0, size * mirror[1]]]).double()
        inverse = torch.linalg.inv(rotation @ stretch)
        x = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
        y = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
        out = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
        offset = (out - torch.tensor(shift).double()) @ inverse.T - out
        half = torch.tensor([width, height]) / 2  # torchvision's field counts in half sides
        field = (offset / half).float()[None]
        if self.elastic > 0:
            knots = 2 * self.elastic * torch.randn(1, 2, self.knots, self.knots)
            smooth = torch.nn.functional.interpolate(knots, size=(height, width), mode="bicubic", align_corners=True)
            field = field + smooth.permute(0, 2, 3, 1)
        return {"field": field}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Read images bilinearly and masks by nearest neighbour through the field."""
        fill = self.outside if isinstance(inpt, tv_tensors.Mask) else self.fill
        return F.elastic(inpt, params["field"], interpolation=v2.InterpolationMode.BILINEAR, fill=fill)

    def extra_repr(self) -> str:
        """All strengths."""
        return (
            f"degrees={self.degrees}, scale={self.scale}, shear={self.shear}, translate={self.translate}, "
            f"flips=({self.horizontal_flip}, {self.vertical_flip}), elastic={self.elastic}, knots={self.knots}, "
            f"fill={self.fill}, outside={self.outside}"
        )
