"""Runs a function on several ranks of a gloo process group, quickly and without leftovers.

The ranks are forked from one server that has imported the heavy libraries already, so that a rank starts in
a tenth of a second; a spawned one needs four seconds for its imports. The server starts at the first call and
ends with pytest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

#: What the server imports before it forks. ``torch._dynamo`` is imported by the first step of any optimizer.
_PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.tensorboard",
    "torchvision.transforms.v2",
    "torchmetrics",
    "lightning.pytorch.cli",
    "pytest",
    "tests.ranks",
)
#: OpenBLAS and OpenMP start their threads at import, and a process that runs threads must not fork.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: Seconds that a rank that has reported gets to leave by itself (and to save its coverage data).
_GRACE = 5.0

_Rank = tuple[ForkServerProcess, connection.Connection]


class RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of the error, it is none itself
    """Carries the text of a rank's traceback into the parent's."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Any]:
    """Call ``function(rank, *args)`` on every rank of a new gloo process group on the CPU.

    Every rank has the caller's environment and working directory, RANK, LOCAL_RANK, WORLD_SIZE and
    LOCAL_WORLD_SIZE set, one thread, and the same seed for Python's, NumPy's and torch's generators.

    Args:
        world_size: Number of processes.
        function: Defined at the top of a module, so that it can be pickled.
        *args: Handed over by value, tensors included.
        timeout: Seconds until all ranks must have ended.

    Returns:
        What the function returned, in the order of the ranks; tensors are copies.

    Raises:
        BaseException: The first that was raised on a rank, with its own type where it can be pickled and
            the rank's traceback as its cause.
        ChildProcessError: A rank ended without a result (killed, crashed).
        TimeoutError: Names the ranks that still ran, with the stack of each.
    """
    start_server()
    context = multiprocessing.get_context("forkserver")
    payload = _pack((function, args))
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        ranks: list[_Rank] = []
        try:
            for rank in range(world_size):
                ours, theirs = context.Pipe(duplex=False)
                place = (rank, world_size, folder, str(Path.cwd()), dict(os.environ))
                process = context.Process(target=_rank_main, args=(place, payload, theirs), name=f"rank {rank}")
                process.start()
                theirs.close()
                ranks.append((process, ours))
            return _collect(ranks, deadline, timeout, Path(folder))
        finally:
            for process, pipe in ranks:
                _kill(process)
                pipe.close()


def server_processes() -> set[int]:
    """Process ids of the server and of multiprocessing's resource tracker, which live as long as pytest."""
    from multiprocessing import resource_tracker

    known = (forkserver._forkserver, "_forkserver_pid"), (resource_tracker._resource_tracker, "_pid")  # type: ignore[attr-defined]
    return {pid for owner, name in known if (pid := getattr(owner, name, None)) is not None}


def start_server() -> None:
    """Start the server, unless it runs; several threads may call :func:`run_ranks` after it."""
    if forkserver._forkserver._forkserver_pid is not None:  # type: ignore[attr-defined]
        return
    # The package's modules that the collected tests use are cheap to import, but not free.
    package = sorted(name for name in sys.modules if name.split(".")[0] == "template" and "__main__" not in name)
    multiprocessing.get_context("forkserver").set_forkserver_preload([*_PRELOAD, *package])
    # The server finds modules by its own PYTHONPATH: before Python 3.14 it drops the path it is given.
    with _environment({**_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}):
        forkserver.ensure_running()


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _collect(ranks: list[_Rank], deadline: float, timeout: float, folder: Path) -> list[Any]:
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
    results: dict[int, Any] = {}
    while waiting:
        ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(_still_running(ranks, sorted(waiting.values()), timeout, folder))
        failures: list[tuple[float, int, BaseException]] = []
        for pipe in ready:
            assert isinstance(pipe, connection.Connection)
            rank = waiting.pop(pipe)
            try:
                ok, when, value = _unpack(pipe.recv_bytes())
            except EOFError:  # the rank is gone: sorts before the errors that its death gives the others
                ranks[rank][0].join(_GRACE)
                code = ranks[rank][0].exitcode
                gone = ChildProcessError(f"rank {rank} ended without a result, exit code {code}")
                failures.append((0.0, rank, gone))
                continue
            if ok:
                results[rank] = value
            else:
                failures.append((when, rank, _restore(*value)))
        if failures:
            reported = set(range(len(ranks))) - set(waiting.values())
            for rank in reported:
                ranks[rank][0].join(_GRACE)
            raise min(failures, key=lambda failure: failure[:2])[2]
    for rank, (process, _) in enumerate(ranks):
        process.join(max(_GRACE, deadline - time.monotonic()))
        if process.exitcode is None:
            raise TimeoutError(f"rank {rank} returned its result but does not end: a thread or a child still runs")
    return [results[rank] for rank in range(len(ranks))]


def _still_running(ranks: list[_Rank], running: list[int], timeout: float, folder: Path) -> str:
    for rank in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[rank][0].pid or 0, signal.SIGUSR1)  # faulthandler writes the stack
    time.sleep(0.3)
    stacks = [path.read_text() for rank in running if (path := _stack_file(folder, rank)).exists()]
    names = ", ".join(f"rank {rank}" for rank in running)
    return "\n".join([f"after {timeout:g} s still running: {names} of {len(ranks)}", *stacks])


def _kill(process: ForkServerProcess) -> None:
    if process.pid is None:
        return
    # The rank leads a process group of its own, so that the workers of its loaders go with it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    process.close()


def _stack_file(folder: Path, rank: int) -> Path:
    return folder / f"stack_{rank}"


def _pack(value: Any) -> bytes:
    # Plain pickling of tensors would pass file descriptors, which die with the rank.
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def _restore(pickled: bytes | None, text: str) -> BaseException:
    error: BaseException = pickle.loads(pickled) if pickled else RuntimeError(text.rstrip().rsplit("\n", 1)[-1])
    error.__cause__ = RemoteTraceback(text)
    return error


def _describe(error: BaseException, rank: int) -> tuple[bytes | None, str]:
    text = f"rank {rank}:\n" + "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - whatever an exception's own pickling raises, the text is there
        return None, text
    return pickled, text


_Place = tuple[int, int, str, str, dict[str, str]]


def _rank_main(place: _Place, payload: bytes, pipe: connection.Connection) -> None:
    rank, world_size, folder, directory, environment = place
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )
    if sys.platform == "linux":  # gloo else looks the host's name up, which containers may not know
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.chdir(directory)
    with _stack_file(Path(folder), rank).open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        torch.set_num_threads(1)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            function, args = _unpack(payload)
            dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
            report = _pack((True, time.monotonic(), function(rank, *args)))
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            report = _pack((False, time.monotonic(), _describe(error, rank)))
        # Sent before the sockets close: the others' errors about that come later than this one.
        pipe.send_bytes(report)
        pipe.close()
        faulthandler.unregister(signal.SIGUSR1)
