import torch
from lightning.pytorch import Callback


class Broken(Callback):
    """All ranks save the weights to one path."""

    def on_train_end(self, trainer, pl_module):
        torch.save(pl_module.net.state_dict(), "weights.pt")


class Healthy(Callback):
    def on_train_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            torch.save(pl_module.net.state_dict(), "weights.pt")
