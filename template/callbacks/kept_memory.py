"""Keeps the memory that a step on the CPU has freed for the next one."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from ..allocator import keep_freed_memory


class KeptMemory(Callback):
    """Lets the C library keep freed memory while a model trains on the CPU.

    Args:
        wanted: Whether to do so.

    Attributes:
        kept: Whether it does so.
    """

    def __init__(self, wanted: bool = True) -> None:
        self.wanted = wanted
        self.kept = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before the first step, whose memory is then kept."""
        if self.wanted and trainer.strategy.root_device.type == "cpu":
            self.kept = keep_freed_memory()
