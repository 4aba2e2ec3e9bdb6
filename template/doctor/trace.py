"""What a run of a few steps did, sample by sample and parameter by parameter, so that two runs can be compared."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from ..distributed.agreement import gathered
from ..distributed.differences import dropout_off
from ..distributed.undo import nothing_happened
from .draws import Draws

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
#: Sum and norm of a tensor.
Print = tuple[float, float]


@dataclass
class Trace:
    """A run of a few optimizer steps.

    Attributes:
        samples: For each global micro-batch, the fingerprint of each sample's image and mask, by its name.
        layers: For each layer without sublayers, in the order of the first forward pass, the fingerprint of its
            output for each sample of the first global micro-batch.
        classes: Of these layers.
        losses: Of each global micro-batch.
        gradients: Of the first optimizer step, float64, on the CPU.
        weights: After the last one; buffers of numbers too.
        random: Layers whose output is another when the same samples are given once more.
        lines: Of the user's code, that draw random numbers for it.
        draws: Whether random numbers are drawn at all in the forward pass.
        single: Whether a layer gives float32 although the network computes in float64.
    """

    samples: list[dict[str, Print]] = field(default_factory=list)
    layers: dict[str, dict[str, Print]] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    draws: bool = False
    single: bool = False


class Tracer(Callback):
    """Records a :class:`Trace`; on rank 0 that of all ranks.

    Dropout and the like are switched off: with another number of processes they draw other numbers by their nature.

    Args:
        twice: Whether the first forward pass is made twice, to see which layers draw random numbers.
    """

    def __init__(self, twice: bool = False) -> None:
        self.trace = Trace()
        self.twice = twice
        self._hooks: list[Any] = []
        self._patches: list[Any] = []
        self._names: list[str] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch dropout off before the strategy makes its discarded step."""
        dropout_off(pl_module)
        for name in _DROPOUTS:
            self._patches.append(mock.patch.object(F, name, _same))
            self._patches[-1].start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Look at the samples, and at the first forward pass."""
        self._names, prints = _samples(batch)
        self.trace.samples.append(prints)
        if batch_idx:
            return
        if self.twice:
            self.trace.random, self.trace.lines, self.trace.draws = _drawing(pl_module, batch)
        for path, layer in _leaves(pl_module):
            self._hooks.append(layer.register_forward_hook(self._recorder(path, self.trace.layers)))
            self.trace.classes[path] = getattr(layer, "plain_class", type(layer)).__name__

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        loss = float(outputs["loss"]) * trainer.accumulate_grad_batches
        # Of own losses, that are not global, the mean is what DDP's gradients belong to.
        everywhere = gathered(loss)
        self.trace.losses.append(sum(everywhere) / len(everywhere))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Keep the gradients of the first step, after the exchange and before any clipping."""
        if trainer.global_step == 0:
            for name, parameter in pl_module.named_parameters():
                if parameter.grad is not None:
                    self.trace.gradients[name] = parameter.grad.detach().double().cpu().clone()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights, and join what the ranks have seen."""
        while self._patches:
            self._patches.pop().stop()
        values = {**dict(pl_module.named_parameters()), **dict(pl_module.named_buffers())}
        self.trace.weights = {
            name: value.detach().double().cpu().clone()
            for name, value in values.items()
            if value.is_floating_point() and value.numel()
        }
        others = gathered((self.trace.samples, self.trace.layers))
        self.trace.samples = [
            {name: one for part in parts for name, one in part.items()}
            for parts in zip(*(samples for samples, _ in others), strict=True)
        ]
        for _, layers in others:
            for path, prints in layers.items():
                self.trace.layers.setdefault(path, {}).update(prints)

    def _recorder(self, path: str, into: dict[str, dict[str, Print]]) -> Any:
        def record(layer: nn.Module, inputs: Any, output: Any) -> None:
            self.trace.single |= isinstance(output, Tensor) and output.dtype == torch.float32
            if path not in into and isinstance(output, Tensor) and output.shape[:1] == (len(self._names),):
                into[path] = dict(zip(self._names, map(_print, output.detach()), strict=True))

        return record


def _samples(batch: Any) -> tuple[list[str], dict[str, Print]]:
    """Names of a batch's samples, and the fingerprint of each one's image and mask."""
    if not isinstance(batch, Mapping) or "image" not in batch:
        return [], {}
    images, masks = batch["image"], batch["mask"]
    prints = [
        (image[0] + mask[0], image[1] + mask[1])
        for image, mask in zip(map(_print, images), map(_print, masks), strict=True)
    ]
    cases = batch.get("case") or []
    names = [str(getattr(case, "name", case)) for case in cases]
    if len(set(names)) < len(prints):  # a loader of the user's own may give no names
        names = [f"{one[0]:.9e}" for one in prints]
    return names, dict(zip(names, prints, strict=True))


def _print(values: Tensor) -> Print:
    values = values.detach().double()
    return float(values.sum()), float(values.norm())


def _leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers without sublayers of the network; the loss and the scores are none of it."""
    net = getattr(module, "net", module)
    return [
        (f"net.{path}" if path else "net", one)
        for path, one in net.named_modules()
        # What is compiled calls its layers' hooks at most while it is compiled; scripts take no hooks.
        if not any(one.children()) and "_orig_mod" not in path and not isinstance(one, torch.jit.ScriptModule)
    ]


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """In place of dropout."""
    return x


def _drawing(module: Any, batch: Any) -> tuple[list[str], list[str], bool]:
    """Layers that give other outputs for the same samples under another seed; the lines that draw; whether any does."""
    seen: list[dict[str, Print]] = []
    draws, moved = Draws(), False
    for seed in (0, 1):
        prints: dict[str, Print] = {}
        seen.append(prints)

        def record(path: str, prints: dict[str, Print] = prints) -> Any:
            def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
                if isinstance(output, Tensor):
                    prints.setdefault(path, _print(output))

            return hook

        hooks = [layer.register_forward_hook(record(path)) for path, layer in _leaves(module)]
        with nothing_happened(module), torch.no_grad(), draws:
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            before = _generators()
            try:
                module.training_loss(batch)
                moved |= _generators() != before
            finally:
                for one in hooks:
                    one.remove()
    first, second = seen
    return [path for path, one in first.items() if second.get(path) != one], list(draws.lines), moved


def _generators() -> tuple[Any, ...]:
    """State of the global generators of torch, NumPy and Python, for comparison."""
    numpys: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), numpys[1].tobytes(), numpys[2:], random.getstate()
