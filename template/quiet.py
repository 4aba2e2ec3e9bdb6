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
    # Other verbs than fit have other callbacks, and a callback of the user's may have gone since.
    r"Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",
    # Epochs of a few steps are logged as a whole; the steps in between only every trainer.log_every_n_steps.
    r"The number of training batches \(\d+\) is smaller than the logging interval",
    # A resumed run goes on in its own folder.
    r"Checkpoint directory .* exists and is not empty",
)


_MESSAGES = (
    "💡 Tip",  # advertising
    "`weights_only` was not set, defaulting to `False`",  # of saving a checkpoint, where it means the whole of it
    # What the summary at the start says as "hardware"; that there is a GPU which is not used is a warning, and stays.
    "GPU available: ",
    "TPU available: ",
    "HPU available: ",
    "` stopped: `max_",  # the last line of the progress says which epoch or step it is
    "Seed set to ",  # the seed is in config.yaml
    "Restoring states from the checkpoint path",  # one line says what a run goes on with
    "Restored all states from the checkpoint",
)


class _SaysSomething(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not any(message in record.getMessage() for message in _MESSAGES)


def silence_known() -> None:
    """Hide the known messages, in this process."""
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    # A logger's filter sees its own records alone.
    for name in (
        "pytorch.utilities.rank_zero",
        "pytorch.trainer.connectors.checkpoint_connector",
        "fabric.utilities.seed",
    ):
        logging.getLogger(f"lightning.{name}").addFilter(_SaysSomething())
