"""Whether everything that is to be trained is known to the network that holds it, and to the optimizer."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torchmetrics import Metric

from .faults import NamedError
from .heartbeat import is_library
from .told import listed

#: What PyTorch and Lightning keep in each module for themselves.
_INTERNAL = vars(nn.Module()).keys() | vars(LightningModule()).keys()
_LISTS = (list, tuple, set, frozenset, deque)
_CONTAINERS = ("a plain dict", *(f"a plain {one.__name__}" for one in _LISTS))
# Looked into for the objects that they hold, so far that a list of a million file names costs nothing.
_LONGEST = 1000
_DEEPEST = 4
_LISTED = 5
#: Objects that hold others' parameters by their nature, or are no part of a network.
_LEFT_OUT = (Optimizer, type, types.ModuleType, torch.device, torch.dtype, torch.Generator, str, bytes)
#: A variable that a function remembers before it has a value.
_EMPTY = types.CellType()


class Loose(NamedTuple):
    """Something that a network holds and does not know.

    Attributes:
        path: Where, from the module that was searched, such as ``net.heads[0]``.
        what: Its class, or what kind of tensor it is.
        kind: ``layer``, ``metric``, ``parameter`` or ``tensor``.
        holder: What holds it: the path of a list or dict, else its own.
        place: What kind of place that is, such as ``a plain list``.
        trained: Whether it has to be known for training to be right: it would be left out of the optimizer, the
            checkpoint, and the average over the processes.
    """

    path: str
    what: str
    kind: str
    holder: str
    place: str
    trained: bool


def check_registered(module: nn.Module) -> None:
    """Refuse layers, parameters and metrics in plain lists and other places that a module does not look into.

    They are not moved to the device, not trained, not saved and not averaged over the processes, and on the CPU
    nothing tells. What is frozen is only told: a teacher network is kept out of the checkpoint in this way.

    Args:
        module: The module that is trained.

    Raises:
        NamedError: ``unregistered-module``.
    """
    for error, trained in unregistered(module):
        if trained:
            raise error
        rank_zero_info(str(error))


def unregistered(module: nn.Module) -> Iterator[tuple[NamedError, bool]]:
    """Name what :func:`check_registered` looks for: first all that is to be trained, then all that is not.

    Args:
        module: The module that is trained.

    Yields:
        The failure, and whether it concerns what is to be trained.
    """
    found = list(find_loose(module))
    for trained in (True, False):
        groups: dict[tuple[str, str], list[Loose]] = {}
        for one in found:
            if one.trained is trained:
                groups.setdefault((one.holder, one.place), []).append(one)
        if not groups:
            continue
        told = "; ".join(_sentence(group) for group in list(groups.values())[:_LISTED])
        more = f"; and {len(groups) - _LISTED} more such places" if len(groups) > _LISTED else ""
        fixes = dict.fromkeys(_advice(group[0]) for group in groups.values())
        fix = f"Use {', '.join(fixes)}."
        if any(group[0].trained and group[0].kind != "metric" for group in groups.values()):
            fix += " A copy that is kept beside on purpose, such as a teacher: freeze it with requires_grad_(False)."
        yield NamedError("unregistered-module", f"{told}{more}.", fix=fix), trained


def _sentence(group: list[Loose]) -> str:
    """Say of one place what is in it, and what becomes of that."""
    first, count = group[0], len(group)
    lost = {"metric": "moved nor reduced", "layer": "moved nor trained"}.get(first.kind, "moved nor trained")
    lost = lost if first.trained else "moved nor saved"
    if first.place not in _CONTAINERS:
        return f"{first.path} ({first.what}) is in {first.place}: it is neither {lost}"
    classes = list(dict.fromkeys(one.what for one in group))
    names = ", ".join(classes[:_LISTED]) + ", …" * (len(classes) > _LISTED)
    which = f"{count} {first.kind}{'s' * (count > 1)} ({names})"
    return f"{first.holder} is {first.place} of {which}: {'they are' if count > 1 else 'it is'} neither {lost}"


def find_loose(module: nn.Module) -> Iterator[Loose]:
    """What a module holds outside of its parameters, buffers and submodules; references to these are no matter."""
    known = {id(one) for one in (*module.modules(), *module.parameters(), *module.buffers())}
    for prefix, owner in module.named_modules():
        for name, value in list(vars(owner).items()):
            # A metric's own tensors are its states, which it moves and reduces itself.
            if name not in _INTERNAL and not (isinstance(owner, Metric) and isinstance(value, Tensor)):
                path = f"{prefix}.{name}" if prefix else name
                yield from _search(value, path, (path, "a plain attribute"), known, 0)
        forward = getattr(type(owner), "forward", None)
        if isinstance(forward, types.FunctionType):
            path = f"{prefix}.forward" if prefix else "forward"
            for part, name, where in (*_parts(forward), *_globals(forward)):
                yield from _search(part, f"{path}{name}", (f"{path}{name}", where), known, 0)


def _search(value: Any, path: str, held: tuple[str, str], known: set[int], depth: int) -> Iterator[Loose]:
    if id(value) in known or depth > _DEEPEST or isinstance(value, _LEFT_OUT):
        return
    if isinstance(value, nn.Module):
        yield from _module(value, path, held, known)
    elif isinstance(value, Tensor):
        # What a forward pass has left behind has a history, and is no leaf.
        if value.requires_grad and value.is_leaf:
            kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
            yield Loose(path, f"{kind} of shape {list(value.shape)}", kind, *held, trained=True)
    else:
        known.add(id(value))  # told once, and no walk in circles
        for part, name, where in _parts(value):
            # Several attributes of an object are several places.
            holder = path if where in _CONTAINERS else f"{path}{name}"
            yield from _search(part, f"{path}{name}", (holder, where), known, depth + 1)


def _parts(value: Any) -> Iterator[tuple[Any, str, str]]:
    """What an object holds: each with its name, and how the object is called."""
    if isinstance(value, Mapping):
        for key, part in islice(value.items(), _LONGEST):
            yield part, f"[{key!r}]", "a plain dict"
    elif isinstance(value, _LISTS):
        for number, part in enumerate(islice(value, _LONGEST)):
            yield part, f"[{number}]", next(f"a plain {one.__name__}" for one in _LISTS if isinstance(value, one))
    elif isinstance(value, (functools.partial, types.MethodType, types.FunctionType)):
        yield from _remembered(value)
    # Not into the trainer, loggers and the like.
    elif not callable(value) and not type(value).__module__.startswith(("lightning.", "torch.")):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for name, part in list(attributes.items())[:_LONGEST]:
                yield part, f".{name}", f"an object ({type(value).__name__}) that is no nn.Module"


def _remembered(value: Any) -> Iterator[tuple[Any, str, str]]:
    """What a function of the user's, a method or a partial function has with it."""
    if isinstance(value, functools.partial):
        yield value.func, "", "a functools.partial"
        for key, part in (*enumerate(value.args), *value.keywords.items()):
            yield part, f", argument {key}", "a functools.partial"
    elif isinstance(value, types.MethodType):
        yield value.__self__, ", the object of this method", "a plain attribute"
    elif not is_library(value.__code__.co_filename):
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != _EMPTY:
                yield cell.cell_contents, f", variable {key}", "a function that remembers it"


def _globals(forward: types.FunctionType) -> Iterator[tuple[Any, str, str]]:
    """Layers, tensors and collections in global variables that a function of the user's names."""
    if not is_library(forward.__code__.co_filename):
        for name in forward.__code__.co_names:
            value = forward.__globals__.get(name)
            if isinstance(value, (nn.Module, Tensor, Mapping, *_LISTS)):
                yield value, f", variable {name}", "a global variable"


def _module(value: nn.Module, path: str, held: tuple[str, str], known: set[int]) -> Iterator[Loose]:
    """A module that is not registered matters where something of it is not known otherwise either."""
    inside = list(value.modules())
    parameters = [one for one in value.parameters() if id(one) not in known]
    buffers = [one for one in value.buffers() if id(one) not in known]
    strangers = [one for one in inside if id(one) not in known]
    known.update(map(id, (*inside, *parameters, *buffers)))
    # Weights that follow those of the network ask for gradients, as they are copied from it, and never get any.
    averages = {id(parameter) for one in inside if isinstance(one, AveragedModel) for parameter in one.parameters()}
    trained = any(one.requires_grad and id(one) not in averages for one in parameters) or any(
        isinstance(one, Metric) for one in strangers
    )
    # Dropout in a plain list stays on in validation.
    if trained or parameters or buffers or any(isinstance(one, nn.modules.dropout._DropoutNd) for one in strangers):
        kind = "metric" if isinstance(value, Metric) else "layer"
        yield Loose(path, type(value).__name__, kind, *held, trained)


def _advice(loose: Loose) -> str:
    """What to use instead, as the end of a sentence."""
    kind = "Module" if loose.kind in ("layer", "metric") else "Parameter"
    if loose.place == "a plain dict":
        return f"nn.{kind}Dict"
    if loose.place in _CONTAINERS:
        return f"nn.{kind}List"
    if loose.place == "a plain attribute":
        what = "a module" if kind == "Module" else "an nn.Parameter"
        return f"an attribute that is {what}, assigned after super().__init__()"
    return "an attribute of the network"


def check_optimizers(module: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Hold the optimizers' parameters against those of the module that is trained.

    A parameter of no module is refused: it was replaced after the optimizer was made, or never registered, so that
    steps on it change nothing that is used, saved or averaged. A trainable parameter without an optimizer is only
    told: to train a part alone is a choice, which freezing the rest says better. One parameter in two optimizers
    (adversarial training) is a choice as well; twice in one, torch itself refuses.

    Args:
        module: The module that is trained.
        optimizers: All of the run; none means that nothing is checked.

    Raises:
        NamedError: ``optimizer-parameters``.
    """
    groups = [(one, number, group) for one in optimizers for number, group in enumerate(one.param_groups)]
    if not groups:
        return
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    missing = _without(module, groups)
    for optimizer, number, group in groups:
        strangers = [parameter for parameter in group["params"] if id(parameter) not in names]
        if strangers:
            shapes = _some(strangers, lambda one: str(list(one.shape)))
            raise NamedError(
                "optimizer-parameters",
                f"Group {number} of {type(optimizer).__name__} holds parameters that are not the network's, of shape "
                f"{shapes}{f'; the network has {_some(missing)}, which no optimizer has' if missing else ''}.",
            )
    if missing:
        rank_zero_info(
            f"No optimizer has these trainable parameters, which therefore stay as they are: {_some(missing)}. If that "
            "is meant, freeze them with requires_grad_(False). [optimizer-parameters]"
        )


def _without(module: nn.Module, groups: Iterable[tuple[Optimizer, int, dict[str, Any]]]) -> list[str]:
    """Names of the trainable parameters that no optimizer has."""
    held = {id(parameter) for _, _, group in groups for parameter in group["params"]}
    return [name for name, one in module.named_parameters() if one.requires_grad and id(one) not in held]


def _some(values: list[Any], shown: Callable[[Any], str] = str) -> str:
    return listed([shown(value) for value in values], _LISTED)
