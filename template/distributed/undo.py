"""Undo what a forward and backward pass has changed, so that a run is the same with and without the discarded step."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

#: What torch itself keeps in a module: parameters, buffers, layers, hooks.
_TORCHS_OWN = frozenset(vars(nn.Module()))
_Undo = Callable[[], object]


@contextmanager
def nothing_happened(module: nn.Module) -> Iterator[None]:
    """Without gradients at its start; afterwards the module and the random generators are as they were.

    Brought back are parameters (also those that a forward pass moves itself, as that of a mean teacher), buffers,
    gradients, the attributes of all layers (counters, flags, lists, tensors, generators), and the global generators of
    torch, numpy and Python. What a network keeps outside of its layers, in global variables or files, is not.

    Args:
        module: The module that is run, not DDP's wrapper, whose buckets are to keep their new order. Its parameters
            are copied meanwhile.
    """
    undo = [_undo_generators(), *map(_undo_layer, _layers(module))]
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in grads:
        parameter.grad = None  # nothing is added to those that an accumulation has gathered
    devices = list({p.device.index for p in module.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for step in undo:
                step()
            for parameter, grad in grads:
                parameter.grad = grad


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """All layers, also those that a layer holds in a plain attribute, list or dictionary."""
    seen: set[nn.Module] = set()
    todo = [module]
    while todo:
        layer = todo.pop()
        if layer in seen:
            continue
        seen.add(layer)
        yield layer
        todo += layer.children()
        for name, value in vars(layer).items():
            if name not in _TORCHS_OWN:
                held = value if isinstance(value, (list, tuple)) else value.values() if type(value) is dict else [value]
                todo += [one for one in held if isinstance(one, nn.Module)]


def _undo_layer(layer: nn.Module) -> _Undo:
    before = {name: value for name, value in vars(layer).items() if name not in _TORCHS_OWN}
    values = [*before.values(), *layer._parameters.values(), *layer._buffers.values()]
    buffers = dict(layer._buffers)
    inside = [step for value in values if (step := _undo_value(value)) is not None]

    def undo() -> None:
        attributes = vars(layer)
        for name in [name for name in attributes if name not in before and name not in _TORCHS_OWN]:
            del attributes[name]
        attributes.update(before)
        for name, buffer in buffers.items():  # self.mean = 0.9 * self.mean + … puts another tensor there
            layer._buffers[name] = buffer
        for step in inside:
            step()

    return undo


def _undo_value(value: Any) -> _Undo | None:
    """How to undo a change inside a value; None where it has no inside, or one that is not known."""
    if isinstance(value, Tensor):
        return None if is_lazy(value) or not value.is_leaf else _undo_tensor(value)
    if isinstance(value, (list, deque)):
        return _undo_contents(value, list(value), value.extend)
    if type(value) in (dict, set):
        return _undo_contents(value, value.copy(), value.update)
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if isinstance(value, np.random.Generator):
        words = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", words)
    if isinstance(value, random.Random):
        numbers = value.getstate()
        return lambda: value.setstate(numbers)
    return None


def _undo_contents(value: Any, before: Any, fill: Callable[[Any], object]) -> _Undo:
    def undo() -> None:
        value.clear()
        fill(before)

    return undo


def _undo_tensor(tensor: Tensor) -> _Undo:
    value = tensor.detach().clone()

    @torch.no_grad()
    def undo() -> None:
        tensor.copy_(value)

    return undo


def _undo_generators() -> _Undo:
    python_state, numpy_state = random.getstate(), np.random.get_state()

    def undo() -> None:
        random.setstate(python_state)
        np.random.set_state(numpy_state)

    return undo
