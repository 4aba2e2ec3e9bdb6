"""Which process this is, and a store through which all of them agree before any collective."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from .faults import NamedError

if TYPE_CHECKING:
    from torch.distributed import Store

#: Start-up is slow at times (imports over a network file system, a download on rank 0); torchtitan allows 300 s.
STARTUP_TIMEOUT = timedelta(minutes=10)


class World(NamedTuple):
    """Place of this process among all processes of the run.

    Attributes:
        rank: 0 to ``size - 1``.
        size: Number of processes.
        local_rank: Rank on this machine.
        local_size: Processes on this machine.
        launcher: ``torchrun``, ``mpirun``, ``slurm``, or None for a process started by hand.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str | None = None

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return self.size // self.local_size


#: Launchers and the variables that they set: rank, number of processes, rank and number on the machine. The first found
#: counts: torchrun and mpirun inside of srun are usual.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
_HOW = {
    "torchrun": "Give torchrun the same --nproc-per-node on all machines",
    "mpirun": "Start the same number of processes on all machines",
    "slurm": "Start with srun --ntasks-per-node=N, the same N on all machines",
}
# Step numbers from here on are SLURM's own (slurm.h): that of the batch script, of the shell that salloc opens.
_SLURM_OWN_STEPS = 0xFFFFFFF0


def read_world(environ: Mapping[str, str] = os.environ) -> World:
    """Place of this process as its launcher says.

    Args:
        environ: Environment variables.

    Raises:
        NamedError: A launcher's variables are incomplete, no numbers, or contradict each other.
    """
    for launcher, names in _LAUNCHERS.items():
        if launcher == "slurm" and not _started_by_srun(environ):
            continue
        if names[1] in environ and names[2] in environ:
            rank, size, local_rank = (_number(environ, launcher, name) for name in names[:3])
            if launcher == "slurm":
                shares = _shares(environ, size)
            else:
                local_size = _number(environ, launcher, names[3])
                machines = environ.get("GROUP_WORLD_SIZE", "") if launcher == "torchrun" else ""
                shares = [local_size] * (int(machines) if machines.isdigit() else size // max(1, local_size))
            problem = _contradiction(rank, size, local_rank, shares)
            if problem:
                raise _misfit(environ, launcher, problem)
            return World(rank, size, local_rank, shares[0], launcher)
        if launcher == "torchrun" and environ.get("WORLD_SIZE", "") not in ("", "1"):
            raise _misfit(environ, launcher, "it sets all four")
    return World()


def _started_by_srun(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process, and not a batch script or a shell inside an allocation.

    Those have most of SLURM's variables as well, and would wait for tasks that nobody starts.
    """
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdigit() or int(step) >= _SLURM_OWN_STEPS:
        return False
    # `srun --pty bash` is step 0 under the shell's name; what srun starts from in there has higher numbers.
    return not (step == "0" and environ.get("SLURM_JOB_NAME") == "bash")


def _shares(environ: Mapping[str, str], size: int) -> list[int]:
    """SLURM's tasks of each machine: ``2(x3),1`` means 2, 2, 2, 1."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    shares = [int(share) for share, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
    machines = max(1, _number(environ, "slurm", "SLURM_NNODES", "1"))
    return shares or [size // machines] * machines


def _contradiction(rank: int, size: int, local_rank: int, shares: list[int]) -> str:
    """What is wrong with the numbers of a launcher; empty where they fit together."""
    if rank >= size:
        return f"rank {rank} is not below {size}"
    if len(set(shares)) != 1 or sum(shares) != size:
        return "all machines need the same number of processes"
    if local_rank >= shares[0]:
        return f"local rank {local_rank} is not below {shares[0]}"
    return ""


def _misfit(environ: Mapping[str, str], launcher: str, what: str) -> NamedError:
    names = [name for name in (*_LAUNCHERS[launcher], "GROUP_WORLD_SIZE", "SLURM_STEP_ID") if name in environ]
    found = ", ".join(f"{name}={environ[name]}" for name in names)
    return NamedError(
        "world-size",
        f"The environment variables of {launcher} do not fit together, {what}: {found}.",
        cause="They are left over from another launch, set by hand, or the machines were given unequal shares.",
        fix=f"{_HOW[launcher]}; to start by hand, unset {', '.join(names)}.",
    )


def _number(environ: Mapping[str, str], launcher: str, name: str, default: str = "") -> int:
    value = environ.get(name, default)
    if not value.isdigit():
        raise _misfit(environ, launcher, f"{name} is '{value}', no number")
    return int(value)


_store: Store | None = None


def open_store(world: World, init_method: str = "env://") -> Store | None:
    """Open the store of the run, once; None with a single process.

    It is the one that the process group is later built upon, so no further port is needed.

    Args:
        world: Place of this process.
        init_method: ``env://``, ``tcp://host:port`` or ``file:///path``, as of ``torch.distributed``.

    Raises:
        NamedError: The processes cannot meet, or not all came.
    """
    global _store
    if world.size > 1 and _store is None:
        from .rendezvous import connect

        _store = connect(world, init_method, STARTUP_TIMEOUT)
    return _store


def current_store() -> Store | None:
    """The store, if one is open."""
    return _store


def agree(world: World, key: str, decide: Callable[[], str]) -> str:
    """Let rank 0 decide, and every other rank learn what it decided.

    Args:
        world: Place of this process.
        key: Name of the question; each is asked once in a run.
        decide: Called on rank 0 alone.

    Raises:
        NamedError: Rank 0 is gone.
    """
    store = current_store()
    if store is None:
        return decide()
    if world.rank == 0:
        value = decide()
        store.set(f"agree/{key}", value.encode("utf-8", "surrogateescape"))  # type: ignore[arg-type]  # bytes too
        return value
    try:
        return store.get(f"agree/{key}").decode("utf-8", "surrogateescape")
    except RuntimeError as error:
        raise NamedError("rank-failed", f"Rank 0 ended before it had decided on: {key}.") from error
