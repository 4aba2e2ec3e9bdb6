"""COCO, and data sets exported in its format (Lin et al., ECCV 2014, arXiv:1405.0312)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX
from .coco_file import CocoFile, CocoImage, read_coco
from .coco_masks import Overlap, draw
from .dataset import Case
from .mask_values import MaskValues
from .module import Split
from .names import unique_stems
from .picture_files import read_image
from .pictures import PictureData, is_missing
from .splits import PLACE, Splitter, grouped, place_of


class COCO(PictureData):
    r"""Images, and a JSON file of their objects as polygons or run lengths; needs the extra ``coco``.

    ::

        annotations/instances_train2017.json     images, annotations, categories
        train2017/000000000009.jpg

    ``data.annotations: data/coco/annotations/instances_{split}2017.json`` with ``data.images: data/coco/{split}2017``;
    for exports such as Roboflow's ``data/{split}/_annotations.coco.json`` and ``data/{split}``.

    The classes are 0, background, and the categories 1 to K in the order of their ids, however many ids are left out
    between them (COCO's 80 categories have ids up to 90). A crowd does not count, but where an object lies in it.

    Traps: where two objects overlap, pixels do not count, as in torchvision's reference training; for objects that lie
    in others, such as a tumour in an organ, set ``overlap: smallest``. What has no annotation is background, so that a
    file that annotates some of the objects alone teaches what is wrong. A category may be a mere heading without any
    object: leave it out by naming ``classes``. ``predict`` writes class indices, not ids of categories.

    Args:
        annotations: JSON file; with ``{split}`` in it one for each of train, val (or valid, validation) and test.
            Without one for val, validation is cut out of training; without ``{split}``, the test is as well.
        images: Folder that the file names in it start from; may have ``{split}`` too.
        classes: Class names, ``background`` first, the others as the file calls its categories; what is left out is
            background. Default: all categories.
        overlap: Of pixels in two objects: ``ignore``: they do not count; ``smallest``: they are of the smaller object.
        group: Regular expression on the file names without extension, in which ``/`` became ``_``; all images of which
            the part in parentheses is the same come into one split.
        folds: Number of folds of cross-validation, in place of ``val_fraction``.
        fold: Which fold is for validation, from 0.
        val_fraction: Part of the images, or groups, that is held out for validation where it has no file.
        test_fraction: The same for the test, where ``annotations`` is one file.
        split_seed: Seed of the split.
        kwargs: Arguments of the base class.

    Raises:
        NamedError: ``config``: a class is no category; as :func:`read_coco`, for the training's file.
    """

    def __init__(
        self,
        *,
        annotations: str,
        images: str,
        classes: list[str] | None = None,
        overlap: Overlap = "ignore",
        group: str | None = None,
        folds: int | None = None,
        fold: int = 0,
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self.annotations, self.images = str(Path(annotations).expanduser()), str(Path(images).expanduser())
        self._files: dict[Split, dict[str, Case]] = {}
        train = self._read("train") if classes is None else None
        super().__init__(classes=classes or ["background", *_categories(train, self.annotations)], **kwargs)
        self.selects = classes is not None
        self.overlap: Overlap = overlap
        self.group = group
        self.splitter = Splitter(val_fraction, test_fraction, split_seed, folds, fold)
        self.mask_values = MaskValues(len(self.classes), ignore_index=IGNORE_INDEX)
        if train is not None:
            self._files["train"] = self._as_cases(train, "train")

    @override
    def cases(self, split: Split) -> list[Case]:
        """Images of a split in the order of their names; all must be there, none is opened.

        Raises:
            NamedError: As :func:`read_coco`; ``data-missing``: a file of annotations or an image is not there;
                ``sizes-differ`` or ``too-few-samples``.
        """
        if PLACE in self.annotations:
            names = self.splitter.share(split, self._groups)
            if names is None:
                raise NamedError(
                    "data-missing",
                    f"data.annotations: '{self.annotations}' is not there for the split {split}.",
                    cause="The annotations of COCO's own test are not public." if split == "test" else None,
                    fix="Score with `validate`, or add the file." if split == "test" else None,
                )
            known = self._known(split) or self._known("train") or {}
        else:
            known = self._known("train") or {}
            names = self.splitter.split(grouped(known, self.group))[split]
        if not names and split != "val":
            raise NamedError(
                "too-few-samples",
                f"Of {len(known)} images none is in the {split} split.",
                cause="data.val_fraction and data.test_fraction hold them out, or hold none out.",
                fix="Change the fractions, or add images.",
            )
        cases = [known[name] for name in names]
        if split == "train":
            self.check_sizes({tuple(json.loads(case.source[1])["size"]): case.source[0] for case in reversed(cases)})
        return cases

    @override
    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read an image and draw its objects.

        Returns:
            The image, float32 [in_channels, H, W] of 0 to 1, and its mask, uint8 [H, W] of class indices and 255
            (does not count); None for new images.

        Raises:
            NamedError: ``data-unreadable``, ``data-size-mismatch`` or ``not-installed``, with the file.
        """
        file, text = case.source
        if text is None:  # a new image is read once
            return read_image(Path(file), self.in_channels, self.white), None
        image = self.image(Path(file))
        drawing = json.loads(text)
        height, width = image.shape[1:]
        if drawing["size"] != [height, width]:
            raise NamedError(
                "data-size-mismatch",
                f"The image '{file}' is {height} × {width} pixels, its annotations are of "
                f"{drawing['size'][0]} × {drawing['size'][1]}.",
                cause="The image was resized or turned (EXIF) after it was annotated.",
                fix="Export the annotations again, of the images as they are.",
            )
        try:
            mask = draw(drawing["objects"], (height, width), self.overlap)
        except ValueError as error:
            raise NamedError(
                "data-unreadable", f"The run lengths of an object of '{file}' are damaged: {error}."
            ) from error
        return image, torch.from_numpy(mask)

    def _groups(self, split: Split) -> dict[str, str] | None:
        known = self._known(split)
        return None if known is None else grouped(known, self.group)

    def _known(self, split: Split) -> dict[str, Case] | None:
        """Cases by their names of a split that has a file of its own."""
        if split not in self._files:
            content = self._read(split)
            if content is None:
                return None
            self._files[split] = self._as_cases(content, split)
        return self._files[split]

    def _read(self, split: Split) -> CocoFile | None:
        path = place_of(self.annotations, split)
        if path is None and PLACE in self.annotations:
            return None
        return read_coco(path or Path(self.annotations))

    def _as_cases(self, content: CocoFile, split: Split) -> dict[str, Case]:
        names = set(content.categories.values())
        lacking = [name for name in self.classes[1:] if name not in names]
        if lacking and split == "train":
            raise NamedError(
                "config",
                f"data.classes has '{lacking[0]}', which is no category of '{self.annotations}'.",
                cause=f"Its categories are {', '.join(sorted(names))}; the first class is the background.",
                fix="Correct data.classes, or leave it out to take all categories.",
            )
        folder = place_of(self.images, split) or Path(self.images)
        label_of = {name: label for label, name in enumerate(self.classes) if label}
        cases = {}
        # Files of one name may lie in several folders.
        flat = unique_stems([Path(image.file_name.replace("/", "_")) for image in content.images])
        for name, image in zip(flat, content.images, strict=True):
            file = folder / image.file_name
            if is_missing(file):
                raise NamedError(
                    "data-missing",
                    f"data.images: '{self.annotations}' names '{image.file_name}', but '{file}' does not exist.",
                    fix="Correct data.images, or add the file.",
                )
            cases[name] = Case(name, (str(file), self._drawing(image, content.categories, label_of)))
        return cases

    def _drawing(self, image: CocoImage, categories: dict[Any, str], label_of: dict[str, int]) -> str:
        """What an image's mask is drawn from, as JSON: a tenth of the memory of Python's own numbers."""
        objects = []
        for annotation in image.annotations:
            name = categories[annotation.category]
            if name in label_of:
                objects.append((label_of[name], annotation.crowd, annotation.segmentation))
            elif not self.selects:
                raise NamedError(
                    "mask-values",
                    f"data.annotations: '{image.file_name}' has an object of the category '{name}', which the file of "
                    "the training lacks.",
                    fix="Name the classes of the training in data.classes; other categories are then background.",
                )
        return json.dumps({"size": image.size, "objects": objects})


def _categories(content: CocoFile | None, annotations: str) -> list[str]:
    if content is None:
        raise NamedError("data-missing", f"data.annotations: '{annotations}' is not there for the split train.")
    if not content.categories:
        raise NamedError("data-missing", f"data.annotations: '{annotations}' lists no category.")
    return list(content.categories.values())
