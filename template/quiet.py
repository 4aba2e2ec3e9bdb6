"""Messages of the libraries that say nothing to a user here, each with the reason."""

from __future__ import annotations

import logging
import warnings

_WARNINGS = (
    # Lightning's own use of torch's pytree; nothing a user could change.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # data.num_workers: auto decides by cores and processes.
    r"The '\w+_dataloader' does not have many workers",
    # The scores are sums reduced over all processes by torchmetrics, and the training loss is global already.
    r"It is recommended to use `self.log\('.*', ..., sync_dist=True\)`",
    # EvaluationBatchSampler deals every sample once.
    r"You are using a custom batch sampler `EvaluationBatchSampler`",
    # A resumed run goes on in its own folder.
    r"Checkpoint directory .* exists and is not empty",
)


class _NoAdvertising(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "💡 Tip" not in record.getMessage()


def silence_known() -> None:
    """Hide the known messages, in this process."""
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_NoAdvertising())
