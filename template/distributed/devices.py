"""Whether the machine has the devices that a configuration asks for, and each process one of its own."""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .faults import NamedError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store


def check_devices(trainer: Mapping[str, Any]) -> None:
    """Refuse GPUs that are not there, before processes are started for them.

    Args:
        trainer: ``devices``, ``accelerator`` and whatever else; missing keys mean Lightning's defaults.

    Raises:
        NamedError: ``config``.
    """
    accelerator, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    if accelerator not in ("auto", "gpu", "cuda"):
        return
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        if accelerator == "auto" or (accelerator == "gpu" and torch.backends.mps.is_available()):
            return
        built = "is built without CUDA" if torch.version.cuda is None else f"(CUDA {torch.version.cuda}) finds none"
        raise NamedError(
            "config",
            f"trainer.accelerator is '{accelerator}', but this machine has no GPU that torch can use.",
            cause=f"torch {torch.__version__} {built}.",
            fix="Set trainer.accelerator to cpu or auto.",
        )
    wanted = gpus_wanted(devices)
    if wanted > count:
        raise NamedError(
            "config",
            f"trainer.devices is {devices}, but this machine has {count} GPU{'s' if count > 1 else ''}.",
            cause="",
            fix="Ask for fewer, or set trainer.accelerator to cpu.",
        )


def gpus_wanted(devices: Any) -> int:
    """GPUs that have to be there for ``trainer.devices``: a number counts them, a list names them from 0 on."""
    if isinstance(devices, str):
        parts = [part.strip() for part in devices.split(",") if part.strip()]
        if not all(part.isdigit() for part in parts):
            return 0
        devices = [int(part) for part in parts] if "," in devices else int(parts[0]) if parts else 0
    if isinstance(devices, (list, tuple)):
        return max((int(index) + 1 for index in devices), default=0)
    return devices if isinstance(devices, int) else 0


class Gpu(NamedTuple):
    """A GPU as a process sees it.

    Attributes:
        host: Name of the machine.
        uuid: Of the GPU, the same for every process that sees it.
        number: By which the process calls it.
        visible: The process's ``CUDA_VISIBLE_DEVICES``.
    """

    host: str
    uuid: str
    number: int
    visible: str

    @classmethod
    def of(cls, device: torch.device) -> Gpu:
        """The GPU behind a CUDA device."""
        import torch

        uuid = str(torch.cuda.get_device_properties(device).uuid)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        return cls(socket.gethostname(), uuid, device.index or 0, visible)


def check_own_gpu(store: Store, rank: int, size: int, gpu: Gpu) -> None:
    """Refuse two processes on one GPU, which NCCL cannot serve, before it says so in its own words.

    Args:
        store: Store of the run.
        rank: Of this process.
        size: Number of processes.
        gpu: Of this process.

    Raises:
        NamedError: ``duplicate-gpu``, on all processes alike.
    """
    store.set(f"gpu/{rank}", json.dumps(gpu))
    first: dict[str, tuple[int, Gpu]] = {}
    for other in range(size):
        found = Gpu(*json.loads(store.get(f"gpu/{other}")))
        if found.uuid not in first:
            first[found.uuid] = (other, found)
            continue
        before, same = first[found.uuid]
        if (same.number, same.visible) == (found.number, found.visible):
            views = f"GPU {found.number} of host {found.host}; CUDA_VISIBLE_DEVICES={found.visible}"
        else:
            views = f"one GPU of host {found.host}: " + ", ".join(
                f"rank {one} as GPU {seen.number} with CUDA_VISIBLE_DEVICES={seen.visible}"
                for one, seen in ((before, same), (other, found))
            )
        raise NamedError("duplicate-gpu", f"Ranks {before} and {other} both use {views}.")


def avoid_detail(device: torch.device) -> None:
    """Turn ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` down to INFO on the CPU, where it makes DDP crash (torch 2.14).

    It is the advice of torch's own messages; what it would tell, this program tells by itself.
    """
    import torch.distributed as dist

    if device.type == "cpu" and dist.get_debug_level() == dist.DebugLevel.DETAIL:
        dist.set_debug_level(dist.DebugLevel.INFO)
        warnings.warn(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch crash in DDP on the CPU; INFO is used in its place. It is not "
            "needed: unused parameters, and ranks in different collectives, are named without it.",
            stacklevel=2,
        )
