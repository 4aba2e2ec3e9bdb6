"""The network and the Trainer of the failure reports: Conv-BN-ReLU-Conv on 8 x 8 images, two ranks on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader

from template.callbacks.agreement import Agreement
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from template.quiet import silence_known


class Toy(LightningModule):
    """Three classes, plain SGD, the mean cross-entropy of each rank's own pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        image, mask = batch
        return F.cross_entropy(self.net(image), mask)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return None


def batches(count: int, seed: int = 0, size: int = 2) -> DataLoader[Any]:
    """A loader of so many batches of 2 samples."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count * size, 1, 8, 8, generator=generator)
    masks = torch.randint(0, 3, (count * size, 8, 8), generator=generator)
    return DataLoader(list(zip(images, masks, strict=True)), batch_size=size)  # type: ignore[arg-type]


def trainer(world_size: int, folder: Path | str, *callbacks: Any, **settings: Any) -> Trainer:
    """A Trainer with the strategy and what the command line always adds."""
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    defaults: dict[str, Any] = {
        "strategy": SafeDDPStrategy(),
        "max_epochs": 2,
        "num_sanity_val_steps": 0,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        "default_root_dir": str(folder),
    }
    return Trainer(
        accelerator="cpu", devices=world_size, callbacks=[*callbacks, Agreement()], **{**defaults, **settings}
    )


def failure(run: Callable[[], Any]) -> NamedError:
    """The named failure that a run ends in."""
    try:
        run()
    except NamedError as error:
        return error
    raise AssertionError("the run did not fail")


def messages(logger: str = "lightning.pytorch.utilities.rank_zero") -> list[str]:
    """A list that fills with what rank 0 is told from now on."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).setLevel(logging.INFO)
    logging.getLogger(logger).addHandler(handler)
    return told


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights."""
    return {name: value.clone() for name, value in module.state_dict().items()}
