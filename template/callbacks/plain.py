"""What a checkpoint may hold: types that are loaded without running any code."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..distributed.faults import NamedError

#: What ``torch.load(weights_only=True)`` takes, by exact type: a subclass such as ``numpy.float64`` is refused by it.
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    type(None),
    torch.Tensor,
    torch.nn.Parameter,
)
_SEQUENCES = (list, tuple, set, torch.Size)


def plain(content: Any, where: str = "") -> Any:
    """The content of a checkpoint in types that ``torch.load(weights_only=True)`` loads again.

    NumPy's numbers become Python's, and subclasses of lists, tuples, dicts and tensors what they derive from.

    Args:
        content: Returned as it is where it is plain already.
        where: Place in the checkpoint, for the message.

    Raises:
        NamedError: There is anything else; the message names its place.
    """
    if isinstance(content, np.generic):
        content = content.item()
    if isinstance(content, Mapping):
        items = {
            _key(key, where): plain(item, f"{where}.{key}" if where else str(key)) for key, item in content.items()
        }
        kept = type(content) in (dict, OrderedDict) and all(items[key] is item for key, item in content.items())
        return content if kept else items
    if isinstance(content, _SEQUENCES):
        values = [plain(value, f"{where}[{number}]") for number, value in enumerate(content)]
        if type(content) in _SEQUENCES and all(new is old for new, old in zip(values, content, strict=True)):
            return content
        return next(kind for kind in _SEQUENCES if isinstance(content, kind))(values)
    if type(content) in _PLAIN:
        return content
    if isinstance(content, torch.Tensor):
        return content.as_subclass(torch.Tensor)
    raise _not_plain(content, where)


def _key(key: Any, prefix: str) -> Any:
    if type(key) not in _PLAIN:
        raise _not_plain(key, f"{prefix}{key}")
    return key


def _not_plain(content: Any, where: str) -> NamedError:
    kind = f"{type(content).__module__}.{type(content).__qualname__}"
    return NamedError("checkpoint-not-plain", f"The checkpoint's entry '{where}' is a {kind}.")
