"""What Lightning is told about the processes: the same that the rest of the program knows."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments import ClusterEnvironment
from typing_extensions import override

from .world import World


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
