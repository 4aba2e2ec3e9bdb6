"""A few steps of the user's configuration, alone or together, for the checks to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from .events import Teller
from .part import Plan
from .rehearsal import Rehearsal, RehearsalCLI
from .trace import Trace, Tracer
from .watching import StepTimes

#: Optimizer steps of which the time is measured, and that are compared.
TIMED, COMPARED = 4, 2


def take_steps(
    plan: Plan,
    folder: Path,
    processes: int,
    steps: int,
    callbacks: Sequence[Callback],
    whole: bool = False,
    precision: Any = None,
    look: Callable[[RehearsalCLI], None] | None = None,
) -> RehearsalCLI:
    """Build everything that the configuration names, and train for some steps.

    Args:
        plan: Of the doctor.
        folder: For the run's files.
        processes: Of the run.
        steps: Optimizer steps.
        callbacks: Of the doctor.
        whole: With all that a run has.
        precision: In place of the user's.
        look: Called when everything is set up and nothing has been trained.
    """
    folder.mkdir(exist_ok=True)
    # A network that changes the directory when it is made would not find the configuration again.
    os.chdir(plan.directory)
    return RehearsalCLI(
        plan.arguments,
        plan.options,
        folder,
        processes=processes,
        steps=steps,
        callbacks=callbacks,
        whole=whole,
        precision=precision,
        look=look,
    )


def rehearsal_of(
    cli: RehearsalCLI, plan: Plan, measured: dict[str, Any], alive: Callable[[], object] = lambda: None
) -> Rehearsal:
    """What the checks are given."""
    return Rehearsal(
        cli.trainer,
        cli.model,
        cli.datamodule,
        plan.options,
        cli.asked,
        cli.config["fit"],
        cli.folder,
        plan.environ,
        measured,
        alive,
    )


def traced(plan: Plan, folder: Path, teller: Teller, processes: int, precision: str) -> tuple[Trace, RehearsalCLI]:
    """Train for a few steps in high precision, and record them.

    Args:
        plan: Of the doctor.
        folder: For the run's files.
        teller: Given signs of life.
        processes: Of the run.
        precision: ``64-true``, in which nothing but a fault can be seen, or ``32-true``.
    """
    tracer = Tracer(twice=processes == 1)
    cli = take_steps(plan, folder, processes, COMPARED, [tracer, StepTimes(teller)], precision=precision)
    return tracer.trace, cli
