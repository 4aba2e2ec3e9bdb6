from pathlib import Path

from lightning.pytorch import Callback


class Broken(Callback):
    """Keeps a Path in the checkpoint, which does not load without running code."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["source"] = Path("images")


class Healthy(Callback):
    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["source"] = str(Path("images"))
