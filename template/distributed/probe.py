"""One forward and backward pass whose effects are discarded: it shows which parameters get no gradient, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from .collectives import world_size
from .faults import NamedError
from .knobs import FULL_KEY
from .told import listed
from .undo import nothing_happened

NOT_CALLED = "its module is not called in forward: a branch that is not taken, or a layer that is left over"
NOT_IN_LOSS = "its module is called, but the output does not reach the loss: a head that is left out, or a detach"


def probe_batch(trainer: Trainer) -> Any | None:
    """A first training batch on the device, or None where data or module offer no way to a step without effects.

    Args:
        trainer: Its ``datamodule`` may have ``probe_batch()``, and its module ``training_loss(batch)``.
    """
    make = getattr(getattr(trainer, "datamodule", None), "probe_batch", None)
    if make is None or not hasattr(trainer.lightning_module, "training_loss"):
        return None
    batch = make()
    if batch is None:
        return None
    # What Lightning's loops do to each batch.
    return trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch), trainer.strategy.root_device)


def sample_names(batch: Any) -> str:
    """Names of a batch's samples, as far as it has a list ``case`` of things with a ``name``; else nothing."""
    cases = batch.get("case", ()) if isinstance(batch, Mapping) else ()
    return ", ".join(str(getattr(case, "name", case)) for case in cases)


def probe_loss(trainer: Trainer, batch: Any) -> Tensor:
    """Loss of a batch in the precision of the run, computed by the module itself and not through DDP."""
    module: Any = trainer.lightning_module
    with trainer.precision_plugin.train_step_context():
        loss: Tensor = module.training_loss(batch)
        return loss


def let_settle(module: LightningModule, batch: Any) -> None:
    """Let the module decide what it decides by a measurement: its ``settle``, where it has one, is given the loss.

    Args:
        module: The module that is trained, not yet wrapped by DDP.
        batch: Of :func:`probe_batch`.
    """
    settle = getattr(module, "settle", None)
    if callable(settle):
        settle(lambda: probe_loss(module.trainer, batch))


class Unused(NamedTuple):
    """A trainable parameter that got no gradient.

    Attributes:
        name: Of the parameter, as in ``named_parameters``.
        cause: What the pass shows of the reason.
        ranks: Ranks on which it got none.
    """

    name: str
    cause: str
    ranks: tuple[int, ...]


def find_unused(module: nn.Module, compute_loss: Callable[[], Tensor]) -> list[Unused]:
    """Run one forward and backward pass and list the trainable parameters without a gradient, over all ranks.

    Args:
        module: The module that is trained, not yet wrapped by DDP.
        compute_loss: Computes the loss of one batch, scalar. Called once on every rank.

    Returns:
        Parameters in the module's order; empty where all are used on all ranks.
    """
    called: set[nn.Module] = set()
    hooks = [layer.register_forward_hook(lambda layer, *_: called.add(layer)) for layer in module.modules()]
    with nothing_happened(module):
        for layer in module.modules():  # what is compiled already knows nothing of the hooks
            layer._compiled_call_impl = None
        try:
            loss = compute_loss()
        finally:
            for hook in hooks:
                hook.remove()
        if loss.requires_grad:
            loss.backward()
        here = {
            name: NOT_IN_LOSS if owner in called else NOT_CALLED
            for name, parameter, owner in _trainable(module)
            if parameter.grad is None
        }
    everywhere: list[dict[str, str]] = [here]
    if world_size() > 1:
        everywhere = [{}] * world_size()
        dist.all_gather_object(everywhere, here)
    return _joined([name for name, _, _ in _trainable(module)], everywhere)


def unused_error(unused: Sequence[Unused], ranks: int) -> NamedError:
    """The named failure of parameters that DDP would wait for."""
    return NamedError(
        "unused-parameters",
        f"Trainable parameters got no gradient: {describe(unused, ranks)}.",
        cause=f"DDP waits in each step for the gradient of each of them, as {FULL_KEY}.find_unused_parameters is "
        "false.",
        fix=f"{advice(unused, ranks)} Where it is unused on purpose, set {FULL_KEY}.find_unused_parameters to auto.",
    )


def advice(unused: Iterable[Unused], ranks: int) -> str:
    """What to change in the network, by what the pass shows of the reason.

    Args:
        unused: The parameters.
        ranks: Number of ranks.
    """
    found = list(unused)
    ways = ["Remove the layer"]
    if any(NOT_CALLED in one.cause for one in found):
        ways.append("call it in forward")
    if any(NOT_IN_LOSS in one.cause for one in found):
        ways.append("use its output in the loss (return it from forward, without detach)")
    if any(len(one.ranks) < ranks for one in found):
        ways.append("take the branch on all ranks (with weight 0 where it does not count: loss + 0 * out.sum())")
    return f"{', or '.join([*ways, 'freeze it with requires_grad_(False)'])}."


def describe(unused: Iterable[Unused], ranks: int, most: int = 10) -> str:
    """Name unused parameters in a sentence, those of one cause together.

    Args:
        unused: The parameters.
        ranks: Number of ranks.
        most: Longest list of names.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for one in unused:
        groups.setdefault((one.cause, one.ranks), []).append(one.name)
    parts = []
    for (cause, where), names in groups.items():
        place = "" if len(where) == ranks else f" on {_ranks(where)}"
        parts.append(f"{listed(names, most)}{place} ({cause})")
    return "; ".join(parts)


def _trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield (f"{prefix}.{name}" if prefix else name), parameter, owner


def trainable_names(module: nn.Module) -> list[str]:
    """Names of the trainable parameters in the order in which DDP numbers them."""
    return [name for name, _, _ in _trainable(module)]


def _joined(names: list[str], everywhere: list[dict[str, str]]) -> list[Unused]:
    found = []
    for name in names:
        ranks = tuple(rank for rank, missing in enumerate(everywhere) if name in missing)
        if ranks:
            cause = everywhere[ranks[0]][name]
            if len(ranks) < len(everywhere):
                cause = "a branch that is taken on other ranks only; " + cause
            found.append(Unused(name, cause, ranks))
    return found


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]} alone" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
