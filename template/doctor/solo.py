"""The process that is examined alone: machine, data and model, and the steps that the others are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..distributed.raised import said
from . import checks
from .events import Teller
from .finding import warning
from .part import GO, READY, Plan, leave_word, wait_for
from .rehearsal import RehearsalCLI
from .steps import TIMED, rehearsal_of, take_steps, traced
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
        teller.run(checks.ALONE, rehearsal_of(cli, plan, measured, lambda: teller.measure("alive", True)))
        # Their imports would slow down the steps whose time is taken.
        for rank in range(plan.options.processes if plan.options.processes > 1 else 0):
            wait_for(folder, READY.format(rank), teller)

    cli = take_steps(plan, folder / "alone", 1, TIMED, [times], look=look)
    measured["step_seconds_alone"] = times.median(cli.trainer.accumulate_grad_batches)
    if plan.options.processes > 1:
        _leave_trace(plan, folder, teller)
    plain = (bool, int, float, str)
    leave_word(folder, GO, {name: value for name, value in measured.items() if isinstance(value, plain)})


def _leave_trace(plan: Plan, folder: Path, teller: Teller) -> None:
    """Take steps in float64, or in float32 where the network has no double precision, and leave what they did."""
    teller.begin("parity: one process")
    for precision in ("64-true", "32-true"):
        try:
            trace, _ = traced(plan, folder / precision, teller, 1, precision)
        except Exception as error:  # noqa: BLE001 - the same steps have just been taken in the user's precision
            last = said(error).rstrip(".")
        else:
            torch.save({**vars(trace), "precision": precision}, folder / TRACE)
            return
    what = f"One process and several were not compared, as the network and the data cannot be made twice: {last}."
    found = warning(
        "not-checked", what, "", "Let it be made again: do once, and not in each copy, what can be done once."
    )
    teller.find([found._replace(check="model: parity")])
