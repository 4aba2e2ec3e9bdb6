"""The line an exception comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from template.distributed.raised import raised_at


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
