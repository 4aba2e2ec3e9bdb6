"""The same steps on one process and on several, held against each other: guarantee 1, on the user's own network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ..distributed.told import listed
from .finding import Finding, check, failure, passed, warning
from .trace import Print, Trace

_SUM = f"{(__package__ or '').partition('.')[0]}.distributed.collectives.global_sum"
#: Largest relative difference in float64, where rounding is 1e-15 and the steps lie between.
EXACT = 1e-6
#: The same in float32, for networks that have no double precision.
ROUNDED = 1e-3


class Pair:
    """A run on one process and the same on several.

    Args:
        one: Of one process.
        many: Of several.
        processes: How many.
        double: Whether both were computed in float64.
        reasons: Settings of the user's by which the results must differ, as sentences.
        augment: Class names of ``data.augment``.
    """

    def __init__(
        self,
        one: Trace,
        many: Trace,
        processes: int,
        double: bool,
        reasons: Sequence[str] = (),
        augment: Sequence[str] = (),
    ) -> None:
        self.one = one
        self.many = many
        self.processes = processes
        # Layers that compute in float32 by themselves round as all of a float32 network does.
        exact = double and not one.single
        self.tolerance = EXACT if exact else ROUNDED
        self.precision = "float64" if exact else "float32"
        self.reasons = list(reasons)
        self.augment = list(augment)

    def found(self, what: str, cause: str, fix: str) -> Finding:
        """A difference: a failure, or, where the user's own settings explain it, a warning with these."""
        if self.one.draws:
            return self.drawn(what)
        if self.reasons:
            return warning("parity", what, f"{'; '.join(self.reasons)}.", "Leave it, if that is what you want.")
        return failure("parity", what, cause, fix)

    def drawn(self, what: str) -> Finding:
        """A difference where the network draws random numbers: what comes after it cannot be compared."""
        where = f" at {listed(self.one.lines, 3)}" if self.one.lines else ""
        return warning(
            "parity",
            what,
            f"Random numbers are drawn{where}, by each process in its own order. What comes after it was not compared.",
            "Use nn.Dropout, which is known to be noise, or draw them in data.augment, where they belong to a sample.",
        )


@check("model: parity", "parity")
def one_process_and_several_agree(pair: Pair) -> Iterator[Finding]:
    """Find the first thing in which the runs part: samples, a layer's output, the loss, a gradient, a weight."""
    for look in (_samples, _branches, _layers, _losses, _gradients, _weights):
        found = look(pair)
        if found is not None:
            yield found
            return
    weights = max(_apart(pair, pair.one.weights, pair.many.weights), default=(0.0, ""))
    yield passed(f"1 and {pair.processes} processes: weights {weights[0]:.0e} apart ({pair.precision})")


def _samples(pair: Pair) -> Finding | None:
    for step, (one, many) in enumerate(zip(pair.one.samples, pair.many.samples, strict=False)):
        if not one:
            return None
        missing = sorted(one.keys() - many.keys())
        if missing:
            return pair.found(
                f"Micro-batch {step} has other samples on {pair.processes} processes than on one: "
                f"{listed(missing, 3)} {'are' if len(missing) > 1 else 'is'} missing.",
                "The training loader deals by the number of processes, or each process shuffles for itself.",
                "Use the samplers of SegmentationData, or deal the global batch of one seed out to the ranks.",
            )
        for name, seen in one.items():
            if _differ(seen, many[name], pair.tolerance):
                by = f", by data.augment ({listed(pair.augment, 3)})" if pair.augment else ""
                return pair.found(
                    f"The sample '{name}' of micro-batch {step} is augmented otherwise on {pair.processes} "
                    f"processes{by}.",
                    "It draws from a generator of its own, or goes by the worker or the process.",
                    "Draw from torch's, numpy's or Python's global generator, which is seeded for each sample.",
                )
    return None


def _branches(pair: Pair) -> Finding | None:
    for path, kind in pair.one.classes.items():
        one, many = (set(trace.layers.get(path, ())) for trace in (pair.one, pair.many))
        if one != many:
            different = sorted(one ^ many)
            where = "on one process" if different[0] in one else f"on {pair.processes} processes"
            return pair.found(
                f"{path} ({kind}) sees the sample '{different[0]}' only {where}.",
                "A branch of the network is taken by the number of the rank, or by what a process's own share holds.",
                "Take it on all ranks, or decide for each sample alone.",
            )
    return None


def _layers(pair: Pair) -> Finding | None:
    for path, one in pair.one.layers.items():
        many, kind = pair.many.layers.get(path, {}), pair.one.classes[path]
        differs = [name for name, seen in one.items() if name in many and _differ(seen, many[name], pair.tolerance)]
        if not differs:
            continue
        what = f"{path} ({kind}) gives another output for the sample '{differs[0]}' on {pair.processes} processes."
        if path in pair.one.random:
            return pair.drawn(what)
        return pair.found(
            what,
            "Its output for one sample depends on the other samples of the batch, and a process sees only its share.",
            "Compute its statistics over all processes, as strategy.sync_batchnorm does for BatchNorm layers, or use "
            "a layer that looks at each sample alone, such as GroupNorm.",
        )
    return None


def _losses(pair: Pair) -> Finding | None:
    one, many = pair.one.losses[0], pair.many.losses[0]
    if _near(one, many, pair.tolerance):
        return None
    return pair.found(
        f"The first loss is {one:.6g} on one process and {many:.6g} on {pair.processes}, of equal outputs.",
        "It is averaged over each process's own pixels; where these hold unequal numbers of labelled pixels, or Dice "
        "is a ratio of sums, the mean of the means is another number.",
        f"Divide by sums over all processes ({_SUM}), as CrossEntropyDice does.",
    )


def _gradients(pair: Pair) -> Finding | None:
    missing = [name for name in pair.one.gradients if name not in pair.many.gradients]
    if missing:
        return pair.found(
            f"{listed(missing, 3)} get a gradient on one process and none on rank 0 of {pair.processes}.",
            "A branch of the network is taken by rank.",
            "Take it on all ranks.",
        )
    found = max(_apart(pair, pair.one.gradients, pair.many.gradients, gradient=True), default=None)
    if found is None or found[0] <= pair.tolerance:
        return None
    apart, name = found
    return pair.found(
        f"The gradient of {name} is {apart:.1e} apart (relative) on one and on {pair.processes} processes, of equal "
        "losses; it is the worst one.",
        "The backward pass does not bring each process its share: the loss adds up over processes without gradients, "
        "or a layer's own collective has no backward pass.",
        f"Use torch.distributed.nn's collectives, or {_SUM}, in what is trained.",
    )


def _weights(pair: Pair) -> Finding | None:
    for number, (one, many) in enumerate(zip(pair.one.losses, pair.many.losses, strict=False)):
        if not _near(one, many, pair.tolerance):
            what = f"The loss of micro-batch {number} is {one:.6g} on one process and {many:.6g} on {pair.processes}."
            break
    else:
        found = max(_apart(pair, pair.one.weights, pair.many.weights), default=(0.0, ""))
        if found[0] <= pair.tolerance:
            return None
        what = f"After the last step {found[1]} is {found[0]:.1e} apart (relative); it is the worst one."
    return pair.found(
        f"{what} The first step was the same.",
        "Something beside the gradients changes the weights or buffers by rank (an update in forward, a callback, "
        "statistics of a process's own share), or the loss is a mean over shares of slightly different sizes.",
        f"Do it on all ranks from the same values, and divide the loss by sums over all processes ({_SUM}).",
    )


def _apart(
    pair: Pair, one: dict[str, Tensor], many: dict[str, Tensor], gradient: bool = False
) -> Iterator[tuple[float, str]]:
    """Relative difference of each tensor, with its name.

    A gradient that is nothing but rounding, as of a convolution's bias before a BatchNorm, is compared with the
    largest gradient, and the weight that moves by it is left out.
    """
    sizes = {name: _size(value) for name, value in pair.one.gradients.items()}
    largest = max(sizes.values(), default=0.0)
    for name, value in one.items():
        if name not in many or value.shape != many[name].shape:
            continue
        count = math.sqrt(value.numel())
        if gradient:
            floor = 1e-6 * largest * count
        elif sizes.get(name, largest) < 1e-9 * largest:
            continue
        else:
            floor = 1e-3 * count
        difference, norm = float((value - many[name]).norm()), float(value.norm())
        yield (difference / max(norm, floor) if difference else 0.0), name


def _size(value: Any) -> float:
    """Root of the mean square."""
    return float(value.norm()) / math.sqrt(max(1, value.numel()))


def _differ(one: Print, many: Print, tolerance: float) -> bool:
    scale = max(one[1], 1e-12)
    # A sum of many values that cancel is less exact than their norm.
    return abs(one[0] - many[0]) > 10 * tolerance * scale or abs(one[1] - many[1]) > tolerance * scale


def _near(one: float, many: float, tolerance: float) -> bool:
    return abs(one - many) <= tolerance * max(abs(one), 1e-3)
