"""Cityscapes (Cordts et al., CVPR 2016, arXiv:1604.01685)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from typing_extensions import override

from ..distributed.faults import NamedError
from ..distributed.told import listed
from ..labels import IGNORE_INDEX
from .dataset import Case
from .mask_values import MaskValues
from .module import Split
from .pictures import PictureData, is_missing, pair

#: Class of each id that is trained and scored, in the order of the train ids 0 to 18; all other ids do not count.
#: From cityscapesScripts, helpers/labels.py.
IDS = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
#: Ids of a pixel that does not count: void, and things that are too rare.
_IGNORED = sorted(set(range(34)) - set(IDS.values()))
_IMAGE, _MASK = "_leftImg8bit.png", "_gtFine_labelIds.png"


class Cityscapes(PictureData):
    """Cityscapes with its fine masks.

    ::

        leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
        gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png

    The 19 classes are those of the benchmark; there is no background, and the other ids do not count.

    Traps: ``labelIds`` are the ids 0 to 33, and ``labelTrainIds``, which some scripts write beside them, are not read;
    license plates, id -1, are not drawn and have the id of their car; the masks of the split ``test`` are dummies; an
    image has 2048 × 1024 pixels, so that a training takes crops (``data.augment``) or a smaller ``data.size``.
    ``predict`` writes ids, as the benchmark takes them.

    Args:
        root: Folder that holds ``leftImg8bit`` and ``gtFine``.
        kwargs: Arguments of the base class.
    """

    mask_hint = (
        "A file _gtFine_labelIds.png holds the ids 0 to 33 of Cityscapes.",
        "Take the file as it comes in gtFine_trainvaltest.zip.",
    )

    def __init__(self, *, root: str = "data/cityscapes", **kwargs: Any) -> None:
        super().__init__(classes=list(IDS), **kwargs)
        self.root = Path(root).expanduser()
        meaning = {number: label for label, number in enumerate(IDS.values())}
        self.mask_values = MaskValues(len(IDS), {**meaning, **dict.fromkeys(_IGNORED, IGNORE_INDEX)})

    @override
    def cases(self, split: Split) -> list[Case]:
        """Images of a split in the order of their names; all headers are looked at.

        Raises:
            NamedError: ``data-missing``, ``data-unpaired``, ``data-unreadable``, ``data-size-mismatch`` or
                ``sizes-differ``, with the files.
        """
        images = self.root / "leftImg8bit" / split
        if split == "test":
            raise NamedError(
                "data-missing",
                f"Cityscapes has no public masks of its test split, '{self.root / 'gtFine' / 'test'}' holds dummies.",
                cause="They are scored by the benchmark's server alone.",
                fix=f"Score with `validate`; predict with --data.predict '{images}/*/*.png'.",
            )
        pairs = {}
        for image in self._images(images):
            name = image.name.removesuffix(_IMAGE)
            mask = self.root / "gtFine" / split / image.parent.name / f"{name}{_MASK}"
            if is_missing(mask):
                raise NamedError("data-unpaired", f"The image '{image}' has no mask '{mask}'.", cause="", fix="Add it.")
            pairs[name] = pair(image, mask)
        # Of other cities the images may be left out on purpose.
        cities = sorted({one.mask.parent for one in pairs.values()})
        masks = [mask for city in cities for mask in sorted(city.glob(f"[!.]*{_MASK}"))]
        lonely = [str(mask) for mask in masks if mask.name.removesuffix(_MASK) not in pairs]
        if lonely:
            raise NamedError(
                "data-unpaired",
                f"{len(lonely)} of {len(masks)} masks have no image in '{images}': {listed(lonely, 3)}.",
                fix="Unpack leftImg8bit_trainvaltest.zip again, or take these masks away.",
            )
        return self.as_cases(split, pairs)

    def _images(self, folder: Path) -> list[Path]:
        """Images of a split, of all its cities."""
        try:
            entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
            # A link that leads nowhere is kept: listing it names it.
            cities = [entry for entry in entries if entry.is_dir() or entry.is_symlink()]
            # Files beside the images, such as ._* of macOS, are passed over.
            files = [file for city in cities for file in city.iterdir() if not file.name.startswith(".")]
        except OSError as error:
            raise NamedError(
                "data-missing", f"data.root: the folder '{error.filename or folder}' cannot be read: {error.strerror}."
            ) from error
        images = sorted((file for file in files if file.name.endswith(_IMAGE)), key=lambda file: file.name)
        if not images:
            raise NamedError(
                "data-missing",
                f"data.root: '{folder}' holds no image <city>/*{_IMAGE} in its {len(cities)} folders.",
                fix="Unpack leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip into data.root.",
            )
        names = [image.name for image in images]
        for name, after in pairwise(names):
            if name == after:
                raise NamedError(
                    "data-unpaired",
                    f"data.root: two cities in '{folder}' have an image '{name}'.",
                    cause="A name begins with its city.",
                    fix="Remove one of them.",
                )
        return images
