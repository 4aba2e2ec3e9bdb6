"""How much of the processor a training step of a network uses, in which layout and precision, and what memory costs.

    python -m benchmarks.networks [--json FILE] [--rounds 3] [--cpu]

Floating-point operations are counted by torch (``torch.utils.flop_counter``), those of the backward pass with them; the
processor's peak is that of a large matrix product, measured in the same rounds. Images are 1 x 256 x 256, four a batch,
on all threads that torch has.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import Measured, interleaved, machine, ratio, table
from template.allocator import keep_freed_memory
from template.models.layout import Layout
from template.models.unet import UNet

SAMPLES, SIZE, CLASSES = 4, 256, 3
#: Edge of the matrices, large enough for the product to be bound by arithmetic.
EDGE = 2048


def networks() -> dict[str, Callable[[], nn.Module]]:
    """Networks by name; those of libraries that are not installed are left out."""
    found: dict[str, Callable[[], nn.Module]] = {"this UNet, width 32": partial(UNet, 1, CLASSES, width=32)}
    try:
        import segmentation_models_pytorch as smp

        found["smp Unet(resnet34)"] = partial(
            smp.Unet, "resnet34", encoder_weights=None, in_channels=1, classes=CLASSES
        )
    except ImportError:
        pass
    try:
        from monai.networks.nets.basic_unet import BasicUNet

        found["MONAI BasicUNet"] = partial(BasicUNet, 2, 1, CLASSES)
    except ImportError:
        pass
    return found


class Way(NamedTuple):
    """How a network is trained.

    Attributes:
        channels_last: Layout of images and weights.
        bf16: Whether convolutions multiply bfloat16.
    """

    channels_last: bool
    bf16: bool


WAYS = {
    "float32": Way(False, False),
    "float32, channels-last": Way(True, False),
    "bf16": Way(False, True),
    "bf16, channels-last": Way(True, True),
}


def training_step(make: Callable[[], nn.Module], way: Way) -> Callable[[], None]:
    """A forward and backward pass and a step of AdamW."""
    torch.manual_seed(0)
    net, layout = make(), Layout(way.channels_last)
    layout.weights(net)
    optimizer = torch.optim.AdamW(net.parameters())
    images = layout.images(torch.rand(SAMPLES, 1, SIZE, SIZE))
    masks = torch.randint(0, CLASSES, (SAMPLES, SIZE, SIZE))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way.bf16):
            logits: Tensor = net(images)
        F.cross_entropy(logits.float(), masks).backward()
        optimizer.step()

    return step


def product(dtype: torch.dtype) -> Callable[[], None]:
    """A product of two matrices of 2048 x 2048."""
    a, b = torch.rand(EDGE, EDGE).to(dtype), torch.rand(EDGE, EDGE).to(dtype)

    def multiply() -> None:
        torch.mm(a, b)

    return multiply


def operations(step: Callable[[], None]) -> int:
    """Floating-point operations of a step; a multiplication and an addition count as two."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def page_faults(step: Callable[[], None], steps: int = 3) -> float:
    """Pages that a step touches for the first time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps


def measure(rounds: int, clock: Callable[[], float]) -> dict[str, dict[str, Any]]:
    """For each network and way: seconds of a step, share of the peak, seconds of those of plain float32, page faults.

    Freed memory is given back in the first measurement of faults, and kept from then on.
    """
    found: dict[str, dict[str, Any]] = {}
    steps = {(name, way): training_step(make, WAYS[way]) for name, make in networks().items() for way in WAYS}
    for step in steps.values():
        step()
    faults = {key: page_faults(step) for key, step in steps.items() if key[1] == "float32"}
    given_back = {key: interleaved({"step": steps[key]}, rounds, clock=clock)["step"] for key in faults}
    keep_freed_memory()
    peaks = interleaved({"float32": product(torch.float32), "bf16": product(torch.bfloat16)}, rounds, clock=clock)
    for name in networks():
        seconds = interleaved({way: steps[name, way] for way in WAYS}, rounds, clock=clock)
        count = operations(steps[name, "float32"])
        kept = page_faults(steps[name, "float32"])
        for way, (_, bf16) in WAYS.items():
            peak = peaks["bf16" if bf16 else "float32"].each(lambda s: 2 * EDGE**3 / s)
            found[f"{name}; {way}"] = {
                "seconds": seconds[way],
                "of_peak": seconds[way].each(lambda s, peak=peak, count=count: count / s / peak.median),  # type: ignore[misc]
                "of_float32": ratio(seconds[way], seconds["float32"]),
            }
        found[f"{name}; float32"] |= {
            "faults_given_back": faults[name, "float32"],
            "faults_kept": kept,
            "given_back_of_kept": Measured(
                tuple(a / seconds["float32"].median for a in given_back[name, "float32"].values)
            ),
        }
    return found


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="time of the processor, on one thread, for a busy machine")
    asked = parser.parse_args()
    if asked.cpu:
        torch.set_num_threads(1)
    found = measure(asked.rounds, time.process_time if asked.cpu else time.perf_counter)
    rows = [
        (name, one["seconds"].told(), f"{one['of_peak'].median:.0%}", one["of_float32"].told(".2f"))
        for name, one in found.items()
    ]
    print(table(("training step", "seconds", "share of the peak", "time of its float32"), rows), end="\n\n")
    rows = [
        (name, f"{one['faults_given_back']:.0f}", f"{one['faults_kept']:.0f}", one["given_back_of_kept"].told(".2f"))
        for name, one in found.items()
        if "faults_kept" in one
    ]
    columns = ("training step", "page faults", "with freed memory kept", "time without, of that with")
    print(table(columns, rows))
    if asked.json:
        plain = {
            name: {key: value.plain() if isinstance(value, Measured) else value for key, value in one.items()}
            for name, one in found.items()
        }
        asked.json.write_text(json.dumps({"machine": machine(), **plain}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
