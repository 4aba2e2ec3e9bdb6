from lightning.pytorch import Callback


class Broken(Callback):
    """Logs two metrics in another order on odd ranks, as a loop over a set of strings does."""

    def order(self, trainer):
        return ["val/a", "val/b"][:: -1 if trainer.global_rank % 2 else 1]

    def on_validation_epoch_end(self, trainer, pl_module):
        for name in self.order(trainer):
            pl_module.log(name, 1.0 if name == "val/a" else 100.0, sync_dist=True)


class Healthy(Broken):
    def order(self, trainer):
        return ["val/a", "val/b"]
