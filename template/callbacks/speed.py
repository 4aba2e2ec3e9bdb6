"""What has been done, and what could be done, to make the steps of a run faster."""

from __future__ import annotations

import torch
from lightning import LightningModule, Trainer

from ..models.compiled import Compiled
from ..models.layout import Layout
from .on_cpu import OnCpu

_HALF = "bf16-mixed"


def speed_notes(trainer: Trainer, module: LightningModule) -> list[str]:
    """Lines on the layout in memory, compilation, freed memory, and the precision that suits the processor.

    Args:
        trainer: About to train, its probe step done.
        module: The module that is trained.
    """
    layout = getattr(module, "layout", None)
    notes = [layout.told] if isinstance(layout, Layout) and layout.told else []
    compiled = getattr(module, "compiled", None)
    if isinstance(compiled, Compiled) and compiled.told:
        notes.append(compiled.told)
    if any(isinstance(callback, OnCpu) and callback.kept for callback in trainer.callbacks):  # type: ignore[attr-defined]  # set by the trainer
        notes.append("freed memory is kept for the next step (--keep_memory false gives it back)")
    if isinstance(layout, Layout) and layout.worth:
        notes += precision_advice(trainer.strategy.root_device.type, str(trainer.precision), has_bf16())
    return notes


def precision_advice(device: str, precision: str, bf16: bool) -> list[str]:
    """Whether 16-bit precision should be used on this processor; nothing where it is as it should be.

    Args:
        device: Type of the device.
        precision: ``trainer.precision``.
        bf16: Whether the processor multiplies bfloat16 by itself.
    """
    if device == "cpu" and bf16 and precision == "32-true":
        return [f"this processor has bfloat16: --trainer.precision {_HALF} takes about half the time"]
    if device == "cpu" and not bf16 and precision == _HALF:
        return ["this processor has no bfloat16, and computes it slowly: --trainer.precision 32-true is faster"]
    return []


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 by itself (AVX512-BF16 or AMX)."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))
