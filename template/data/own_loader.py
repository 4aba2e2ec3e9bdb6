"""Cases and loaders of a data set's own: what they must be, and what the program cannot do with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from ..distributed.faults import NamedError
from .dataset import Case
from .on_device import Unaugmented

Batch = dict[str, Any]


def training_batch(batch: Any, loader: str) -> Batch | Unaugmented:
    """Check a training batch of a loader of one's own, and bring its names into the form that messages use.

    Args:
        batch: A mapping with ``image``, float [N, C, *S], and ``mask``, integer [N, *S]; ``case`` may name the N
            samples. What :class:`SegmentationData`'s own loader gives is one.
        loader: What gave it, for the message, such as ``MyData.train_dataloader``.

    Raises:
        NamedError: ``batch-form``.
    """
    if isinstance(batch, Unaugmented):
        return batch
    image, mask = _tensors(batch, loader, ("image", "mask"))
    if mask.shape[1:] != image.shape[2:]:
        raise NamedError(
            "batch-form",
            f"{loader} gives images of the size {list(image.shape[2:])} with masks of {list(mask.shape[1:])}.",
            fix="Give both the same size in training.",
        )
    names = _names(batch.get("case"), len(image))
    rest = {key: value for key, value in batch.items() if key != "case"}
    return {**rest, "case": names} if names else rest


def evaluation_batch(batch: Any, loader: str, predicts: bool = False) -> list[Batch]:
    """Check a batch of validation, test or prediction of a loader of one's own, and fill in what it lacks.

    Args:
        batch: A mapping as of :func:`training_batch`, or a list of such, in which a mask may have its own size.
        loader: What gave it, for the message.
        predicts: No masks are needed, but cases, from which files are named.

    Returns:
        Mappings with ``case`` and ``size`` as well.

    Raises:
        NamedError: ``batch-form``.
    """
    groups: list[Batch] = []
    for group in batch if isinstance(batch, list) else [batch]:
        image, *_ = _tensors(group, loader, ("image",) if predicts else ("image", "mask"))
        names = _names(group.get("case"), len(image))
        if predicts and not names:
            raise NamedError(
                "batch-form",
                f"{loader} gives no 'case', a list of a Case for each image.",
                cause="Predictions are written under the names of their cases.",
            )
        size = group.get("size")
        own_size = isinstance(size, list) and len(size) == len(image) and not any(isinstance(n, Tensor) for n in size)
        sizes = size if own_size else [tuple(image.shape[2:])] * len(image)
        unnamed = [Case(f"sample {number}", None) for number in range(len(image))]
        groups.append({**group, "case": names or unnamed, "size": sizes})
    return groups


def checked_cases(found: list[Any], where: str) -> list[Case]:
    """Cases as a data set of one's own lists them.

    Args:
        found: What it lists.
        where: The method, for the message, such as ``MyData.cases('train')``.

    Raises:
        NamedError: ``data-unreadable``: one is no :class:`Case`.
    """
    strange = next((one for one in found if not isinstance(one, Case)), None)
    if strange is not None:
        raise NamedError(
            "data-unreadable",
            f"{where} lists a {type(strange).__name__}, and no Case.",
            cause="A case has a name, and a source from which read takes what it needs.",
            fix="List Case(name, source).",
        )
    return found


def told_of_loader(loader: Any, batches: float, accumulation: int, processes: int) -> list[str]:
    """What the start of a fit says of a training loader of one's own.

    Args:
        loader: The loader.
        batches: An epoch's, on this process; infinite where nobody knows.
        accumulation: Batches of an optimizer step.
        processes: Number of processes.
    """
    count = "an unknown number of" if math.isinf(batches) else f"{int(batches)}"
    plan = f"{count} batches an epoch × {processes} process{'es' * (processes > 1)}, {accumulation} accumulation"
    lost = (
        "no look for parameters without a gradient before the first step; a run resumed inside an epoch begins the "
        "loader anew; another number of processes is another training"
    )
    told = [f"train_dataloader of your own: {plan}; data.batch_size is what you make of it", f"so there is {lost}"]
    if processes > 1 and _reads_all(loader):
        told.append("every process reads all samples: give the loader a torch.utils.data.DistributedSampler")
    return told


def _reads_all(loader: Any) -> bool:
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and isinstance(loader.sampler, (RandomSampler, SequentialSampler))
        and not isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler)
    )


def _tensors(batch: Any, loader: str, keys: Sequence[str]) -> list[Tensor]:
    if not isinstance(batch, Mapping):
        parts = f" of {len(batch)}" if isinstance(batch, (list, tuple)) else ""
        raise NamedError("batch-form", f"{loader} gives a {type(batch).__name__}{parts} as a batch.")
    for key in keys:
        if not isinstance(batch.get(key), Tensor):
            found = f"a {type(batch[key]).__name__}" if key in batch else f"only {', '.join(map(repr, batch))}"
            raise NamedError("batch-form", f"{loader} gives no tensor '{key}', but {found}.")
    image = batch["image"]
    if image.ndim not in (4, 5) or not image.is_floating_point():
        raise NamedError("batch-form", f"{loader} gives images {list(image.shape)} of {image.dtype}.")
    for mask in (batch[key] for key in keys if key == "mask"):
        if mask.ndim != image.ndim - 1 or len(mask) != len(image) or mask.is_floating_point():
            raise NamedError(
                "batch-form",
                f"{loader} gives masks {list(mask.shape)} of {mask.dtype} for images {list(image.shape)}.",
            )
    return [batch[key] for key in keys]


def _names(cases: Any, count: int) -> list[Any]:
    """A case for each sample, or nothing; torch's default collation makes one case of lists out of several."""
    if isinstance(cases, Case):
        cases = [Case(str(name), None) for name in cases.name]
    if not isinstance(cases, (list, tuple)) or len(cases) != count:
        return []
    return [case if hasattr(case, "name") else Case(str(case), None) for case in cases]
