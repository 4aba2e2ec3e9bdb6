"""Augmentation in the training process, on its device, with the random numbers that a loader worker would have used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from ..distributed.faults import NamedError
from .dataset import Sample, collate, transform
from .seeding import seeded


class Unaugmented:
    """The samples of a training batch as ``preprocess`` leaves them, which may still be of several sizes.

    No list, so that nobody takes it apart on its way: a precision plugin would convert the images too early.

    Args:
        samples: As a :class:`CaseDataset` that defers augmentation makes them.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = list(samples)

    def pin_memory(self) -> Unaugmented:
        """A copy in memory from which a GPU can fetch by itself; the loader calls it."""
        return self._each(Tensor.pin_memory)

    def to(self, device: torch.device) -> Unaugmented:
        """The samples on a device; Lightning calls it."""
        # As Lightning does it: the CPU need not wait while a GPU copies from pinned memory.
        fast = device.type not in ("cpu", "mps")
        return self._each(lambda values: values.to(device, non_blocking=fast))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Unaugmented:
        return Unaugmented([{k: change(v) if isinstance(v, Tensor) else v for k, v in s.items()} for s in self.samples])


def gathered(samples: list[Sample] | NamedError) -> Unaugmented | NamedError:
    """Take the place of :func:`collate` in a loader whose samples are augmented later."""
    return samples if isinstance(samples, NamedError) else Unaugmented(samples)


def augmented(batch: Unaugmented, modules: Sequence[nn.Module], seed: int) -> Sample:
    """Augment each sample of a batch where it is, and stack them.

    On the CPU the result is that of a loader worker, bit for bit. On a GPU what is drawn on the CPU (all strengths and
    places) is the same; what a transform draws on the image's device, such as noise, is other noise, which comes from
    the same seeds and is thus the same on every number of processes.

    Args:
        batch: The samples.
        modules: Of ``data.augment``.
        seed: Of the run.

    Returns:
        A batch as of :func:`collate`.

    Raises:
        NamedError: A transform fails, or sizes differ after the last one.
    """
    made = []
    for sample in batch.samples:
        words, case = (seed, *sample["key"]), sample["case"]
        pair: Sample = {"image": tv_tensors.Image(sample["image"]), "mask": tv_tensors.Mask(sample["mask"])}
        if modules:
            with seeded(*words), _seeded_on(pair["image"].device, words):
                transform(pair, modules, case, "augment")
        pair = {name: value.as_subclass(Tensor).contiguous() for name, value in pair.items()}
        made.append({**pair, "case": case, "size": sample["size"]})
    stacked = collate(made)
    if isinstance(stacked, NamedError):
        raise stacked
    return stacked


@contextmanager
def _seeded_on(device: torch.device, words: Sequence[int]) -> Iterator[None]:
    """Seed a GPU's own generator as well, and restore it: dropout draws from it."""
    if device.type != "cuda":
        yield
        return
    generator = torch.cuda.default_generators[device.index]
    state = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(state)
