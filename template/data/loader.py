"""A training loader that can say how far it is in an epoch, and go on from there."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import DataLoader, Dataset

from ..distributed.faults import NamedError
from .sampler import GlobalBatchSampler


def start_worker(worker: int) -> None:
    """Prepare a loader process.

    Launchers and batch systems send SIGTERM to all processes of a group. The training process then needs its loaders
    until it has saved a checkpoint, after which it ends them itself.

    Args:
        worker: Its number.
    """
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(),), name="obey the parent", daemon=True).start()
    # Python's collector writes to all that it looks at. What is there already, such as a list of a million cases, is
    # shared with the training process as long as nobody does.
    gc.freeze()
    if os.environ.get("PL_SEED_WORKERS") == "1":  # what Lightning does where no other function is given
        pl_worker_init_function(worker)


def _obey(parent: int) -> None:
    """End at a SIGTERM of the parent's, as torch's own handler does, and at no other."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


class PositionedLoader(DataLoader[Any]):
    """Lightning stores its state in checkpoints and restores it before the first batch is fetched.

    The position is counted in samples of the global batches, so that it holds for any number of processes.

    Args:
        dataset: The samples.
        deals: Deals the batches.
        settings: Further settings of :class:`torch.utils.data.DataLoader`.
    """

    def __init__(self, dataset: Dataset[Any], deals: GlobalBatchSampler, **settings: Any) -> None:
        super().__init__(dataset, batch_sampler=deals, **settings)
        self.deals = deals
        self._position = {"epoch": 0, "samples": 0, "micro_batch": deals.micro_batch}

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator is all that a loop asks for
        """Yield the batches from the sampler's position on."""
        epoch, done, micro = self.deals.epoch, self.deals.first, self.deals.micro_batch
        for batch in super().__iter__():
            done += 1
            # Said before the batch is trained on: whoever asks does so after it, and before the next.
            self._position = {"epoch": epoch, "samples": done * micro, "micro_batch": micro}
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Epoch, and samples of it that are done over all processes."""
        return dict(self._position)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Deal the batch after the stored position next.

        Raises:
            NamedError: The batches are not those of the stored run.
        """
        micro, samples = self.deals.micro_batch, state["samples"]
        before = state["micro_batch"]
        # At an epoch's end it may change; inside of one, Lightning counts on in batches of the old size.
        if micro != before and samples < self.deals.num_samples // before * before:
            raise NamedError(
                "batch-size",
                f"The checkpoint was written {samples} samples into an epoch of micro-batches of {before}; now they "
                f"have {micro}.",
                cause="data.batch_size or trainer.accumulate_grad_batches has changed since.",
                fix="Resume with the values in the config.yaml of the run's folder.",
            )
        epoch, first = state["epoch"], samples // micro
        if micro != before or first >= len(self.deals):
            epoch, first = epoch + 1, 0
        self.deals.set_position(epoch, first)
        self._position = {"epoch": epoch, "samples": first * micro, "micro_batch": micro}
