"""Which process this is, and a store through which all of them agree before any collective."""

from __future__ import annotations

import os
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
        launcher: ``torchrun``, ``slurm``, or None for a process started by hand.
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


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


def read_world(environ: Mapping[str, str] = os.environ) -> World:
    """Place of this process as its launcher says.

    Args:
        environ: Environment variables.

    Raises:
        NamedError: A launcher's variables are incomplete or no numbers.
    """
    if "LOCAL_RANK" in environ and "WORLD_SIZE" in environ:
        rank, size, local_rank, local_size = (_number(environ, name) for name in _TORCHRUN)
        return World(rank, size, local_rank, local_size, "torchrun")
    # An interactive shell inside an allocation has SLURM's variables, but srun did not start this process.
    if all(name in environ for name in _SLURM) and environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        rank, size, local_rank = (_number(environ, name) for name in _SLURM)
        nodes = int(environ.get("SLURM_NNODES", "1"))
        return World(rank, size, local_rank, max(1, size // nodes), "slurm")
    return World()


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not value.isdigit():
        raise NamedError(
            "world-size",
            f"The environment variable {name} is '{value}'; a launcher sets it to a number.",
            cause="It was left over from another launch, or set by hand.",
            fix=f"Unset {', '.join(_TORCHRUN)} and start again.",
        )
    return int(value)


_store: Store | None = None


def open_store(world: World, init_method: str = "env://") -> Store | None:
    """Open the store of the run, once; None with a single process.

    It is the one that the process group is later built upon, so no further port is needed.

    Args:
        world: Place of this process.
        init_method: ``env://``, ``tcp://host:port`` or ``file:///path``, as of ``torch.distributed``.
    """
    global _store
    if world.size > 1 and _store is None:
        import torch.distributed as dist

        if world.launcher == "slurm" and init_method == "env://":
            _slurm_address()
        rendezvous = dist.rendezvous(init_method, world.rank, world.size, timeout=STARTUP_TIMEOUT)
        _store, _, _ = next(iter(rendezvous))
        _store.set_timeout(STARTUP_TIMEOUT)
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
    """
    store = current_store()
    if store is None:
        return decide()
    if world.rank == 0:
        value = decide()
        store.set(f"agree/{key}", value)
        return value
    return store.get(f"agree/{key}").decode()


def _slurm_address() -> None:
    from lightning.fabric.plugins.environments import SLURMEnvironment

    slurm = SLURMEnvironment()
    os.environ.setdefault("MASTER_ADDR", slurm.main_address)
    os.environ.setdefault("MASTER_PORT", str(slurm.main_port))
