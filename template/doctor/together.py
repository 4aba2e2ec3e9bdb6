"""One of the processes that train together, as they would with ``fit``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from ..distributed.agreement import gathered
from ..distributed.sync_batchnorm import unsynchronised
from . import checks
from .cost import measure_exchange
from .events import Teller
from .listing import fingerprints
from .parity import Pair, one_process_and_several_agree
from .part import GO, READY, Plan, leave_word, wait_for
from .rehearsal import RehearsalCLI
from .run import Seen, Together
from .solo import TRACE
from .steps import TIMED, rehearsal_of, take_steps, traced
from .trace import Trace
from .watching import Exchange, StepTimes
from .written import Written


def train(plan: Plan, folder: Path, teller: Teller) -> None:
    """Train for a few steps with the other ranks, twice: as the user would, and for comparison with one process.

    Rank 0 tells what is found; what ends a rank is told by that rank.

    Args:
        plan: Of the doctor.
        folder: Of the doctor.
        teller: For what is found.
    """
    leave_word(folder, READY.format(os.environ["RANK"]))
    wait_for(folder, GO, teller)
    first = os.environ["RANK"] == "0"
    times, exchange, written = StepTimes(teller), Exchange(), Written()
    with written.watch():
        cli = take_steps(plan, folder / "run", plan.options.processes, TIMED, [times, exchange], whole=True)
    teller.begin("run: what all ranks saw")
    seen = gathered(
        Seen(
            fingerprints(cli.datamodule),
            exchange.unused,
            exchange.gradients,
            exchange.weights,
            exchange.metrics,
            written.files,
            exchange.memory,
            times.median(cli.trainer.accumulate_grad_batches),
            measure_exchange(cli.model, cli.trainer.strategy),
        )
    )
    measured = json.loads((folder / GO).read_text(encoding="utf-8"))
    measured["step_seconds"] = seen[0].step_seconds
    rehearsal = rehearsal_of(cli, plan, measured)
    if first:
        teller.run(checks.TOGETHER, Together(rehearsal, seen, exchange.fresh))
        teller.run(checks.LATE, rehearsal)
    dist.barrier()
    _compare(plan, folder, teller, first)


def _compare(plan: Plan, folder: Path, teller: Teller, first: bool) -> None:
    teller.begin("parity: several processes")
    if not (folder / TRACE).exists():
        return
    stored = torch.load(folder / TRACE, weights_only=True)
    precision = stored.pop("precision")
    trace, cli = traced(plan, folder / "several", teller, plan.options.processes, precision)
    if first:
        double = precision == "64-true"
        augment = [type(one).__name__ for one in cli.datamodule.augment]
        pair = Pair(Trace(**stored), trace, plan.options.processes, double, _reasons(cli), augment)
        teller.run([one_process_and_several_agree], pair)


def _reasons(cli: RehearsalCLI) -> list[str]:
    """The user's own settings by which the ranks cannot train as one process does."""
    strategy, reasons = cli.trainer.strategy, []
    if not getattr(strategy, "sync_batchnorm", True) and unsynchronised(cli.model):
        reasons.append("strategy.sync_batchnorm is off, and BatchNorm sees each process's own share")
    if cli.datamodule._is_own("train_dataloader"):
        reasons.append("the data set deals its training samples by a loader of its own")
    hook = getattr(strategy, "comm_hook", "none")
    if hook != "none":
        reasons.append(f"strategy.comm_hook {hook} sends gradients rounded")
    return reasons
