"""A data set of one's own: images and their masks in two folders, matched by file stem."""

from __future__ import annotations

import stat
import unicodedata
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..distributed.faults import NamedError
from .dataset import Case, seeded
from .mask_values import MaskValues
from .module import SegmentationData, Split
from .names import split_names, unique_stems
from .picture_files import list_pictures, picture_size, read_image, read_values, write_values

_LOSSLESS = {".png", ".tif", ".tiff", ".bmp"}


class Pair(NamedTuple):
    """An image, its mask, and their height and width in pixels."""

    image: Path
    mask: Path
    size: tuple[int, int]


class Folder(SegmentationData):
    """Images and masks in two folders, matched by file stem.

    PNG, JPEG, TIFF, BMP and GIF; 8 and 16 bit; grey, colour, palette (its index is the label) and 1-bit masks.
    Images are read as 0 (black) to 1 (white). A camera's picture is turned upright as its EXIF orientation says, and
    so are the masks that ``predict`` writes.

    Args:
        images: Folder of the images.
        masks: Folder of the masks; may be the same folder. ``predict`` works without.
        classes: Class names; the position is the class index.
        in_channels: 1: grey images, colour ones are converted; 3: colour images, grey ones are repeated.
        image_suffix: What an image's stem has more than the common stem, such as ``_sat``; other files are passed over.
        mask_suffix: The same for masks, such as Carvana's ``_mask``.
        mask_values: File value in the masks to class index; 255 as class index: does not count. Default: file values
            are class indices; with two classes 0/255 masks are recognised.
        mask_colors: Colour ``[red, green, blue]`` of each class where masks are colour pictures.
        ignore_index: Value in the mask files of pixels that do not count.
        ignore_color: The same for colour masks.
        white: File value that becomes 1 in the image, such as 4095 for a 12-bit camera; default: 255 for 8-bit files,
            65535 for 16-bit files, 1 for floating-point files.
        size: Height and width, in pixels, that images are resized to for the network; masks follow in training.
            Scores and predicted masks are in each image's own size.
        val_fraction: Part of the pairs that is held out for validation.
        test_fraction: Part of the pairs that is held out for the test.
        split_seed: Seed of the split. It depends on this and the stems alone, not on the run's seed.
        preprocess: As of the base class; comes after ``size``.
        kwargs: Arguments of the base class.

    Raises:
        NamedError: ``config``: arguments contradict each other.
    """

    def __init__(
        self,
        *,
        images: str,
        classes: list[str],
        masks: str | None = None,
        in_channels: Literal[1, 3] = 3,
        image_suffix: str = "",
        mask_suffix: str = "",
        mask_values: dict[int, int] | None = None,
        mask_colors: list[tuple[int, int, int]] | None = None,
        ignore_index: int | None = None,
        ignore_color: tuple[int, int, int] | None = None,
        white: float | None = None,
        size: tuple[int, int] | None = None,
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        preprocess: list[nn.Module] | None = None,
        **kwargs: Any,
    ) -> None:
        resize = [v2.Resize(list(size), antialias=True)] if size else []
        super().__init__(classes=classes, in_channels=in_channels, preprocess=[*resize, *(preprocess or [])], **kwargs)
        if not (0 <= val_fraction <= 1 and 0 <= test_fraction <= 1 and val_fraction + test_fraction <= 1):
            raise NamedError(
                "config",
                f"data.val_fraction {val_fraction} and data.test_fraction {test_fraction} do not make a split.",
                cause="Each is 0 to 1, and both together at most 1.",
            )
        self.images = Path(images).expanduser()
        self.masks = Path(masks).expanduser() if masks else None
        if image_suffix == mask_suffix and self._one_folder():
            raise NamedError(
                "config",
                f"data.images and data.masks are the same folder '{images}', with nothing to tell them apart.",
                fix="Set data.mask_suffix or data.image_suffix, for example _mask.",
            )
        self.image_suffix, self.mask_suffix = image_suffix, mask_suffix
        self.mask_values = MaskValues(len(classes), mask_values, mask_colors, ignore_index, ignore_color)
        self.white = white
        self.val_fraction, self.test_fraction, self.split_seed = val_fraction, test_fraction, split_seed
        self._pairs: dict[str, Pair] = {}

    def cases(self, split: Split) -> list[Case]:
        """Pairs of a split, in the order of their stems; all headers are checked the first time.

        Raises:
            NamedError: ``config``, ``data-missing``, ``data-unpaired``, ``data-unreadable``, ``data-size-mismatch``,
                ``sizes-differ`` or ``too-few-samples``, with the files.
        """
        if not self._pairs:
            self._pairs = self._matched()
        names = split_names(list(self._pairs), self.split_seed, self.val_fraction, self.test_fraction)[split]
        if not names and split != "val":
            raise NamedError(
                "too-few-samples",
                f"Of {len(self._pairs)} pairs none is in the {split} split.",
                cause=f"data.val_fraction is {self.val_fraction}, data.test_fraction {self.test_fraction}.",
                fix="Change the fractions, or add pairs.",
            )
        pairs = [self._pairs[name] for name in names]
        if split == "train":
            self._check_sizes({pair.size: pair.image for pair in reversed(pairs)})
        return [Case(name, (str(pair.image), str(pair.mask))) for name, pair in zip(names, pairs, strict=True)]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read a pair.

        Returns:
            The image, float32 [in_channels, H, W] of 0 to 1, and its mask, uint8 [H, W] of class indices and 255
            (does not count); None for new images.

        Raises:
            NamedError: ``data-unreadable`` or ``mask-values``, with the file.
        """
        image, mask = case.source
        pixels = read_image(Path(image), self.in_channels, self.white)
        if mask is None:
            return pixels, None
        values = read_values(Path(mask), color=self.mask_values.colored)
        return pixels, torch.from_numpy(self.mask_values.to_classes(values, Path(mask)))

    def predict_cases(self, path: Path) -> list[Case]:
        """New images: one file, or all pictures of a folder, in the order of their names.

        Raises:
            NamedError: ``data-missing`` or ``data-unreadable``, with the file.
        """
        try:
            files = list_pictures(path, "data.predict") if stat.S_ISDIR(path.stat().st_mode) else [path]
        except OSError as error:
            raise NamedError("data-missing", f"data.predict: '{path}' cannot be read: {error.strerror}.") from error
        for file in files:
            picture_size(file)
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
            NamedError: ``config``: the mask could take its image's place.
        """
        source = Path(case.source[0])
        if folder.samefile(source.parent):
            raise NamedError(
                "config",
                f"Masks would be written into the folder of their images, '{folder}'.",
                cause="A mask has its image's name.",
                fix="Choose another folder with --out.",
            )
        values, palette = self.mask_values.to_values(mask.cpu().numpy(), self._two_tone)
        suffix = source.suffix
        if suffix.lower() not in _LOSSLESS or (suffix.lower() == ".bmp" and values.itemsize > 1):
            suffix = ".png"
        file = folder / f"{case.name}{suffix}"
        write_values(file, values, palette)
        return file

    @cached_property
    def _two_tone(self) -> bool:
        """Whether the user's masks hold 0 and 255; the first mask that is not empty tells."""
        if not self.mask_values.two_tone or self.masks is None:
            return False
        try:
            for file in list(self._stems("masks").values())[:20]:
                values = read_values(file)
                if values.any():
                    return bool((values == 255).any())
        except NamedError as error:
            warnings.warn(
                f"Predicted masks hold class indices, since the training masks are not there: {error}", stacklevel=2
            )
        return False

    def _stems(self, what: Literal["images", "masks"]) -> dict[str, Path]:
        """Files of a folder by their common stem."""
        folder, suffix, other = self.images, self.image_suffix, self.mask_suffix
        if what == "masks":
            assert self.masks is not None
            folder, suffix, other = self.masks, self.mask_suffix, self.image_suffix
        shared = self._one_folder()
        files: dict[str, Path] = {}
        for file in list_pictures(folder, f"data.{what}"):
            # One and the same letter can be written as one or two characters; macOS prefers two.
            stem = unicodedata.normalize("NFC", file.stem)
            of_other = shared and len(other) > len(suffix) and stem.endswith(other)
            if not stem.endswith(suffix) or of_other:
                continue
            name = stem.removesuffix(suffix)
            if name in files:
                raise NamedError(
                    "data-unpaired",
                    f"data.{what}: '{files[name]}' and '{file.name}' have the same stem.",
                    fix="Remove one of them.",
                )
            files[name] = file
        if not files:
            raise NamedError(
                "data-missing",
                f"data.{what}: no picture in '{folder}' has a name that ends in '{suffix}' before its extension.",
                fix=f"Correct data.{what[:-1]}_suffix.",
            )
        return files

    def _matched(self) -> dict[str, Pair]:
        if self.masks is None:
            raise NamedError(
                "config", "data.masks is not given; fit, validate and test need it.", fix="Set data.masks to a folder."
            )
        images, masks = self._stems("images"), self._stems("masks")
        for have, lack, what in ((images, masks, "images have no mask"), (masks, images, "masks have no image")):
            lonely = [file.name for name, file in have.items() if name not in lack]
            if lonely:
                names = ", ".join(f"'{name}'" for name in lonely[:5]) + (" …" if len(lonely) > 5 else "")
                folder = self.masks if lack is masks else self.images
                raise NamedError("data-unpaired", f"{len(lonely)} of {len(have)} {what} in '{folder}': {names}.")
        pairs = {name: Pair(images[name], masks[name], picture_size(images[name])) for name in sorted(images)}
        for image, mask, size in pairs.values():
            mask_size = picture_size(mask)
            if size != mask_size:
                raise NamedError(
                    "data-size-mismatch",
                    f"The image '{image}' is {_readable(size)} pixels, its mask '{mask}' {_readable(mask_size)}.",
                )
        return pairs

    def _check_sizes(self, sizes: Mapping[tuple[int, int], Path]) -> None:
        """Refuse images of several sizes that the transforms do not bring to one, tried on the extreme ones."""
        if len(sizes) == 1 or self.batch_size == 1:
            return
        small, large = (extreme(sizes, key=lambda size: (size[0] * size[1], size)) for extreme in (min, max))
        if self._shape(small) != self._shape(large):
            raise NamedError(
                "sizes-differ",
                f"'{sizes[small]}' is {_readable(small)} pixels, '{sizes[large]}' {_readable(large)}.",
                fix="Set data.size: [height, width], or crop to one size in data.augment.",
            )

    def _one_folder(self) -> bool:
        try:
            return self.masks is not None and self.images.samefile(self.masks)
        except OSError:  # a folder that is not there is named when it is listed
            return False

    def _shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        sample: dict[str, Any] = {
            "image": tv_tensors.Image(torch.zeros(self.in_channels, *size)),
            "mask": tv_tensors.Mask(torch.zeros(size, dtype=torch.uint8)),
        }
        with seeded(0):
            for module in (*self.preprocess, *self.augment):
                sample = module(sample)
        return tuple(sample["image"].shape)


def _readable(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"
