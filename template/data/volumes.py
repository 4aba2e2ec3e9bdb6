"""What all formats of volumes share: slices, slices with neighbours, or 3D patches of them; whole volumes to score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX
from .cache import ArrayCache
from .dataset import Case, CaseDataset
from .decoded import DecodedVolumes, Volume
from .mask_values import MaskValues
from .module import SegmentationData, Split
from .names import unique_volume_names
from .splits import Splitter
from .transforms import Standardize
from .volume_files import Geometry, list_volumes, write_labels
from .volume_reader import VolumeReader
from .written import refuse_among, whole


class Slice(NamedTuple):
    """An axial slice of a volume, counted from the feet."""

    volume: Volume
    number: int


class Patch(NamedTuple):
    """A patch of a volume.

    Attributes:
        volume: The volume.
        number: Tells the patches of an epoch apart.
        start: Its first voxel on the network's grid, drawn anew in each epoch; None: in the middle.
    """

    volume: Volume
    number: int
    start: tuple[int, int, int] | None = None


class VolumeData(SegmentationData):
    """Base of all data sets of volumes: a subclass says which there are.

    Volumes are turned to one orientation, resampled if ``spacing`` asks for it, and kept decoded in ``cache_dir``, from
    where slices and patches are read at the disk's speed. Training sees slices or patches; scores and predictions are
    those of whole volumes, on the voxels of the files.

    Args:
        classes: Class names; the position is the label in the masks.
        channels: Channels of the files.
        view: ``slices`` for 2D networks, ``patches`` for 3D ones.
        context: Neighbouring slices on each side, given as further channels (2.5D), lowest first.
        patch: Depth, height and width of a patch, in voxels.
        patches_per_volume: Patches of each volume in an epoch.
        foreground: Part of the patches that are centred on a labelled voxel, each class as often as the others.
        spacing: Size of a voxel along depth, height and width, in mm, that volumes are resampled to; null in a place
            leaves that axis as it is. Default: no resampling.
        standardize: Bring each channel of each volume to mean 0 and standard deviation 1 over all its voxels, before
            slices and patches are cut out of it: for MR, which has no unit.
        mask_values: File value to class index; default: file values are class indices.
        ignore_index: Value in the masks of voxels that do not count.
        val_fraction: Part of the volumes that is held out for validation, by patient.
        test_fraction: Part that is held out for the test.
        split_seed: Seed of the split.
        folds: Number of folds of a cross-validation, in place of ``val_fraction``.
        fold: The fold that is held out for validation, from 0.
        cache_dir: Where decoded volumes are kept.
        cache_gb: Size of all of them together, GB.
        **kwargs: As of :class:`SegmentationData`.
    """

    def __init__(
        self,
        *,
        classes: list[str],
        channels: int = 1,
        view: Literal["slices", "patches"] = "slices",
        context: int = 0,
        patch: tuple[int, int, int] = (32, 128, 128),
        patches_per_volume: int = 4,
        foreground: float = 0.33,
        spacing: tuple[float | None, float | None, float | None] | None = None,
        standardize: bool = False,
        mask_values: dict[int, int] | None = None,
        ignore_index: int | None = None,
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        folds: int | None = None,
        fold: int = 0,
        cache_dir: str = "data/cache",
        cache_gb: float = 100.0,
        **kwargs: Any,
    ) -> None:
        neighbours = context if view == "slices" else 0
        super().__init__(classes=classes, in_channels=channels * (1 + 2 * neighbours), **kwargs)
        _check(context >= 0, f"data.context is {context}; it is 0 or more")
        _check(view == "slices" or context == 0, f"data.context is {context}, which is of slices; patches have 0")
        _check(min(patch) >= 1 and patches_per_volume >= 1, f"data.patch is {list(patch)} × {patches_per_volume}")
        _check(0 <= foreground <= 1, f"data.foreground is {foreground}; it is a part, 0 to 1")
        _check(all(size is None or size > 0 for size in spacing or ()), f"data.spacing is {spacing}; it is in mm")
        if any(isinstance(module, Standardize) for module in self.preprocess):
            raise NamedError(
                "config",
                "data.preprocess holds a Standardize, which cannot be used with volumes.",
                cause="Training would take the mean of a slice or patch, evaluation that of the whole volume.",
                fix="Set data.standardize: true in its place: the mean of the whole volume in both.",
            )
        self.standardize = standardize
        self.channels = channels
        self.view = view
        self.context = context
        self.patch = tuple(patch)
        self.patches_per_volume = patches_per_volume
        self.foreground = foreground
        # 0 and 255 are no two classes in a volume, unless mask_values says so.
        self.values = MaskValues(len(classes), mask_values or {n: n for n in range(len(classes))}, None, ignore_index)
        self.splitter = Splitter(val_fraction, test_fraction, split_seed, folds, fold)
        cache = ArrayCache(Path(cache_dir), 1e9 * cache_gb)
        self.decoded = DecodedVolumes(cache, self.values, channels, spacing, standardize, self.reader)

    #: How files are read; a format of other files has its own.
    reader = VolumeReader()

    # What a format says --------------------------------------------------------------------------------------------

    @abstractmethod
    def volumes(self) -> list[Volume]:
        """All volumes with masks, in an order that is the same on every process."""

    def split_of_volumes(self, volumes: Sequence[Volume], split: Split) -> list[Volume]:
        """Those of a split; a format with splits of its own replaces it."""
        groups = {volume.name: volume.patient or volume.name for volume in volumes}
        chosen = set(self.splitter.split(groups)[split])
        return [volume for volume in volumes if volume.name in chosen]

    # What they share -----------------------------------------------------------------------------------------------

    @property
    def window(self) -> tuple[int, ...] | None:
        """Size of the patches that the network is trained on, for sliding over whole volumes; None with slices."""
        return self.patch if self.view == "patches" else None

    @property
    def planes(self) -> int | None:
        """Neighbours on each side of the slices that the network is given one by one; None with patches."""
        return self.context if self.view == "slices" else None

    one_by_one = True

    def cases(self, split: Split) -> list[Case]:
        """Slices or patches of the training volumes; whole volumes of the others.

        Raises:
            NamedError: With the files: one is missing, cannot be read, or does not lie on its mask.
        """
        volumes = self.split_of_volumes(self._checked_volumes(), split)
        if not volumes and split != "val":
            raise NamedError(
                "too-few-samples",
                f"Of {len(self._checked_volumes())} volumes none is in the {split} split.",
                cause="",
                fix="Change data.val_fraction, data.test_fraction or data.folds, or add volumes.",
            )
        if split != "train":
            return [Case(volume.name, volume) for volume in volumes]
        if self.view == "patches":
            return [
                Case(f"{volume.name}_patch_{n}", Patch(volume, n))
                for volume in volumes
                for n in range(self.patches_per_volume)
            ]
        return [
            Case(f"{volume.name}_slice_{k:03d}", Slice(volume, k))
            for volume in volumes
            for k in range(self.decoded.grid(self.reader.header(Path(volume.images[0]))[0])[0])
        ]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read a slice, a patch or a whole volume.

        Returns:
            The image, float32 [C, *S] in the file's unit or standardised: [C * (1 + 2 * context), H, W] of a slice, the
            channels of its neighbours one after the other; [C, d, h, w] of a patch; [C, D, H, W] of a volume, resampled
            to ``spacing``. Its labels, uint8 [*S]; those of a volume as they are in its file, not resampled.

        Raises:
            NamedError: With the file.
        """
        source = case.source
        if isinstance(source, Slice):
            return self._slice(source)
        if isinstance(source, Patch):
            return self._patch(source)
        image = torch.from_numpy(self.decoded.for_network(source, self.decoded.image(source)))
        mask = None if source.mask is None else torch.from_numpy(np.array(self.decoded.mask(source, resample=False)))
        self.decoded.forget()  # read at once, it is not needed in memory twice
        return image, mask

    @override
    def read_plane(self, case: Case, number: int, planes: int) -> Tensor:
        # The image may have been resampled to another grid than its file's, which is the mask's.
        image = self.decoded.image(case.source)
        return torch.from_numpy(np.array(image[:, number * image.shape[1] // planes], dtype=np.float32))

    def predict_cases(self, path: Path) -> list[Case]:
        """New volumes: one file, all NIfTI files of a folder and its subfolders, or those of a pattern (``*.nii.gz``).

        Raises:
            NamedError: ``data-missing`` or ``data-unreadable``, with the file.
        """
        files = self.new_files(path)
        names = unique_volume_names(files)
        return self.new_cases([Volume(name, (str(file),)) for name, file in zip(names, files, strict=True)])

    def new_cases(self, volumes: list[Volume]) -> list[Case]:
        """Cases of new volumes; of one that is alone, after a look at its header.

        Raises:
            NamedError: As :meth:`cases`.
        """
        if len(volumes) == 1:  # of several, each is looked at when it is its turn: the good ones are predicted
            self.decoded.check(volumes[0])
        return [Case(volume.name, volume) for volume in volumes]

    def new_files(self, path: Path) -> list[Path]:
        """Files of new volumes, for ``predict``.

        Raises:
            NamedError: ``data-missing``.
        """
        return list_volumes(path, "data.predict")

    def write(self, case: Case, mask: Tensor, folder: Path) -> Path:
        """Write a predicted mask as NIfTI, with affine, shape and orientation of its image, in the masks' values.

        Args:
            case: The case.
            mask: Labels, uint8 [D, H, W], in the image's size.
            folder: Existing folder.

        Returns:
            The file written: ``.nii`` of a ``.nii`` image, else ``.nii.gz``.
        """
        image = Path(case.source.images[0])
        file = folder / f"{case.name}{'.nii' if image.name.endswith('.nii') else '.nii.gz'}"
        given = case.source.mask
        refuse_among(
            folder, map(Path, case.source.images), [*self.folders_of_masks(), *([Path(given).parent] if given else [])]
        )
        labels = mask.cpu().numpy()
        values, _ = self.values.to_values(labels.reshape(len(labels), -1), two_tone=False)
        with whole(file) as part:
            write_labels(part, values.reshape(labels.shape), self.geometry(case))
        return file

    def folders_of_masks(self) -> list[Path]:
        """Where the masks of the data set are, so that predictions do not take their place."""
        return []

    def geometry(self, case: Case) -> Geometry:
        """Where the voxels of a case's file are."""
        return self.reader.header(Path(case.source.images[0]))[0]

    @override
    def spacing(self, case: Case) -> Sequence[float] | None:
        source = case.source
        return self.geometry(Case(case.name, getattr(source, "volume", source))).spacing

    @override
    def mask_size(self, case: Case) -> Sequence[int] | None:
        # Scores and predictions are on the voxels of the files, also where the network sees resampled ones.
        return self.geometry(case).size if isinstance(case.source, Volume) else None

    @override
    def channels_of(self, training: bool) -> int:
        return self.in_channels if training else self.channels

    # Slices and patches --------------------------------------------------------------------------------------------

    def _slice(self, source: Slice) -> tuple[Tensor, Tensor | None]:
        image, labels = self.decoded.image(source.volume), self.decoded.mask(source.volume, resample=True)
        near: Any = slice(source.number - self.context, source.number + self.context + 1)
        if near.start < 0 or near.stop > image.shape[1]:  # indices copy once more than a slice does
            near = np.clip(np.arange(near.start, near.stop), 0, image.shape[1] - 1)
        slices = self.decoded.for_network(source.volume, image[:, near])
        return torch.from_numpy(slices).flatten(0, 1), torch.from_numpy(np.array(labels[source.number]))

    @override
    def _dataset(self, cases: Sequence[Case], augment: list[nn.Module] | None) -> CaseDataset:
        dataset = super()._dataset(cases, augment)
        if self.view == "slices":
            dataset.draw = None  # there is nothing to choose, for which generators would be seeded
        return dataset

    @override
    def draw(self, case: Case) -> Case:
        if not isinstance(case.source, Patch):
            return case
        volume = case.source.volume
        size = self.decoded.mask(volume, resample=True).shape
        centres = self.decoded.centres(volume)
        # Drawn in any case, so that what follows does not depend on it.
        start = [int(torch.randint(max(0, n - p) + 1, ())) for n, p in zip(size, self.patch, strict=True)]
        if len(centres) and float(torch.rand(())) < self.foreground:
            kinds = np.unique(centres[:, 0])
            of_kind = centres[centres[:, 0] == kinds[int(torch.randint(len(kinds), ()))]]
            centre = of_kind[int(torch.randint(len(of_kind), ()))][1:]
            start = [
                int(np.clip(c - p // 2, 0, max(0, n - p))) for c, n, p in zip(centre, size, self.patch, strict=True)
            ]
        return case._replace(source=case.source._replace(start=(start[0], start[1], start[2])))

    def _patch(self, source: Patch) -> tuple[Tensor, Tensor | None]:
        image, labels = self.decoded.image(source.volume), self.decoded.mask(source.volume, resample=True)
        start = source.start or [max(0, n - p) // 2 for n, p in zip(labels.shape, self.patch, strict=True)]
        where = tuple(slice(a, a + p) for a, p in zip(start, self.patch, strict=True))
        part = image[(slice(None), *where)]
        truth = np.array(labels[where])
        lacking = [(0, p - n) for p, n in zip(self.patch, truth.shape, strict=True)]
        if any(after for _, after in lacking):  # a volume that is smaller than a patch
            part = np.pad(part, [(0, 0), *lacking], mode="edge")
            truth = np.pad(truth, lacking, constant_values=IGNORE_INDEX)
        return torch.from_numpy(self.decoded.for_network(source.volume, part)), torch.from_numpy(truth)

    def _checked_volumes(self) -> list[Volume]:
        if not hasattr(self, "_volumes"):
            volumes = self.volumes()
            for volume in volumes:
                self.decoded.check(volume)
            self._volumes = volumes
        return self._volumes


def _check(right: bool, what: str) -> None:
    if not right:
        raise NamedError("config", f"{what}.")
