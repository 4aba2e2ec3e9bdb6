"""Pascal VOC, and data sets in its layout (Everingham et al., IJCV 2010, doi:10.1007/s11263-009-0275-4)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX
from .dataset import Case
from .mask_values import MaskValues
from .module import Split
from .name_lists import read_names, refuse_shared
from .pictures import Pair, PictureData, is_missing, pair
from .splits import Splitter, grouped

#: The classes of VOC 2007 to 2012 in the order of their palette indices.
CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


class VOC(PictureData):
    r"""Pascal VOC: lists of names, JPEG images, palette masks.

    ::

        ImageSets/Segmentation/train.txt, val.txt, trainval.txt, test.txt   names, one a line
        JPEGImages/2007_000032.jpg
        SegmentationClass/2007_000032.png                                   palette: the index is the class

    Traps: the list of segmentation is a sixth of JPEGImages, so that most images have no mask and are in no list; the
    index 255, drawn as a cream line around each object, does not count; ``trainval`` holds ``train`` and ``val``; the
    masks of the test of 2012 are not public; copies of the data whose masks were converted to colours are refused.

    Args:
        root: Folder that holds ``ImageSets``, such as ``VOCdevkit/VOC2012``.
        classes: Class names in the order of the palette indices.
        train_set: List of the training, a name in ``ImageSets/Segmentation``.
        val_set: List of the validation; null: it is cut out of training by ``val_fraction`` or ``folds``.
        test_set: List of the test.
        masks: Folder of the masks in ``root``, such as ``SegmentationClassAug`` of the augmented training set.
        group: Regular expression on the names; all images of which the part in parentheses is the same are cut out of
            training together.
        folds: Number of folds of cross-validation, in place of ``val_fraction``; needs ``val_set: null``.
        fold: Which fold is for validation, from 0.
        val_fraction: Part of the training list that is held out where ``val_set`` is null.
        split_seed: Seed of that split.
        kwargs: Arguments of the base class.
    """

    mask_hint = (
        f"VOC's masks hold the class of each pixel, and {IGNORE_INDEX} where it does not count.",
        "Name every class in data.classes, or take the palette masks as they come in VOC's archive.",
    )

    def __init__(
        self,
        *,
        root: str = "data/VOCdevkit/VOC2012",
        classes: list[str] | None = None,
        train_set: str = "train",
        val_set: str | None = "val",
        test_set: str = "test",
        masks: str = "SegmentationClass",
        group: str | None = None,
        folds: int | None = None,
        fold: int = 0,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        classes = list(classes or CLASSES)
        super().__init__(classes=classes, **kwargs)
        self.root = Path(root).expanduser()
        self.sets: dict[Split, str] = {"train": train_set, **({"val": val_set} if val_set else {}), "test": test_set}
        self.masks = masks
        self.group = group
        self.splitter = Splitter(val_fraction, 0.0, split_seed, folds, fold)
        self.mask_values = MaskValues(len(classes), ignore_index=IGNORE_INDEX)

    @override
    def cases(self, split: Split) -> list[Case]:
        """Images of a list, in the order of their names; all headers are looked at.

        Raises:
            NamedError: ``data-missing``, ``data-unpaired``, ``data-unreadable``, ``data-size-mismatch``, ``config`` or
                ``sizes-differ``, with the files.
        """
        names = self.splitter.share(split, self._groups)
        assert names is not None  # every list is named
        return self.as_cases(split, {name: self._pair(name, split) for name in names})

    @override
    def folders_of_masks(self) -> list[Path]:
        return [self.root / self.masks]

    def _groups(self, split: Split) -> dict[str, str] | None:
        if split not in self.sets:
            return None
        if split == "test":
            return grouped(self._read_list("test"), None)
        return grouped(self._training[split], self.group)

    @cached_property
    def _training(self) -> dict[Split, list[str]]:
        """Names of the lists that a training uses, none of which is in two of them."""
        parts: tuple[Split, ...] = ("train", "val")
        lists = {part: self._read_list(part) for part in parts if part in self.sets}
        refuse_shared(lists, {part: self._list(part) for part in lists})
        return lists

    def _list(self, split: Split) -> Path:
        return self.root / "ImageSets" / "Segmentation" / f"{self.sets[split]}.txt"

    def _read_list(self, split: Split) -> list[str]:
        if not (self.root / "ImageSets").is_dir():
            raise NamedError(
                "data-missing",
                f"data.root '{self.root}' has no folder ImageSets.",
                fix="Give the folder of one year that holds ImageSets, such as VOCdevkit/VOC2012.",
            )
        return read_names(self._list(split), f"data.{split}_set")

    def _pair(self, name: str, split: Split) -> Pair:
        image, mask = self.root / "JPEGImages" / f"{name}.jpg", self.root / self.masks / f"{name}.png"
        if is_missing(image):
            raise NamedError("data-missing", f"'{self._list(split)}' lists '{name}', but '{image}' does not exist.")
        if is_missing(mask):
            test = split == "test"
            raise NamedError(
                "data-unpaired",
                f"'{self._list(split)}' lists '{name}', but '{mask}' does not exist.",
                cause="The masks of VOC 2012's test are not public." if test else "Each listed image has a mask.",
                fix="Score with `validate`, or set data.test_set: val."
                if test
                else "Add the mask, or unlist the name.",
            )
        return pair(image, mask)
