"""BatchNorm of one process as exact as that of several."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from ..distributed import sync_batchnorm
from ..distributed.strategy import SafeDDPStrategy


class AccurateBatchNorm(Callback):
    """Lets one process on the CPU train with the sums that several processes use; the strategy does it where it is DDP.

    Why: see :mod:`..distributed.sync_batchnorm`.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Convert the layers."""
        if trainer.strategy.root_device.type == "cpu" and not isinstance(trainer.strategy, SafeDDPStrategy):
            sync_batchnorm.convert(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give each layer the class it had."""
        sync_batchnorm.revert(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give each layer the class it had."""
        sync_batchnorm.revert(pl_module)
