from lightning.pytorch import Callback


class Broken(Callback):
    """Saves on rank 0 alone: save_checkpoint waits there for the other ranks."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            trainer.save_checkpoint("after_epoch.ckpt")


class Healthy(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        trainer.save_checkpoint("after_epoch.ckpt")
