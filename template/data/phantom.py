"""An abdomen drawn by the program: CT slices and volumes with a liver and its tumours, and no download."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..distributed.faults import NamedError
from .dataset import Case
from .module import SegmentationData, Split
from .transforms import abdominal_window

Floats = NDArray[np.float32]
Where = NDArray[np.bool_]
Triple = tuple[float, float, float]

_SPLITS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}

# Hounsfield units as in a contrast-enhanced CT. Centres and radii are (x to the patient's left, which is the right of
# the picture; y to the back; z upwards), in half sides of the picture.
_AIR, _FAT, _MUSCLE, _RIB, _LIVER = -1000.0, -100.0, 55.0, 400.0, 110.0
_BODY, _WALL, _CAVITY = (0.94, 0.76), (0.87, 0.69), (0.79, 0.61)
_LOBES: tuple[tuple[Triple, Triple], ...] = (
    ((-0.37, -0.02, 0.05), (0.4, 0.46, 0.95)),
    ((0.02, -0.3, 0.2), (0.42, 0.2, 0.7)),
)
_BEFORE_LIVER: dict[str, tuple[Triple, Triple, float]] = {
    "spleen": ((0.58, 0.14, 0.15), (0.16, 0.28, 0.6), 120.0),
    "stomach": ((0.36, -0.2, 0.2), (0.26, 0.2, 0.7), 30.0),
    "gas in the stomach": ((0.38, -0.29, 0.2), (0.14, 0.06, 0.4), -800.0),
}
_AFTER_LIVER: dict[str, tuple[Triple, Triple, float]] = {
    "right kidney": ((-0.38, 0.36, -0.5), (0.13, 0.14, 0.6), 180.0),
    "left kidney": ((0.34, 0.36, -0.4), (0.13, 0.14, 0.6), 180.0),
    "spinous process": ((0.0, 0.59, 0.0), (0.04, 0.1, 9.0), 350.0),
    "vertebra": ((0.0, 0.41, 0.0), (0.16, 0.13, 9.0), 250.0),
    "spinal canal": ((0.0, 0.53, 0.0), (0.055, 0.045, 9.0), 40.0),
    "aorta": ((0.07, 0.25, 0.0), (0.065, 0.065, 9.0), 170.0),
    "vena cava": ((-0.1, 0.23, 0.0), (0.075, 0.055, 9.0), 140.0),
}


class _Canvas:
    """A patient: a little shifted, scaled, turned and bent, so that no organ is an exact ellipsoid."""

    def __init__(self, rng: np.random.Generator, z: Floats, size: int) -> None:
        side = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
        shift, turn, scale = rng.uniform(-0.04, 0.04, 2), rng.uniform(-0.1, 0.1), rng.uniform(0.88, 1.0)
        phase, bend = rng.uniform(0, 2 * np.pi, 4), rng.uniform(0.01, 0.03, 4)
        u, v, w = (side - shift[0])[None, None, :], (side - shift[1])[None, :, None], z[:, None, None]
        cos, sin = np.cos(turn) / scale, np.sin(turn) / scale
        x = cos * u - sin * v + bend[0] * np.sin(5 * v + phase[0]) + bend[1] * np.sin(3 * w + phase[1])
        y = sin * u + cos * v + bend[2] * np.sin(5 * u + phase[2]) + bend[3] * np.sin(3 * w + phase[3])
        self.x: Floats = x.astype(np.float32)
        self.y: Floats = y.astype(np.float32)
        self.z = w
        self.image = np.full(self.x.shape, _AIR, np.float32)
        self.mask = np.zeros(self.x.shape, np.uint8)

    def cylinder(self, radii: tuple[float, float]) -> Where:
        """Voxels of an elliptic cylinder along the body, bool [D, H, W]."""
        where: Where = (self.x / radii[0]) ** 2 + (self.y / radii[1]) ** 2 < 1
        return where

    def ellipsoid(self, centre: Triple, radii: Triple) -> Where:
        """Voxels of an ellipsoid, bool [D, H, W]."""
        (cx, cy, cz), (rx, ry, rz) = centre, radii
        where: Where = ((self.x - cx) / rx) ** 2 + ((self.y - cy) / ry) ** 2 < 1 - ((self.z - cz) / rz) ** 2
        return where

    def paint(self, where: Where, hounsfield: float, label: int = 0) -> None:
        """Cover voxels with a tissue and its label."""
        self.image[where] = hounsfield
        self.mask[where] = label


def _varied(rng: np.random.Generator, centre: Triple, radii: Triple) -> tuple[Triple, Triple]:
    """The same organ in another patient."""
    moved = np.add(centre, rng.normal(0, 0.015, 3))
    sized = np.multiply(radii, rng.uniform(0.9, 1.1, 3))
    return (moved[0], moved[1], moved[2]), (sized[0], sized[1], sized[2])


def _smooth(image: Floats) -> Floats:
    """Blur rows and columns by the weights 1/4, 1/2, 1/4: the scanner's resolution."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    smooth: Floats = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / np.float32(16)
    return smooth


def draw(rng: np.random.Generator, size: int, depth: int | None, noise: float) -> tuple[Floats, NDArray[np.uint8]]:
    """Draw a patient.

    Args:
        rng: Source of everything that differs between patients.
        size: Height and width in pixels.
        depth: Slices of a volume; None for one slice through a tumour.
        noise: Standard deviation of the noise in Hounsfield units, correlated over neighbouring pixels as in a CT.

    Returns:
        The image in Hounsfield units and the labels (0 background, 1 liver, 2 tumour), both [D, H, W]; D is 1 for a
        slice.
    """
    level = rng.uniform(-0.3, 0.5)
    z = (np.arange(depth) + 0.5) * (2 / depth) - 1 if depth else np.array([level])
    canvas = _Canvas(rng, z.astype(np.float32), size)
    canvas.paint(canvas.cylinder(_BODY), _FAT)
    canvas.paint(canvas.cylinder(_WALL), _MUSCLE)
    cavity = canvas.cylinder(_CAVITY)
    canvas.paint(cavity, _FAT)
    for angle in np.linspace(-0.9, 0.9, 5):
        for side in (0, np.pi):
            centre = (0.83 * np.cos(side + angle), 0.65 * np.sin(side + angle), rng.uniform(-1, 1))
            canvas.paint(canvas.ellipsoid(centre, (0.05, 0.05, 0.6)), _RIB)
    for centre, radii, hounsfield in _BEFORE_LIVER.values():
        canvas.paint(canvas.ellipsoid(*_varied(rng, centre, radii)) & cavity, hounsfield + rng.normal(0, 8))
    lobes = [_varied(rng, *lobe) for lobe in _LOBES]
    liver = _LIVER + rng.normal(0, 8)
    for lobe in lobes:
        canvas.paint(canvas.ellipsoid(*lobe) & cavity, liver, label=1)
    for centre, radii, hounsfield in _AFTER_LIVER.values():
        canvas.paint(canvas.ellipsoid(*_varied(rng, centre, radii)), hounsfield + rng.normal(0, 8))
    for index in range(rng.integers(1, 5)):
        centre, radii = lobes[int(index > 0 and rng.random() < 0.3)]
        direction = rng.normal(size=3)
        spot = np.add(centre, rng.uniform(0, 0.75) * direction / np.linalg.norm(direction) * radii)
        radius = rng.uniform(0.08, 0.2) * rng.uniform(0.8, 1.2, 3)
        # A slice shows its tumours near their middle; in a volume they are where they are, and as tall as wide.
        height = spot[2] if depth else level + rng.uniform(-0.5, 0.5) * radius[2]
        tumour = canvas.ellipsoid((spot[0], spot[1], height), (radius[0], radius[1], radius[2]))
        canvas.paint(tumour & (canvas.mask > 0), liver - rng.uniform(40, 65), label=2)
    # The blur leaves 6/16 of the standard deviation of white noise (sqrt(6)/4 an axis).
    rough = canvas.image + np.float32(noise * 16 / 6) * rng.standard_normal(canvas.image.shape, np.float32)
    return _smooth(rough), canvas.mask


class Phantom(SegmentationData):
    """An abdominal CT phantom: as many cases as wanted, each the same in every run and on every process.

    Classes are background, liver and tumour; scored are ``liver`` (labels 1 and 2, as the LiTS challenge counts
    it, arXiv:1901.04056) and ``tumour``. Images are in Hounsfield units.

    Args:
        train_cases: Cases to train on.
        val_cases: Cases to validate on.
        test_cases: Cases to test on.
        dims: 2 for slices [1, H, W], 3 for volumes [1, D, H, W].
        size: Height and width in pixels.
        depth: Slices of a volume; not used with ``dims: 2``.
        noise: Standard deviation of the noise, in Hounsfield units.
        drawing_seed: Case i of a split depends on this number, the split and i alone.
        **kwargs: As of :class:`SegmentationData`: ``batch_size``, ``num_workers``, ``preprocess``, ``augment``,
            ``predict``, ``seed``.

    Raises:
        NamedError: ``config``, when a number makes no picture.
    """

    def __init__(
        self,
        train_cases: int = 64,
        val_cases: int = 16,
        test_cases: int = 16,
        dims: Literal[2, 3] = 2,
        size: int = 96,
        depth: int = 32,
        noise: float = 20.0,
        drawing_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            classes=["background", "liver", "tumour"],
            in_channels=1,
            regions={"liver": [1, 2], "tumour": [2]},
            **kwargs,
        )
        for name, value, least in (
            ("train_cases", train_cases, 0),
            ("val_cases", val_cases, 0),
            ("test_cases", test_cases, 0),
            ("size", size, 16),
            ("depth", depth, 1),
            ("noise", noise, 0),
            ("drawing_seed", drawing_seed, 0),
        ):
            if value < least:
                raise NamedError("config", f"data.{name} is {value}; it must be at least {least}.")
        self.counts: dict[Split, int] = {"train": train_cases, "val": val_cases, "test": test_cases}
        self.dims = dims
        self.size = size
        self.depth = depth
        self.noise = noise
        self.drawing_seed = drawing_seed

    def cases(self, split: Split) -> list[Case]:
        """Cases ``train_0000`` and so on; the source is (split, number)."""
        return [Case(f"{split}_{number:04d}", (_SPLITS[split], number)) for number in range(self.counts[split])]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Draw a case: [1, H, W] or [1, D, H, W] in Hounsfield units, and its labels."""
        rng = np.random.default_rng(np.random.SeedSequence((self.drawing_seed, *case.source)))
        image, mask = draw(rng, self.size, self.depth if self.dims == 3 else None, self.noise)
        if self.dims == 2:
            return torch.from_numpy(image), torch.from_numpy(mask[0])
        return torch.from_numpy(image)[None], torch.from_numpy(mask)

    def display(self, image: Tensor) -> Tensor:
        """The picture in the abdominal window."""
        return super().display(abdominal_window(image))
