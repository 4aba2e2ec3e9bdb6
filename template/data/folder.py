"""A data set of one's own: images and their masks in two folders, matched by file stem."""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from ..distributed.faults import NamedError
from .dataset import Case
from .mask_values import MaskValues
from .module import Split
from .name_lists import read_names, refuse_shared
from .pairing import by_stem, matched, same_folder
from .picture_files import SUFFIXES, read_values
from .pictures import Pair, PictureData
from .splits import PLACE, SPELLINGS, Splitter, grouped, place_of


class Folder(PictureData):
    r"""Images and masks in two folders, matched by file stem.

    PNG, JPEG, TIFF, BMP and GIF; 8 and 16 bit; grey, colour, palette (its index is the label) and 1-bit masks.
    Images are read as 0 (black) to 1 (white). A camera's picture is turned upright as its EXIF orientation says, and
    so are the masks that ``predict`` writes.

    Args:
        images: Folder of the images. With ``{split}`` in it, such as ``data/images/{split}``, a folder for each of
            train, val (or valid, validation) and test; without one for val, validation is cut out of training.
        masks: Folder of the masks; may be the same folder. ``predict`` works without.
        classes: Class names; the position is the class index.
        image_suffix: What an image's stem has more than the common stem, such as ``_sat``; other files are passed over.
        mask_suffix: The same for masks, such as Carvana's ``_mask``.
        mask_values: File value in the masks to class index; 255 as class index: does not count. Default: file values
            are class indices; with two classes 0/255 masks are recognised.
        mask_colors: Colour ``[red, green, blue]`` of each class where masks are colour pictures.
        ignore_index: Value in the mask files of pixels that do not count.
        ignore_color: The same for colour masks.
        split_files: Text file of stems, one a line, for train, val and test; or a folder with train.txt, val.txt and
            test.txt. Images in none of them are left out; without a list for val, validation is cut out of training.
        group: Regular expression on the stems; all images of which the part in parentheses is the same come into one
            split, such as ``^(.*)_\d+$`` for Carvana's cars.
        folds: Number of folds of cross-validation, in place of ``val_fraction``.
        fold: Which fold is for validation, from 0.
        val_fraction: Part of the pairs, or groups, that is held out for validation.
        test_fraction: Part of the pairs, or groups, that is held out for the test.
        split_seed: Seed of the split. It depends on this and the stems alone, not on the run's seed.
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
        image_suffix: str = "",
        mask_suffix: str = "",
        mask_values: dict[int, int] | None = None,
        mask_colors: list[tuple[int, int, int]] | None = None,
        ignore_index: int | None = None,
        ignore_color: tuple[int, int, int] | None = None,
        split_files: dict[str, str] | str | None = None,
        group: str | None = None,
        folds: int | None = None,
        fold: int = 0,
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(classes=classes, **kwargs)
        self.splitter = Splitter(val_fraction, test_fraction, split_seed, folds, fold)
        self.group = group
        self.images = Path(images).expanduser()
        self.masks = Path(masks).expanduser() if masks else None
        if image_suffix == mask_suffix and masks and same_folder(self.images, Path(masks).expanduser()):
            raise NamedError(
                "config",
                f"data.images and data.masks are the same folder '{images}', with nothing to tell them apart.",
                fix="Set data.mask_suffix or data.image_suffix, for example _mask.",
            )
        self.image_suffix, self.mask_suffix = image_suffix, mask_suffix
        self.mask_values = MaskValues(len(classes), mask_values, mask_colors, ignore_index, ignore_color)
        self.lists = _lists(split_files)
        self.has_folders = PLACE in images
        if self.has_folders and (self.lists or (masks and PLACE not in masks)):
            raise NamedError(
                "config",
                f"data.images '{images}' has a folder for each split, and "
                + ("data.split_files is given too." if self.lists else f"data.masks '{masks}' has not."),
                fix="Remove data.split_files." if self.lists else f"Write {PLACE} into data.masks too.",
            )
        self._known: dict[Split, dict[str, Pair] | None] = {}

    def cases(self, split: Split) -> list[Case]:
        """Pairs of a split, in the order of their stems; all headers are checked the first time.

        Raises:
            NamedError: ``config``, ``data-missing``, ``data-unpaired``, ``data-unreadable``, ``data-size-mismatch``,
                ``sizes-differ`` or ``too-few-samples``, with the files.
        """
        if self.has_folders or self.lists:
            names = self.splitter.share(split, self._groups)
            if names is None:
                missing = split if split == "test" else "train"
                what = f"'{self.images}' has no folder" if self.has_folders else "data.split_files has no list"
                raise NamedError("data-missing", f"data.images: {what} for the {missing} split.", cause="")
            pairs = self._given(split) or self._given("train") or {}
        else:
            pairs = self._all
            names = self.splitter.split(grouped(pairs, self.group))[split]
        if not names and split != "val":
            raise NamedError(
                "too-few-samples",
                f"Of {len(pairs)} pairs none is in the {split} split.",
                cause=f"data.val_fraction is {self.splitter.val_fraction}, data.test_fraction "
                f"{self.splitter.test_fraction}.",
                fix="Change the fractions, or add pairs.",
            )
        return self.as_cases(split, {name: pairs[name] for name in names})

    @override
    def folders_of_masks(self) -> list[Path]:
        places = [place_of(str(self.masks), split) for split in SPELLINGS] if self.masks else []
        return [place for place in places if place is not None]

    def writes_white(self) -> bool:
        """Whether the user's masks hold 0 and 255."""
        return self._two_tone

    @cached_property
    def _two_tone(self) -> bool:
        """Whether the user's masks hold 0 and 255; the first mask that is not empty tells."""
        if not self.mask_values.two_tone or self.masks is None:
            return False
        places = (place_of(str(self.masks), split) for split in SPELLINGS)
        folder = next((place for place in places if place is not None), self.masks)
        try:
            for file in list(by_stem(folder, "data.masks", self.mask_suffix, self._other(folder)).values())[:20]:
                values = read_values(file)
                if values.any():
                    return bool((values == 255).any())
        except NamedError as error:
            warnings.warn(
                f"Predicted masks hold class indices, since the training masks are not there: {error}", stacklevel=2
            )
        return False

    def _groups(self, split: Split) -> dict[str, str] | None:
        pairs = self._given(split)
        return None if pairs is None else grouped(pairs, self.group)

    def _given(self, split: Split) -> dict[str, Pair] | None:
        """Pairs of a split that has a folder or a list of its own."""
        if split not in self._known:
            self._known[split] = self._of_folder(split) if self.has_folders else self._of_list(split)
        return self._known[split]

    def _of_folder(self, split: Split) -> dict[str, Pair] | None:
        images = place_of(str(self.images), split)
        if images is None:
            return None
        masks = place_of(str(self._masks()), split)
        if masks is None:
            raise NamedError("data-missing", f"data.masks: '{self.masks}' has no folder for the {split} split.")
        return matched(*self._files(images, masks))

    def _of_list(self, split: Split) -> dict[str, Pair] | None:
        if split not in self.lists:
            return None
        names = {part: read_names(file, "data.split_files", self._stem) for part, file in self.lists.items()}
        refuse_shared(names, self.lists)
        images, masks = self._files(self.images, self._masks())
        unknown = [name for name in names[split] if name not in images]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise NamedError(
                "data-unpaired",
                f"data.split_files: '{self.lists[split]}' lists '{unknown[0]}'{more}, and no image in '{self.images}' "
                "has that name.",
                cause="A line is the stem of an image, without data.image_suffix.",
                fix="Correct the list.",
            )
        return matched(
            {name: images[name] for name in names[split]},
            {name: masks[name] for name in names[split] if name in masks},
        )

    def _stem(self, line: str) -> str:
        """The stem that a line of a list means, where it has the image's extension or suffix too."""
        file = Path(line)
        return (file.stem if file.suffix.lower() in SUFFIXES else line).removesuffix(self.image_suffix)

    @cached_property
    def _all(self) -> dict[str, Pair]:
        return matched(*self._files(self.images, self._masks()))

    def _files(self, images: Path, masks: Path) -> tuple[dict[str, Path], dict[str, Path]]:
        """Image files and mask files by their common stems."""
        shared = same_folder(images, masks)
        try:
            return (
                by_stem(images, "data.images", self.image_suffix, self.mask_suffix if shared else None),
                by_stem(masks, "data.masks", self.mask_suffix, self.image_suffix if shared else None),
            )
        except NamedError as error:
            if error.identifier != "data-missing" or place_of(f"{images}/{PLACE}", "train") is None:
                raise
            fix = f"Write {PLACE} where the name of the split stands: data.images: {images}/{PLACE}."
            raise NamedError(error.identifier, error.what, "It has a folder for each split.", fix) from error

    def _other(self, folder: Path) -> str | None:
        return self.image_suffix if same_folder(folder, self.images) else None

    def _masks(self) -> Path:
        if self.masks is None:
            raise NamedError(
                "config", "data.masks is not given; fit, validate and test need it.", fix="Set data.masks to a folder."
            )
        return self.masks


def _lists(split_files: dict[str, str] | str | None) -> dict[Split, Path]:
    """Lists of stems by their splits."""
    if split_files is None:
        return {}
    if isinstance(split_files, str):
        found = {split: place_of(f"{split_files}/{PLACE}.txt", split) for split in SPELLINGS}
        if found["train"] is None:
            raise NamedError("data-missing", f"data.split_files: the folder '{split_files}' has no train.txt.")
        return {split: path for split, path in found.items() if path is not None}
    unknown = sorted(set(split_files) - set(SPELLINGS))
    if unknown or "train" not in split_files:
        raise NamedError(
            "config",
            f"data.split_files has the splits {sorted(split_files)}; they are train, and maybe val and test.",
            fix="Write data.split_files: {train: train.txt, val: val.txt, test: test.txt}.",
        )
    return {split: Path(split_files[split]).expanduser() for split in SPELLINGS if split in split_files}
