"""Ends a run at its first loss that is not finite, with the rank and the samples to blame."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed.agreement import told_by_all
from ..distributed.collectives import world_size
from ..distributed.faults import NamedError
from .losses import no_class

_MOST = 10  # names in a message
#: What can be seen of a cause, the first cause first: images spoil outputs, and outputs the loss.
_WHY = {
    "images": ", whose images are not finite",
    "masks": ", whose masks have labels that are no class",
    "outputs": ", for which the network's output is not finite",
}


@dataclass
class _Look:
    """A step: its loss, then a 1 for each image, each mask and each output that is as it should be, on the CPU."""

    values: Tensor
    names: list[str]
    step: int
    arrived: Any = None


class LossWatch:
    """Looks at the loss of every step.

    On a GPU a look at a value waits for all that was queued before, in every step. So there the values are copied
    while the GPU goes on, and looked at in the next step, when they have long arrived: the run ends one step late.
    """

    def __init__(self) -> None:
        self._pending: _Look | None = None

    def look(self, loss: Tensor, output: Tensor, batch: Mapping[str, Any], step: int) -> None:
        """Look at a step.

        Args:
            loss: Scalar.
            output: Of the network, [N, K, …].
            batch: ``image`` [N, …], ``mask`` [N, …], and ``case``: things with a ``name``, one a sample.
            step: For the message.

        Raises:
            NamedError: This loss, or on a GPU that of the step before, is not finite.
        """
        self.settle()
        if loss.device.type == "cpu" and math.isfinite(loss.item()):
            return
        with torch.no_grad():
            fit = (~no_class(batch["mask"], output.shape[1])).flatten(1).all(1).double()
            values = torch.cat([loss.double().reshape(1), _finite(batch["image"]), fit, _finite(output)])
        self._pending = _Look(values, [case.name for case in batch.get("case", ())], step)
        if values.device.type == "cuda":
            self._pending.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._pending.values.copy_(values, non_blocking=True)
            self._pending.arrived = torch.cuda.Event()
            self._pending.arrived.record()
        else:
            self.settle()

    def settle(self) -> None:
        """Look at the last step, before its weights are kept.

        Raises:
            NamedError: Its loss is not finite.
        """
        look, self._pending = self._pending, None
        if look is None:
            return
        if look.arrived is not None:
            look.arrived.synchronize()
        loss, *finite = look.values.tolist()
        if not math.isfinite(loss):
            raise NamedError("loss-not-finite", f"The loss is {loss} in step {look.step}{_blame(look, finite)}.")


def _finite(values: Tensor) -> Tensor:
    return values.detach().flatten(1).isfinite().all(1).double()


def _blame(look: _Look, finite: list[float]) -> str:
    """Which samples of which ranks are to blame, as far as ranks with such a loss tell."""
    count = len(finite) // len(_WHY)
    seen = {kind: _spoilt(look.names, finite[n * count : (n + 1) * count]) for n, kind in enumerate(_WHY)}
    # Where the loss is that of all ranks, all of them come here; else the others wait for this one elsewhere.
    texts = told_by_all(f"loss/{look.step}", json.dumps({**seen, "samples": look.names}))
    ranks = {rank: json.loads(text) for rank, text in texts.items()}
    kind = next((kind for kind in _WHY if any(told[kind] for told in ranks.values())), "samples")
    parts = [
        f"{', '.join(told[kind][:_MOST])}{' and more' * (len(told[kind]) > _MOST)}"
        f"{f' of rank {rank}' * (world_size() > 1)}"
        for rank, told in sorted(ranks.items())
        if told[kind]
    ]
    return f", at the samples {'; '.join(parts)}{_WHY.get(kind, '')}" if parts else ""


def _spoilt(names: list[str], finite: list[float]) -> list[str]:
    return [name for name, good in zip(names, finite, strict=False) if not good]
