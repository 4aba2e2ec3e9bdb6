"""How a whole image or volume becomes logits in evaluation: at once, in windows, or slice by slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sliding import Run, Scan, labels_of, resized, sliding_logits, sliding_window

#: Slices or windows that are run at once; more would need memory, and make nothing faster.
_AT_ONCE = 4


@dataclass(frozen=True)
class Inference:
    """How images are predicted.

    Attributes:
        window: Length of the windows along each spatial axis; None: the whole image at once.
        overlap: Share of a window that the next one covers again.
        flips: Mean over all flips of the spatial axes.
        planes: Neighbouring slices on each side that a 2D network gets of a volume; None: it gets the volume.
    """

    window: tuple[int, ...] | None = None
    overlap: float = 0.5
    flips: bool = False
    planes: int | None = None

    def in_slabs(self, image: Tensor) -> bool:
        """Whether an image [C, *S] is predicted part by part."""
        return self.window is not None or self.flips or (self.planes is not None and image.ndim == 4)

    def logits(self, image: Tensor, size: Sequence[int], run: Run) -> Iterator[tuple[int, Tensor]]:
        """Logits slab by slab along the first spatial axis.

        Args:
            image: [C, *S].
            size: Grid of the logits over the same field of view.
            run: Takes images [B, C, *window] and returns logits [B, K, *window].

        Returns:
            Pairs of a slab's first plane and the slab [K, planes, *size[1:]], in order and without gaps.
        """
        shape = tuple(image.shape[1:])
        if self.planes is not None and image.ndim == 4:
            slabs = _of_planes(image, self.planes, self._in_plane(run))
            return slabs if tuple(size) == shape else resized(slabs, shape, tuple(size))
        return sliding_logits(image, self.window or shape, run, **self._scan(size, _AT_ONCE))

    def _scan(self, size: Sequence[int] | None = None, batch: int = 1) -> Scan:
        # Patches of volumes that are smaller continue at the edge in training too, as does what networks pad.
        return {"size": size, "batch": batch, "overlap": self.overlap, "flips": self.flips, "fill": "replicate"}

    def labels(self, image: Tensor, size: Sequence[int], run: Run) -> Tensor:
        """The most probable class everywhere, uint8 [*size]; arguments as of :meth:`logits`."""
        return labels_of(self.logits(image, size, run), size[0])

    def _in_plane(self, run: Run) -> Run:
        """A slice may be predicted in windows too."""
        if self.window is None and not self.flips:
            return run

        def scanned(images: Tensor) -> Tensor:
            window = self.window or tuple(images.shape[2:])
            scans = (sliding_window(one, window, run, **self._scan()) for one in images)
            return torch.stack(list(scans))

        return scanned


@torch.no_grad()
def _of_planes(volume: Tensor, context: int, run: Run) -> Iterator[tuple[int, Tensor]]:
    """Slices of a volume [C, D, H, W] with their neighbours as channels, as in training."""
    depth = volume.shape[1]
    for start in range(0, depth, _AT_ONCE):
        numbers = torch.arange(start, min(start + _AT_ONCE, depth))[:, None] + torch.arange(-context, context + 1)
        near = volume[:, numbers.clamp(0, depth - 1)]  # [C, B, 2 * context + 1, H, W]
        yield start, run(near.transpose(0, 1).flatten(1, 2)).transpose(0, 1)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """A batch of tensors of one shape; of one alone, which of a volume may be large, without a copy."""
    return torch.stack(list(parts)) if len(parts) > 1 else parts[0][None]
