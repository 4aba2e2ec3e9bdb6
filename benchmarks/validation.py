"""What the metrics cost in a validation pass.

    python -m benchmarks.validation [--json FILE] [--rounds 5] [--batches 2] [--cpu] [--width 32]

A pass is the segmenter's own validation step on batches that lie ready, with all that it counts, and the scores at the
end. It is taken apart by leaving out the confusion matrix, the loss of each sample, and both; all take turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measure import Measured, interleaved, machine, ratio, table
from benchmarks.steps import Batch, ready_batch
from template.allocator import keep_freed_memory
from template.models.segmenter import Segmenter
from template.models.unet import UNet

SAMPLES, SIZE = 8, 256
WHOLE, NO_SCORES, NO_LOSS, BARE = (
    "a validation pass",
    "without Dice and IoU",
    "without the loss of each sample",
    "without both",
)


def segmenter(width: int) -> Segmenter:
    """A UNet in evaluation, channels last, as most processors prefer it."""
    torch.manual_seed(0)
    module = Segmenter(UNet(width=width), 3, 1, channels_last=True)
    module.layout.weights(module.net)
    return module.eval()


@torch.inference_mode()
def validate(module: Segmenter, batches: list[list[Batch]], scores: bool = True, loss: bool = True) -> None:
    """One pass.

    Args:
        module: In evaluation.
        batches: As of a validation loader.
        scores: Whether pixels are counted.
        loss: Whether the loss of each sample is computed.
    """
    with ExitStack() as without:
        if not scores:
            without.enter_context(patch.object(module.val_scores, "update", lambda *_: None))
        if not loss:
            without.enter_context(patch.object(module.loss, "forward", _no_loss))
        for number, batch in enumerate(batches):
            module.validation_step(batch, number)
        module.val_scores.compute()
        module.val_loss.compute()
        module.val_scores.reset()
        module.val_loss.reset()


def _no_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return logits.new_zeros(())


def measure(rounds: int, number: int, width: int, clock: Callable[[], float]) -> dict[str, Measured]:
    """Seconds of each kind of pass."""
    module, one = segmenter(width), ready_batch(SAMPLES, SIZE)
    batches: list[list[Batch]] = [[one]] * number
    passes = {
        WHOLE: partial(validate, module, batches),
        NO_SCORES: partial(validate, module, batches, scores=False),
        NO_LOSS: partial(validate, module, batches, loss=False),
        BARE: partial(validate, module, batches, scores=False, loss=False),
    }
    return interleaved(passes, rounds, clock=clock)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2, help=f"of {SAMPLES} images of {SIZE} x {SIZE}")
    parser.add_argument("--width", type=int, default=32, help="of the UNet")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, for a busy machine")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does that trains on the CPU
    found = measure(asked.rounds, asked.batches, asked.width, time.process_time if asked.cpu else time.perf_counter)
    shares = {name: ratio(one, found[BARE]) for name, one in found.items()}
    rows = [(name, one.told(), shares[name].told(".3f")) for name, one in found.items()]
    columns = (f"UNet of width {asked.width}, {asked.batches * SAMPLES} images of {SIZE}²", "s", "of that without both")
    print(table(columns, rows))
    if asked.json:
        plain: dict[str, Any] = {name: {"s": found[name].plain(), "ratio": shares[name].plain()} for name in found}
        asked.json.write_text(json.dumps({"machine": machine(), **plain}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
