"""The line an exception comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from template.distributed.faults import NamedError
from template.distributed.raised import named, own_frames, raised_at, said


def error_of(function: Callable[..., Any], *args: Any) -> Exception:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, torch.ones(1, 2, 1, 1))


def test_the_innermost_line_that_is_no_library_s() -> None:
    place = raised_at(error_of(Net(), torch.ones(1, 1, 2, 2)))
    assert place.endswith(" forward: return nn.functional.conv2d(x, torch.ones(1, 2, 1, 1))")
    assert "test_raised.py:" in place


def test_the_caller_s_own_line_says_nothing() -> None:
    assert raised_at(error_of(json.loads, "{"), but=__file__) == ""
    assert raised_at(ValueError("never raised")) == ""


def test_only_the_user_s_frames_are_shown() -> None:
    error = error_of(nn.Sequential(Net()), torch.ones(1, 1, 2, 2))
    frames = own_frames(error).splitlines()
    assert [line.rpartition(" in ")[2] for line in frames[::2]] == ["error_of", "forward"]
    assert frames[-1] == "    return nn.functional.conv2d(x, torch.ones(1, 2, 1, 1))"


def test_an_exception_is_one_sentence_with_its_place_and_the_whole_traceback_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> None:
        raise KeyError("liver")

    monkeypatch.chdir(tmp_path)
    line = read.__code__.co_firstlineno + 1
    error = named(error_of(read), Path("runs/rank_1/error.txt"))
    assert str(error).startswith("KeyError: 'liver', raised at ")
    assert f"test_raised.py:{line} read. The whole traceback is in runs/rank_1/error.txt. [exception]" in str(error)
    assert said(NamedError("no-run", "No.", "", "")) == "No. [no-run]"


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise ValueError("no such slice")


def test_an_exception_in_a_loader_s_worker_is_its_own_not_the_loader_s() -> None:
    error = error_of(lambda: list(DataLoader(Broken(), num_workers=1)))
    assert said(error).startswith("ValueError: no such slice, raised at ")
    assert said(error).endswith(" __getitem__")
    assert own_frames(error).splitlines()[-1] == '    raise ValueError("no such slice")'
