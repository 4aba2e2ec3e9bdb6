"""The place in the code that a rank is said to be at."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from template.distributed import heartbeat
from template.distributed.heartbeat import where


def frame_of(*files: str) -> FrameType:
    """The innermost frame of a thread that is in a function of each of these files, the last one innermost."""
    found: list[FrameType] = []

    def call() -> None:
        frame = sys._getframe(1)
        found.append(frame)

    run: Any = call
    for file in reversed(files):
        names: dict[str, Any] = {"inner": run}
        exec(compile("def function():\n    inner()\n", file, "exec"), names)
        run = names["function"]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


PACKAGE = Path(heartbeat.__file__).parents[1]
LIBRARY, MACHINERY, MODEL = torch.__file__, f"{PACKAGE}/distributed/recognize.py", f"{PACKAGE}/models/unet.py"


def test_the_place_is_no_library_s_but_the_user_s_or_this_package_s() -> None:
    assert where(frame_of("/home/me/net.py", MACHINERY, LIBRARY)).place == "/home/me/net.py:2 function".lstrip("/")
    assert where(frame_of(MODEL, LIBRARY)).place.endswith("models/unet.py:2 function")
    assert where(frame_of(MACHINERY, LIBRARY)).place.endswith("distributed/recognize.py:2 function")
