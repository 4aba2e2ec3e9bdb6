"""A resumed run under other settings: what the configuration says now wins, and is told.

Optimizers and schedules put their settings into their state, and loading a state silently brings the old ones back.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.optim import Optimizer


class Settings:
    """Settings of an optimizer and its schedule as they were built, before a checkpoint is loaded into them.

    Args:
        optimizer: The optimizer.
        schedule: Its schedule, if any.
    """

    def __init__(self, optimizer: Optimizer, schedule: Any = None) -> None:
        self._groups = [
            {name: group[name] for name in ("initial_lr", *_parameters(optimizer)) if name in group}
            for group in optimizer.param_groups
        ]
        state = schedule.state_dict() if schedule is not None else {}
        self._schedule = {name: state[name] for name in _parameters(schedule) if name in state}

    def restore(self, optimizer: Optimizer, schedule: Any = None) -> list[str]:
        """Set again what a loaded state has changed.

        A learning rate that a schedule has moved since is scaled by what its beginning changes by.

        Args:
            optimizer: The optimizer, with the state of a checkpoint.
            schedule: Its schedule, likewise.

        Returns:
            A line for each setting that differs.
        """
        told: dict[str, None] = {}
        for number, (group, built) in enumerate(zip(optimizer.param_groups, self._groups, strict=False)):
            for name, value in built.items():
                # Where a schedule moves it, the learning rate of this moment is no setting.
                if (name == "lr" and schedule is not None) or _equal(group.get(name), value):
                    continue
                if name != "fused":  # chosen for the device, by nobody
                    told[_line("optimizer", "lr" if name == "initial_lr" else name, value, group.get(name))] = None
                if name == "initial_lr":
                    group["lr"] = group["lr"] * value / group[name] if group[name] else value
                    if number < len(getattr(schedule, "base_lrs", [])):
                        schedule.base_lrs[number] = value
                group[name] = value
        for name, value in self._schedule.items():
            if not _equal(loaded := getattr(schedule, name, None), value):
                told[_line("lr_scheduler", name, value, loaded)] = None
                setattr(schedule, name, value)
        return list(told)


def _line(section: str, name: str, value: Any, loaded: Any) -> str:
    return f"model.{section}.{name} is {value}, and was {loaded} when the checkpoint was written: {value} is used"


def _parameters(built: Any) -> list[str]:
    """Names of the constructor's arguments: those are settings, the rest of a state is progress."""
    if built is None:
        return []
    return [name for name in inspect.signature(type(built)).parameters if name not in ("params", "last_epoch")]


def _equal(one: Any, other: Any) -> bool:
    """Whether settings are the same; a tuple may come back as a list, and a tensor is no setting to compare."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(one) == list(other)
    plain = (bool, int, float, str, dict, type(None))
    return not isinstance(one, plain) or not isinstance(other, plain) or one == other
