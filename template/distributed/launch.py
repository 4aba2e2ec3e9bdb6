"""Started by hand with several devices: hand the same command to torchrun's elastic launcher."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .faults import NamedError
from .phase_file import PHASE_FILE
from .process import cores_each
from .told import printable
from .world import World

#: Where a rank leaves the message of its failure for the launcher, which shows the first one last.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
#: Beside it: the message itself.
MESSAGE = "message.txt"
#: And the rank's own folder.
FOLDER = "folder.txt"
#: Exit codes of the program that are failures or stops.
_EXIT_CODES = (1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM)
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
                _show(first, error.failures.keys(), folder)
            return first.exitcode if first.exitcode in _EXIT_CODES else 1
    return 0


def told_by_first(world: World, text: str, patience: float = 5.0) -> bool:
    """Whether the first process of this machine says the same message; waits until it has, before this one ends.

    A launcher ends all processes as soon as the first of them has failed.

    Args:
        world: Place of this process.
        text: The message.
        patience: Seconds to wait at most.
    """
    if world.local_rank == 0:
        return False
    file = os.environ.get(ERROR_FILE)
    if not file or world.launcher != "torchrun":
        time.sleep(patience)
        return True
    first = Path(file).parents[1] / "0" / MESSAGE
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if first.read_text(encoding="utf-8") == printable(text):
                return True
        time.sleep(0.05)
    return False


def leave_message(world: World, text: str, name: str = MESSAGE) -> None:
    """Leave the message of this rank's failure, or another text, for the launcher."""
    file = beside_error(world, name)
    if file is not None:
        file.write_text(printable(text), encoding="utf-8")


def beside_error(world: World, name: str) -> Path | None:
    """A file of this rank that the launcher finds; None where there is no such launcher."""
    file = os.environ.get(ERROR_FILE)
    return Path(file).with_name(name) if file and world.launcher == "torchrun" else None


def _show(failure: Any, failed: Collection[int], folder: str) -> None:
    """Print what the first failed rank said, unless rank 0 has printed the same already.

    Args:
        failure: Of the first one.
        failed: All ranks that have failed.
        folder: Of the launcher, in which ranks leave files.
    """
    rank = failure.local_rank
    said = {one: file.read_text(encoding="utf-8") for one, file in _left(folder, MESSAGE).items()}
    phases = _left(folder, PHASE_FILE)
    if rank == 0 and failure.exitcode > 0 and rank not in phases:
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
    elif failure.exitcode < 0 or rank in phases:
        gone = _gone(rank, failure.exitcode, folder)
        # Ranks that outlived it have seen more, and where rank 0 is among them, it has printed it; but how the process
        # ended is known here alone.
        others = "" if 0 in said else next(iter(said.values()), "").rstrip()
        text = "\n".join(filter(None, [others, gone.what])) if said else f"error: {gone}"
    else:
        logs = sorted(Path(folder).glob(f"*/attempt_*/{rank}/stderr.log"))
        lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
        text = "\n".join([f"Rank {rank} ended with exit code {failure.exitcode}; the last it said:", *lines[-30:]])
    # An end with exit code 0 is no failure to torch's launcher, but the others have missed the rank.
    missed = re.search(r"error: Rank (\d+) on \S+ ended without a word", "\n".join(said.values()))
    if missed and int(missed[1]) in phases and int(missed[1]) not in failed:
        text = "\n".join(filter(None, [text, _gone(int(missed[1]), 0, folder).what]))
    if text:
        print(text, file=sys.stderr, flush=True)


def _gone(rank: int, exit_code: int, folder: str) -> NamedError:
    from .cut_off import cut_off

    own = _left(folder, FOLDER).get(rank)
    return cut_off(
        rank, exit_code, Path(own.read_text() if own else f"rank_{rank}"), _left(folder, PHASE_FILE).get(rank)
    )


def _left(folder: str, name: str) -> dict[int, Path]:
    """The files of a name that ranks have left, by rank."""
    return {int(file.parent.name): file for file in sorted(Path(folder).rglob(name))}
