"""What makes steps on the CPU cheaper."""

from __future__ import annotations

import os

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ..allocator import keep_freed_memory

#: Set to 1 by Lightning at its import: torch then asks the NVIDIA driver's library for GPUs, and starts no CUDA.
_ASK_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"


class OnCpu(Callback):
    """Lets the C library keep freed memory, and torch no longer look for GPUs in every step, while the CPU trains.

    Args:
        keep_memory: Whether freed memory is kept.

    Attributes:
        kept: Whether it is.
    """

    def __init__(self, keep_memory: bool = True) -> None:
        self.keep_memory = keep_memory
        self.kept = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before the first step, whose memory is then kept."""
        if trainer.strategy.root_device.type != "cpu":
            return
        self.kept = self.keep_memory and keep_freed_memory()
        if os.environ.get(_ASK_DRIVER) == "1" and not torch.cuda.is_available():
            # Each step of an optimizer asks whether there is a GPU. Where the driver is missing, its library would be
            # searched for each time, and no process that is forked later can find CUDA started.
            os.environ[_ASK_DRIVER] = "0"
