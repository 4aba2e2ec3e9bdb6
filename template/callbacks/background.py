"""A checkpoint is copied in memory, which takes a moment, and written while the training goes on."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

#: Start of each tensor in the buffer, in bytes: no processor copies faster from a multiple of more.
_ALIGNED = 64
#: What the writing thread adds to its niceness: of a core that they share, the training keeps three quarters.
_NICE = 5
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set))
#: Most of what is in them and does not change.
_FIXED = frozenset((int, float, str, bool, bytes, type(None)))
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
        tensors: dict[int, Tensor] = {}
        _collect(content, tensors)
        storages = _storages(tensors.values())
        self._make_room(*_room(storages))
        copies, offset = {}, 0
        for key, storage in storages.items():
            copies[key] = self._copy_storage(storage, offset)
            offset += _rounded(storage.nbytes())
        memo: dict[int, Any] = {number: _with_storage(tensor, copies) for number, tensor in tensors.items()}
        for device in {storage.device for storage in storages.values() if storage.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        return _copied(content, memo)

    def room_for(self, content: Any) -> Callable[[], None]:
        """What makes room for a copy before the first one is taken: in another thread it costs the training nothing.

        Args:
            content: The largest part of what will be copied; what comes on top of it should be small.
        """
        tensors: dict[int, Tensor] = {}
        _collect(content, tensors)
        size, pinned = _room(_storages(tensors.values()))
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

    def _copy_storage(self, storage: torch.UntypedStorage, offset: int) -> torch.UntypedStorage:
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
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is not done yet."""
        return self._job is not None and not self._job.done()

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, after the one before.

        Args:
            job: Called in the thread.

        Raises:
            BaseException: What the job before has raised.
        """
        self.drain()
        if self._executor is None:
            # The interpreter waits for its thread, whatever way it ends.
            self._executor = ThreadPoolExecutor(1, "checkpoint", _be_nice)
        self._job = self._executor.submit(job)

    def drain(self) -> None:
        """Wait until the job is done.

        Raises:
            BaseException: What the job has raised.
        """
        before = self.progress()
        while self._job is not None and not wait([self._job], timeout=1.0).done:
            if (now := self.progress()) != before:
                self.moving()
                before = now
        self.check()

    def check(self) -> None:
        """Learn of an error without waiting.

        Raises:
            BaseException: What a job that has ended has raised; once.
        """
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            job.result()

    def close(self) -> None:
        """End the thread, after its job."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


def _be_nice() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        with contextlib.suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness + _NICE)


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


def _collect(content: Any, tensors: dict[int, Tensor]) -> None:
    """Find all tensors. By exact type, as :func:`.plain.plain` leaves them: this runs while the training stands."""
    kind = type(content)
    if kind in (torch.Tensor, torch.nn.Parameter):
        tensors[id(content)] = content
    elif kind in _CONTAINERS:
        for value in content.values() if kind in (dict, OrderedDict) else content:
            if type(value) not in _FIXED:
                _collect(value, tensors)


def _copied(content: Any, copies: dict[int, Any]) -> Any:
    """A copy in which one object in two places is one again, as pickle tells these apart."""
    kind = type(content)
    if kind not in _CONTAINERS and id(content) not in copies:
        return content
    if id(content) in copies:
        return copies[id(content)]
    if kind in (dict, OrderedDict):
        copied = kind(
            (key, value if type(value) in _FIXED else _copied(value, copies)) for key, value in content.items()
        )
        if kind is OrderedDict:
            vars(copied).update(copy.deepcopy(vars(content)))  # a state_dict's versions of modules
    else:
        copied = kind([value if type(value) in _FIXED else _copied(value, copies) for value in content])
    copies[id(content)] = copied
    return copied


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
