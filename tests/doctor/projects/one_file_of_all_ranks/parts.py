from pathlib import Path

from lightning.pytorch import Callback


class Broken(Callback):
    """All ranks write one file."""

    def on_train_end(self, trainer, pl_module):
        self.write(trainer)

    def write(self, trainer):
        Path("summary.txt").write_text(f"{trainer.global_step} steps\n")


class Healthy(Broken):
    def on_train_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            self.write(trainer)
