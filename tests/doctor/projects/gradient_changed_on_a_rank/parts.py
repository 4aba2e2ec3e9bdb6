from lightning.pytorch import Callback


class Broken(Callback):
    """Scales the gradient of the last layer by the number of samples of the process's own share that have a tumour."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.factor = 1 + trainer.global_rank

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pl_module.net.heads[0].weight.grad *= self.factor


class Healthy(Broken):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.factor = 2
