"""What the checks of the network share: a few real samples, a copy to try things on, and what was asked for."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..data.dataset import collate
from ..data.loader import PositionedLoader
from ..distributed.heartbeat import is_library, is_packages, short, source
from ..distributed.probe import probe_loss
from .rehearsal import Rehearsal

#: Under these names in ``Rehearsal.measured``: the first micro-batches, and what the network refused them with.
_BATCHES, FAILS = "first batches", "network fails"
_COUNT = 2


def batches(rehearsal: Rehearsal) -> list[Any]:
    """The first training micro-batches, on the device and in the precision of the run; read once."""
    if _BATCHES not in rehearsal.measured:
        trainer, data = rehearsal.trainer, rehearsal.data
        made: Any = trainer.train_dataloader
        if isinstance(made, PositionedLoader):
            # Without workers, from a loader that nobody else has begun.
            loader: Any = data.train_dataloader()
            made = (collate(loader.dataset.__getitems__(deal)) for deal in loader.deals)
        device, convert = trainer.strategy.root_device, trainer.precision_plugin.convert_input
        with torch.random.fork_rng(devices=[]):
            rehearsal.measured[_BATCHES] = [
                trainer.strategy.batch_to_device(convert(data.on_before_batch_transfer(batch, 0)), device)
                for batch in islice(made, _COUNT)
            ]
    found: list[Any] = rehearsal.measured[_BATCHES]
    return found


def few(rehearsal: Rehearsal, count: int = 2) -> dict[str, Any]:
    """The first samples of the first micro-batch, enough where their number does not matter."""
    batch = batches(rehearsal)[0]
    return {name: value[:count] if isinstance(value, (Tensor, list)) else value for name, value in batch.items()}


def loss_of(rehearsal: Rehearsal, module: Any, batch: Any) -> Tensor:
    """Loss of a batch in the run's precision, by the module or a copy of it."""
    if module is rehearsal.module:
        return probe_loss(rehearsal.trainer, batch)
    with rehearsal.trainer.precision_plugin.train_step_context():
        loss: Tensor = module.training_loss(batch)
        return loss


def copied(module: Any, instead: Mapping[int, Any] | None = None) -> Any:
    """A copy of a module, without its trainer, optimizers and the like.

    Args:
        module: A LightningModule.
        instead: By the ``id`` of an object, what the copy has in its place.
    """
    shared = [module._trainer, module._fabric, getattr(module, "_settings", None)]
    memo = {id(one): one for one in shared if one is not None} | dict(instead or {})
    twin = copy.deepcopy(module, memo)
    twin._trainer = module._trainer
    return twin


def knob(asked: Mapping[str, Any], name: str, default: Any) -> Any:
    """A knob of the strategy that was asked for: by its arguments, by its registry name, or by the strategy itself."""
    strategy = asked.get("strategy")
    if isinstance(strategy, str):
        known = {
            "find_unused_parameters": {"unused_parameters_true": True, "unused_parameters_false": False},
            "sync_batchnorm": {"no_sync_batchnorm": False},
            "static_graph": {"static_graph": True},
        }
        return next((value for end, value in known.get(name, {}).items() if strategy.endswith(end)), default)
    if isinstance(strategy, Mapping):
        arguments = strategy.get("init_args") or {}
    else:
        arguments = getattr(strategy, "init_args", None) or strategy
    if isinstance(arguments, Mapping):
        return arguments.get(name, default)
    return getattr(arguments, name, default)


def processes(rehearsal: Rehearsal) -> int:
    """Processes that the run is meant for, as far as they are numbers; at least those of the doctor."""
    devices, nodes = rehearsal.asked.get("devices"), rehearsal.asked.get("num_nodes") or 1
    if isinstance(devices, str) and devices.strip().isdigit():
        devices = int(devices)
    count = len(devices) if isinstance(devices, (list, tuple)) else devices if isinstance(devices, int) else 1
    return max(count * int(nodes), rehearsal.options.processes, 1)


@contextmanager
def watched(module: nn.Module, before: Any = None, after: Any = None) -> Iterator[None]:
    """Call functions around the forward pass of each layer.

    Args:
        module: Whose layers are watched.
        before: Called with the name of the layer, the layer and its positional arguments.
        after: Called with the name of the layer and the layer, unless it has raised.
    """

    def hooked(name: str, layer: nn.Module) -> list[Any]:
        # What a hook returns would take the place of what the layer is given, or returns.
        def begin(one: nn.Module, arguments: tuple[Any, ...]) -> None:
            before(name, one, arguments)

        def end(one: nn.Module, *_: Any) -> None:
            after(name, one)

        begins = [layer.register_forward_pre_hook(begin)] if before is not None else []
        return [*begins, *([layer.register_forward_hook(end)] if after is not None else [])]

    hooks = [hook for name, layer in module.named_modules() for hook in hooked(name, layer)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def calling_line() -> tuple[str, str]:
    """The innermost line of the user's that runs, or else of this package, as ``mynet.py:12 forward`` and its code."""
    frame: FrameType | None = sys._getframe(1)
    own = "", ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            found = f"{short(file)}:{frame.f_lineno} {frame.f_code.co_name}", source(file, frame.f_lineno)
            if not is_packages(file):
                return found
            own = own if own[0] else found
        frame = frame.f_back
    return own


def described(name: str, layer: nn.Module) -> str:
    """``net.encoder.norm (BatchNorm2d)``, by the class that the layer had before it was synchronised."""
    return f"{name} ({getattr(layer, 'plain_class', type(layer)).__name__})"
