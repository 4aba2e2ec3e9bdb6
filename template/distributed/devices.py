"""Whether the machine has the devices that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .faults import NamedError


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
    wanted = _wanted(devices)
    if wanted > count:
        raise NamedError(
            "config",
            f"trainer.devices is {devices}, but this machine has {count} GPU{'s' if count > 1 else ''}.",
            cause="",
            fix="Ask for fewer, or set trainer.accelerator to cpu.",
        )


def _wanted(devices: Any) -> int:
    """GPUs that have to be there: a number counts them, a list names them from 0 on."""
    if isinstance(devices, str):
        parts = [part.strip() for part in devices.split(",") if part.strip()]
        if not all(part.isdigit() for part in parts):
            return 0
        devices = [int(part) for part in parts] if "," in devices else int(parts[0]) if parts else 0
    if isinstance(devices, (list, tuple)):
        return max((int(index) + 1 for index in devices), default=0)
    return devices if isinstance(devices, int) else 0
