"""Checkpoints: written by rank 0 alone, never half-written, of plain types only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from ..distributed.faults import NamedError
from ..runs import LAST, is_whole

_PLAIN = (bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, type(None))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a name beside the target, flushes to disk, renames: a kill or a full disk leaves the old file whole."""

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Write a checkpoint; Lightning calls this on rank 0 alone.

        Raises:
            NamedError: It holds something that ``torch.load(weights_only=True)`` refuses, or cannot be written.
        """
        refuse_objects(checkpoint)
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
            _flush_folder(target.parent)
        # torch reports a full disk as a RuntimeError of its zip writer.
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise NamedError("folder-not-writable", f"The checkpoint '{target}' cannot be written: {error}.") from error

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
        file = Path(path)
        if not file.is_file():
            raise NamedError("no-checkpoint", f"The checkpoint '{file}' does not exist.")
        try:
            content = torch.load(file, map_location=map_location, weights_only=True)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            damaged = f"It is {'whole, but not a file of plain weights' if is_whole(file) else 'damaged or cut off'}."
            raise NamedError(
                "checkpoint-unreadable", f"The checkpoint '{file}' cannot be loaded: {reason}", cause=damaged
            ) from error
        return normalize(content, file)


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


def refuse_objects(content: Any, where: str = "") -> None:
    """Refuse whatever ``torch.load(weights_only=True)`` could not load again, and name its place.

    Raises:
        NamedError: Something is no plain type.
    """
    if isinstance(content, Mapping):
        for key, value in content.items():
            refuse_objects(value, f"{where}.{key}" if where else str(key))
    elif isinstance(content, (list, tuple, set)):
        for number, value in enumerate(content):
            refuse_objects(value, f"{where}[{number}]")
    elif not isinstance(content, _PLAIN):
        raise NamedError(
            "checkpoint-not-plain",
            f"The checkpoint's entry '{where}' is a {type(content).__module__}.{type(content).__qualname__}.",
        )


class RankZeroCheckpoint(ModelCheckpoint):
    """Keeps ``last.ckpt`` and the best checkpoints by the monitored metric in the run's folder.

    Args:
        monitor: Metric that decides which is best.
        mode: Whether more (``max``) or less (``min``) is better.
        save_top_k: How many of the best to keep.
        every_n_epochs: Epochs between two checkpoints.

    The command line sets ``dirpath`` to the run's ``checkpoints``.
    """

    def __init__(
        self,
        monitor: str = "val/dice",
        mode: Literal["max", "min"] = "max",
        save_top_k: int = 1,
        every_n_epochs: int = 1,
    ) -> None:
        super().__init__(
            filename=f"best-{{epoch:03d}}-{monitor.replace('/', '_')}={{{monitor}:.4f}}",
            auto_insert_metric_name=False,
            monitor=monitor,
            mode=mode,
            save_top_k=save_top_k,
            every_n_epochs=every_n_epochs,
            # Not at the end of the validation: Lightning would resume from there an epoch too late.
            save_on_train_epoch_end=True,
        )
        self._every = every_n_epochs

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Without validation cases there is no best: keep the last checkpoint alone."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage == "fit" and data is not None and hasattr(data, "num_samples") and not data.num_samples("val"):
            self.monitor, self.filename = None, "{epoch:03d}"
        super().setup(trainer, pl_module, stage)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the best, and then the last, whatever its score: ``save_last`` would write it with a new best alone."""
        super().on_train_epoch_end(trainer, pl_module)
        done = trainer.current_epoch + 1
        if not getattr(trainer, "fast_dev_run", False) and (done % self._every == 0 or done == trainer.max_epochs):
            trainer.save_checkpoint(str(Path(str(self.dirpath)) / LAST))


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
