import time

from lightning.pytorch import Callback


class Broken(Callback):
    """Rank 1 works for a long time, while the others wait for it."""

    def on_train_batch_end(self, trainer, pl_module, *args):
        if trainer.global_rank == 1 and trainer.global_step == 1:
            time.sleep(600)


class Healthy(Callback):
    def on_train_batch_end(self, trainer, pl_module, *args):
        if trainer.global_rank == 1 and trainer.global_step == 1:
            time.sleep(0.2)
