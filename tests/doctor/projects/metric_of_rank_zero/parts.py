from lightning.pytorch import Callback


class Broken(Callback):
    """Logs on rank 0 alone: the other ranks would reduce another metric with it."""

    def logs(self, trainer):
        return trainer.is_global_zero

    def on_validation_epoch_end(self, trainer, pl_module):
        if self.logs(trainer):
            pl_module.log("val/steps", float(trainer.global_step), sync_dist=True)


class Healthy(Broken):
    def logs(self, trainer):
        return True
