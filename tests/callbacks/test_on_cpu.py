"""A run on the CPU asks for GPUs once, and keeps what a step has freed unless told not to."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from template.callbacks import on_cpu
from template.callbacks.on_cpu import OnCpu


def set_up(callback: OnCpu, device: str) -> None:
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
    callback.setup(trainer, None, "fit")  # type: ignore[arg-type]  # unused


@pytest.mark.parametrize(
    ("device", "wanted", "kept"), [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)]
)
def test_freed_memory_is_kept_on_the_cpu(
    device: str, wanted: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cpu, "keep_freed_memory", lambda: True)
    callback = OnCpu(wanted)
    set_up(callback, device)
    assert callback.kept is kept


@pytest.mark.parametrize(("gpus", "asks"), [(False, "0"), (True, "1")])
def test_where_there_is_no_gpu_no_step_looks_for_one(gpus: bool, asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    set_up(OnCpu(False), "cpu")
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == asks
