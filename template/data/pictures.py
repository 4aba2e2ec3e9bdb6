"""What all data sets of pictures share: one image and one mask file a case, new images, and masks written back."""

from __future__ import annotations

import glob
import stat
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..distributed.faults import NamedError
from .dataset import Case, CaseDataset
from .mask_values import MaskValues
from .module import SegmentationData, Split
from .names import unique_stems
from .picture_cache import PictureCache
from .picture_files import (
    SUFFIXES,
    as_image,
    list_pictures,
    picture_size,
    read_image,
    read_pixels,
    read_values,
    write_values,
)
from .seeding import seeded
from .transforms import RandomWarp
from .written import refuse_among, whole

_LOSSLESS = {".png", ".tif", ".tiff", ".bmp"}


class Pair(NamedTuple):
    """An image, its mask, and their height and width in pixels."""

    image: Path
    mask: Path
    size: tuple[int, int]


def pair(image: Path, mask: Path) -> Pair:
    """Look at the headers of an image and its mask.

    Raises:
        NamedError: ``data-unreadable`` or ``data-size-mismatch``, with the files.
    """
    size, mask_size = picture_size(image), picture_size(mask)
    if size != mask_size:
        raise NamedError(
            "data-size-mismatch",
            f"The image '{image}' is {_readable(size)} pixels, its mask '{mask}' {_readable(mask_size)}.",
        )
    return Pair(image, mask, size)


def is_missing(file: Path) -> bool:
    """Whether nothing has this name; False for a link that leads nowhere, and for what may not be looked at."""
    try:
        file.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


class PictureData(SegmentationData):
    """Base of the data sets of pictures; a subclass sets ``mask_values`` and says which cases there are.

    The source of a case is the paths of its image and its mask, or None for the mask of a new image.

    Args:
        in_channels: 1: grey images, colour ones are converted; 3: colour images, grey ones are repeated.
        white: File value that becomes 1 in the image, such as 4095 for a 12-bit camera; default: 255 for 8-bit files,
            65535 for 16-bit files, 1 for floating-point files.
        size: Height and width, in pixels, that images are resized to for the network; masks follow in training.
            Scores and predicted masks are in each image's own size.
        cache_dir: Where decoded pictures and masks are kept, to be mapped from there in later epochs. Default: nowhere.
            Decoded, a PNG is about twice as large and a JPEG ten times; it pays where that fits into memory.
        cache_gb: Size of all of them together, GB; when it is reached, further pictures are decoded each time.
        preprocess: As of the base class; comes after ``size``.
        kwargs: Arguments of the base class.
    """

    mask_values: MaskValues
    #: Cause and fix of a mask with values that no class has, where a format knows better than its configuration.
    mask_hint: tuple[str, str] | None = None

    def __init__(
        self,
        *,
        in_channels: Literal[1, 3] = 3,
        white: float | None = None,
        size: tuple[int, int] | None = None,
        cache_dir: str | None = None,
        cache_gb: float = 100.0,
        preprocess: list[nn.Module] | None = None,
        **kwargs: Any,
    ) -> None:
        resize = [v2.Resize(list(size), antialias=True)] if size else []
        super().__init__(in_channels=in_channels, preprocess=[*resize, *(preprocess or [])], **kwargs)
        self.white = white
        self.kept = PictureCache(Path(cache_dir).expanduser() if cache_dir else None, 1e9 * cache_gb)

    @abstractmethod
    def cases(self, split: Split) -> list[Case]:
        """Cases of a split, the same list in the same order on every process."""

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read a pair.

        Returns:
            The image, float32 [in_channels, H, W] of 0 to 1, and its mask, uint8 [H, W] of class indices and 255
            (does not count); None for new images.

        Raises:
            NamedError: ``data-unreadable``, ``mask-values`` or ``folder-not-writable``, with the file.
        """
        image, mask = case.source
        if mask is None:  # a new image is read once
            return read_image(Path(image), self.in_channels, self.white), None
        return self.image(Path(image)), self._mask(Path(mask))

    def _read_bytes(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read a pair of training as :meth:`read` does, but colours of 8 bits as they are stored, uint8 [3, H, W]."""
        image, mask = case.source
        if mask is None:
            return self.read(case)
        pixels = self.kept.get(Path(image), "pixels", lambda: read_pixels(Path(image)))
        if pixels.dtype != np.uint8 or pixels.ndim != 3:
            return as_image(pixels, self.in_channels, self.white), self._mask(Path(mask))
        return _tensor(pixels).permute(2, 0, 1), self._mask(Path(mask))

    def _dataset(self, cases: Sequence[Case], augment: list[nn.Module] | None) -> CaseDataset:
        """A crop in the warp that comes first makes floats of a third of the picture, which is most of that work."""
        dataset = super()._dataset(cases, augment)
        first = augment[0] if augment and not self.preprocess and self.in_channels == 3 else None
        untouched = all(getattr(type(self), name) is getattr(PictureData, name) for name in ("read", "image"))
        if type(first) is RandomWarp and first.crop and untouched:
            warp = copy(first)
            warp.white = 255.0 if self.white is None else self.white
            dataset.augment, dataset.read_bytes = [warp, *(augment or [])[1:]], self._read_bytes
        return dataset

    def _mask(self, file: Path) -> Tensor:
        return _tensor(self.kept.get(file, self.mask_values.told(), lambda: self.labels(file)))

    def image(self, file: Path) -> Tensor:
        """A picture of the data set, decoded or out of the cache, float32 [in_channels, H, W] of 0 to 1.

        Raises:
            NamedError: ``data-unreadable`` or ``folder-not-writable``.
        """
        return as_image(self.kept.get(file, "pixels", lambda: read_pixels(file)), self.in_channels, self.white)

    def labels(self, mask: Path) -> npt.NDArray[np.uint8]:
        """Class indices of a mask file, uint8 [H, W].

        Raises:
            NamedError: ``data-unreadable`` or ``mask-values``, with the file.
        """
        values = read_values(mask, color=self.mask_values.colored)
        try:
            return self.mask_values.to_classes(values, mask)
        except NamedError as error:
            if self.mask_hint is None:
                raise
            raise NamedError(error.identifier, error.what, *self.mask_hint) from error

    def predict_cases(self, path: Path) -> list[Case]:
        """New images: one file, all pictures of a folder, or those that a pattern matches, in the order of their names.

        Args:
            path: File, folder, or a pattern with ``*``, ``?`` or ``**``, such as ``scans/**/*.png``.

        Raises:
            NamedError: ``data-missing``; ``data-unreadable`` of a file that is alone.
        """
        files = _inputs(path)
        if len(files) == 1:  # of several, each is looked at when it is its turn: the good ones are predicted
            picture_size(files[0])
        return [Case(name, (str(file), None)) for name, file in zip(unique_stems(files), files, strict=True)]

    def write(self, case: Case, mask: Tensor, folder: Path) -> Path:
        """Write a predicted mask in the values or colours of the user's own masks, under its image's stem.

        PNG, TIFF and BMP images get a mask of the same format, all others PNG. Where the user's masks hold class
        indices, so does this one, with a palette of class colours to look at.

        Args:
            case: The case.
            mask: Class indices, uint8 [H, W], in the image's size.
            folder: Existing folder.

        Returns:
            The file written.

        Raises:
            NamedError: ``config``: the mask could take the place of its image, or of a mask of the data set.
        """
        source = Path(case.source[0])
        refuse_among(folder, [source], self.folders_of_masks())
        values, palette = self.mask_values.to_values(mask.cpu().numpy(), self.writes_white())
        suffix = source.suffix
        if suffix.lower() not in _LOSSLESS or (suffix.lower() == ".bmp" and values.itemsize > 1):
            suffix = ".png"
        file = folder / f"{case.name}{suffix}"
        with whole(file) as part:
            write_values(part, values, palette)
        return file

    def folders_of_masks(self) -> list[Path]:
        """Where the masks of the data set are, so that predictions do not take their place."""
        return []

    def writes_white(self) -> bool:
        """Whether class 1 is written as 255."""
        return False

    def check_sizes(self, sizes: Mapping[tuple[int, int], str | Path]) -> None:
        """Refuse training images of several sizes that the transforms do not bring to one, tried on the extreme ones.

        Args:
            sizes: Height and width to an image of that size.

        Raises:
            NamedError: ``sizes-differ``, with two images.
        """
        if len(sizes) == 1 or self.batch_size == 1:
            return
        small, large = (extreme(sizes, key=lambda size: (size[0] * size[1], size)) for extreme in (min, max))
        if self._shape(small) != self._shape(large):
            raise NamedError(
                "sizes-differ",
                f"'{sizes[small]}' is {_readable(small)} pixels, '{sizes[large]}' {_readable(large)}.",
                fix="Set data.size: [height, width], or crop to one size in data.augment.",
            )

    def as_cases(self, split: Split, pairs: Mapping[str, Pair]) -> list[Case]:
        """Cases of pairs by their names; those of training must fit into one batch.

        Raises:
            NamedError: ``too-few-samples`` or ``sizes-differ``.
        """
        if not pairs and split != "val":
            raise NamedError(
                "too-few-samples",
                f"No case is left for the {split} split.",
                cause="All of them are held out.",
                fix="Lower data.val_fraction.",
            )
        if split == "train":
            self.check_sizes({pair.size: pair.image for pair in reversed(list(pairs.values()))})
        return [Case(name, (str(pair.image), str(pair.mask))) for name, pair in pairs.items()]

    def _shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        sample: dict[str, Any] = {
            "image": tv_tensors.Image(torch.zeros(self.in_channels, *size)),
            "mask": tv_tensors.Mask(torch.zeros(size, dtype=torch.uint8)),
        }
        with seeded(0):
            for module in (*self.preprocess, *self.augment):
                sample = module(sample)
        return tuple(sample["image"].shape)


def _inputs(path: Path) -> list[Path]:
    """Files that ``data.predict`` names."""
    try:
        return list_pictures(path, "data.predict") if stat.S_ISDIR(path.stat().st_mode) else [path]
    except OSError as error:
        if not isinstance(error, FileNotFoundError) or not glob.has_magic(str(path)):
            raise NamedError("data-missing", f"data.predict: '{path}' cannot be read: {error.strerror}.") from error
    found = (Path(name) for name in sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207  # also absolute
    files = [file for file in found if file.suffix.lower() in SUFFIXES and not file.is_dir()]
    if not files:
        raise NamedError("data-missing", f"data.predict: no picture matches '{path}'.")
    return files


def _tensor(array: npt.NDArray[np.uint8]) -> Tensor:
    """A copy of what cannot be written, since it is mapped or held by a picture."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _readable(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"
