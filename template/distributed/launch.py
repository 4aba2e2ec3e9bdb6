"""Started by hand with several devices: hand the same command to torchrun's elastic launcher."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .faults import NamedError
from .process import cores_each
from .told import printable
from .world import World

#: Where a rank leaves the message of its failure for the launcher, which shows the first one last.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
#: Beside it: the message itself.
MESSAGE = "message.txt"
#: And the rank's own folder.
FOLDER = "folder.txt"
# Variables in which launchers say which process this is.
_RANKS = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}


def processes_asked(trainer: dict[str, Any]) -> int:
    """Processes on this machine that the ``trainer`` section of a configuration asks for.

    Args:
        trainer: ``devices``, ``accelerator`` and whatever else; missing keys mean Lightning's defaults.

    Returns:
        At least 1. ``auto`` and -1 count the GPUs, or one process on the CPU.
    """
    devices, accelerator = trainer.get("devices", "auto"), trainer.get("accelerator", "auto")
    if isinstance(devices, str) and devices.strip().lstrip("-").isdigit():
        devices = int(devices)
    if isinstance(devices, (list, tuple)):
        return max(1, len(devices))
    if isinstance(devices, str) and "," in devices:
        return max(1, len([part for part in devices.split(",") if part.strip()]))
    if isinstance(devices, int) and devices >= 0:
        return max(1, devices)
    if accelerator == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def peek_trainer(arguments: Sequence[str]) -> dict[str, Any]:
    """Read the ``trainer`` section of a command line and its configuration files, without the full parser.

    It saves the launching process several seconds of imports. What it misses, the full parser still finds; what is
    wrong in a file, the full parser reports.

    Args:
        arguments: The verb and its options.
    """
    section: dict[str, Any] = {}
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("-") else [word])]
    for name, value in itertools.pairwise(words):
        if name in ("-c", "--config"):
            with contextlib.suppress(OSError, yaml.YAMLError, AttributeError, ValueError, TypeError):
                section |= yaml.safe_load(Path(value).read_text(encoding="utf-8")).get("trainer") or {}
        elif name.startswith("--trainer."):
            with contextlib.suppress(yaml.YAMLError):
                section[name.removeprefix("--trainer.")] = yaml.safe_load(value)
    return section


def strip_launcher_arguments(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Drop ``--local_rank``, ``--local-rank`` and ``--rank``: a launcher's variables say the same.

    Args:
        arguments: Command-line arguments; torch.distributed.launch adds the rank, old start scripts do.
        environ: Environment variables.

    Raises:
        NamedError: ``not-launched``: another rank than 0 is given, and no launcher has started this process. It would
            train alone, beside the others.
    """
    kept: list[str] = []
    words = iter(arguments)
    for argument in words:
        name, _, value = argument.partition("=")
        if name not in ("--local-rank", "--local_rank", "--rank"):
            kept.append(argument)
            continue
        value = value or next(words, "")
        if value != "0" and not _RANKS & environ.keys():
            raise NamedError(
                "not-launched",
                f"{name}={value} is given, but no launcher has started this process, and it would train alone.",
                cause="",
                fix="Leave it out: with --trainer.devices N the program starts its processes itself. Or use torchrun.",
            )
    return kept


def launch(processes: int, command: Sequence[str]) -> int:
    """Run a command in several processes on this machine.

    Rank 0 has the terminal; what the other ranks print goes to their own files, and is shown only if one of them is
    the first to fail.

    Args:
        processes: Number of processes.
        command: Arguments of the Python interpreter.

    Returns:
        Exit code: 0, that of the first process that failed, or 128 + a signal's number.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Its own report of a failure names processes by number; ours names the cause. Each module has a logger and a level.
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    # torchrun sets OMP_NUM_THREADS=1 where it is unset; ranks of one machine share its cores out instead.
    os.environ.setdefault("OMP_NUM_THREADS", str(cores_each(processes)))
    with tempfile.TemporaryDirectory(prefix="ranks_") as folder:
        logs = DefaultLogsSpecs(log_dir=folder, redirects=dict.fromkeys(range(1, processes), Std.ALL))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            # Port 0: the operating system picks a free one.
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=logs,
            # Seconds for the ranks to save a checkpoint and end, once they are told to. SLURM's KillWait is 30.
            shutdown_timeout=15,
        )
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException as stopped:
            # The ranks have had the signal too, and the time to save a checkpoint.
            return 128 + int(stopped.sigval)
        except ChildFailedError as error:
            _, first = error.get_first_failure()
            if first.exitcode != 128 + signal.SIGTERM:
                _show(first, folder)
            return first.exitcode if first.exitcode > 0 else 1
    return 0


def leave_message(world: World, text: str, name: str = MESSAGE) -> None:
    """Leave the message of this rank's failure, or another text, for the launcher."""
    file = os.environ.get(ERROR_FILE)
    if file and world.launcher == "torchrun":
        Path(file).with_name(name).write_text(printable(text), encoding="utf-8")


def _show(failure: Any, folder: str) -> None:
    """Print what the first failed rank said, unless rank 0 has printed the same already."""
    rank = failure.local_rank
    said = {int(file.parent.name): file.read_text(encoding="utf-8") for file in sorted(Path(folder).rglob(MESSAGE))}
    if rank == 0 and failure.exitcode > 0:
        # It has printed its own failure, or was ended by another rank, which has left word of the reason.
        text = "" if 0 in said else next(iter(said.values()), "")
    elif rank in said:
        # Where rank 0 has printed the reason, another rank's word that rank 0 is gone is no news; nor is the reason
        # itself, where rank 0 has printed that this rank failed and why.
        told = 0 in said and (
            said[rank] == said[0]
            or said[rank].endswith("[rank-failed]")
            or (said[0].rstrip().endswith("[rank-failed]") and f"error: Rank {rank} failed" in said[0])
        )
        text = "" if told else said[rank]
    elif failure.exitcode < 0:
        # Ranks that outlived it have seen more, and where rank 0 is among them, it has printed it; but the signal is
        # known here alone.
        text = f"Rank {rank} was ended by {failure.signal_name()}."
        if 0 not in said:
            own = next((file.read_text() for file in Path(folder).rglob(FOLDER) if file.parent.name == str(rank)), None)
            killed = _killed(rank, failure, Path(own or f"rank_{rank}"))
            text = f"{next(iter(said.values())).rstrip()}\n{text}" if said else f"error: {killed}"
    else:
        logs = sorted(Path(folder).glob(f"*/attempt_*/{rank}/stderr.log"))
        lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
        text = "\n".join([f"Rank {rank} ended with exit code {failure.exitcode}; the last it said:", *lines[-30:]])
    if text:
        print(text, file=sys.stderr, flush=True)


def _killed(rank: int, failure: Any, folder: Path) -> NamedError:
    """What a signal that ended a rank means."""
    if failure.exitcode == -signal.SIGKILL:
        cause = "It was killed from outside: kill -9, the kernel out of memory, or the scheduler."
        fix = (
            f"See the end of {folder}/output.log and dmesg; if memory ran out, lower data.num_workers or "
            "data.batch_size. A fit goes on from its last checkpoint with --ckpt_path last."
        )
    else:
        cause = "Code in C crashed, in torch or in another extension, or the signal was sent from outside."
        fix = f"{folder}/stack.txt shows where it was."
    return NamedError("rank-gone", f"Rank {rank} was ended by {failure.signal_name()}.", cause, fix)
