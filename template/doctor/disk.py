"""Checks of the doctor: whether the run's folder can be written to, and has room for the checkpoints to come."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..runs import experiment_folder
from .finding import Finding, check, failure, passed
from .rehearsal import Rehearsal

#: Epochs of a run that is given no end (Lightning's default).
_EPOCHS = 1000


class Size(NamedTuple):
    """Bytes of a checkpoint.

    Attributes:
        weights: Of parameters and buffers.
        optimizer: Of the optimizer's state after a step; None: it could not be tried.
    """

    weights: int
    optimizer: int | None

    @property
    def bytes(self) -> int:
        """Both."""
        return self.weights + (self.optimizer or 0)


def find_size(module: torch.nn.Module, optimizers: list[Optimizer]) -> Size:
    """Write a checkpoint's tensors to nowhere, and count.

    Args:
        module: The weights.
        optimizers: Each takes a step with gradients of zero, on a copy of the parameters.
    """
    states = []
    for optimizer in optimizers:
        try:
            states.append(_state_after_step(optimizer))
        except Exception:  # noqa: BLE001  # one that needs a closure, or more than zeros
            return Size(_written(module.state_dict()), None)
    return Size(_written(module.state_dict()), _written(states) if states else 0)


def _state_after_step(optimizer: Optimizer) -> Any:
    trial: Any = copy.deepcopy(optimizer)  # with its parameters, and without what a schedule has hung on its step
    with torch.random.fork_rng():
        for group in trial.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        trial.step()
    return trial.state_dict()["state"]


class _Counter:
    """A file that forgets."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is kept."""


def _written(content: Any) -> int:
    file: Any = _Counter()
    torch.save(_only_tensors(content), file)
    size: int = file.bytes
    return size


def _only_tensors(content: Any) -> Any:
    """Without what a checkpoint cannot hold: its own check names that."""
    if isinstance(content, Mapping):
        return {str(key): _only_tensors(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_only_tensors(value) for value in content]
    return content if isinstance(content, (Tensor, int, float, str)) else None


def files_at_once(save_top_k: int, epochs: int) -> int:
    """Checkpoints that are on the disk at one time.

    Args:
        save_top_k: ``checkpoint.save_top_k``; -1 keeps all.
        epochs: At whose ends a checkpoint is written.

    Returns:
        The best, one more until the last is written too, the last, and the one that is being written.
    """
    best = epochs if save_top_k < 0 else save_top_k
    return best + (best > 0) + 2


def judge_folder(folder: Path) -> Iterator[Finding]:
    """Make and remove a file where the run would make its folder.

    Args:
        folder: The experiment's; it need not exist.
    """
    there = _existing(folder)
    what = f"The folder '{folder}' of the runs cannot be written to"
    if not there.is_dir():
        yield failure("folder-not-writable", f"{what}: '{there}' is a file.", "", "Choose another folder with --runs.")
        return
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".doctor_") as file:
            file.write(b"room")
            file.flush()
    except OSError as error:
        found = "" if there == folder else f" in '{there}', the part of it that exists"
        yield failure("folder-not-writable", f"{what}: {error.strerror or error}{found}.")


def judge_room(folder: Path, size: Size, files: int, free: int) -> Iterator[Finding]:
    """Hold the checkpoints to come against the room that is left.

    Args:
        folder: Where they go.
        size: Of one.
        files: Number of them at one time.
        free: Bytes that are left.
    """
    needed = files * size.bytes
    of_optimizer = "" if size.optimizer is not None else ", without the optimizer's state, which cannot be measured"
    if free < needed:
        yield failure(
            "disk-full",
            f"'{folder}' has {_mib(free)} left, and {files} checkpoints of {_mib(size.bytes)} take {_mib(needed)}"
            f"{of_optimizer}.",
            "So many are there at one time: the best, the last, and those that replace them.",
            "Make room, choose another folder with --runs, or lower checkpoint.save_top_k.",
        )
    elif size.optimizer is None:
        yield passed(f"{_mib(free)}, {files} x {_mib(size.bytes)} of weights alone")
    else:
        yield passed(f"{_mib(free)} free, {files} checkpoints take {_mib(needed)}")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())


def _mib(size: float) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB")):
        if size >= 10 * unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 / 10 else f"{size / 2**10:.0f} KiB"


def _folder(rehearsal: Rehearsal) -> Path:
    config = rehearsal.config
    return rehearsal.folder if config is None else experiment_folder(config.runs, config.experiment)


@check("machine: run's folder", "folder-not-writable")
def folder_is_writable(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A file can be made and removed where the runs go."""
    folder = _folder(rehearsal)
    yield from list(judge_folder(folder)) or [passed("a file was made and removed")]


@check("machine: room", "disk-full")
def checkpoints_have_room(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The checkpoints that are kept at one time fit on the disk."""
    config, asked = rehearsal.config, rehearsal.asked
    keeper: Any = getattr(config, "checkpoint", None)
    epochs = asked.get("max_epochs") or _EPOCHS
    every = max(1, int(getattr(keeper, "every_n_epochs", 1) or 1))
    files = files_at_once(getattr(keeper, "save_top_k", 1), (epochs if epochs > 0 else _EPOCHS) // every)
    folder = _folder(rehearsal)
    if list(judge_folder(folder)):
        return  # nothing can be written there at all
    free = shutil.disk_usage(_existing(folder)).free
    yield from judge_room(folder, find_size(rehearsal.module, rehearsal.trainer.optimizers), files, free)


CHECKS = (folder_is_writable, checkpoints_have_room)
