"""Checks of the doctor: whether torch, driver, NCCL and GPUs of this machine fit each other and the run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..distributed.knobs import check_device
from ..distributed.launch import processes_asked
from .finding import Finding, check, failure, passed, warning
from .links import visible_gpus
from .rehearsal import Rehearsal


class Card(NamedTuple):
    """A GPU that torch sees: its name, and its compute capability."""

    name: str
    major: int
    minor: int


class Versions(NamedTuple):
    """What torch is built for, and what is there.

    Attributes:
        torch: Version, with what its build says of itself.
        built: ``CUDA 13.0``, ``ROCm 6.4`` or ``no CUDA``.
        nccl: Version; None: built without.
        archs: Architectures that it has code for, such as ``sm_90`` and ``compute_90``.
        driver: Version of the NVIDIA driver that the kernel has loaded; None: none.
        driver_cuda: Newest CUDA that the driver serves, as 1000 x major + 10 x minor; 0: unknown.
        devices: Whether there are files of NVIDIA GPUs.
        visible: ``CUDA_VISIBLE_DEVICES``; None: not set.
        apple: Whether there is Apple's GPU, which ``gpu`` means as well.
        cards: GPUs that torch sees.
    """

    torch: str
    built: str
    nccl: str | None = None
    archs: tuple[str, ...] = ()
    driver: str | None = None
    driver_cuda: int = 0
    devices: bool = False
    visible: str | None = None
    apple: bool = False
    cards: tuple[Card, ...] = ()


def find_versions(accelerator: str, environ: Mapping[str, str] = os.environ) -> Versions:
    """Look at this machine.

    Args:
        accelerator: ``trainer.accelerator``.
        environ: Environment variables.
    """
    hip = torch.version.hip
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {hip}" if hip else "no CUDA"
    nccl = None
    if dist.is_available() and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    module = Path("/proc/driver/nvidia/version")
    driver = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", module.read_text()) if module.is_file() else None
    ask_driver = getattr(torch._C, "_cuda_getDriverVersion", None)
    return Versions(
        torch.__version__,
        built,
        nccl,
        tuple(torch.cuda.get_arch_list()),
        driver[0] if driver else None,
        ask_driver() if ask_driver and driver else 0,
        any(Path("/dev").glob("nvidia[0-9]*")),
        environ.get("CUDA_VISIBLE_DEVICES"),
        torch.backends.mps.is_available(),
        find_cards(accelerator),
    )


def find_cards(accelerator: str) -> tuple[Card, ...]:
    """GPUs that torch sees; none for a run on the CPU, so that CUDA is not started for it.

    Args:
        accelerator: ``trainer.accelerator``.
    """
    count = 0 if accelerator == "cpu" else torch.cuda.device_count()
    return tuple(Card(torch.cuda.get_device_name(n), *torch.cuda.get_device_capability(n)) for n in range(count))


def no_gpu_for(accelerator: str) -> bool:
    """Whether the run is meant for GPUs and this machine has none: it is then not the machine of the run."""
    return accelerator in ("gpu", "cuda") and not torch.cuda.device_count() and not torch.backends.mps.is_available()


def on_cpu(accelerator: str) -> bool:
    """Whether the run would train on the CPU of this machine."""
    return accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.device_count())


def judge_versions(versions: Versions, accelerator: str, backend: str | None, processes: int) -> Iterator[Finding]:
    """Hold the parts of an installation against each other.

    Args:
        versions: What is there.
        accelerator: ``trainer.accelerator``.
        backend: Knob ``process_group_backend`` of the strategy.
        processes: Of the run on this machine.
    """
    if accelerator == "cpu":
        check_device("cpu", backend)
        yield passed(_told(versions))
        return
    found = [*_unseen(versions, accelerator), *_without_code(versions)]
    nccl = backend is not None and "nccl" in backend
    if versions.nccl is None and (nccl or (versions.cards and backend is None and processes > 1)):
        say = failure if versions.cards else warning
        asked = f"process_group_backend is {backend}" if nccl else f"{processes} processes with a GPU each use NCCL"
        found.append(say("no-nccl", f"{asked}, and torch {versions.torch} is built without NCCL."))
    yield from found or [passed(_told(versions))]


def _told(versions: Versions) -> str:
    parts = [f"torch {versions.torch.partition('+')[0]}", versions.built]
    if versions.nccl and versions.cards:
        parts.append(f"NCCL {versions.nccl}")
    if versions.driver and versions.cards:
        parts.append(f"driver {versions.driver}")
    return ", ".join(parts)


def _unseen(versions: Versions, accelerator: str) -> Iterator[Finding]:
    """GPUs of the machine that torch does not see, though nobody has hidden them."""
    if versions.cards or (versions.visible is not None and not visible_gpus(versions.visible)):
        return
    wanted = accelerator in ("gpu", "cuda")
    say = failure if wanted else warning
    if not versions.devices:
        if wanted and not versions.apple:
            loaded = versions.driver is not None
            yield warning(
                "gpu-count",
                f"trainer.accelerator is '{accelerator}', and this machine has no GPU to look at.",
                f"The driver {versions.driver} is loaded, but no /dev/nvidia0 is there, as in a container without GPUs."
                if loaded
                else "What needs no GPU is looked at on the CPU.",
                "Start the container with --gpus all." if loaded else "Run doctor once more on the machine of the run.",
            )
        return
    what = "This machine has an NVIDIA GPU, and torch sees none."
    needs = re.search(r"CUDA (\d+)\.", versions.built)
    serves = f"{versions.driver_cuda // 1000}.{versions.driver_cuda % 1000 // 10}"
    if needs is None:
        cause = f"torch {versions.torch} is a build without CUDA."
        yield say("no-driver", what, cause, "Install the build for CUDA: https://pytorch.org/get-started/locally/.")
    # A driver serves all CUDA versions of its major number (CUDA's minor version compatibility).
    elif 0 < versions.driver_cuda // 1000 < int(needs[1]):
        cause = f"Its driver {versions.driver} serves CUDA {serves}, and torch {versions.torch} needs {versions.built}."
        fix = f"Update the driver, or install torch for CUDA {serves} or older."
        yield say("no-driver", what, cause, fix)
    else:
        cause = f"The driver {versions.driver or ''} does not answer: it is damaged, or this user may not open the GPU."
        yield say("no-driver", what, cause, "See what nvidia-smi says, and who may read /dev/nvidia0.")


def _without_code(versions: Versions) -> Iterator[Finding]:
    """GPUs that torch's build has no code for; code for sm_80 runs on 8.x, and for compute_80 on all later ones."""
    if not versions.built.startswith("CUDA"):
        return
    codes = [(kind, int(number)) for kind, number in re.findall(r"(sm|compute)_(\d+)", " ".join(versions.archs))]
    for number, card in enumerate(versions.cards):
        own = 10 * card.major + card.minor
        fits = any(code <= own and (kind == "compute" or code // 10 == card.major) for kind, code in codes)
        if codes and not fits:
            yield failure(
                "no-driver",
                f"torch {versions.torch} has no code for GPU {number}, {card.name} (sm_{own}).",
                f"This build is for {', '.join(versions.archs)}.",
                "Install a build of torch that lists it: https://pytorch.org/get-started/locally/.",
            )


def judge_precision(precision: str, accelerator: str, cards: tuple[Card, ...], gain: float | None) -> Iterator[Finding]:
    """Say where a number format is not what the machine is fast in.

    Args:
        precision: ``trainer.precision``.
        accelerator: ``trainer.accelerator``.
        cards: GPUs that torch sees.
        gain: How many times as fast as in float32 the processor computes in bfloat16; None: not measured.
    """
    if accelerator == "cpu" and precision in ("16", "16-mixed"):
        cause = "Lightning has no float16 for the CPU, and takes bf16-mixed in its place."
        yield warning("precision", f"trainer.precision is {precision} on the CPU.", cause, "Set it to bf16-mixed.")
    elif gain is not None and gain < 0.8:
        what = f"trainer.precision is {precision}: a convolution takes {1 / gain:.1f} times as long as in float32 here."
        yield warning("precision", what, fix="Set trainer.precision to 32-true.")
    elif accelerator != "cpu" and precision.startswith("bf16") and any(card.major < 8 for card in cards):
        old = next(card for card in cards if card.major < 8)
        yield warning("precision", f"trainer.precision is {precision}, and {old.name} has no bfloat16.")
    else:
        faster = f": {gain:.1f} times as fast as float32" if gain is not None else ""
        yield passed(f"{precision}{faster}")


def bfloat16_gain() -> float:
    """How many times as fast as in float32 this processor computes a convolution in bfloat16; the best of 5 tries."""
    times = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for _ in range(5):
            for dtype in times:
                image, weight = torch.ones(1, 32, 96, 96, dtype=dtype), torch.ones(32, 32, 3, 3, dtype=dtype)
                start = time.perf_counter()
                torch.nn.functional.conv2d(image, weight)
                times[dtype] = min(times[dtype], time.perf_counter() - start)
    return times[torch.float32] / times[torch.bfloat16]


@check("machine: versions", "no-driver")
def versions_fit(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Torch, CUDA, NCCL and driver fit each other and the GPUs."""
    asked = rehearsal.asked
    backend, accelerator = strategy_knobs(asked).get("process_group_backend"), asked.get("accelerator", "auto")
    found = find_versions(accelerator, rehearsal.environ)
    yield from judge_versions(found, accelerator, backend, processes_asked(asked))


@check("machine: precision", "precision")
def precision_is_fast(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The asked number format is one that the processor or GPU computes in."""
    accelerator = rehearsal.asked.get("accelerator", "auto")
    precision = str(rehearsal.asked.get("precision") or "32-true")
    gain = bfloat16_gain() if accelerator == "cpu" and precision.startswith("bf16") else None
    yield from judge_precision(precision, accelerator, find_cards(accelerator), gain)


def strategy_knobs(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs of the strategy in the section ``trainer``; empty where it is only named.

    Args:
        asked: The section.
    """
    strategy: Any = asked.get("strategy")
    return dict(strategy.get("init_args") or {}) if hasattr(strategy, "get") else {}


CHECKS = (versions_fit, precision_is_fast)
