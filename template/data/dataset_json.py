"""The ``dataset.json`` of the Medical Segmentation Decathlon and of nnU-Net: what both have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX
from .mask_values import LARGEST

NAME = "dataset.json"


class _TwiceError(Exception):
    """A key that an object has twice, of which JSON readers silently take the last."""


def read_dataset_json(root: Path) -> dict[str, Any]:
    """Read ``dataset.json`` of a data set's folder.

    Raises:
        NamedError: ``data-missing`` or ``data-unreadable``, with the file.
    """
    file = root / NAME
    content = read_json(file, "data.root")
    if not isinstance(content, dict) or not isinstance(content.get("labels"), dict):
        raise unreadable(file, "it has no 'labels'")
    return content


def read_json(file: Path, key: str) -> Any:
    """Read a JSON file.

    Args:
        file: In UTF-8.
        key: Key of the configuration that leads to it, for messages.

    Raises:
        NamedError: ``data-missing`` or ``data-unreadable``, with the file.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_twins)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NamedError("data-missing", f"{key}: '{file}' does not exist.") from error
    except OSError as error:
        raise unreadable(file, str(error.strerror)) from error
    except _TwiceError as error:
        raise unreadable(file, f"it has the key '{error}' twice in one place") from error
    except (ValueError, RecursionError) as error:  # of JSON and of UTF-8
        raise unreadable(file, f"it is no JSON in UTF-8 ({str(error)[:100]})") from error


def unreadable(file: Path, reason: str) -> NamedError:
    """A file that does not say what it has to."""
    return NamedError("data-unreadable", f"'{file}' cannot be read: {reason}.", fix="Replace or correct the file.")


def names_of_values(root: Path, labels: Mapping[Any, Any]) -> dict[int, str]:
    """File values and what they are called, in the order of the values.

    Args:
        root: Folder of the data set.
        labels: Value to name, or name to value; numbers may be text (``"1"``), as JSON's keys are.

    Raises:
        NamedError: ``data-unreadable``, with the file: no whole numbers, one twice, or no background 0.
    """
    found: dict[int, str] = {}
    for left, right in labels.items():
        value, name = (_whole(right), str(left)) if _whole(left) is None else (_whole(left), str(right))
        if value is None:
            raise unreadable(root / NAME, f"of its label '{left}: {right}' neither is a whole number")
        if value > LARGEST:
            raise unreadable(root / NAME, f"its label '{left}: {right}' is above {LARGEST}")
        if value in found or name in found.values():
            raise unreadable(root / NAME, f"its labels have '{left}: {right}' twice")
        found[value] = name
    if 0 not in found or len(found) < 2:
        raise unreadable(root / NAME, f"its labels are {dict(labels)}, of which two are needed, one of them 0")
    return dict(sorted(found.items()))


def class_of_values(values: Mapping[int, str], ignored: int | None = None) -> dict[int, int]:
    """Class index of each file value: counted without gaps in the order of the values.

    Args:
        values: Of :func:`names_of_values`, without the one that is ignored.
        ignored: File value of voxels that do not count.
    """
    classes = {value: index for index, value in enumerate(values)}
    return classes if ignored is None else {**classes, ignored: IGNORE_INDEX}


def number_of_channels(root: Path, content: Mapping[str, Any], *keys: str) -> int:
    """Number of channels: of the first of these keys that there is.

    Raises:
        NamedError: ``data-unreadable``, with the file.
    """
    for key in keys:
        channels = content.get(key)
        if isinstance(channels, (dict, list)) and channels:
            return len(channels)
    raise unreadable(root / NAME, f"it has no '{keys[0]}', which names the channels")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return found


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
