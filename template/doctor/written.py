"""Which files the user's code has written, and where it did."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from ..distributed.heartbeat import is_library, is_packages, short

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Written:
    """Files opened for writing by code that is neither this package's nor a library's own doing.

    Python tells its audit hooks of each file that it opens; torch.save opens its own in C++, so it is asked itself.

    Attributes:
        files: Path to the line of the user's code.
    """

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._on = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Take note of files while this is open; an audit hook can't be removed, only told to look away."""
        save = torch.save

        def noted(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)):
                self._note(f)
            save(obj, f, *args, **kwargs)

        sys.addaudithook(self._hook)
        with mock.patch.object(torch, "save", noted):
            self._on = True
            try:
                yield
            finally:
                self._on = False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._on and event == "open" and len(args) == 3 and isinstance(args[0], (str, bytes, os.PathLike)):
            path, mode, flags = args
            if set(mode or "") & set("wax+") or (mode is None and isinstance(flags, int) and flags & _WRITES):
                self._note(path)

    def _note(self, path: Any) -> None:
        self._on = False  # a look at source lines opens files itself
        try:
            # A file that this package opens, called by the user's line, is its own doing.
            frames = [frame for frame in traceback.extract_stack()[:-2] if frame.filename != __file__]
            users = [f for f in frames if not is_library(f.filename) and not is_packages(f.filename)]
            name = os.path.realpath(os.fsdecode(path))
            if (
                users
                and not name.startswith(("/dev/", "/proc/"))
                and "torchinductor" not in name
                and not _below_packages(frames, users[-1])
            ):
                self.files.setdefault(name, f"{short(users[-1].filename)}:{users[-1].lineno} {users[-1].name}")
        finally:
            self._on = True


def _below_packages(frames: list[Any], users: Any) -> bool:
    """Whether this package's own code lies between the user's line and the file."""
    return any(is_packages(frame.filename) for frame in frames[frames.index(users) :])


def on_several_ranks(files: list[dict[str, str]]) -> dict[str, tuple[list[int], str]]:
    """Paths that several ranks have written, with the ranks and the line.

    Args:
        files: Of each rank, path to line.
    """
    ranks: dict[str, list[int]] = {}
    for rank, some in enumerate(files):
        for path in some:
            ranks.setdefault(path, []).append(rank)
    return {path: (where, files[where[0]][path]) for path, where in ranks.items() if len(where) > 1}
