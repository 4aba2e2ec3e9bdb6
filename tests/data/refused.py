"""What tests of bad inputs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from template.distributed.faults import NamedError


def refused(identifier: str, action: Callable[[], Any], *words: str) -> NamedError:
    """Run what has to end in a named error of one sentence in which all the words stand."""
    with pytest.raises(NamedError) as caught:
        action()
    error = caught.value
    assert error.identifier == identifier, str(error)
    assert all(word in error.what for word in words), error.what
    assert error.what.endswith(".")
    assert "\n" not in str(error)
    return error


def cut_off(file: Path, part: float = 0.5) -> None:
    """Leave the first part of a file."""
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * part)])


def loop(file: Path) -> None:
    """Put a symbolic link to itself in place of a file."""
    file.unlink()
    file.symlink_to(file)


def forbid(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Let a file be unreadable, also for root, whom rights do not stop."""
    opened, read = Path.open, Path.stat

    def deny(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == file:
            raise PermissionError(13, "Permission denied", str(file))
        return opened(path, *arguments, **options)

    def deny_stat(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == file:
            raise PermissionError(13, "Permission denied", str(file))
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", deny)
    monkeypatch.setattr(Path, "stat", deny_stat)
