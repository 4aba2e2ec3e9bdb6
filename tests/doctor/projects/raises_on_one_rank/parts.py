from lightning.pytorch import Callback


class Broken(Callback):
    """Reads a file name that rank 0 alone has."""

    def on_train_start(self, trainer, pl_module):
        if trainer.is_global_zero:
            self.name = "best"

    def on_train_end(self, trainer, pl_module):
        print(self.name)


class Healthy(Broken):
    def on_train_start(self, trainer, pl_module):
        self.name = "best"
