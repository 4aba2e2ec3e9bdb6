"""Oxford-IIIT Pet: cats and dogs with trimaps (Parkhi et al., CVPR 2012, doi:10.1109/CVPR.2012.6248092)."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX
from .dataset import Case
from .mask_values import MaskValues
from .module import Split
from .name_lists import read_names
from .pictures import Pair, PictureData, is_missing, pair
from .splits import Splitter, grouped

#: Values of a trimap.
_PET, _BACKGROUND, _BORDER = 1, 2, 3
_FOLDER = "oxford-iiit-pet"


class OxfordPet(PictureData):
    """Oxford-IIIT Pet: 7349 pictures of cats and dogs, and where the animal is.

    ::

        oxford-iiit-pet/images/Abyssinian_1.jpg
        oxford-iiit-pet/annotations/trimaps/Abyssinian_1.png        1 pet, 2 background, 3 border
        oxford-iiit-pet/annotations/trainval.txt, test.txt          Abyssinian_1 1 1 1, one picture a line

    Traps: a trimap begins at 1, and its background is 2; the border is a band of some pixels where the annotators did
    not decide; ``annotations`` also holds ``._*`` files of macOS and ``list.txt``, the list of both splits; images
    have all sizes, so that ``size`` is needed; there is no validation split, it is cut out of ``trainval``.
    ``predict`` writes trimaps.

    Args:
        root: Folder that holds ``oxford-iiit-pet``, as of torchvision.
        border: ``ignore``: the border does not count; ``class``: it is a class of its own, ``border``.
        download: Whether to fetch what is missing (800 MB) by ``torchvision.datasets.OxfordIIITPet``.
        folds: Number of folds of cross-validation, in place of ``val_fraction``.
        fold: Which fold is for validation, from 0.
        val_fraction: Part of ``trainval`` that is held out for validation.
        split_seed: Seed of that split.
        kwargs: Arguments of the base class.
    """

    mask_hint = ("A trimap holds 1 (pet), 2 (background) and 3 (border).", "Take it as it comes in annotations.tar.gz.")

    def __init__(
        self,
        *,
        root: str = "data",
        border: Literal["ignore", "class"] = "ignore",
        download: bool = True,
        folds: int | None = None,
        fold: int = 0,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        classes = ["background", "pet", *(["border"] if border == "class" else [])]
        super().__init__(classes=classes, **kwargs)
        self.root = Path(root).expanduser()
        self.download = download
        self.splitter = Splitter(val_fraction, 0.0, split_seed, folds, fold)
        of_border = 2 if border == "class" else IGNORE_INDEX
        self.mask_values = MaskValues(len(classes), {_BACKGROUND: 0, _PET: 1, _BORDER: of_border})

    @override
    def prepare_data(self) -> None:
        """Fetch the data set where it is missing, on one process of each machine.

        Raises:
            NamedError: ``download``: it cannot be fetched or stored.
        """
        folder = self.root / _FOLDER
        if not self.download or all((folder / name).is_dir() for name in ("images", "annotations")):
            return
        from torchvision.datasets import OxfordIIITPet

        rank_zero_info(f"Fetching Oxford-IIIT Pet (800 MB) to {folder.resolve()}.")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            OxfordIIITPet(self.root, download=True)
        except (OSError, RuntimeError, ValueError, EOFError, tarfile.TarError) as error:
            # RuntimeError: torchvision's word for a wrong checksum; ValueError: for a list that it cannot read.
            raise NamedError(
                "download",
                f"Oxford-IIIT Pet cannot be fetched to '{folder}': {str(error) or type(error).__name__}.",
                fix=f"Put images.tar.gz and annotations.tar.gz of https://www.robots.ox.ac.uk/~vgg/data/pets into "
                f"'{folder}' and unpack them there.",
            ) from error

    @override
    def cases(self, split: Split) -> list[Case]:
        """Pictures of a split in the order of their names; all headers are looked at.

        Raises:
            NamedError: ``data-missing``, ``data-unpaired``, ``data-unreadable``, ``data-size-mismatch`` or
                ``sizes-differ``, with the files.
        """
        names = self.splitter.share(split, self._groups)
        assert names is not None  # both lists are named
        return self.as_cases(split, {name: self._pair(name) for name in names})

    @override
    def folders_of_masks(self) -> list[Path]:
        return [self.root / _FOLDER / "annotations" / "trimaps"]

    def _groups(self, split: Split) -> dict[str, str] | None:
        if split == "val":
            return None
        path = self.root / _FOLDER / "annotations" / ("test.txt" if split == "test" else "trainval.txt")
        return grouped(read_names(path, "data.root", _name), None)

    def _pair(self, name: str) -> Pair:
        folder = self.root / _FOLDER
        image, mask = folder / "images" / f"{name}.jpg", folder / "annotations" / "trimaps" / f"{name}.png"
        for file, what in ((image, "image"), (mask, "trimap")):
            if is_missing(file):
                identifier = "data-missing" if file is image else "data-unpaired"
                raise NamedError(
                    identifier,
                    f"The {what} '{file}' does not exist, and a list in '{folder / 'annotations'}' names it.",
                    cause="The archives were not unpacked whole.",
                    fix=f"Delete '{folder}' and fetch the data set again, or unpack both archives there.",
                )
        return pair(image, mask)


def _name(line: str) -> str:
    """The name in a line ``name class species breed``."""
    return line.rsplit(maxsplit=3)[0] if len(line.split()) > 3 else line
