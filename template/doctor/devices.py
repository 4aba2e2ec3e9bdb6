"""Tensors on a device of their own, found on a machine without any GPU: the network runs on an imaginary second one.

torch computes there with fake tensors, which have a shape, a type and a device, and no values. A tensor that the
network makes or keeps elsewhere meets the others in some operation, as it would on a real GPU. The first one is noted;
in the next pass it is where it should be, and with it all that comes of it, so that the next one shows.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from typing_extensions import override

from ..distributed.faults import NamedError
from ..distributed.registration import find_loose
from ..distributed.told import listed
from ..distributed.undo import nothing_happened
from .finding import Finding, check, failure, of_error, passed, warning
from .rehearsal import Rehearsal
from .sample import FAILS, batches, calling_line, described, watched

#: A second one, as ``.cuda()`` means the first.
_HERE = torch.device("cuda:1")
#: Times that a network may ask for the value of a tensor that has none, and is told 1; a loop may wait for another.
_ANSWERS = 100
#: Places that are found at most, and those of them that get a line of their own.
_MOST, _ONE_BY_ONE = 10, 3
_INTERNAL = vars(nn.Module()).keys()
_ITEM, _INDEX = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.index.Tensor


class _Stray(NamedTuple):
    """Where a tensor that is elsewhere comes from.

    Attributes:
        place: The name of the attribute that holds it, or the line of code that made it.
        code: Of that line; empty for an attribute.
        device: Where it is.
        shape: Of the tensor.
        layer: In which they meet.
        trained: Whether it is to be trained, and not registered, which another check tells.
    """

    place: str
    code: str
    device: torch.device
    shape: tuple[int, ...]
    layer: str
    trained: bool


@check("model: devices", "fixed-device")
def one_device(rehearsal: Rehearsal) -> Iterator[Finding]:
    """All tensors of a step are on the device that the strategy chooses."""
    error = rehearsal.measured.get(FAILS)
    strays, end = _strays(rehearsal)
    for stray in strays[:_ONE_BY_ONE]:
        yield _finding(stray, fails=error is not None)
    if len(strays) > _ONE_BY_ONE:
        places = listed([stray.place for stray in strays[_ONE_BY_ONE:]], 5)
        yield failure("fixed-device", f"So have {len(strays) - _ONE_BY_ONE} more places: {places}.")
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
    """Sees every operation before the fake tensors do, and helps out where one cannot be done without values.

    Args:
        held: Names of tensors that the network keeps, by ``id``.
        known: Places whose tensors are already found; they are brought here.
    """

    def __init__(self, held: Mapping[int, str], known: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held, self.known = held, known
        self.first: _Stray | None = None
        self.layers: list[str] = []
        self._origins: dict[int, tuple[Tensor, str, str]] = {}  # keeps the tensors, or an id would be used again
        self._answers = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ITEM and self._answers < _ANSWERS:
            self._answers += 1
            kind = args[0].dtype
            return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1
        if func is _INDEX:
            args = args[0], [number for one in args[1] for number in _all_chosen(one)]
        inputs = _tensors((args, kwargs))
        strays = [one for one in inputs if one.device != _HERE]
        try:
            out = func(*args, **(kwargs or {}))
        except RuntimeError:
            # torch has no public class for it: the operation works once all are here, so it was for the devices.
            if not strays or len(strays) == len(inputs):
                raise
            args, kwargs = tree_map(_moved, (args, kwargs or {}))
            out = func(*args, **kwargs)
            for stray in strays:
                self._note(stray)
        return self._followed(out, strays)

    def _note(self, stray: Tensor) -> None:
        place, code = self._origin(stray)
        if self.first is None and place not in self.known and (stray.ndim > 0 or stray.device.type != "cpu"):
            layer = self.layers[-1] if self.layers else ""
            trained = stray.requires_grad and stray.is_leaf and id(stray) not in self._origins
            self.first = _Stray(place, code, stray.device, tuple(stray.shape), layer, trained)

    def _followed(self, out: Any, strays: list[Tensor]) -> Any:
        """Remember where the results come from that are elsewhere."""
        for one in _tensors(out):
            if one.device != _HERE and id(one) not in self._origins:
                same = [stray for stray in strays if stray.device == one.device]
                self._origins[id(one)] = one, *(self._origin(same[0]) if same else calling_line())
        return tree_map(lambda one: _moved(one) if self._is_known(one) else one, out)

    def _is_known(self, value: Any) -> bool:
        return isinstance(value, Tensor) and id(value) in self._origins and self._origins[id(value)][1] in self.known

    def _origin(self, stray: Tensor) -> tuple[str, str]:
        if id(stray) in self._origins:
            return self._origins[id(stray)][1:]
        return (self.held[id(stray)], "") if id(stray) in self.held else calling_line()


def _all_chosen(index: Any) -> list[Any]:
    """A mask in an index as the numbers of all its elements: how many it chooses, only values would tell."""
    if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
        return [torch.empty(index.numel(), dtype=torch.int64, device=index.device) for _ in range(index.ndim)]
    return [index]


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, Tensor)]


def _moved(value: Any) -> Any:
    return _empty(value) if isinstance(value, Tensor) and value.device != _HERE else value


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_HERE)


def _strays(rehearsal: Rehearsal) -> tuple[list[_Stray], str]:
    """Tensors that are elsewhere, and the layer that ended the last pass, where something has no fake result."""
    found: list[_Stray] = []
    known: set[str] = set()
    end = ""
    while len(found) < _MOST:
        stray, end = _pass(rehearsal, known)
        if stray is None:
            break
        found.append(stray)
        known.add(stray.place)
    # A tensor made on the device of one that is elsewhere is no fault of that line.
    for stray in found if len(found) > 1 else ():
        again, _ = _pass(rehearsal, known - {stray.place})
        if again is None:
            found = [one for one in found if one is not stray]
    # What layers hold that are not registered is told with them.
    told = tuple(f"{loose.path}." for loose in find_loose(rehearsal.module) if loose.trained)
    return [stray for stray in found if not stray.trained and not stray.place.startswith(told)], end


def _pass(rehearsal: Rehearsal, known: Collection[str]) -> tuple[_Stray | None, str]:
    module = rehearsal.module
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: Tensor) -> Tensor:
        with mode:
            made = _empty(tensor)
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

    watch = _Watch({}, known)

    def enter(name: str, layer: nn.Module, _: Any) -> None:
        watch.layers.append(described(name, layer) if name else "")

    # On a machine with a single GPU torch would touch the second one for a backward pass, which is not run.
    with patch.object(fake_tensor, "init_gpu_context", lambda *_: None), nothing_happened(module), _quiet():
        try:
            tensors = {id(one): fake(one) for one in (*module.parameters(), *module.buffers())}
            batch = {name: fake(v) if isinstance(v, Tensor) else v for name, v in batches(rehearsal)[0].items()}
            with _replaced(module, tensors) as twin:
                watch.held = dict(_held(twin))
                with watched(twin, enter, lambda *_: watch.layers.pop()), mode, watch:
                    twin.training_loss(batch)
        except (Exception, SystemExit):  # noqa: BLE001 - no fake result, whatever a network may do: what was seen until then counts
            return watch.first, (watch.layers[-1] if watch.layers else "") or "the loss"
    return watch.first, ""


@contextmanager
def _replaced(module: Any, instead: Mapping[int, Any]) -> Iterator[Any]:
    """A copy of a module with other parameters and buffers; the module itself where it cannot be copied.

    Args:
        module: A LightningModule. The copy has its trainer, optimizers and the like.
        instead: By the ``id`` of an object, what is in its place.
    """
    shared = [module._trainer, module._fabric, getattr(module, "_settings", None)]
    memo = {id(one): one for one in shared if one is not None} | dict(instead)
    try:
        twin = copy.deepcopy(module, memo)
        twin._trainer = module._trainer
    except Exception:  # noqa: BLE001 - a lock, an open file, whatever a network may hold
        # Not always: recurrent layers keep their parameters in a list as well.
        stores: list[dict[str, Any]] = [
            store for layer in module.modules() for store in (layer._parameters, layer._buffers)
        ]
        before = [dict(store) for store in stores]
        try:
            for store in stores:
                store.update({name: instead.get(id(one), one) for name, one in store.items()})
            yield module
        finally:
            for store, values in zip(stores, before, strict=True):
                store.clear()
                store.update(values)
    else:
        yield twin


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's word on each operation that has no fake result."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _held(module: nn.Module) -> Iterator[tuple[int, str]]:
    """Tensors that layers hold in attributes, lists and dicts, each as its ``id`` and its name."""
    for prefix, layer in module.named_modules():
        for name, value in list(vars(layer).items()):
            if name not in _INTERNAL:
                yield from _within(value, f"{prefix}.{name}" if prefix else name)


def _within(value: Any, path: str) -> Iterator[tuple[int, str]]:
    if isinstance(value, nn.Module):
        for name, one in (*value.named_parameters(), *value.named_buffers()):
            yield id(one), f"{path}.{name}"
    elif isinstance(value, Tensor):
        yield id(value), path
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _within(one, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _within(one, f"{path}[{key!r}]")
