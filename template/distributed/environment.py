"""What Lightning is told about the processes: the same that the rest of the program knows."""

from __future__ import annotations

import os
from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.plugins.io import CheckpointIO
from typing_extensions import override

from .devices import check_devices
from .faults import NamedError
from .launch import processes_asked
from .world import World


def check_visible_gpus(world: World, accelerator: str) -> None:
    """Refuse a launch whose processes see too few GPUs; those of one machine choose theirs by local rank.

    Args:
        world: Place of this process.
        accelerator: ``trainer.accelerator``.

    Raises:
        NamedError: ``config``.
    """
    if world.local_size == 1 or accelerator not in ("auto", "gpu", "cuda"):
        return
    import torch

    count = torch.cuda.device_count()
    if 0 < count < world.local_size:
        own = world.launcher == "slurm" and count == 1
        raise NamedError(
            "config",
            f"{world.launcher} started {world.local_size} processes on this machine, and rank {world.rank} sees "
            f"{count} GPU{'s' if count > 1 else ''} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}).",
            cause="srun's --gpus-per-task, --gpu-bind and --ntasks-per-gpu show each task its own GPU alone; here each "
            "has to see all of its machine."
            if own
            else "Each process needs a GPU of its own.",
            fix=f"Ask for --gpus-per-node={world.local_size} --ntasks-per-node={world.local_size} instead, or add "
            "--gpu-bind=none to srun."
            if own
            else "Start as many processes as there are GPUs, or set trainer.accelerator to cpu.",
        )


def check_processes(world: World, trainer: Any) -> int:
    """Hold the number of processes that were started, and the devices that are there, against the configuration.

    Args:
        world: Place of this process.
        trainer: The configuration's section; ``auto`` devices become those that the launcher has started.

    Returns:
        Processes that the configuration asks for on this machine.

    Raises:
        NamedError: ``world-size`` or ``config``.
    """
    check_visible_gpus(world, trainer.accelerator)
    check_devices(trainer.as_dict())
    asked = processes_asked(trainer.as_dict())
    if world.launcher is None:
        if trainer.num_nodes > 1:
            raise NamedError(
                "world-size",
                f"trainer.num_nodes is {trainer.num_nodes}, but this process was started by hand.",
                cause="A program started by hand can start processes on its own machine alone.",
                fix="Start it with torchrun or srun on every machine.",
            )
    elif trainer.devices in ("auto", -1, "-1") and trainer.num_nodes in (1, world.nodes):
        trainer.devices, trainer.num_nodes = world.local_size, world.nodes
    elif (asked, trainer.num_nodes) != (world.local_size, world.nodes):
        several = world.nodes > 1 or trainer.num_nodes > 1
        on = f"{world.nodes} machine{'s' * (world.nodes > 1)}" if several else "this machine"
        nodes = f" and trainer.num_nodes {trainer.num_nodes}" if several else ""
        set_nodes = f" --trainer.num_nodes {world.nodes}" if several else ""
        raise NamedError(
            "world-size",
            f"{world.launcher} started {world.size} process{'es' * (world.size > 1)} on {on}, but trainer.devices is "
            f"{trainer.devices}{nodes}.",
            fix=f"Set --trainer.devices {world.local_size}{set_nodes}, or --trainer.devices auto, which takes as many "
            "as the launcher has started.",
        )
    return asked


#: Plugins of which a run has one, and whose it is.
_OWN: dict[type, str] = {
    ClusterEnvironment: "The processes are known already, by the variables that their launcher sets; a second reading "
    "of them could differ.",
    CheckpointIO: "Checkpoints are written by this program's own: rank 0 alone, whole or not at all.",
}


def plugins(given: Any, world: World) -> list[Any]:
    """A user's own plugins, with the one that tells Lightning of the processes.

    Args:
        given: ``trainer.plugins``: one, a list, or None.
        world: Place of this process.

    Raises:
        NamedError: ``config``: it takes the place of one that this program needs.
    """
    users = given if isinstance(given, list) else [] if given is None else [given]
    for plugin in users:
        for kind, cause in _OWN.items():
            if isinstance(plugin, kind):
                what = f"trainer.plugins holds a {type(plugin).__name__}, which cannot be used."
                raise NamedError("config", what, cause, "Remove it.")
    return [*users, WorldEnvironment(world)]


class WorldEnvironment(ClusterEnvironment):
    """Hands a :class:`World` to Lightning, whose own reading of the variables differs for some launchers.

    It takes any shell inside a SLURM allocation for a task of it, and refuses ``--ntasks`` without
    ``--ntasks-per-node``.

    Args:
        world: Place of this process.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @property
    @override
    def creates_processes_externally(self) -> bool:
        return True

    @property
    @override
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", "localhost")

    @property
    @override
    def main_port(self) -> int:
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    @override
    def detect() -> bool:
        return False

    @override
    def world_size(self) -> int:
        return self._world.size

    @override
    def set_world_size(self, size: int) -> None:
        """The launcher decides."""

    @override
    def global_rank(self) -> int:
        return self._world.rank

    @override
    def set_global_rank(self, rank: int) -> None:
        """The launcher decides."""

    @override
    def local_rank(self) -> int:
        return self._world.local_rank

    @override
    def node_rank(self) -> int:
        return self._world.rank // self._world.local_size
