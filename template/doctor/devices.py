"""Tensors on a device of their own, found on a machine without any GPU: the network runs on an imaginary second one.

torch computes there with fake tensors, which have a shape, a type and a device, and no values. A tensor that the
network makes or keeps elsewhere meets the others in some operation, as it would on a real GPU. It is noted, moved, and
the pass goes on, so that one pass finds all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from typing_extensions import override

from ..distributed.faults import NamedError
from ..distributed.told import listed
from ..distributed.undo import nothing_happened
from .finding import Finding, check, failure, of_error, passed, warning
from .rehearsal import Rehearsal
from .sample import FAILS, calling_line, copied, described, few, watched

#: A second one, as ``.cuda()`` means the first.
_HERE = torch.device("cuda:1")
#: Times that a network may ask for the value of a tensor that has none, and is told 1; a loop may wait for another.
_ANSWERS = 100
_ONE_BY_ONE = 3


class _Stray(NamedTuple):
    """Where a tensor that is elsewhere comes from.

    Attributes:
        place: The name of the attribute that holds it, or the line of code that made it.
        code: Of that line; empty for an attribute.
        device: Where it is.
        shape: Of the tensor.
        layer: In which they meet.
    """

    place: str
    code: str
    device: torch.device
    shape: tuple[int, ...]
    layer: str


@check("model: devices", "fixed-device")
def one_device(rehearsal: Rehearsal) -> Iterator[Finding]:
    """All tensors of a step are on the device that the strategy chooses."""
    error = rehearsal.measured.get(FAILS)
    strays, end = _strays(rehearsal)
    for stray in strays[:_ONE_BY_ONE]:
        yield _finding(stray, fails=error is not None)
    if len(strays) > _ONE_BY_ONE:
        places = listed([stray.place for stray in strays[_ONE_BY_ONE:]], 5)
        yield failure("fixed-device", f"So do {len(strays) - _ONE_BY_ONE} more: {places}.")
    if strays:
        return
    if isinstance(error, NamedError) and error.identifier == "fixed-device":
        yield of_error(error)
    elif error is None:
        yield passed(f"one device, followed to {end}" if end else "one device for all tensors, on an imaginary GPU")


def _finding(stray: _Stray, fails: bool) -> Finding:
    shape = list(stray.shape)
    where = "on the CPU" if stray.device.type == "cpu" else f"on {stray.device}"
    met = f", used in {stray.layer}" if stray.layer else ""
    if not stray.code:
        return failure(
            "fixed-device",
            f"{stray.place}, a tensor of shape {shape}, stays {where}{met}.",
            cause="The strategy moves parameters, buffers and layers to each process's device, and this is none.",
            fix="Register it in __init__: self.register_buffer(name, tensor).",
        )
    subject = f"{stray.place} has a tensor of shape {shape} {where}, whatever the device: {stray.code}"
    if stray.device.type == "cuda" and not fails:
        # Behind `if x.is_cuda`: Lightning makes each process's GPU the current one.
        return warning("fixed-device", subject, "It works as long as the process's current GPU is its own.")
    return failure("fixed-device", subject)


class _Watch(TorchDispatchMode):
    """Sees every operation before the fake tensors do.

    Args:
        held: Names of tensors that the network keeps, by ``id``.
        trained: Those of them that another check names.
    """

    def __init__(self, held: Mapping[int, str], trained: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held, self.trained = held, trained
        self.found: dict[str, _Stray] = {}
        self.layers: list[str] = []
        self._origins: dict[int, tuple[Tensor, str, str]] = {}  # keeps the tensors, or an id would be used again
        self._answers = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and self._answers < _ANSWERS:
            self._answers += 1
            kind = args[0].dtype
            return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1
        inputs = _tensors((args, kwargs))
        strays = [one for one in inputs if one.device != _HERE]
        try:
            out = func(*args, **kwargs)
        except RuntimeError:
            if not strays or len(strays) == len(inputs):
                raise
            moved = tree_map(_moved, (args, kwargs))
            out = func(*moved[0], **moved[1])  # if this fails too, it is not for the devices
            for stray in strays:
                self._note(stray)
        self._remember(out, strays)
        return out

    def _note(self, stray: Tensor) -> None:
        if id(stray) in self.trained or (stray.ndim == 0 and stray.device.type == "cpu"):
            return
        _, place, code = self._origins.get(id(stray)) or (stray, *self._origin(stray))
        layer = self.layers[-1] if self.layers else ""
        self.found.setdefault(place, _Stray(place, code, stray.device, tuple(stray.shape), layer))

    def _remember(self, out: Any, strays: list[Tensor]) -> None:
        for one in _tensors(out):
            if one.device != _HERE and id(one) not in self._origins:
                same = [stray for stray in strays if stray.device == one.device]
                if any(id(stray) in self.trained for stray in same):
                    self.trained.add(id(one))
                place, code = self._origin(same[0]) if same else calling_line()
                self._origins[id(one)] = one, place, code

    def _origin(self, stray: Tensor) -> tuple[str, str]:
        if id(stray) in self._origins:
            return self._origins[id(stray)][1:]
        return (self.held[id(stray)], "") if id(stray) in self.held else calling_line()


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, Tensor)]


def _moved(value: Any) -> Any:
    return _empty(value) if isinstance(value, Tensor) and value.device != _HERE else value


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_HERE)


def _strays(rehearsal: Rehearsal) -> tuple[list[_Stray], str]:
    """Tensors that are elsewhere, and the layer that ended the pass, where one has no fake result."""
    module = rehearsal.module
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: Tensor) -> Tensor:
        with mode:
            made = _empty(tensor)
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

    watch = _Watch({}, set())

    def enter(name: str, layer: nn.Module, _: Any) -> None:
        watch.layers.append(described(name, layer) if name else "")

    # On a machine with a single GPU torch would touch the second one for a backward pass, which is not run.
    with patch.object(fake_tensor, "init_gpu_context", lambda *_: None), nothing_happened(module):
        try:
            tensors = {id(one): fake(one) for one in (*module.parameters(), *module.buffers())}
            batch = {name: fake(v) if isinstance(v, Tensor) else v for name, v in few(rehearsal).items()}
            twin = copied(module, tensors)
            watch.held, watch.trained = _held(twin)
            with watched(twin, enter, lambda *_: watch.layers.pop()), mode, watch:
                twin.training_loss(batch)
        except Exception:  # noqa: BLE001 - no fake result, a copy that cannot be made: what was seen until then counts
            return list(watch.found.values()), (watch.layers[-1] if watch.layers else "") or "the loss"
    return list(watch.found.values()), ""


def _held(module: nn.Module) -> tuple[dict[int, str], set[int]]:
    """Tensors that layers hold in attributes, lists and dicts, by ``id``; and which of them ask for a gradient."""
    held: dict[int, str] = {}

    def add(value: Any, path: str) -> None:
        if isinstance(value, nn.Module):
            for name, one in (*value.named_parameters(), *value.named_buffers()):
                held.setdefault(id(one), f"{path}.{name}")
                kept.append(one)
        elif isinstance(value, Tensor):
            held.setdefault(id(value), path)
            kept.append(value)
        elif isinstance(value, (list, tuple)):
            for number, one in enumerate(value):
                add(one, f"{path}[{number}]")
        elif isinstance(value, dict):
            for key, one in value.items():
                add(one, f"{path}[{key!r}]")

    kept: list[Tensor] = []
    internal = vars(nn.Module()).keys()
    for prefix, layer in module.named_modules():
        for name, value in list(vars(layer).items()):
            if name not in internal:
                add(value, f"{prefix}.{name}" if prefix else name)
    return held, {id(one) for one in kept if one.requires_grad and one.device != _HERE}
