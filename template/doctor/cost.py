"""What the exchange between the processes costs: measured here, and by arithmetic for another link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .finding import Finding, check, passed, warning
from .run import Together

#: Values that a synchronised BatchNorm exchanges for each channel: mean and spread forward, two sums backward.
_BATCHNORM_VALUES = 4


@check("cost: step", "slow-exchange")
def a_step_and_its_bytes(together: Together) -> Iterator[Finding]:
    """The time of a step on one process and on several of this machine, and how much they exchange in it."""
    alone = float(together.rehearsal.measured.get("step_seconds_alone", 0.0))
    both = statistics.median(one.step_seconds for one in together.seen)
    exchanged = exchanged_bytes(together.rehearsal.module, together.rehearsal.trainer.strategy)
    here = statistics.median(one.exchange_seconds for one in together.seen)
    yield passed(f"{_time(alone)} on 1 process, {_time(both)} on {len(together.seen)} here")
    yield passed(f"{_size(exchanged)} exchanged a step; measured here: {_time(here)}")


@check("cost: link (arithmetic)", "slow-exchange")
def the_exchange_on_another_link(together: Together) -> Iterator[Finding]:
    """Time of a ring all-reduce on the link that the user gives, nothing hidden behind the computation."""
    speed = together.rehearsal.options.link_speed
    if speed is None:
        return
    exchanged = exchanged_bytes(together.rehearsal.module, together.rehearsal.trainer.strategy)
    count = len(together.seen)
    seconds = ring_seconds(exchanged, count, speed)
    here = statistics.median(one.exchange_seconds for one in together.seen)
    own = 8 * ring_factor(count) * exchanged / here / 1e9 if here else 0.0
    told = f"{_time(seconds)} a step at {speed:g} Gbit/s (here {own:.2g} Gbit/s)"
    step = float(together.rehearsal.measured.get("step_seconds_alone", 0.0)) / count
    if step and seconds > step:
        yield warning("slow-exchange", f"The exchange takes {told}, and the computation {_time(step)} on this machine.")
    else:
        yield passed(told)


def gradient_bytes(module: nn.Module) -> int:
    """Bytes of all gradients that DDP exchanges in a step."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def batchnorm_bytes(module: nn.Module) -> int:
    """Bytes that BatchNorm layers exchange in a forward and backward pass where they are synchronised (float32)."""
    return sum(4 * _BATCHNORM_VALUES * one.num_features for one in module.modules() if isinstance(one, _BatchNorm))


def exchanged_bytes(module: nn.Module, strategy: object) -> int:
    """Bytes that a process exchanges in a step: gradients, and the statistics that the strategy synchronises."""
    return gradient_bytes(module) + (batchnorm_bytes(module) if getattr(strategy, "sync_batchnorm", False) else 0)


def ring_factor(processes: int) -> float:
    """How often each byte crosses a link in a ring all-reduce: 2 (n - 1) / n (Patarasuk and Yuan 2009)."""
    return 2 * (processes - 1) / processes


def ring_seconds(exchanged: int, processes: int, gbits: float) -> float:
    """Seconds of a ring all-reduce, without latency.

    Args:
        exchanged: Bytes of one process.
        processes: Number of processes.
        gbits: Speed of the slowest link in one direction, Gbit/s.
    """
    return 8 * ring_factor(processes) * exchanged / (gbits * 1e9)


def measure_exchange(module: nn.Module, strategy: object, repeats: int = 5) -> float:
    """Seconds of an all-reduce of as many bytes as a step exchanges; called on all ranks."""
    device = next(module.parameters()).device
    values = torch.zeros(max(1, exchanged_bytes(module, strategy) // 4), device=device)
    seconds = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


#: In the order in which they are shown.
CHECKS = (a_step_and_its_bytes, the_exchange_on_another_link)
