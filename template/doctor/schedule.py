"""Whether the schedule of the learning rate fits the length of the run."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..data.plan import plan_batches
from .finding import Finding, check, failure, passed, warning
from .rehearsal import Rehearsal

#: More steps than this are not played through.
_LONGEST = 2_000_000


@check("run: schedule", "schedule")
def the_schedule_fits_the_steps(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Play the schedule through, on a copy, for as many steps as the run will have."""
    configs = rehearsal.trainer.lr_scheduler_configs
    if not configs or isinstance(configs[0].scheduler, ReduceLROnPlateau):
        yield passed("ReduceLROnPlateau, by its metric" if configs else "none: the learning rate stays as it is")
        return
    total, unit = _length(rehearsal, configs[0].interval), configs[0].interval
    if total is None:
        yield passed("no length is set (max_epochs -1)")
        return
    rates, error = _played(configs[0].scheduler, min(total, _LONGEST))
    kind = type(configs[0].scheduler).__name__
    if error is not None:
        yield failure(
            "schedule",
            f"{kind} ends after {len(rates)} of the run's {total} {unit}s: {error}",
            fix=f"Set its total_steps to {total}, or model.lr_interval to the unit that it counts in.",
        )
        return
    most, last = max(rates), rates[-1]
    told = f"{kind}: {rates[0]:.1e} to {last:.1e} in {total} {unit}s, {most:.1e} at most"
    length = _own_length(configs[0].scheduler)
    if length and kind in ("OneCycleLR", "CosineAnnealingLR", "PolynomialLR") and not 0.9 <= length / total <= 1.1:
        yield warning(
            "schedule",
            f"{kind} is made for {length} {unit}s, and the run has {total}: the learning rate ends at {last:.1e}, of "
            f"{most:.1e} at most.",
            fix=f"Set its {_KEYS[kind]} to {total}, or change trainer.max_epochs, if it is not meant so.",
        )
    elif not all(map(math.isfinite, rates)) or most <= 0:
        yield failure("schedule", f"{kind} sets the learning rate to {most} at most.", "", "Correct its init_args.")
    else:
        yield passed(told)


_KEYS = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max", "PolynomialLR": "total_iters"}


def _own_length(scheduler: Any) -> int | None:
    """How many steps a schedule is made for, where its kind says so."""
    key = _KEYS.get(type(scheduler).__name__)
    value = getattr(scheduler, key, None) if key else None
    return int(value) if isinstance(value, (int, float)) else None


def _length(rehearsal: Rehearsal, interval: str) -> int | None:
    """How often the run that was asked for advances its schedule."""
    asked, data = rehearsal.asked, rehearsal.data
    accumulation = int(asked.get("accumulate_grad_batches") or 1)
    steps = plan_batches(data.num_samples("train"), data.batch_size, 1, accumulation).steps
    limit = asked.get("limit_train_batches")
    if isinstance(limit, int):
        steps = min(steps, -(-limit // accumulation))
    elif isinstance(limit, float):
        steps = max(1, int(steps * limit))
    epochs, most = asked.get("max_epochs"), asked.get("max_steps", -1)
    epochs = 1000 if epochs is None and most in (None, -1) else epochs  # Lightning's default
    totals = [n for n in (epochs * steps if epochs not in (None, -1) else None, most) if n not in (None, -1)]
    if not totals:
        return None
    total = min(totals)
    return int(total) if interval == "step" else max(1, int(total) // steps)


def _played(scheduler: Any, steps: int) -> tuple[list[float], str | None]:
    """The learning rates of so many steps, and what the schedule raised before they were done."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    twin = copy.copy(scheduler)
    twin.__dict__ = {k: copy.deepcopy(v) if k != "optimizer" else v for k, v in vars(scheduler).items() if k != "step"}
    optimizer.param_groups = [
        {
            key: copy.deepcopy(value) if key != "params" else optimizer.param_groups[0]["params"]
            for key, value in g.items()
        }
        for g in scheduler.optimizer.param_groups
    ]
    twin.optimizer = optimizer
    rates = [float(optimizer.param_groups[0]["lr"])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps - 1):
            try:
                twin.step()
            except ValueError as error:
                return rates, str(error)
            rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates, None
