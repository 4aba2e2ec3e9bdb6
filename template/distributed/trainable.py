"""Which parameters are trained, and what becomes of a change of that in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn
from torch.optim import Optimizer

from .told import listed


class Trainable:
    """The parameters of a module, and which of them were trainable when this was made.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        named = list(module.named_parameters())
        self._names = [name for name, _ in named]
        # Kept, as a walk over the modules in each step would cost more than the rest of the check.
        self._parameters = [parameter for _, parameter in named]
        self._flags = self._now()

    def changed(self) -> bool:
        """Whether a parameter was frozen or made trainable since."""
        return self._now() != self._flags

    def told(self, optimizers: Iterable[Optimizer], epoch: int, step: int) -> Iterator[str]:
        """Say what has changed, in a sentence for each kind of change.

        Args:
            optimizers: Those of the run.
            epoch: Where the run is, from 0.
            step: Its next optimizer step, from 0.
        """
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        freed: list[str] = []
        idle: list[str] = []
        frozen: list[str] = []
        for name, parameter, before in zip(self._names, self._parameters, self._flags, strict=True):
            if parameter.requires_grad and not before:
                (freed if id(parameter) in held else idle).append(name)
            elif before and not parameter.requires_grad:
                frozen.append(name)
        when = f"at epoch {epoch}, step {step}"
        if freed:
            yield f"{listed(freed)} became trainable {when}: gradients are averaged over the ranks from now on."
        if idle:
            yield f"{listed(idle)} became trainable {when}, but no optimizer has them: their values stay as they are."
        if frozen:
            yield f"{listed(frozen)} frozen {when}: DDP waits for these gradients no longer."

    def without_gradient(self) -> list[str]:
        """Names of those that were trainable and have no gradient. Looks at no value, so a GPU is not waited for."""
        flagged = zip(self._names, self._parameters, self._flags, strict=True)
        return [name for name, parameter, trainable in flagged if trainable and parameter.grad is None]

    def _now(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]
