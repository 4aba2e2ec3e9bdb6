"""Remembers over a resume which layers a run has frozen or freed since its start."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class ThawedLayers(Callback):
    """A callback that frees layers at epoch 5 does nothing in a run that is resumed at epoch 7; this one does it.

    Lightning's own finetuning callback brings back its optimizer's groups, but not what was trainable.
    """

    def __init__(self) -> None:
        self._module: LightningModule | None = None
        self._start: dict[str, bool] = {}
        self._stored: dict[str, bool] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take note of what the run begins with."""
        self._module, self._start = pl_module, _trainable(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring back what a checkpoint tells; the strategy averages gradients by it from the next step on."""
        for name, parameter in pl_module.named_parameters():
            if name in self._stored:
                parameter.requires_grad_(self._stored[name])

    def state_dict(self) -> dict[str, Any]:
        """Parameters that have changed since the start, and whether they are trainable now."""
        now = _trainable(self._module) if self._module is not None else {}
        return {name: flag for name, flag in now.items() if flag != self._start.get(name, flag)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until the training starts."""
        self._stored = dict(state_dict)


def _trainable(module: LightningModule) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in module.named_parameters()}
