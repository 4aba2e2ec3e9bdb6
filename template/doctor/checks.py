"""All checks, in the order in which they are made and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import cost, files, machine, model, run, samples, schedule
from .finding import Finding

Check = Callable[[Any], list[Finding]]

#: Of a :class:`.rehearsal.Rehearsal` of one process, before its first step.
ALONE: tuple[Check, ...] = (
    *machine.CHECKS,
    *files.CHECKS,
    *samples.CHECKS,
    *model.CHECKS,
    schedule.the_schedule_fits_the_steps,
)
#: Of a :class:`.run.Together`, after the steps.
TOGETHER: tuple[Check, ...] = (*run.CHECKS, *cost.CHECKS)
#: Of a rehearsal, once the steps are measured.
LATE: tuple[Check, ...] = samples.LATE_CHECKS
