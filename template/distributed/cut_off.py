"""What a launcher, which sees how a rank ended, tells of one that Python did not end."""

from __future__ import annotations

import signal
from pathlib import Path

from .faults import NamedError
from .hang_report import sentence, with_dump
from .heartbeat import Beat
from .phase_file import read_last
from .stacks import STACK_FILE
from .verdict import Seen, Verdict


def cut_off(rank: int, exit_code: int, folder: Path, phase_file: Path | None) -> NamedError:
    """Name the end of a rank.

    Args:
        rank: The rank.
        exit_code: Of its process; minus the number of a signal that ended it.
        folder: Of the rank, where its log is, and its stack where the interpreter could still write it.
        phase_file: What it did last; None where it is not known.
    """
    step, phase = (read_last(phase_file) if phase_file else None) or (None, "")
    during = f" in step {step} ({phase})" if step is not None else f" during {phase}" if phase else ""
    if exit_code == -signal.SIGKILL:
        what = f"was ended by SIGKILL{during}"
        cause = "It was killed from outside: kill -9, the kernel out of memory, or the scheduler."
        fix = (
            f"See the end of {folder}/output.log and dmesg; if memory ran out, lower data.num_workers or "
            "data.batch_size. A fit goes on from its last checkpoint with --ckpt_path last."
        )
    elif exit_code < 0:
        what = f"was ended by {signal.Signals(-exit_code).name}{during}"
        cause = "Code in C crashed, in torch or in another extension, or the signal was sent from outside."
        fix = f"{folder}/stack.txt shows where it was."
    else:
        what = f"ended itself with exit code {exit_code}{during}, without a Python exception"
        cause = "Some code has called os._exit, or C code has ended the process."
        fix = f"Look at the end of {folder}/output.log; raise an exception instead of os._exit, and it is told where."
    verdict = Verdict("rank-gone", [rank], f"Rank {rank} {what}.", cause, fix)
    beat = Beat(0, 0, "", "", "", step=step, phase=phase or "start-up", stack_file=str(folder / STACK_FILE))
    # What the interpreter wrote about a crash says more.
    return sentence(with_dump(verdict, Seen(beat))[0])
