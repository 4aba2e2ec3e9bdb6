"""A checkpoint is copied in memory, which takes a moment, and written while the training goes on."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

#: Start of each tensor in the buffer, in bytes: no processor copies faster from a multiple of more.
_ALIGNED = 64
#: What the writing thread adds to its niceness: a training that uses all cores keeps nine tenths of the one it shares.
_NICE = 10
#: Files that are being written. A process that is forked meanwhile, as data loaders are, would keep them open, and so
#: their space on the disk taken after they are deleted.
_open: set[int] = set()


def _leave_open_files() -> None:
    """In a forked process: no longer hold the parent's files."""
    if _open:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in _open:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_open_files)


@contextlib.contextmanager
def not_forked(descriptor: int) -> Iterator[None]:
    """Keep an open file from processes that are forked meanwhile.

    Args:
        descriptor: Of the file.
    """
    _open.add(descriptor)
    try:
        yield
    finally:
        _open.discard(descriptor)


class Snapshots:
    """Copies what a checkpoint holds; the memory is kept, and taken again for the next copy.

    Fresh memory costs a page fault for every 4 KiB, which takes several times as long as the copy itself.
    """

    def __init__(self) -> None:
        self._buffer: Any = None
        self._size = 0
        self._pinned = False

    def take(self, content: Any) -> Any:
        """A copy that nothing changes but the next call, which overwrites it.

        Whatever shares memory in the content shares it in the copy, so that both are written as the same bytes.

        Args:
            content: Nested plain types and tensors on any device.

        Returns:
            The same, with tensors in memory of the CPU.
        """
        tensors = list({id(tensor): tensor for tensor in _tensors(content)}.values())
        storages = _storages(tensors)
        self._make_room(*_room(storages))
        copies, offset = {}, 0
        for key, storage in storages.items():
            copies[key] = self._copied(storage, offset)
            offset += _rounded(storage.nbytes())
        memo: dict[int, Any] = {}
        for tensor in tensors:
            memo[id(tensor)] = _with_storage(tensor, copies)
        for device in {storage.device for storage in storages.values() if storage.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        return copy.deepcopy(content, memo)

    def room_for(self, content: Any) -> Callable[[], None]:
        """What makes room for a copy before the first one is taken: in another thread it costs the training nothing.

        Args:
            content: The largest part of what will be copied; what comes on top of it should be small.
        """
        size, pinned = _room(_storages(_tensors(content)))
        return lambda: self._make_room(size + size // 64 + 2**20, pinned)

    def release(self) -> None:
        """Give the memory back."""
        self._buffer, self._size = None, 0

    def _make_room(self, size: int, pinned: bool) -> None:
        if size <= self._size and pinned == self._pinned:
            return
        self.release()
        if pinned:
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        else:
            self._buffer = _private_memory(size)
            torch.frombuffer(self._buffer, dtype=torch.uint8).zero_()  # the page faults, while others may run
        self._size, self._pinned = size, pinned

    def _copied(self, storage: torch.UntypedStorage, offset: int) -> torch.UntypedStorage:
        size = storage.nbytes()
        if not size:
            return torch.UntypedStorage(0)
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        target = torch.frombuffer(self._buffer, dtype=torch.uint8, count=size, offset=offset)
        target.copy_(source, non_blocking=self._pinned)
        return target.untyped_storage()


class BackgroundWriter:
    """Does one job at a time in a thread, and raises its error in the thread that asks.

    Attributes:
        moving: Called each second of a wait in which :attr:`progress` has changed.
        progress: Anything that changes while the job gets on.
    """

    def __init__(self) -> None:
        self.moving: Callable[[], None] = lambda: None
        self.progress: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is not done yet."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, after the one before.

        Args:
            job: Called in the thread.

        Raises:
            BaseException: What the job before has raised.
        """
        self.drain()
        # Not a daemon: whatever way the interpreter ends, it waits for the file.
        self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=False)
        self._thread.start()

    def drain(self) -> None:
        """Wait until the job is done.

        Raises:
            BaseException: What the job has raised.
        """
        before = self.progress()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(1.0)
            if (now := self.progress()) != before:
                self.moving()
                before = now
        self.check()

    def check(self) -> None:
        """Learn of an error without waiting.

        Raises:
            BaseException: What a job that has ended has raised; once.
        """
        if not self.busy and self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
            with contextlib.suppress(OSError):
                niceness = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness + _NICE)
        try:
            job()
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits for the job
            self._error = error


def _private_memory(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Not shared with forked data loaders: each page would be copied again at the next write, and kept twice. And in
    # large pages, where the system has them: 500 times fewer faults at the first write.
    for name in ("MADV_DONTFORK", "MADV_HUGEPAGE"):
        if hasattr(mmap, name):
            with contextlib.suppress(OSError):
                memory.madvise(getattr(mmap, name))
    return memory


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(key)
            yield from _tensors(value)
    elif isinstance(content, (list, tuple, set)) and not isinstance(content, torch.Size):
        for value in content:
            yield from _tensors(value)


def _storages(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    ordinary = (tensor.untyped_storage() for tensor in tensors if _is_ordinary(tensor))
    return {storage._cdata: storage for storage in ordinary}


def _room(storages: Mapping[int, torch.UntypedStorage]) -> tuple[int, bool]:
    """Bytes, and whether they are to be memory that a GPU can write to."""
    size = sum(_rounded(storage.nbytes()) for storage in storages.values())
    return size, any(storage.device.type == "cuda" for storage in storages.values())


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether it is its storage, a place in it, a shape and strides, and nothing else."""
    unusual = tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg()
    return tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda") and not unusual


def _with_storage(tensor: Tensor, copies: Mapping[int, torch.UntypedStorage]) -> Tensor:
    if not _is_ordinary(tensor):
        return tensor.detach().clone() if tensor.is_meta else tensor.detach().cpu().clone()
    storage = copies[tensor.untyped_storage()._cdata]
    copied = torch.empty(0, dtype=tensor.dtype)
    copied.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)
