"""How the files of volumes are read: NIfTI here; a format of other files replaces what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .cache import key_of
from .volume_files import Geometry, read_header, read_labels, read_volume


class VolumeReader:
    """Reads NIfTI images and masks. Each method raises a NamedError with the file."""

    def header(self, image: Path) -> tuple[Geometry, int]:
        """Geometry and number of channels of an image, without its voxels."""
        return read_header(image)

    def image(self, image: Path) -> tuple[NDArray[Any], Geometry]:
        """Voxels, int16 or float32 [C, D, H, W] in the file's unit, and geometry of an image."""
        return read_volume(image)

    def mask_geometry(self, mask: Path, image: Path) -> Geometry:
        """Geometry of the mask of an image, without its voxels."""
        return read_header(mask)[0]

    def labels(self, mask: Path, image: Path) -> tuple[NDArray[Any], Geometry]:
        """Values, integers [D, H, W], and geometry of the mask of an image."""
        return read_labels(mask)

    def key(self, path: Path, **settings: Any) -> str:
        """Names what is made of an image or mask: by its content, and the settings it is made with."""
        return key_of(path, **settings)
