"""Layers with a memory, and layers that need several values: buffers and BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data.seeding import seeded
from ..distributed.probe import probe_loss
from ..distributed.told import listed
from ..distributed.undo import nothing_happened
from .draws import Draws
from .finding import Finding, check, failure, passed, warning
from .rehearsal import Rehearsal
from .sample import FAILS, batches, described, knob, processes, watched

#: Values of a channel below which its spread is mostly chance: that of 16 is off by a sixth on average, which is
#: sqrt(1 / (2 * 15)), the relative standard error of a standard deviation.
_FEW_VALUES = 16
#: Its name in ``Rehearsal.measured``.
_FIRST = "first pass"


@check("model: buffers", "buffer-changed")
def buffers_stay(rehearsal: Rehearsal) -> Iterator[Finding]:
    """No buffer depends on a process's share of the data, and each BatchNorm runs once in a step."""
    module = rehearsal.module
    if rehearsal.measured.get(FAILS) is not None:
        return
    first = _first_pass(rehearsal)
    found = []
    changed = [
        f"{name}, a buffer of shape {list(value.shape)},"
        for name, value in (_elsewhere(rehearsal) if first.buffers else {}).items()
        if name in first.buffers and not _same(value, first.buffers[name])
    ]
    if changed:
        verb = "are" if len(changed) > 1 else "is"
        what = f"{listed(changed, 3)} {verb} changed in forward by what is in the batch."
        found.append(warning("buffer-changed", what))
    calls = {name: len(values) for name, values in first.values.items()}
    twice = [described(name, module.get_submodule(name)) for name, count in calls.items() if count > 1]
    if twice:
        most = max(calls.values())
        found.append(
            warning(
                "batchnorm-twice",
                f"{listed(twice, 2)} {'are' if len(twice) > 1 else 'is'} called {most} times in one training step.",
                cause=f"The network sends {most} inputs through it one after the other: each is normalised by itself, "
                "and the running statistics, which evaluation uses, move with each. Where DDP copies buffers between "
                "them (broadcast_buffers), backward stops with 'modified by an inplace operation'; here it is off.",
            )
        )
    yield from found
    if not found:
        yield passed(
            f"{len(calls)} BatchNorm, once a step; {len(first.buffers)} other buffer{'s' * (len(first.buffers) != 1)}"
        )


class _Pass(NamedTuple):
    """What the first forward pass has shown.

    Attributes:
        values: Values per channel that each BatchNorm got from one sample, for each of its calls.
        buffers: Copies of all buffers after it, but those of BatchNorm.
    """

    values: dict[str, list[float]]
    buffers: dict[str, Tensor]


def _first_pass(rehearsal: Rehearsal) -> _Pass:
    """Watch one forward pass, once for all checks; of one that fails, what is seen until then."""
    if _FIRST in rehearsal.measured:
        known: _Pass = rehearsal.measured[_FIRST]
        return known
    batch = batches(rehearsal)[0]
    rehearsal.measured[_FIRST] = found = _Pass({}, {})

    def look(name: str, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        x = arguments[0] if arguments else None
        if isinstance(layer, _BatchNorm) and layer.training and isinstance(x, Tensor) and x.ndim > 1:
            found.values.setdefault(name, []).append(x.numel() / x.shape[1] / len(batch["image"]))

    with nothing_happened(rehearsal.module), watched(rehearsal.module, before=look):
        try:
            probe_loss(rehearsal.trainer, batch)
        except (Exception, SystemExit):  # noqa: BLE001 - told by the check of the output
            return found
        found.buffers.update(_values(rehearsal.module))
    return found


def _elsewhere(rehearsal: Rehearsal) -> dict[str, Tensor]:
    """Buffers after the pass of other samples, as another process has them."""
    batch = batches(rehearsal)[0]
    with nothing_happened(rehearsal.module):
        probe_loss(rehearsal.trainer, {**batch, "image": batch["image"].flip(0) * 0.5 + 0.1})
        return _values(rehearsal.module)


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """All buffers but those of BatchNorm, which are synchronised, or averaged before they are used."""
    own = {id(b) for layer in module.modules() if isinstance(layer, _BatchNorm) for b in layer.buffers(recurse=False)}
    return {
        name: buffer
        for name, buffer in module.named_buffers()
        if id(buffer) not in own and not isinstance(buffer, nn.UninitializedBuffer)
    }


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in own_buffers(module).items()}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


@check("model: evaluation", "random-evaluation")
def evaluation_is_repeatable(rehearsal: Rehearsal) -> Iterator[Finding]:
    """In eval mode the network gives the same output whatever the state of the random generators."""
    module, image = rehearsal.module, batches(rehearsal)[0]["image"]
    if rehearsal.measured.get(FAILS) is not None:
        return
    outputs, draws = [], Draws()
    for seed in (0, 1):
        # Of torch, NumPy and Python: a network may draw from any of them.
        context = rehearsal.trainer.precision_plugin.val_step_context()
        with nothing_happened(module), in_evaluation(module), seeded(seed), draws, context:
            outputs.append(module(image)[0])
    if _same(outputs[0], outputs[1]):
        yield passed("the same output twice")
    else:
        lines = listed([f"{place} ({code})" for place, code in draws.lines.items()], 3)
        where = f": random numbers are drawn at {lines}" if lines else ""
        yield warning("random-evaluation", f"{type(module.net).__name__} gives two outputs of one image{where}.")


@contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each layer has its own mode again."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for layer, training in modes.items():
            layer.training = training


@check("model: batchnorm", "few-values")
def batchnorm_has_values(rehearsal: Rehearsal) -> Iterator[Finding]:
    """BatchNorm has enough values for its statistics, with the share of each of the processes to come."""
    module = rehearsal.module
    count = processes(rehearsal)
    synchronised = bool(knob(rehearsal.asked, "sync_batchnorm", True) or rehearsal.asked.get("sync_batchnorm"))
    micro = rehearsal.data.batch_size // (count * (rehearsal.asked.get("accumulate_grad_batches") or 1)) or 1
    each = {name: min(values) for name, values in _first_pass(rehearsal).values.items()}
    if not each:
        if rehearsal.measured.get(FAILS) is None:
            yield passed("no BatchNorm")
        return
    samples = micro * count if synchronised else micro
    share = f"{micro} sample{'s' * (micro > 1)} in each of {count} process{'es' * (count > 1)}"
    for most, make in ((1, failure), (_FEW_VALUES - 1, warning)):
        names = [name for name, values in each.items() if values * samples <= most]
        if names and (most == 1 or not synchronised):
            fewest = int(min(each[name] for name in names) * samples)
            layers = listed([described(name, module.get_submodule(name)) for name in names], 2)
            cause = None
            if most == 1:
                cause = "One value has no spread: torch stops with 'Expected more than 1 value per channel'."
            yield make("few-values", f"{layers}: {fewest} value{'s' * (fewest > 1)} per channel, with {share}.", cause)
            return
    fewest = int(min(each.values()) * samples)
    yield passed(f"{fewest} values per channel or more")
