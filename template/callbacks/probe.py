"""Names, in a run of one process, what will stop a run of several."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from ..distributed.probe import advice, describe, find_unused, let_settle, probe_batch, probe_loss
from ..distributed.registration import check_optimizers, check_registered
from ..distributed.strategy import SafeDDPStrategy


class ProbeStep(Callback):
    """Runs one step whose effects are discarded before the first real one; the strategy does it where it is DDP."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for what is not registered, and tell of parameters that get no gradient."""
        # Other strategies put parameters of their own in place.
        if isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)):
            check_optimizers(pl_module, trainer.optimizers)
        if isinstance(trainer.strategy, SafeDDPStrategy):
            return
        check_registered(pl_module)
        batch = probe_batch(trainer)
        if batch is None:
            return
        unused = find_unused(pl_module, lambda: probe_loss(trainer, batch))
        if unused:
            rank_zero_info(
                f"Trainable parameters got no gradient: {describe(unused, trainer.world_size)}. They are not trained; "
                "with several processes, DDP would look for them in every step. "
                f"{advice(unused, trainer.world_size)} [unused-parameters]"
            )
        if isinstance(trainer.strategy, SingleDeviceStrategy):
            let_settle(pl_module, batch)
