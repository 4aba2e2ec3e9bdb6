"""``export``: a checkpoint's network as files that need neither this program nor Lightning."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningCLI
from rich import box
from rich.table import Table
from torch import Tensor
from typing_extensions import override

from .cli import SegmentationCLI
from .console import make_console
from .distributed.faults import NamedError
from .exported import LogitsOnly, Sizes, difference, exported, padded, stride_of, to_onnx, tried

PROGRAM, ONNX, WEIGHTS, ABOUT, SAMPLE = "network.pt2", "network.onnx", "weights.pt", "network.json", "sample.npy"
_EXTRA = ("onnx", "onnxruntime", "onnxscript")


class Exporter(Trainer):
    """A Trainer with one more verb."""

    def export(self, model: LightningModule, datamodule: Any, ckpt_path: str | None = None) -> None:
        """Write the network of a checkpoint as ``torch.export`` program and as ONNX.

        Args:
            model: With the network.
            datamodule: Gives a real image to check the files on.
            ckpt_path: ``best``, ``last`` or a file.
        """
        self.predict(model, datamodule=datamodule, ckpt_path=ckpt_path, return_predictions=False)


class ExportCLI(SegmentationCLI):
    """``export``: ``predict`` up to its first batch, in one process on the CPU.

    Args:
        arguments: What follows the verb.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(["export", *arguments])

    @override
    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # the base's needs no instance
        return {self._verb: LightningCLI.subcommands()["predict"]}

    @override
    def _add_subcommands(self, parser: Any, **kwargs: Any) -> None:
        self.trainer_class = Exporter
        super()._add_subcommands(parser, **kwargs)

    @override
    def _join_world(self) -> None:
        trainer = self.config[self.config.subcommand].trainer
        changes: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
            "precision": "32-true",
            "logger": False,
            "callbacks": None,
            "profiler": None,
            "enable_progress_bar": False,
            "inference_mode": False,  # its tensors cannot be traced
        }
        for key, value in changes.items():
            setattr(trainer, key, value)
        super()._join_world()

    @override
    def _callbacks(self, config: Any, user: list[Callback]) -> list[Callback]:
        # By position: nulls are kept by `skip_none` before jsonargparse 4.49 and by `skip_unset` since.
        written = yaml.safe_load(self._parser(self.subcommand).dump(self.config[self.subcommand], "yaml", False))
        told = {"network": written["model"]["net"], "checkpoint": self.place.checkpoint}
        return [Export(Path(self._get(self.config, "out") or self.place.verb), told)]


class Export(Callback):
    """Exports the network at the first batch, and ends the verb.

    Args:
        folder: Where to; made if it does not exist.
        told: What else the description says, such as where the weights come from.
    """

    def __init__(self, folder: Path, told: dict[str, Any]) -> None:
        self.folder = folder
        self.told = told

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See to what is needed before anything is computed.

        Raises:
            NamedError: A library is missing, or the folder cannot be made.
        """
        missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
        if missing:
            raise NamedError(
                "not-installed",
                f"export needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed.",
                fix="Install the extra: pip install '.[export]'.",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.folder, error) from error

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write and check all files.

        Raises:
            NamedError: A layer cannot be exported, a file gives other logits, or it cannot be written.
            StopIteration: When it is done: nothing is predicted.
        """
        module: Any = pl_module
        image = padded(input_of(module, batch[0]["image"][:1]), 1, module.pad_to)
        net = copy.deepcopy(module.net).float().cpu().eval()
        for parameter in net.parameters():
            parameter.data = parameter.data.contiguous()
        net = LogitsOnly(net, image).eval()
        try:
            self._write(trainer, module, net, image)
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        raise StopIteration

    def _write(self, trainer: Trainer, module: Any, net: LogitsOnly, image: Tensor) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by predict(datamodule=…)
        torch.save(net.net.state_dict(), self.folder / WEIGHTS)
        np.save(self.folder / SAMPLE, image[0].numpy())
        step = math.lcm(module.pad_to, stride_of(net, image, module.pad_to))
        program, sizes = exported(net, image, step)
        torch.export.save(program, self.folder / PROGRAM)
        images = tried(image, sizes)
        loaded = torch.export.load(self.folder / PROGRAM).module()
        apart = {PROGRAM: difference(loaded, net, images, PROGRAM)}
        about = {**_about(module, data, image, sizes), **self.told}
        self._describe(about, apart)
        to_onnx(net, program, image, self.folder / ONNX)
        apart[ONNX] = difference(_onnx_runtime(self.folder / ONNX), net, images, ONNX)
        self._describe(about, apart)
        _tell(self.folder, sizes, apart)

    def _describe(self, about: dict[str, Any], apart: dict[str, float]) -> None:
        files = {PROGRAM: "torch.export", ONNX: "ONNX", WEIGHTS: "state dict of the network", SAMPLE: "an input"}
        content = {**about, "files": files, "largest_difference_from_the_network": apart}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (self.folder / ABOUT).write_text(text, encoding="utf-8", errors="backslashreplace")


def input_of(module: Any, images: Tensor) -> Tensor:
    """What the network is given of an image [1, C, *S]: the image, its middle slice with neighbours, or a window."""
    image, way = images[0], module.inference
    if way.planes is not None and image.ndim == 4:
        depth = image.shape[1]
        near = torch.arange(depth // 2 - way.planes, depth // 2 + way.planes + 1).clamp(0, depth - 1)
        image = image[:, near].flatten(0, 1)
    if way.window is not None and len(way.window) == image.ndim - 1:
        for axis, length in enumerate(way.window, start=1):
            size = min(length, image.shape[axis])
            image = image.narrow(axis, (image.shape[axis] - size) // 2, size)
    return image[None].float().contiguous()


def steps_of(data: Any) -> list[str]:
    """What becomes of a file before the network sees it, in order: what its data set does, and ``preprocess``."""
    steps = []
    if hasattr(data, "decoded"):
        steps.append("slices axial, from the feet to the head, the front up, the patient's right on the left")
        if spacing := data.decoded.spacing:
            sizes = ", ".join("as in the file" if size is None else f"{size:g}" for size in spacing)
            steps.append(f"resampled to voxels of [{sizes}] mm: depth, height, width")
    if getattr(data, "standardize", False):
        steps.append("mean 0 and standard deviation 1 of each channel over the whole volume")
    if hasattr(data, "white"):
        white = "255, 65535 in files of 16 bit; floating-point files as they are" if data.white is None else data.white
        steps.append(f"values divided by {white}")
    return [*steps, *map(str, data.preprocess)]


def _about(module: Any, data: Any, image: Tensor, sizes: Sizes) -> dict[str, Any]:
    """What a user of the files needs to know."""
    axes, way = "H, W" if image.ndim == 4 else "D, H, W", module.inference
    return {
        "classes": data.classes,
        "regions": {name: list(labels) for name, labels in data.regions.items()},
        "preprocessing": steps_of(data),
        "input": {
            "name": "image",
            "layout": f"[N, C, {axes}]",
            "dtype": "float32",
            "channels": image.shape[1],
            "neighbouring_slices_on_each_side": way.planes or 0,
            **sizes._asdict(),
        },
        "output": {"name": "logits", "layout": f"[N, {len(data.classes)}, {axes}]", "labels": "argmax over axis 1"},
        "windows": {"size": way.window, "overlap": way.overlap, "flips": way.flips},
        "torch": torch.__version__,
    }


def _onnx_runtime(file: Path) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def _tell(folder: Path, sizes: Sizes, apart: dict[str, float]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("file")
    table.add_column("largest difference from the network", justify="right")
    for name, value in apart.items():
        table.add_row(name, f"{value:.1e}")
    console = make_console()
    console.print(table)
    console.print(f"takes any number of images {sizes}; all of it in {folder}", soft_wrap=True)


def _not_writable(folder: Path, error: OSError) -> NamedError:
    return NamedError(
        "folder-not-writable",
        f"'{error.filename or folder}' cannot be written: {error.strerror or error}.",
        fix="Choose another folder with --out, or make room on the disk.",
    )
