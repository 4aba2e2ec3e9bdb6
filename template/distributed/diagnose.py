"""Adds to what an exception of torch is (:mod:`.recognize`) the names that its numbers and shapes stand for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from .faults import NamedError
from .knobs import FULL_KEY
from .probe import trainable_names
from .recognize import Finding, recognize
from .told import listed


def diagnose(error: BaseException, module: nn.Module, rank: int, samples: str = "") -> NamedError | None:
    """Name what an exception of a training step means.

    Args:
        error: The exception.
        module: The module that DDP wraps, whose parameters it numbers.
        rank: This rank.
        samples: Names of this rank's samples in the step before.

    Returns:
        The named failure, or None for an exception that is none of DDP's.
    """
    finding = recognize(error)
    if finding is None:
        return None
    identifier = finding.fault.identifier
    if identifier in ("unused-parameters", "static-graph-changed"):
        return _unused(finding, module, rank, samples)
    if identifier == "ready-twice":
        names = _named(module, finding.names.get("index", ()))
        return NamedError(identifier, f"The gradient of {names} is ready twice in one step on rank {rank}.")
    if identifier == "changed-in-place":
        return _changed(finding, module)
    return None


def _unused(finding: Finding, module: nn.Module, rank: int, samples: str) -> NamedError:
    """DDP complains one step late, with parameter numbers at best."""
    names = _named(module, finding.names.get("index", ()))
    where = (finding.ranks or [rank])[0]
    at = f", at the samples {samples}" if samples else ""
    what = f"In an earlier step {names} got no gradient on rank {where}{at}, although the first step used them all."
    return _skipped(what, finding.fault.identifier)


def missing_error(names: Sequence[str], rank: int, step: int, samples: str, used_before: bool) -> NamedError:
    """The named failure of parameters that have no gradient after a backward pass.

    Args:
        names: Of the parameters.
        rank: This rank.
        step: Optimizer step.
        samples: Names of this rank's samples in it.
        used_before: The probe step has used them.
    """
    at = f", at the samples {samples}" if samples else ""
    what = f"In step {step} {listed(names)} got no gradient on rank {rank}{at}"
    if used_before:
        return _skipped(f"{what}, although the probe step at the start used them all.", "unused-parameters")
    return NamedError("unused-parameters", f"{what}.")


def _skipped(what: str, identifier: str) -> NamedError:
    return NamedError(
        identifier,
        what,
        cause="A branch of the network or of the loss was not taken for this rank's samples.",
        fix="Use the output in the loss of every step, with weight 0 where it does not count (loss + 0 * out.sum()), "
        f"or set {FULL_KEY}.find_unused_parameters to true and static_graph to false.",
    )


def _changed(finding: Finding, module: nn.Module) -> NamedError:
    shape = [int(number) for number in re.findall(r"\d+", " ".join(finding.names.get("shape", ())))]
    same = [name for name, buffer in module.named_buffers() if list(buffer.shape) == shape]
    same += [name for name, parameter in module.named_parameters() if list(parameter.shape) == shape]
    which = f"one of {', '.join(same[:10])}" if same else "none of the network's own tensors"
    return NamedError(
        finding.fault.identifier, f"A tensor of shape {shape} was changed in place before its backward pass: {which}."
    )


def _named(module: nn.Module, indices: Sequence[str]) -> str:
    names = trainable_names(module)
    found = [names[int(index)] if int(index) < len(names) else f"parameter {index}" for index in indices]
    return listed(found) if found else "some trainable parameters"
