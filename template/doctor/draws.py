"""Which lines of the user's code draw random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from .sample import calling_line


class Draws(TorchDispatchMode):
    """While it is entered, takes note of operations that torch knows to draw from its generators.

    Attributes:
        lines: Place in the code, to the code there.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, str] = {}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            place, code = calling_line()
            self.lines.setdefault(place, code)
        return func(*args, **(kwargs or {}))
