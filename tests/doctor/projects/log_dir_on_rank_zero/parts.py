from lightning.pytorch import Callback


class Broken(Callback):
    """Reads a property on rank 0 alone that waits for the other ranks."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            self.where = trainer.log_dir


class Healthy(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        self.where = trainer.log_dir
