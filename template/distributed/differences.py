"""What makes the result of a run depend on the number of processes, or on the machine, by the name of its setting."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .strategy import SafeDDPStrategy
from .told import listed

#: Classes that draw random numbers in training, by name: timm's and torchvision's have no common base.
_RANDOM_NAMES = ("DropPath", "StochasticDepth", "DropBlock2d", "DropBlock3d")


def differences(trainer: Trainer, module: LightningModule) -> list[str]:
    """Why a run with another number of processes, or on another day, ends with other weights.

    Rounding in the order of sums is not listed: it is always there, and its size stands in the documentation.

    Args:
        trainer: Of a fit that is about to start.
        module: Trained by it.

    Returns:
        One clause for each reason, with the name of the layer or setting; empty where there is rounding alone.
    """
    found = []
    random = [name for name, layer in module.named_modules() if _draws(layer)]
    if random:
        found.append(f"dropout ({listed(random, 1)}) draws other numbers with another number of processes")
    unsynchronised = isinstance(trainer.strategy, SafeDDPStrategy) and not trainer.strategy.sync_batchnorm
    if unsynchronised and any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        found.append("strategy.sync_batchnorm is off: BatchNorm sees each process's own batch")
    if trainer.accumulate_grad_batches > 1:
        found.append(
            f"trainer.accumulate_grad_batches {trainer.accumulate_grad_batches}: equal to runs with the same number "
            "alone, since Dice and BatchNorm see one micro-batch"
        )
    hook = getattr(trainer.strategy, "comm_hook", "none")
    if hook != "none":
        found.append(f"strategy.comm_hook {hook} sends gradients rounded")
    if "16" in str(trainer.precision):
        found.append(f"trainer.precision {trainer.precision} rounds to 16 bits")
    if trainer.strategy.root_device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        found.append("trainer.deterministic is off: some GPU kernels add up in a random order")
    return found


def dropout_off(module: nn.Module) -> None:
    """Let dropout and the like drop nothing, in training too."""
    for layer in filter(_draws, module.modules()):
        for name in ("p", "drop_prob", "dropout"):
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)


def _draws(layer: nn.Module) -> bool:
    if isinstance(layer, _DropoutNd):
        return bool(layer.p > 0)
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout > 0)
    name = type(layer).__name__
    probability = getattr(layer, "drop_prob", getattr(layer, "p", 1.0))
    return name in _RANDOM_NAMES and isinstance(probability, float) and probability > 0
