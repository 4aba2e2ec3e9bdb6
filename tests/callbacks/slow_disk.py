"""Disks on which writing takes as long as a test wants, or fails."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

from template.callbacks.checkpoint_io import AtomicCheckpointIO


class Slow(AtomicCheckpointIO):
    """Writes once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.steps: list[str] = []

    def write(self, checkpoint: dict[str, Any], target: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert self.may.wait(60)
        self.steps.append(f"write {target.name}")
        super().write(checkpoint, target)

    def remove_checkpoint(self, path: Any) -> None:
        self.steps.append(f"remove {Path(path).name}")
        super().remove_checkpoint(path)


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
