"""In which order images and weights lie in memory, chosen by a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..allocator import give_back_freed_memory
from ..distributed.collectives import world_size
from ..distributed.undo import nothing_happened

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
#: Operations of all convolutions in the forward pass of a global micro-batch from which on the measurement is worth
#: it. A number that no clock decides: below it, the same command gives the same bits on any machine at any load.
WORTH = 3e8
#: Channels-first must take at most this share of the time: noise is not to decide it.
GAIN = 0.9
#: Steps timed in each order, the least of which counts.
ROUNDS = 2


class Layout:
    """Order of the values of 2D images and of the weights of 2D convolutions: channels last, or channels first.

    Most networks train faster with channels last (a UNet with BatchNorm in about 0.8 of the time on a CPU), some do
    not (those with InstanceNorm). The results differ by rounding alone.

    Args:
        wanted: Channels last or not; ``auto``: last, unless :meth:`choose` finds the other faster.

    Attributes:
        channels_last: What is used.
        told: What the measurement found, in one line; empty without one.
        worth: Whether a step is long enough for such questions, as :meth:`choose` found.
    """

    def __init__(self, wanted: bool | Literal["auto"]) -> None:
        self.wanted = wanted
        self.channels_last = wanted is not False
        self.told = ""
        self.worth = False
        self._known = False

    def know(self, channels_last: bool) -> None:
        """Take what was chosen when the weights were trained: a resumed run rounds as the run before did."""
        if self.wanted == "auto":
            self.channels_last, self._known = channels_last, True

    def images(self, image: Tensor) -> Tensor:
        """Images [N, C, H, W] in this order; others, such as volumes, as they are."""
        if self.channels_last and image.ndim == 4:
            return image.contiguous(memory_format=torch.channels_last)
        return image

    def weights(self, net: nn.Module) -> None:
        """Put the weights of 2D convolutions in this order."""
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        for parameter in net.parameters():
            if parameter.ndim == 4:  # Module.to(memory_format=…) fails on the weights of 3D convolutions
                parameter.data = parameter.data.clone(memory_format=order)

    def choose(self, module: nn.Module, net: nn.Module, compute_loss: Callable[[], Tensor]) -> None:
        """Measure forward and backward passes, whose effects are discarded, and keep the faster order.

        To be called on all processes, after a first pass and before DDP wraps the module; rank 0's clock decides.

        Args:
            module: The module that is trained.
            net: The part of it whose weights are put in order.
            compute_loss: Computes the loss of one batch.
        """
        # What these passes and the one before leave behind does not fit each other, nor the steps to come.
        give_back_freed_memory()
        operations = _of_rank_zero(_operations(module, net, compute_loss) * world_size())
        self.worth = operations >= WORTH
        flat = any(parameter.ndim == 4 for parameter in net.parameters())
        if self.wanted != "auto" or self._known or not self.worth or not flat:
            return
        seconds: dict[bool, float] = {True: float("inf"), False: float("inf")}
        for order in [False, True] * ROUNDS:
            self.channels_last = order
            self.weights(net)
            seconds[order] = min(seconds[order], _of_rank_zero(_timed(module, compute_loss)))
        ratio = seconds[False] / seconds[True]
        self.channels_last, self._known = ratio > GAIN, True
        self.weights(net)
        give_back_freed_memory()
        self.told = f"channels-{'last' if self.channels_last else 'first'}: " + (
            f"a step takes {1 / ratio:.2f} of the time of channels-first"
            if self.channels_last
            else f"a step takes {ratio:.2f} of the time of channels-last"
        )


def _operations(module: nn.Module, net: nn.Module, compute_loss: Callable[[], Tensor]) -> float:
    """Multiplications and additions of the convolutions in a forward pass; a transposed one is taken as any other."""
    count = 0.0

    def add(layer: Any, _: Any, output: Any) -> None:
        nonlocal count
        if isinstance(output, Tensor):
            count += 2.0 * output.numel() * layer.weight[0].numel()

    layers = [layer for layer in net.modules() if isinstance(layer, _CONVOLUTIONS)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    try:
        _timed(module, compute_loss)
    finally:
        for hook in hooks:
            hook.remove()
    return count


def _timed(module: nn.Module, compute_loss: Callable[[], Tensor]) -> float:
    """Seconds of a forward and a backward pass: of the GPU, or of the processor, whatever else it has to do."""
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    with nothing_happened(module):
        start = _now(on_gpu)
        loss = compute_loss()
        if loss.requires_grad:
            loss.backward()
        return _now(on_gpu) - start


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time()


def _of_rank_zero(value: float) -> float:
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]
