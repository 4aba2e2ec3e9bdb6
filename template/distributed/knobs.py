"""The strategy's knobs: what values they take, and which of them do not go together."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any, Literal

from .faults import NamedError

CommHook = Literal["none", "fp16", "bf16", "powersgd"]

DEFAULT_TIMEOUT = "30m"
#: Where the knobs are in a configuration.
FULL_KEY = "trainer.strategy.init_args"

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME = r"(\d+(?:\.\d+)?)\s*([smh]?)"


def parse_timeout(value: float | str) -> timedelta:
    """Read a timeout.

    Args:
        value: Seconds, or text such as ``90s``, ``30m`` or ``1h30m``.

    Raises:
        NamedError: It is not a positive time.
    """
    text = str(value).strip().lower()
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_TIME, text))
    if seconds <= 0 or re.sub(_TIME, "", text).strip():
        raise refused("timeout", value, "A number means seconds.", "Write it as 90, 90s, 30m or 1h30m.")
    return timedelta(seconds=seconds)


def check_knobs(
    find_unused_parameters: Any,
    static_graph: bool,
    bucket_cap_mb: float,
    process_group_backend: str | None,
    init_method: str,
    comm_hook: str,
) -> None:
    """Refuse values that no run could use, before anything is started.

    Raises:
        NamedError: With the knob to change.
    """
    if find_unused_parameters not in (True, False, "auto"):
        raise refused("find_unused_parameters", find_unused_parameters, "", "Set it to true, false or auto.")
    if static_graph and find_unused_parameters is True:
        raise refused(
            "find_unused_parameters",
            True,
            f"{FULL_KEY}.static_graph is true as well, which looks for them once, in the first step, not in each.",
            f"Set {FULL_KEY}.find_unused_parameters to auto, or {FULL_KEY}.static_graph to false.",
        )
    if bucket_cap_mb <= 0:
        raise refused("bucket_cap_mb", bucket_cap_mb, "It is the size of a bucket of gradients in MiB.", "Use 25.")
    if process_group_backend not in (None, "gloo", "nccl", "cpu:gloo,cuda:nccl", "mpi", "ucc", "xccl"):
        raise refused("process_group_backend", process_group_backend, "", "Set it to gloo, nccl or null.")
    if not re.match(r"env://|tcp://[^:/]+:\d+|file:///.+", init_method):
        raise refused(
            "init_method", init_method, "", "Write env://, tcp://host:port, or file:///path of a new file all can see."
        )
    if comm_hook not in ("none", "fp16", "bf16", "powersgd"):
        raise refused("comm_hook", comm_hook, "", "Set it to none, fp16, bf16 or powersgd.")


def check_device(device: str, process_group_backend: str | None) -> None:
    """Refuse a backend that the device cannot use.

    Args:
        device: ``cpu`` or ``cuda``.
        process_group_backend: The knob.

    Raises:
        NamedError: With the knob to change.
    """
    if device == "cpu" and process_group_backend == "nccl":
        raise refused(
            "process_group_backend", "nccl", "NCCL talks between NVIDIA GPUs, and this run is on the CPU.", "Use gloo."
        )


def refused(knob: str, value: Any, cause: str, fix: str) -> NamedError:
    """The named failure of a knob's value."""
    return NamedError("config", f"{FULL_KEY}.{knob} is {_typed(value)}, which cannot be used.", cause=cause, fix=fix)


def _typed(value: Any) -> str:
    """A value as it stands in a configuration; text in quotes."""
    return f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
