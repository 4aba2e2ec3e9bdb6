"""Sliding-window inference: large images and volumes, predicted in windows and put together slab by slab.

Windows lie where MONAI's ``sliding_window_inference`` puts them, and are weighted as there, so that the logits are
the same. Unlike there, sums are held for the depth of one window only: what no later window touches is handed on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from ..distributed.faults import NamedError

Run = Callable[[Tensor], Tensor]
Weights = Literal["gaussian", "constant"]
Fill = Literal["constant", "replicate"]

_SIGMA = 0.125  # of a window's length: MONAI's sigma_scale, and nnU-Net's 1/8
_LEAST_WEIGHT = 1e-3  # MONAI's compute_importance_map: corners of a 3D window would get 4e-11, and lose their digits
_SLAB = 1 << 22  # the most logits of a slab that is handed on: 16 MB in float32, which allocators keep and caches like


class Scan(TypedDict, total=False):
    """How an image is scanned; see :func:`sliding_logits`."""

    size: Sequence[int] | None
    overlap: float
    weights: Weights
    batch: int
    flips: bool
    device: torch.device | str | None
    fill: Fill


def sliding_logits(
    image: Tensor,
    window: Sequence[int],
    run: Run,
    *,
    size: Sequence[int] | None = None,
    overlap: float = 0.5,
    weights: Weights = "gaussian",
    batch: int = 1,
    flips: bool = False,
    device: torch.device | str | None = None,
    fill: Fill = "constant",
) -> Iterator[tuple[int, Tensor]]:
    """Logits of an image, slab by slab along its first spatial axis, each as soon as no later window touches it.

    At any time this holds the sums over the depth of one window: K × window[0] × the other axes of the image. So
    put the longest axis first where there is a choice. They lie where ``run`` leaves its logits, and are
    float32 at least. No gradients are kept.

    Args:
        image: [C, *S], 2D or 3D. Only the windows are read, so it may be mapped from a file.
        window: Length along each spatial axis. Where it exceeds the image, windows are filled on both sides, and the
            logits there are dropped.
        run: Takes windows [B, C, *window] and returns logits [B, K, *window].
        size: Grid of the logits over the same field of view, interpolated (bi- or trilinearly) as by
            ``F.interpolate(align_corners=False)``. Default: the image's own.
        overlap: Share of a window that the next one covers again, at least 0 and below 1.
        weights: ``gaussian`` trusts a window's centre more than its border; ``constant`` is the plain mean.
        batch: Windows that are run at once. Changes nothing but the speed and the memory.
        flips: Take the mean logits over all flips of the spatial axes (4 in 2D, 8 in 3D). Logits, and not
            probabilities, as in nnU-Net: blending and resizing are linear in them too, the result can be used
            wherever logits can, and nothing is assumed of how they become probabilities.
        device: Where windows are put before they are run. Default: where the image is.
        fill: ``constant``: windows that exceed the image are filled with zeros, as MONAI does; ``replicate``: with the
            image's edge.

    Returns:
        Pairs of a slab's first plane and the slab [K, planes, *S[1:]], in order and without gaps.

    Raises:
        NamedError: The arguments do not fit each other, or what ``run`` returns does not fit the windows.
    """
    _check(image, window, size, overlap, batch)
    shape = tuple(image.shape[1:])
    starts = [_starts(n, w, overlap) for n, w in zip(shape, window, strict=True)]
    if flips:
        run = _mean_over_flips(run)
    slabs = _blended(image, tuple(window), run, starts, weights, batch, device, fill)
    return slabs if size is None or tuple(size) == shape else resized(slabs, shape, tuple(size))


def sliding_window(image: Tensor, window: Sequence[int], run: Run, **scan: Unpack[Scan]) -> Tensor:
    """All logits of an image at once, for images that are small enough.

    Args:
        image: [C, *S].
        window: Length along each spatial axis.
        run: Takes windows [B, C, *window] and returns logits [B, K, *window].
        **scan: As for :func:`sliding_logits`.

    Returns:
        Logits [K, *S], or [K, *size].

    Raises:
        NamedError: As :func:`sliding_logits`.
    """
    slabs = (slab for _, slab in sliding_logits(image, window, run, **scan))
    return _joined(slabs, (scan.get("size") or image.shape[1:])[0], axis=1)


def sliding_labels(image: Tensor, window: Sequence[int], run: Run, **scan: Unpack[Scan]) -> Tensor:
    """The most probable class everywhere, without ever holding all logits.

    Args:
        image: [C, *S].
        window: Length along each spatial axis.
        run: Takes windows [B, C, *window] and returns logits [B, K, *window].
        **scan: As for :func:`sliding_logits`; with ``size``, logits are interpolated before the choice.

    Returns:
        Labels uint8 [*S], or [*size], where ``run`` leaves its logits.

    Raises:
        NamedError: As :func:`sliding_logits`.
    """
    return labels_of(sliding_logits(image, window, run, **scan), (scan.get("size") or image.shape[1:])[0])


def labels_of(slabs: Iterator[tuple[int, Tensor]], planes: int) -> Tensor:
    """The most probable class everywhere, from logits that come slab by slab.

    Args:
        slabs: As of :func:`sliding_logits`.
        planes: Of all slabs together.

    Returns:
        Labels uint8 [planes, …].
    """
    # On CPUs `max` takes a fifth of the time of `argmax`, with the same choice between equals: the first.
    return _joined((slab.max(0).indices.to(torch.uint8) for _, slab in slabs), planes, axis=0)


def window_weights(window: Sequence[int], weights: Weights = "gaussian") -> Tensor:
    """How much each place of a window counts.

    Args:
        window: Length along each axis.
        weights: ``gaussian``: a standard deviation of an eighth of the window, and 0.001 at least;
            ``constant``: 1 everywhere.

    Returns:
        Float32 [*window].
    """
    if weights == "constant":
        return torch.ones(*window)
    total = torch.ones(())
    for length in window:
        offset = torch.arange(length, dtype=torch.float32) - (length - 1) / 2
        total = total[..., None] * torch.exp(offset**2 / (-2 * (_SIGMA * length) ** 2))
    return total.clamp(min=max(total.min().item(), _LEAST_WEIGHT))


def _joined(slabs: Iterator[Tensor], planes: int, axis: int) -> Tensor:
    """Put slabs where they belong as they come: a list of them would leave gaps all over the memory."""
    first = next(slabs)
    whole = first.new_empty(*first.shape[:axis], planes, *first.shape[axis + 1 :])
    done = 0
    for slab in itertools.chain([first], slabs):
        whole.narrow(axis, done, slab.shape[axis]).copy_(slab)
        done += slab.shape[axis]
    return whole


def _starts(size: int, window: int, overlap: float) -> list[int]:
    """Where windows begin along an axis: at equal steps, but for the last one, which ends with the image."""
    step = max(int(window * (1 - overlap)), 1)
    rest = max(size - window, 0)
    return [min(number * step, rest) for number in range(math.ceil(rest / step) + 1)]


@torch.no_grad()
def _blended(
    image: Tensor,
    window: tuple[int, ...],
    run: Run,
    starts: list[list[int]],
    weights: Weights,
    batch: int,
    device: torch.device | str | None,
    fill: Fill,
) -> Iterator[tuple[int, Tensor]]:
    size = image.shape[1:]
    margins = [max(w - n, 0) for n, w in zip(size, window, strict=True)]
    padding = [side for margin in reversed(margins) for side in (margin // 2, margin - margin // 2)]
    inner = [min(n, w) for n, w in zip(size, window, strict=True)]
    inside = _box([margin // 2 for margin in margins], inner)
    weight = window_weights(window, weights)[inside]
    places = list(itertools.product(*starts))  # the first axis is the slowest
    sums: _Sums | None = None
    for first in range(0, len(places), batch):
        some = places[first : first + batch]
        windows = torch.stack([image[(slice(None), *_box(place, inner))] for place in some]).to(device or image.device)
        logits = _logits(run, F.pad(windows, padding, mode=fill) if any(padding) else windows)
        for number, one in enumerate(logits, start=first):
            if sums is None:
                sums = _Sums(one, weight, size, starts)
            sums.add(places[number], one[(slice(None), *inside)])
            yield from sums.finished(places[number + 1][0] if number + 1 < len(places) else size[0])


class _Sums:
    """Weighted sums of logits over the planes that a window covers; plane z is held at z modulo the depth."""

    def __init__(self, logits: Tensor, weight: Tensor, size: Sequence[int], starts: list[list[int]]) -> None:
        self._weight = weight.to(logits)
        self._depth, *lengths = weight.shape
        self._sums = logits.new_zeros(len(logits), self._depth, *size[1:])
        self._most = max(_SLAB // max(self._sums[:, 0].numel(), 1), 1)
        self._firsts, *others = starts
        # The weights of all windows that begin at one plane: the same for each plane where some begin.
        self._row = logits.new_zeros(self._depth, *size[1:])
        for place in itertools.product(*others):
            self._row[(slice(None), *_box(place, lengths))] += self._weight
        self._done = 0

    def add(self, place: Sequence[int], logits: Tensor) -> None:
        """Add the logits [K, depth, …] of a window that begins there."""
        at = place[0] % self._depth
        across = _box(place[1:], logits.shape[2:])
        for held, own in ((slice(at, None), slice(self._depth - at)), (slice(at), slice(self._depth - at, None))):
            self._sums[(slice(None), held, *across)].addcmul_(logits[:, own], self._weight[own])

    def finished(self, end: int) -> Iterator[tuple[int, Tensor]]:
        """Hand on, and forget, the mean logits of all planes before this one."""
        while self._done < end:
            start, at = self._done, self._done % self._depth
            stop = min(end, start + self._depth - at, start + self._most)
            sums = self._sums[:, at : at + stop - start]
            slab = sums / self._total(start, stop)
            sums.zero_()
            self._done = stop
            yield start, slab

    def _total(self, start: int, stop: int) -> Tensor:
        total = torch.zeros_like(self._row[: stop - start])
        for first in self._firsts:
            low, high = max(start, first), min(stop, first + self._depth)
            if low < high:
                total[low - start : high - start] += self._row[low - first : high - first]
        return total


@torch.no_grad()
def resized(
    slabs: Iterator[tuple[int, Tensor]], old: tuple[int, ...], new: tuple[int, ...]
) -> Iterator[tuple[int, Tensor]]:
    """Interpolate slabs as they come; held are one slab and the planes before it that are still needed.

    Args:
        slabs: Pairs of a slab's first plane and the slab [K, planes, *old[1:]], in order and without gaps.
        old: Grid of the slabs.
        new: Grid over the same field of view.

    Returns:
        Pairs of a slab's first plane and the slab [K, planes, *new[1:]].
    """
    # Half-pixel convention: pixel i of either grid has its centre at i + 0.5. In float32 far planes would lose digits.
    centres = (torch.arange(new[0], dtype=torch.float64) + 0.5) * (old[0] / new[0]) - 0.5
    centres = centres.clamp(0, old[0] - 1)
    below = centres.floor().long()
    above = (below + 1).clamp(max=old[0] - 1)
    share = (centres - below).reshape(-1, *[1] * (len(new) - 1))
    held: Tensor | None = None
    first = done = 0  # the old plane with which `held` begins; how many new planes are handed on
    for start, slab in slabs:
        held = slab if held is None else torch.cat([held, slab], dim=1)
        end = start + slab.shape[1]
        ready = int((above < end).sum())
        most = max(_SLAB // (len(slab) * max(math.prod(old[1:]), math.prod(new[1:]))), 1)
        for at in range(done, ready, most):
            some = slice(at, min(at + most, ready))
            low, high = (held.index_select(1, (plane[some] - first).to(held.device)) for plane in (below, above))
            yield at, _resized_across(torch.lerp(low, high, share[some].to(held)), new[1:])
        done = ready
        needed = min(int(below[done]), end) if done < new[0] else end
        held, first = held[:, needed - first :], needed


def _resized_across(slab: Tensor, size: tuple[int, ...]) -> Tensor:
    """Interpolate along all axes but the first of a slab [K, planes, …]."""
    if slab.shape[2:] == size:
        return slab
    flat = slab.flatten(0, 1)[None]
    return F.interpolate(flat, size, mode="linear" if len(size) == 1 else "bilinear")[0].reshape(*slab.shape[:2], *size)


def _box(place: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(place, lengths, strict=True))


def _logits(run: Run, windows: Tensor) -> Tensor:
    logits = run(windows)
    if logits.shape[:1] + logits.shape[2:] != windows.shape[:1] + windows.shape[2:]:
        raise NamedError(
            "network-output",
            f"Windows {list(windows.shape)} give logits {list(logits.shape)}, which cannot be put together.",
            cause="Logits [B, K, …] have to have the size of their windows.",
            fix="Resize them to it.",
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _mean_over_flips(run: Run) -> Run:
    def mean(windows: Tensor) -> Tensor:
        axes = range(2, windows.ndim)
        flips = [flip for count in range(len(axes) + 1) for flip in itertools.combinations(axes, count)]
        total = _logits(run, windows)
        for flip in flips[1:]:
            total = total + _logits(run, windows.flip(flip)).flip(flip)
        return total / len(flips)

    return mean


def _check(image: Tensor, window: Sequence[int], size: Sequence[int] | None, overlap: float, batch: int) -> None:
    axes = image.ndim - 1
    wrong, fix = "", "Give a length along each spatial axis of the image, each at least 1."
    if axes not in {2, 3} or not image.numel():
        wrong = f"An image {list(image.shape)} cannot be scanned"
        fix = "Give an image [C, H, W] or a volume [C, D, H, W]."
    elif len(window) != axes or min(window) < 1:
        wrong = f"The window {list(window)} does not fit an image of {axes} axes, {list(image.shape[1:])}"
    elif size is not None and (len(size) != axes or min(size) < 1):
        wrong = f"The size {list(size)} does not fit an image of {axes} axes, {list(image.shape[1:])}"
    elif not 0 <= overlap < 1:
        wrong, fix = f"The overlap {overlap} of windows is out of its range", "Give a share of at least 0 and below 1."
    elif batch < 1:
        wrong, fix = f"{batch} windows cannot be run at once", "Give at least 1."
    if wrong:
        raise NamedError("config", f"{wrong}.", cause="", fix=fix)
