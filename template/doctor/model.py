"""What one process can see of the network, its loss and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..distributed.faults import NamedError
from ..distributed.placed import known_failure
from ..distributed.probe import NOT_IN_LOSS, advice, describe, find_unused, probe_loss
from ..distributed.raised import said
from ..distributed.registration import check_optimizers, unregistered
from ..distributed.told import listed
from ..distributed.undo import nothing_happened
from ..labels import IGNORE_INDEX
from .devices import one_device
from .finding import Finding, check, failure, of_error, passed, warning
from .layers import batchnorm_has_values, buffers_stay, evaluation_is_repeatable, own_buffers
from .rehearsal import Rehearsal
from .sample import FAILS, NO_GRADIENT, batches, knob

#: Steps on one batch, how far the loss has to fall in them, and by how much the learning rate is lowered once.
_STEPS, _FALL, _LOWER = 8, 0.02, 30.0


@check("model: output", "network-output")
def output_fits(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The network takes the images, its outputs fit the classes, and the loss is a number above 0."""
    shapes: list[list[int]] = []
    losses: list[float] = []
    labelled = False
    for number, batch in enumerate(batches(rehearsal)):
        rehearsal.measured[FAILS] = None
        try:
            with nothing_happened(rehearsal.module), _seen_by(rehearsal.module.loss, shapes):
                losses.append(probe_loss(rehearsal.trainer, batch).item())
        except BaseException as error:
            rehearsal.measured[FAILS] = error
            # Those are found one by one on an imaginary GPU.
            if isinstance(error, NamedError) and error.identifier == "fixed-device":
                return
            raise
        labelled = labelled or bool((batch["mask"] != IGNORE_INDEX).any())
        if not math.isfinite(losses[-1]):
            names = listed([str(getattr(case, "name", case)) for case in batch.get("case", ())], 4)
            yield failure(
                "loss-not-finite",
                f"The loss is {losses[-1]} on batch {number} of untrained weights{f', of {names}' if names else ''}.",
            )
            return
    name, shown = type(rehearsal.module.loss).__name__, ", ".join(f"{loss:.3g}" for loss in losses)
    if labelled and not any(losses):
        yield failure(
            "loss-value",
            f"The loss {name} is exactly 0 on the first {len(losses)} batches.",
            cause="Nothing can be learned from it: no gradient reaches the network.",
            fix="Look at the loss: a cross-entropy of one channel, a weight of 0, a maximum that is taken too early.",
        )
    elif min(losses) < 0:
        yield warning("loss-value", f"The loss {name} is below 0 on the first batches: {shown}.")
    else:
        yield passed(f"output {shapes[0] if shapes else ''}, loss {shown}")


@contextmanager
def _seen_by(loss: nn.Module, shapes: list[list[int]]) -> Iterator[None]:
    """Note the shapes of what the loss is called with, and turn what it raises into a sentence."""
    inside: list[list[int]] = []

    def begin(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        inside.extend(list(one.shape) for one in arguments if isinstance(one, Tensor))
        shapes.extend(inside)

    def end(*_: Any) -> None:
        inside.clear()

    hooks = [loss.register_forward_pre_hook(begin), loss.register_forward_hook(end)]
    try:
        yield
    except NamedError:
        raise
    except Exception as error:
        if not inside:
            raise
        what = f"The loss {type(loss).__name__} fails on logits and masks of {' and '.join(map(str, inside))}"
        raise known_failure(error, what) or NamedError(
            "exception",
            f"{what}: {said(error)}.",
            cause="It is called with logits [N, K, …], float, and labels [N, …], int64.",
            fix="Use a loss that takes these, such as CrossEntropyDice or torch.nn.CrossEntropyLoss.",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


@check("model: gradients", "unused-parameters")
def parameters_get_gradients(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Every trainable parameter gets a gradient."""
    module = rehearsal.module
    if rehearsal.measured.get(FAILS) is not None:
        return
    count = sum(parameter.requires_grad for parameter in module.parameters())
    changed: list[str] = []
    try:
        unused = find_unused(module, lambda: _noting_changes(rehearsal, changed))
    except RuntimeError as error:
        rehearsal.measured[FAILS] = error
        where = f" ({listed(changed, 3)} changed in forward)" if changed else ""
        raise known_failure(error, f"The backward pass fails{where}") or error from error
    wanted = knob(rehearsal.asked, "find_unused_parameters", "auto")
    if len(unused) == count and any(NOT_IN_LOSS in one.cause for one in unused):
        rehearsal.measured[NO_GRADIENT] = True
        yield failure("loss-without-graph", f"None of the {count} trainable parameters gets a gradient.")
    elif unused and wanted is True:
        yield passed(f"{len(unused)} of {count} parameters get none, as expected")
    elif unused:
        subject = f"Trainable parameters got no gradient: {describe(unused, 1, most=4)}."
        if wanted is False:
            cause = "DDP waits in each step for the gradient of each of them, as find_unused_parameters is false."
            yield failure("unused-parameters", subject, cause, advice(unused, 1))
        else:
            cause = "They are not trained; with several processes DDP looks for them in each step, which takes time."
            yield warning("unused-parameters", subject, cause, advice(unused, 1))
    else:
        yield passed(f"all {count} parameters get a gradient")


def _noting_changes(rehearsal: Rehearsal, changed: list[str]) -> Tensor:
    """The loss of a few samples; names the buffers that were changed in place by then, but those of BatchNorm."""
    buffers = own_buffers(rehearsal.module)
    before = {name: buffer._version for name, buffer in buffers.items()}
    loss = probe_loss(rehearsal.trainer, batches(rehearsal)[0])
    changed.extend(name for name, buffer in buffers.items() if buffer._version != before[name])
    return loss


@check("model: registered", "unregistered-module")
def everything_is_registered(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Every layer, parameter and metric is known to the network that holds it, and every parameter to the optimizer."""
    module = rehearsal.module
    found = [of_error(error, "fail" if trained else "warn") for error, trained in unregistered(module)]
    try:
        check_optimizers(module, rehearsal.trainer.optimizers)
    except NamedError as error:
        found.append(of_error(error))
    yield from found
    if not found:
        yield passed(f"{len(list(module.net.modules()))} layers, all registered")


@check("model: learns", "not-learning")
def loss_falls(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The loss of one small batch falls when the network is trained on it alone."""
    if rehearsal.measured.get(FAILS) is not None or rehearsal.measured.get(NO_GRADIENT):
        return
    losses, rate = _overfitted(rehearsal, 1.0)
    if not losses:
        return  # nothing to train, or a loss that depends on nothing: found elsewhere
    count = f"{len(losses) - 1} step{'s' * (len(losses) != 2)} on one batch"
    if not math.isfinite(losses[-1]):
        yield failure(
            "loss-not-finite",
            f"The loss is {losses[-1]} after {count} (lr {rate:.3g}).",
            fix="Lower model.optimizer's lr, or look for a division or logarithm of 0 in network and loss.",
        )
    elif _fell(losses):
        yield passed(f"loss {losses[0]:.3g} → {losses[-1]:.3g} in {count}")
    # A step that is too large for untrained weights shows nothing of the network.
    elif max(losses) > losses[0] and _fell(lower := _overfitted(rehearsal, _LOWER)[0]):
        yield passed(f"loss {lower[0]:.3g} → {lower[-1]:.3g} on one batch, at lr / {_LOWER:.0f}")
    else:
        told = f"from {losses[0]:.4g} to {losses[-1]:.4g} in {count} (lr {rate:.3g})"
        yield warning("not-learning", f"The loss does not fall: {told}.")


def _fell(losses: list[float]) -> bool:
    """By a part of itself, or, with a small learning rate, a little in nearly every step."""
    first, least = losses[0], min(losses)
    falling = sum(after < before for before, after in pairwise(losses))
    steadily = falling >= 0.75 * (len(losses) - 1) and first - losses[-1] > 1e-5 * abs(first)
    return math.isfinite(losses[-1]) and (first - least > _FALL * abs(first) or steadily)


def _overfitted(rehearsal: Rehearsal, lower: float) -> tuple[list[float], float]:
    """Losses of a training on a few samples until they have clearly fallen, and its learning rate."""
    batch = batches(rehearsal)[0]
    losses: list[float] = []
    with nothing_happened(rehearsal.module):
        optimizers, rate = _optimizers(rehearsal.module, lower)

        def again() -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            value = probe_loss(rehearsal.trainer, batch)
            value.backward()
            return value

        for _ in range(_STEPS + 1):
            torch.manual_seed(0)  # the same dropout in each step, or the loss would go up and down by it
            loss = probe_loss(rehearsal.trainer, batch)
            if not loss.requires_grad:
                return [], rate
            losses.append(loss.item())
            rehearsal.alive()
            if not math.isfinite(losses[-1]) or losses[0] - losses[-1] > _FALL * abs(losses[0]):
                break
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                # Some evaluate the loss themselves; a plain one would only add another backward pass.
                closure: Any = again if isinstance(optimizer, torch.optim.LBFGS) else None
                optimizer.step(closure)
    return losses, rate


def _optimizers(module: Any, lower: float) -> tuple[list[Optimizer], float]:
    """The user's optimizers once more, at the learning rate of the configuration: schedules often begin near 0."""
    if hasattr(module, "lr_scheduler"):
        module.lr_scheduler = None
    made = module.configure_optimizers()
    parts = made if isinstance(made, (list, tuple)) else [made]
    flat = [one for part in parts for one in (part if isinstance(part, (list, tuple)) else [part])]
    flat = [one["optimizer"] if isinstance(one, dict) and "optimizer" in one else one for one in flat]
    optimizers = [one for one in flat if isinstance(one, Optimizer)]
    rate = 0.0
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = group.get("max_lr", group.get("initial_lr", group["lr"])) / lower
        rate = max(rate, float(group["lr"]))
    return optimizers, rate


#: In the order in which they are shown.
CHECKS = (
    output_fits,
    parameters_get_gradients,
    everything_is_registered,
    one_device,
    buffers_stay,
    batchnorm_has_values,
    evaluation_is_repeatable,
    loss_falls,
)
