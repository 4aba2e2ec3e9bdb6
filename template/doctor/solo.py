"""The process that is examined alone: machine, data and model, and the steps that the others are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from . import checks
from .events import Teller
from .part import GO, READY, Plan, leave_word, wait_for
from .rehearsal import RehearsalCLI
from .steps import TIMED, rehearsal_of, take_steps, traced
from .trace import Trace
from .watching import StepTimes

TRACE = "trace.pt"


def examine(plan: Plan, folder: Path, teller: Teller) -> None:
    """Examine the configuration in this process; leave word for the others if they may train.

    Args:
        plan: Of the doctor.
        folder: Of the doctor.
        teller: For what is found.
    """
    measured: dict[str, Any] = {}
    times = StepTimes(teller)

    def look(cli: RehearsalCLI) -> None:
        teller.run(checks.ALONE, rehearsal_of(cli, plan, measured))
        # Their imports would slow down the steps whose time is taken.
        for rank in range(plan.options.processes if plan.options.processes > 1 else 0):
            wait_for(folder, READY.format(rank), teller)

    cli = take_steps(plan, folder / "alone", 1, TIMED, [times], look=look)
    measured["step_seconds_alone"] = times.median(cli.trainer.accumulate_grad_batches)
    if plan.options.processes > 1:
        trace, precision = _trace(plan, folder, teller)
        torch.save({**vars(trace), "precision": precision}, folder / TRACE)
    plain = (bool, int, float, str)
    leave_word(folder, GO, {name: value for name, value in measured.items() if isinstance(value, plain)})


def _trace(plan: Plan, folder: Path, teller: Teller) -> tuple[Trace, str]:
    """Steps in float64; in float32 where the network has no double precision."""
    teller.begin("parity: one process")
    try:
        return traced(plan, folder / "one", teller, 1, "64-true")[0], "64-true"
    except Exception:  # noqa: BLE001 - the same steps have just been taken in the user's precision
        return traced(plan, folder / "one", teller, 1, "32-true")[0], "32-true"
