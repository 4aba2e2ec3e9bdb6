"""BatchNorm over the batch of all processes, on the CPU as well as on GPUs.

torch's own SyncBatchNorm has no CPU kernels, DDP refuses it there, and its converter makes new layers: those of a
subclass lose what the subclass adds, such as the activation in timm's ``BatchNormAct2d``.

Here a layer stays the object it is, with its parameters, buffers and hooks, so that optimizers and checkpoints do
not notice. Only its class changes, to a subclass made for it (``BatchNorm2d`` to ``SyncBatchNorm2d``), whose
``forward`` runs that of the class before and answers its call of ``torch.nn.functional.batch_norm``. So every
subclass keeps its own ``forward``, the printed network says which layers are synchronised, and going back is one
assignment. Replacing ``forward`` on each instance would do the same unseen, and copies of a layer would depend on how
a function is copied.

With one process a layer computes what it did before, but for one thing: in float32 and channels-last, torch's CPU
kernel adds up a channel's values one by one, which costs three digits (gradients of weights wrong by 1e-3 where 5e-5
is usual, torch 2.14), so that one process would train visibly apart from several. There the sums here, which lose
nothing, are taken as well; they take about as long.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.layer_sync import LayerSync
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules._functions import SyncBatchNorm as TorchSyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from .collectives import group, world_size

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def convert(module: ModuleT) -> ModuleT:
    """Let every BatchNorm layer take its statistics, in training, over the batches of all processes.

    Left as they are: layers that synchronise by themselves (``torch.nn.SyncBatchNorm``), and lazy layers, which take
    another class at their first input; DDP accepts them only after it.

    Args:
        module: A network; changed in place, together with the layers in it.

    Returns:
        The same object.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and not isinstance(layer, (nn.SyncBatchNorm, LazyModuleMixin, _Synchronised)):
            kind: Any = type(layer)
            layer.__class__ = _synchronised(kind)
    return module


def revert(module: ModuleT) -> ModuleT:
    """Undo :func:`convert`: every layer has the class it had.

    Args:
        module: A network; changed in place, together with the layers in it.

    Returns:
        The same object.
    """
    for layer in module.modules():
        if isinstance(layer, _Synchronised):
            layer.__class__ = layer.plain_class
    return module


class BatchNormSync(LayerSync):
    """Lets Lightning synchronise BatchNorm while it trains, and undo it to the very class each layer had."""

    @override
    def apply(self, model: nn.Module) -> nn.Module:
        return convert(model)

    @override
    def revert(self, model: nn.Module) -> nn.Module:
        return revert(model)


def unsynchronised(module: nn.Module) -> list[nn.Module]:
    """BatchNorm layers whose running statistics are, in training, those of this process's batches alone."""
    return [
        layer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        and not isinstance(layer, (nn.SyncBatchNorm, LazyModuleMixin, _Synchronised))
        and isinstance(layer.running_mean, Tensor)
    ]


def average_statistics(module: nn.Module) -> None:
    """Give all processes the mean of their running statistics, where layers are not synchronised.

    Means and variances are averaged as they are, which leaves out the spread of the means; so do timm's
    ``distribute_bn`` and others. Every process takes part, with the same network.

    Args:
        module: A network; its buffers are changed in place.
    """
    layers = unsynchronised(module)
    statistics: list[Any] = [s for layer in layers for s in (layer.running_mean, layer.running_var)]
    if not statistics:
        return
    own = torch.cat([s.double() for s in statistics])
    shares = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(shares, own, group=group())
    joined = torch.stack(shares)
    # Those of frozen layers are the same already, and stay what they are to the last bit.
    mean = joined.mean(0).where((joined != own).any(0), own)
    for s, part in zip(statistics, mean.split([len(s) for s in statistics]), strict=True):
        s.copy_(part)


class _Synchronised(nn.Module):
    """What a converted layer's class has before the class that the layer had."""

    plain_class: Any

    def forward(self, x: Tensor) -> Tensor:
        # In evaluation processes may hold different numbers of batches: no collective may run.
        synchronise = self.training and (world_size() > 1 or _loses_digits(x))
        with _GlobalStatistics() if synchronise else nullcontext():
            y: Tensor = super().forward(x)
        return y

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copying and pickling find a class by its name, and this one has none in any module.
        reduced: Any = super().__reduce_ex__(protocol)
        _, (_, *arguments), *state = reduced
        return _new, (self.plain_class, *arguments), *state


@functools.cache
def _synchronised(plain: Any) -> Any:
    return type(f"Sync{plain.__name__}", (_Synchronised, plain), {"plain_class": plain})


def _new(plain: Any, *arguments: Any) -> Any:
    kind = _synchronised(plain)
    return kind.__new__(kind, *arguments)


class _GlobalStatistics(TorchFunctionMode):
    """Within it ``torch.nn.functional.batch_norm`` takes its statistics over all processes."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            func = _batch_norm
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Do what ``torch.nn.functional.batch_norm`` does in training, over the batches of all processes."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    y: Tensor
    if x.device.type != "cpu":
        communicator = group() or dist.group.WORLD
        y = TorchSyncBatchNorm.apply(
            x, weight, bias, running_mean, running_var, eps, momentum, communicator, world_size()
        )
        return y
    count, mean, var = _global_statistics(x.detach())
    if x.numel() <= x.shape[1] and count == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)} on this process "
            "and 1 value on all together"
        )
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean), momentum)
        running_var.lerp_((var * (count / (count - 1))).to(running_var), momentum)
    y = _Normalize.apply(x, weight, bias, mean, var, count, eps)
    return y


def _global_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values per channel, their mean and their variance (biased) ``[C]``, over all processes.

    Processes exchange their counts, means and sums of squared deviations, once, which Chan's formula joins (Chan,
    Golub, LeVeque 1983, doi:10.1080/00031305.1983.10483115). Sums of squares would lose all digits where the mean is
    large against the deviation.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    axes, shape = _layout(x)
    channels, size = x.shape[1], x.numel() // x.shape[1]
    # Not `torch.var_mean`: on the CPU it takes 20 to 50 times as long.
    mean = x.sum(axes) / max(size, 1)
    deviation = (x - mean.view(shape)).square_().sum(axes)
    if world_size() == 1:
        return x.new_tensor(size), mean, deviation / size
    share = torch.cat([mean, deviation, x.new_tensor([size])])
    shares = [torch.empty_like(share) for _ in range(world_size())]
    dist.all_gather(shares, share, group=group())

    means, deviations, counts = torch.stack(shares).split([channels, channels, 1], dim=1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    var = (deviations + counts * (means - mean) ** 2).sum(0) / count
    return count, mean, var


def _loses_digits(x: Tensor) -> bool:
    """Whether torch's own kernel is the one that adds up values one by one."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.ndim > 3 and not x.is_contiguous()


def _layout(x: Tensor) -> tuple[list[int], list[int]]:
    """Axes to sum over for one number a channel, and the shape in which ``[C]`` meets ``[N, C, *S]``."""
    return [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, where mean and var depend on the x of all processes.

    Gradients of weight and bias are this process's share, as those of every other parameter, for DDP to average.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.eps = eps
        # Half precision goes with parameters in float32, also in a network that is in half precision as a whole.
        weight, bias = (None if parameter is None else parameter.to(mean.dtype) for parameter in (weight, bias))
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var, count = ctx.saved_tensors
        axes, shape = _layout(x)
        grad_y, wide = grad_outputs[0].to(mean.dtype), x.to(mean.dtype)
        normalized = F.batch_norm(wide, mean, var, None, None, False, 0.0, ctx.eps)
        grad_bias = grad_y.sum(axes)
        grad_weight = normalized.mul_(grad_y).sum(axes)

        grad_x = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([grad_bias, grad_weight])
            if world_size() > 1:
                dist.all_reduce(sums, group=group())
            mean_grad, mean_product = (sums / count).view(2, -1)
            scale = (var + ctx.eps).rsqrt()
            if weight is not None:
                scale = scale * weight.to(mean.dtype)
            # scale * (grad_y - mean_grad - normalized * mean_product): two passes over memory instead of five
            grad_x = F.batch_norm(wide, mean, var, -scale * mean_product, -scale * mean_grad, False, 0.0, ctx.eps)
            grad_x = grad_x.addcmul_(grad_y, scale.view(shape)).to(x.dtype)
        return (
            grad_x,
            grad_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            grad_bias.to(weight.dtype) if ctx.needs_input_grad[2] else None,
            *[None] * 4,
        )
