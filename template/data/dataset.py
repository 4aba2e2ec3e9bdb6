"""From a case to a checked, transformed sample, and from samples to batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import tv_tensors

from ..distributed.faults import NamedError
from ..distributed.raised import headline, raised_at
from ..distributed.told import listed
from ..labels import IGNORE_INDEX
from .broken import Broken, broken, parted
from .packed import packed
from .seeding import draw_from_torch_alone, seeded

#: Reads a case: an image [C, *S] float32 in raw units, and its mask [*S] uint8 or None.
Reader = Callable[["Case"], tuple[Tensor, Tensor | None]]
Sample = dict[str, Any]
#: Sets the numbers that choose what is read apart from those of the augmentation.
_DRAW = 1


class Case(NamedTuple):
    """One thing to segment.

    Attributes:
        name: Unique within its data set; used as the stem of files and in messages.
        source: What the data set needs to read it: paths, a slice number. Must survive pickling.
    """

    name: str
    source: Any


class CaseDataset(Dataset[Sample]):
    """Samples of a list of cases.

    Args:
        cases: The cases, in an order that is the same on every process.
        read: Reads one case.
        classes: Class names; labels must be below their number or :data:`IGNORE_INDEX`.
        in_channels: Channels every image must have.
        preprocess: Deterministic modules, called on the image and (in training) its mask.
        augment: Random modules; None in evaluation.
        seed: Seed of the run; augmentation draws from (seed, epoch, sample).
        draw: Chooses, in training, what of a case is read, such as where a patch lies; it draws from the global
            generators, which are seeded by (seed, epoch, sample) too.
        mask_size: Size of a case's mask where it is not that of the image as it is read, else None.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        read: Reader,
        *,
        classes: Sequence[str],
        in_channels: int,
        preprocess: Sequence[nn.Module],
        augment: Sequence[nn.Module] | None,
        seed: int,
        draw: Callable[[Case], Case] | None = None,
        mask_size: Callable[[Case], Sequence[int] | None] | None = None,
    ) -> None:
        self.cases = packed(cases)
        self.read = read
        self.classes = list(classes)
        self.in_channels = in_channels
        self.preprocess = preprocess
        self.augment = augment
        self.seed = seed
        self.draw = draw
        self.mask_size = mask_size

    #: Whether a case that cannot be read leaves a :class:`Broken` in its place, and the others of its batch whole.
    passes_over = False
    #: Whether samples are augmented later, by :func:`augmented`, which needs their ``key``: (epoch, index).
    defers = False
    #: Reads a case with its image as bytes, for a first transform that makes floats of the part that it needs alone.
    read_bytes: Reader | None = None

    def __len__(self) -> int:
        """Number of cases."""
        return len(self.cases)

    def __getitem__(self, key: int | tuple[int, int]) -> Sample:
        """Make one sample.

        Args:
            key: A case's index, in training with the epoch before it.

        Returns:
            ``image`` float32 [C, *S], ``mask`` uint8 [*S] (absent where the case has none), ``case``, and ``size``,
            the *S of its mask, which is that of the image as it was read unless ``mask_size`` says another.

        Raises:
            NamedError: The case cannot be read, or does not fit the classes and channels; the message names it.
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        case = self.cases[index]
        if self.draw is not None and self.augment is not None:
            with seeded(self.seed, epoch, index, _DRAW):
                case = self.draw(case)
        image, mask = self.checked(case, None if self.defers else self.read_bytes)
        size = self._size(image, case)
        sample: Sample = {"image": tv_tensors.Image(image)}
        del image  # of a volume it is large, and no longer needed when the first transform has been at it
        if self.augment is not None:
            if mask is None:
                raise NamedError(
                    "data-unpaired",
                    f"'{case.name}' has no mask.",
                    cause="read gives None in place of its mask; training needs one.",
                    fix="Add the mask, or leave the case out of cases().",
                )
            sample["mask"] = tv_tensors.Mask(mask)
        transform(sample, self.preprocess, case, "preprocess")
        if self.augment and not self.defers:
            with seeded(self.seed, epoch, index, torch_alone=draw_from_torch_alone(self.augment)):
                transform(sample, self.augment, case, "augment")
        elif self.augment is None and mask is not None:
            # In evaluation the mask keeps its own size, so that scores are counted in the pixels it was drawn in.
            sample["mask"] = mask
        freed = _own if self.defers else Tensor.contiguous
        sample = {name: freed(value.as_subclass(Tensor)) for name, value in sample.items()}
        key_of = {"key": (epoch, index)} if self.defers else {}
        return {**sample, "case": case, "size": size, **key_of}

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> list[Any] | NamedError:
        """Make the samples of a batch; a named failure is returned, since raising it in a worker loses its parts."""
        try:
            return [self._sample_or_broken(key) if self.passes_over else self[key] for key in keys]
        except NamedError as error:
            return error

    def _sample_or_broken(self, key: int | tuple[int, int]) -> Sample | Broken:
        try:
            return self[key]
        except NamedError as error:
            return broken(self.cases[key[1] if isinstance(key, tuple) else key], error)

    def checked(self, case: Case, read: Reader | None = None) -> tuple[Tensor, Tensor | None]:
        """Read a case, in another way than all others or not, and see whether it fits the classes and the channels.

        Returns:
            The image [C, *S] and its mask [*S], or None, as they are read.

        Raises:
            NamedError: ``data-unreadable``, ``image-channels``, ``data-not-finite``, ``data-size-mismatch`` or
                ``mask-values``, with the name of the case.
        """
        try:
            image, mask = (read or self.read)(case)
        except NamedError:
            raise
        except Exception as error:
            raise NamedError(
                "data-unreadable",
                f"'{case.name}' cannot be read: {_said(error)}.",
                cause="The file is damaged, or not what that line expects.",
            ) from error
        for part, what in ((image, "image"), (mask, "mask")):
            if not isinstance(part, Tensor) and part is not None:
                raise NamedError(
                    "data-unreadable",
                    f"The {what} of '{case.name}' is read as a {type(part).__name__}, and not as a tensor.",
                    cause="An image is a float32 tensor [C, …], a mask a uint8 tensor of labels […].",
                    fix="Give torch.from_numpy(array) back.",
                )
        if image.ndim < 3 or image.shape[0] != self.in_channels:
            raise NamedError(
                "image-channels",
                f"'{case.name}' is an image of shape {list(image.shape)}; data.in_channels is {self.in_channels}.",
            )
        if image.numel() == 0:
            raise NamedError("data-unreadable", f"'{case.name}' is an empty image of shape {list(image.shape)}.")
        # A value that is not finite leaves no sum finite; numbers that are may only be too large to be added up.
        if image.is_floating_point() and not math.isfinite(image.sum()) and not torch.isfinite(image).all():
            raise NamedError("data-not-finite", f"'{case.name}' has values that are NaN or infinite.")
        if mask is not None:
            self._check_mask(image, mask, case)
        return image, mask

    def _size(self, image: Tensor, case: Case) -> tuple[int, ...]:
        return tuple((self.mask_size(case) if self.mask_size else None) or image.shape[1:])

    def _check_mask(self, image: Tensor, mask: Tensor, case: Case) -> None:
        size = self._size(image, case)
        if tuple(mask.shape) != size:
            channels = mask.ndim == image.ndim and mask.shape[1:] == image.shape[1:]
            raise NamedError(
                "data-size-mismatch",
                f"The image of '{case.name}' has the size {list(size)}, its mask {list(mask.shape)}.",
                cause="A mask has one label for each pixel, and no channels." if channels else None,
                fix="Give mask[0], or mask.argmax(0) where each class has a channel." if channels else None,
            )
        low, high = map(int, torch.aminmax(mask))
        if high == IGNORE_INDEX:
            if mask.dtype == torch.uint8:  # of bytes the next one is 0, which is found in a tenth of the time
                high = int((mask + 1).max()) - 1
            else:
                high = int(mask.masked_fill(mask == IGNORE_INDEX, 0).max())
        if high >= len(self.classes) or low < 0:
            found = torch.unique(mask).tolist()
            raise NamedError(
                "mask-values",
                f"The mask of '{case.name}' has the values [{listed([str(value) for value in found])}]; data.classes "
                f"names {len(self.classes)} classes, 0 to {len(self.classes) - 1}.",
            )


def transform(sample: Sample, modules: Sequence[nn.Module], case: Case, key: str) -> None:
    """Transform a sample in its place, so that nobody holds what a module has replaced."""
    for number, module in enumerate(modules):
        shape, keys, fitted = list(sample["image"].shape), list(sample), _fit(sample)
        place = f"data.{key}[{number}], {type(module).__name__},"
        try:
            made: Any = module(sample)
        except NamedError:
            raise
        except Exception as error:
            raise NamedError(
                "transform", f"{place} fails on '{case.name}' of shape {shape}: {_said(error)}."
            ) from error
        lost = [name for name in keys if not isinstance(made, dict) or not isinstance(made.get(name), Tensor)]
        if lost:
            raise NamedError(
                "transform",
                f"{place} gives no {' and no '.join(lost)} of '{case.name}' back.",
                cause="A transform is given a dictionary of image and mask, and gives one back.",
                fix="Give the changed dictionary back, with all of its keys.",
            )
        made = dict(made)  # it may be the sample
        sample.clear()
        sample.update(made)
        del made
        if fitted and not _fit(sample):
            shapes = list(sample["image"].shape), list(sample["mask"].shape)
            raise NamedError(
                "transform",
                f"{place} makes an image of shape {shapes[0]} and a mask of {shapes[1]} out of '{case.name}'.",
                cause="It changes the image alone, or both in different ways.",
                fix="Change 'image' and 'mask' alike; the geometry of torchvision.transforms.v2 does.",
            )


def _own(values: Tensor) -> Tensor:
    """A tensor without others' memory: a part is copied, and one that is whole keeps its order, for it may round."""
    return values if values.untyped_storage().nbytes() == values.nbytes else values.contiguous()


def _fit(sample: Sample) -> bool:
    """Whether image and mask, where there is one, have one size."""
    return "mask" not in sample or sample["mask"].shape == sample["image"].shape[1:]


def _said(error: Exception) -> str:
    place = raised_at(error, but=__file__).partition(": ")[0]
    text = headline(error).rstrip(".")
    return f"{text}, raised at {place}" if place else text


def collate(samples: list[Sample] | NamedError) -> Sample | NamedError:
    """Stack the samples of a training batch.

    Returns:
        ``image`` float32 [N, C, *S], ``mask`` uint8 [N, *S], lists ``case`` and ``size`` of N; or a sample's failure.
    """
    if isinstance(samples, NamedError):
        return samples
    first = samples[0]["image"].shape
    for sample in samples:
        if sample["image"].shape != first:
            return NamedError(
                "sizes-differ",
                f"'{samples[0]['case'].name}' has the shape {list(first)} and "
                f"'{sample['case'].name}' {list(sample['image'].shape)}, in one training batch.",
            )
    return _stack(samples)


def collate_by_shape(samples: list[Any] | NamedError) -> list[Any] | NamedError:
    """Group the samples of an evaluation batch by shape and stack each group.

    Returns:
        One batch as of :func:`collate` for each shape, in the order of their first samples, then what is broken; or a
        sample's failure.
    """
    if isinstance(samples, NamedError):
        return samples
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    whole, failed = parted(samples)
    for sample in whole:
        groups.setdefault((sample["image"].shape, sample["size"], "mask" in sample), []).append(sample)
    return [*(_stack(group) for group in groups.values()), *failed]


def moved_to(batch: Any, device: torch.device) -> Any | None:
    """A batch of :func:`collate` or :func:`collate_by_shape` on a device; None if it is something else."""
    if isinstance(batch, list):
        groups = [moved_to(group, device) for group in batch]
        return None if any(group is None for group in groups) else groups
    if not isinstance(batch, dict) or "case" not in batch:
        return None
    # As Lightning does it: the CPU need not wait while a GPU copies from pinned memory.
    wait = device.type in ("cpu", "mps")
    return {k: v.to(device, non_blocking=not wait) if isinstance(v, Tensor) else v for k, v in batch.items()}


def _stack(samples: list[Sample]) -> Sample:
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {name: _joined(column) if name in ("image", "mask") else column for name, column in columns.items()}


def _joined(column: list[Tensor]) -> Tensor:
    """A batch of one takes no copy, which of a volume may be large."""
    return torch.stack(column) if len(column) > 1 else column[0][None]
