"""What the checks of the network share: a few real samples, hooks, and what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..data.loader import PositionedLoader
from ..distributed.heartbeat import is_library, is_packages, short, source
from .rehearsal import Rehearsal

#: Under these names in ``Rehearsal.measured``: the first micro-batches, what the network refused them with, and
#: whether no gradient reaches it at all.
_BATCHES, FAILS, NO_GRADIENT = "first batches", "network fails", "no gradient"
#: Batches, and samples of each: enough where their number does not matter.
_COUNT, _SAMPLES = 3, 2


def batches(rehearsal: Rehearsal) -> list[Any]:
    """The first samples of the first training micro-batches, on the device and in the run's precision; read once."""
    if _BATCHES not in rehearsal.measured:
        trainer, data = rehearsal.trainer, rehearsal.data
        made: Any = trainer.train_dataloader
        if isinstance(made, PositionedLoader):
            # Without workers, from a loader that nobody else has begun.
            loader: Any = data.train_dataloader()
            made = (loader.collate_fn(loader.dataset.__getitems__(list(deal)[:_SAMPLES])) for deal in loader.deals)
        device, convert = trainer.strategy.root_device, trainer.precision_plugin.convert_input
        with torch.random.fork_rng(devices=[]):
            rehearsal.measured[_BATCHES] = [
                _first(trainer.strategy.batch_to_device(convert(data.on_before_batch_transfer(batch, 0)), device))
                for batch in islice(made, _COUNT)
            ]
    found: list[Any] = rehearsal.measured[_BATCHES]
    return found


def _first(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:_SAMPLES] if isinstance(value, (Tensor, list)) else value for name, value in batch.items()}


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
