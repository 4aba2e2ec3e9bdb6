import torch
from lightning.pytorch import Callback


class Broken(Callback):
    """Adds noise to the last layer, on each rank its own."""

    seed = staticmethod(lambda rank: rank)

    def on_train_batch_end(self, trainer, pl_module, *args):
        noise = torch.Generator().manual_seed(self.seed(trainer.global_rank))
        head = pl_module.net.heads[0]
        with torch.no_grad():
            head.weight += 0.01 * torch.randn(head.weight.shape, generator=noise)


class Healthy(Broken):
    seed = staticmethod(lambda rank: 0)
