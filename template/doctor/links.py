"""Checks of the doctor: which GPUs are visible, and how they are connected."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import torch

from ..distributed.devices import gpus_wanted
from .finding import Finding, check, failure, passed, warning
from .rehearsal import Rehearsal

#: Quality of a link in the words of ``nvidia-smi topo -m``: over the processors' own link, or inside of one's reach.
_ACROSS, _NEAR, _NVLINK = range(3)
_WORDS = {_ACROSS: "across processors", _NEAR: "PCIe", _NVLINK: "NVLink"}


def visible_gpus(text: str) -> list[str]:
    """GPUs that ``CUDA_VISIBLE_DEVICES`` names; CUDA stops at the first entry that is none."""
    entries = [entry.strip() for entry in text.split(",")]
    return list(itertools.takewhile(re.compile(r"\d+$|(GPU|MIG)-").match, entries))


def judge_count(cards: int, visible: str | None, accelerator: str, devices: Any) -> Iterator[Finding]:
    """Hold the GPUs that are there, or shown, against those that the configuration asks for.

    Args:
        cards: Number of GPUs that torch sees.
        visible: ``CUDA_VISIBLE_DEVICES``; None: not set.
        accelerator: ``trainer.accelerator``.
        devices: ``trainer.devices``.
    """
    explicit = accelerator in ("gpu", "cuda")
    if accelerator == "cpu" or not (explicit or cards):
        return
    wanted = max(1, gpus_wanted(devices))
    if visible is not None and len(visible_gpus(visible)) < wanted:
        count = len(visible_gpus(visible))
        yield failure(
            "gpu-count",
            f"trainer.devices is {devices}, but CUDA_VISIBLE_DEVICES={visible} shows {count} GPU{'s' * (count != 1)}.",
            "It was set for another run, in the shell's start-up file, or by the scheduler.",
            "unset CUDA_VISIBLE_DEVICES, or name as many GPUs in it as trainer.devices asks for.",
        )
    elif 0 < cards < wanted:
        what = f"trainer.devices is {devices}, and this machine has {cards} GPU{'s' * (cards > 1)}."
        yield warning("gpu-count", what, "fit would be refused here.", "Ask for fewer, or use another machine.")


def read_links(text: str) -> dict[tuple[int, int], str]:
    """Links between GPUs, as ``nvidia-smi topo -m`` prints them.

    Args:
        text: What it printed.

    Returns:
        Two numbers of GPUs, the smaller first, to ``NV4``, ``PIX``, ``PHB``, ``NODE``, ``SYS`` and so on.
    """
    rows = [line.split() for line in re.sub(r"\x1b\[\d*m", "", text).splitlines() if line.strip()]
    header = rows[0] if rows else []
    links = {}
    for row in rows[1:]:
        for column, link in zip(header, row[1:], strict=False):
            both = [re.fullmatch(r"GPU(\d+)", name) for name in (row[0], column)]
            if both[0] and both[1] and int(both[0][1]) < int(both[1][1]):
                links[int(both[0][1]), int(both[1][1])] = link
    return links


def judge_links(links: dict[tuple[int, int], str], count: int, devices: Any) -> Iterator[Finding]:
    """Find GPUs that are better connected than those that the run would use.

    Args:
        links: As of :func:`read_links`, by torch's numbers.
        count: Number of GPUs.
        devices: ``trainer.devices``: a number takes the first ones.
    """
    named = isinstance(devices, (list, tuple))
    used = tuple(map(int, devices)) if named else tuple(range(gpus_wanted(devices) or count))
    if not 1 < len(used) < count or not links:
        return
    worst = _slowest(links, used)
    best = max(itertools.combinations(range(count), len(used)), key=lambda some: _slowest(links, some))
    if _slowest(links, best) > worst:
        pair = next(pair for pair in itertools.combinations(sorted(used), 2) if _quality(links.get(pair, "")) == worst)
        yield warning(
            "gpu-links",
            f"GPUs {pair[0]} and {pair[1]} of trainer.devices are connected by {_WORDS[worst]} ({links[pair]}).",
            fix=f"Set trainer.devices to {list(best)}: {_WORDS[_slowest(links, best)]} between all of them.",
        )


def _quality(link: str) -> int:
    return _NVLINK if link.startswith("NV") else _NEAR if link.startswith(("PI", "PX", "PH", "NODE")) else _ACROSS


def _slowest(links: dict[tuple[int, int], str], some: tuple[int, ...]) -> int:
    return min(_quality(links.get(pair, "")) for pair in itertools.combinations(sorted(some), 2))


def _measured_links(count: int, visible: str | None) -> dict[tuple[int, int], str]:
    """Links by torch's numbers; nvidia-smi counts all GPUs of the machine."""
    named = visible_gpus(visible) if visible is not None else list(map(str, range(count)))
    try:
        told = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    links = read_links(told.stdout)
    pairs = itertools.combinations([int(name) if name.isdigit() else -1 for name in named], 2)
    numbers = itertools.combinations(range(count), 2)
    return {
        pair: links[min(real), max(real)]
        for pair, real in zip(numbers, pairs, strict=False)
        if (min(real), max(real)) in links
    }


@check("machine: GPUs", "gpu-count")
def gpus_are_connected(rehearsal: Rehearsal) -> Iterator[Finding]:
    """As many GPUs are visible as are asked for, and those with the best links between them."""
    asked, visible = rehearsal.asked, rehearsal.environ.get("CUDA_VISIBLE_DEVICES")
    accelerator, devices, count = asked.get("accelerator", "auto"), asked.get("devices", "auto"), 0
    if accelerator != "cpu":
        count = torch.cuda.device_count()
    links = _measured_links(count, visible) if count > 1 else {}
    found = [*judge_count(count, visible, accelerator, devices), *judge_links(links, count, devices)]
    between = f", links {' '.join(sorted(set(links.values())))}" if links else ""
    yield from found or [passed(f"{count} GPU{'s' * (count != 1)}{between}" if count else "none")]


CHECKS = (gpus_are_connected,)
