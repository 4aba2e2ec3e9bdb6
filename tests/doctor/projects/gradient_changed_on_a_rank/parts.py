from lightning.pytorch import Callback


class Broken(Callback):
    """Scales the gradient of the last layer by another number on each rank."""

    def factor(self, trainer):
        return 1 + trainer.global_rank

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pl_module.net.heads[0].weight.grad *= self.factor(trainer)


class Healthy(Broken):
    def factor(self, trainer):
        return 2
