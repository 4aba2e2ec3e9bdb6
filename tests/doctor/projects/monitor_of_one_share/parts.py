from lightning.pytorch import Callback


class Broken(Callback):
    """Logs the mean of the process's own share."""

    sync = False

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, *args):
        for group in batch:
            share = group["mask"].float().mean()
            pl_module.log("val/labelled", share, sync_dist=self.sync, batch_size=len(group["mask"]))


class Healthy(Broken):
    sync = True
