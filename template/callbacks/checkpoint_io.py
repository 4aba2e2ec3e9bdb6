"""Checkpoint files: written by rank 0 alone, never half-written, of plain types only."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from ..distributed.faults import NamedError
from ..runs import alternative, damage, damaged, part_of
from .background import BackgroundWriter, Snapshots, not_forked
from .plain import plain

#: Errors of a full disk, a used-up quota, and a limit on the size of files.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Plan:
    """What else belongs to a checkpoint; given as ``storage_options``.

    Attributes:
        background: Return as soon as the state is copied, and write while the training goes on.
        first: Files that hold the same, written before.
        outdated: Files that are deleted when all is written.
    """

    background: bool = False
    first: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a name beside the target, flushes to disk, renames: a kill or a full disk leaves the old file whole.

    Attributes:
        writer: What is written in the background. One write at a time: whoever saves or loads waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writer = BackgroundWriter()
        self.writer.progress = self._progress
        self._snapshots = Snapshots()
        self._part: Path | None = None

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Plan | None = None) -> None:
        """Write a checkpoint; Lightning calls this on rank 0 alone.

        Raises:
            NamedError: It holds something that ``torch.load(weights_only=True)`` refuses, or cannot be written; or the
                one before, which was written in the background, could not be.
        """
        checkpoint = plain(checkpoint)
        plan = storage_options or Plan()
        self.writer.drain()

        def job() -> None:
            for target in (*plan.first, path):
                self.write(checkpoint, Path(target))
            for target in plan.outdated:
                self.remove_checkpoint(target)

        if plan.background:
            checkpoint = self._snapshots.take(checkpoint)
            self.writer.start(job)
        else:
            job()

    @override
    def remove_checkpoint(self, path: _PATH) -> None:
        """Delete a checkpoint.

        Raises:
            NamedError: It cannot be deleted.
        """
        try:
            super().remove_checkpoint(path)
        except OSError as error:
            raise _unwritable(f"The checkpoint '{path}' cannot be deleted", error, Path(path).parent) from error

    @override
    def teardown(self) -> None:
        """Wait for what is being written, and give thread and memory back."""
        try:
            self.writer.drain()
        finally:
            self.writer.close()
            self._snapshots.release()

    def make_room(self, content: Any) -> None:
        """Take the memory for copies of a training's state in the background.

        Args:
            content: The state.
        """
        self.writer.start(self._snapshots.room_for(content))

    def write(self, checkpoint: dict[str, Any], target: Path) -> None:
        """Write one file, now.

        Args:
            checkpoint: Of plain types.
            target: The file.

        Raises:
            NamedError: It cannot be written.
        """
        part = self._part = part_of(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file, not_forked(file.fileno()):
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
            _flush_folder(target.parent)
        # torch reports what fails while it writes as a RuntimeError of its zip writer.
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise _unwritable(f"The checkpoint '{target}' cannot be written", error, target.parent) from error

    @override
    def load_checkpoint(
        self, path: _PATH, map_location: Any = lambda storage, _: storage, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint without running any code in it.

        Keys that begin with ``module.``, as DataParallel and DDP write them, are taken without it. A file that holds
        the weights of a bare network becomes a checkpoint of the segmenter around it.

        Raises:
            NamedError: The file is missing, damaged, or would run code on loading.
        """
        self.writer.drain()
        file = Path(path)
        if not file.is_file():
            raise NamedError("no-checkpoint", f"The checkpoint '{file}' does not exist.")
        try:
            content = torch.load(file, map_location=map_location, weights_only=True)
        except Exception as error:
            if broken := damage(file):
                raise damaged(file, broken) from error
            reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
            raise NamedError(
                "checkpoint-unreadable",
                f"The checkpoint '{file}' cannot be loaded: {reason}.",
                cause="It is whole, but not a file of plain weights.",
                fix=alternative(file),
            ) from error
        return normalize(content, file)

    def _progress(self) -> object:
        with contextlib.suppress(OSError, AttributeError):
            return self._part, self._part.stat().st_size  # type: ignore[union-attr]
        return self._part


def normalize(content: Any, file: Path) -> dict[str, Any]:
    """Bring what people call a checkpoint into Lightning's form.

    Args:
        content: What ``torch.load`` returned.
        file: For messages.

    Returns:
        A checkpoint with ``state_dict`` keys as the segmenter has them.

    Raises:
        NamedError: There are no weights in it.
    """
    if not isinstance(content, Mapping):
        raise NamedError(
            "checkpoint-unreadable", f"The checkpoint '{file}' holds a {type(content).__name__}, not weights."
        )
    wrapped = next((key for key in ("state_dict", "model_state_dict", "model") if _is_weights(content.get(key))), None)
    weights = content[wrapped] if wrapped else content
    if not _is_weights(weights):
        raise NamedError("checkpoint-unreadable", f"The checkpoint '{file}' holds no weights.")
    weights = {name.removeprefix("module.").replace(".module.", "."): value for name, value in weights.items()}
    if not any(name.startswith("net.") for name in weights):
        weights = {f"net.{name}": value for name, value in weights.items()}
    rest = {key: value for key, value in content.items() if key != wrapped} if wrapped else {}
    # Lightning takes a checkpoint without its version for one of release 0.1 and migrates it.
    version = {"pytorch-lightning_version": rest.get("pytorch-lightning_version", "2.0.0")}
    return {**rest, **version, "state_dict": weights}


def continues(path: str, module: LightningModule) -> bool:
    """Whether a fit can go on from a checkpoint; one of bare weights gives them to the module, to begin anew with.

    Args:
        path: The checkpoint.
        module: Takes the weights.

    Raises:
        NamedError: The file cannot be loaded, or holds the weights of another network.
    """
    content = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu")
    if "optimizer_states" in content:
        return True
    module.load_state_dict(content["state_dict"])
    rank_zero_info(f"The weights are those of '{path}', which has no state of a training: it begins anew.")
    return False


def check_room(folder: Path, module: LightningModule, copies: int) -> None:
    """Make sure that checkpoints can be written, before anything is trained; called on rank 0.

    Args:
        folder: Where they go; made here.
        module: What they hold, besides the optimizer's state.
        copies: How many of them are there at one time.

    Raises:
        NamedError: The folder cannot be written to, or has less room than the weights alone need.
    """
    trainer: Any = module.trainer
    for owner in (module, getattr(trainer, "datamodule", None)):
        plain(dict(getattr(owner, "hparams", {})), "hyper_parameters")
    probe = part_of(folder / "room.ckpt")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"room")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unwritable(f"No checkpoint can be written to '{folder}'", error, folder) from error
    weights = sum(tensor.nbytes for tensor in module.state_dict().values() if isinstance(tensor, torch.Tensor))
    if free < weights:
        raise NamedError(
            "disk-full", f"'{folder}' has {_mib(free)} left, and the weights of one checkpoint take {_mib(weights)}."
        )
    # Adam keeps two numbers for each weight, and it is what most people use.
    if free < 3 * weights * copies:
        warnings.warn(
            f"'{folder}' has {_mib(free)} left; {copies} checkpoints with the state of an optimizer such as Adam take "
            f"{_mib(3 * weights * copies)}. [disk-full]",
            stacklevel=2,
        )


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size:.0f} bytes"


def _unwritable(what: str, error: Exception, folder: Path) -> NamedError:
    """A disk that is full and a folder that is closed want different things of their user."""
    codes = [one.errno for one in _chain(error) if isinstance(one, OSError)]
    # torch's own writer hides the reason of what fails in it.
    full = any(code in _FULL for code in codes) or not codes
    reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    left = ""
    if full:
        with contextlib.suppress(OSError):
            left = f" {_mib(shutil.disk_usage(folder).free)} are left."
    return NamedError("disk-full" if full else "folder-not-writable", f"{what}: {reason}.{left}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_weights(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(v, torch.Tensor) for v in value.values())


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system allows to open a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
