"""Checks of the doctor: whether cores, shared memory and open files of this machine suffice; and all of its group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..data.loader import PositionedLoader
from ..data.on_device import Unaugmented
from ..distributed.launch import processes_asked
from ..distributed.process import cores_each
from . import disk, gpus, launching, links
from .finding import Finding, check, failure, passed, warning
from .gpus import no_gpu_for, on_cpu
from .rehearsal import Rehearsal

_SHARED_MEMORY = Path("/dev/shm")
#: Size that containers give it unless asked for more (Docker's --shm-size).
_CONTAINERS_OWN = 64 * 2**20
# Counted with torch 2.14: open files of a loader for each worker, and besides.
_FILES_OF_WORKER, _FILES_OF_LOADER = 4, 2
#: Loaders of a fit that are there at the same time: training and validation keep their workers.
_LOADERS = 2


class Loading(NamedTuple):
    """What the training loaders of this machine would hold.

    Attributes:
        processes: Training processes on this machine.
        workers: Loader processes of each.
        key: What sets that number; empty for ``auto``.
        prefetched: Batches that each worker makes ahead.
        bytes: Of a process's batch; None: the loader is one of the user's own.
        tensors: In a batch.
    """

    processes: int
    workers: int
    key: str
    prefetched: int = 2
    bytes: int | None = None
    tensors: int = 2


def loading(rehearsal: Rehearsal) -> Loading:
    """Measure a batch, once for all checks."""
    if "loading" not in rehearsal.measured:
        rehearsal.measured["loading"] = tuple(_measure(rehearsal))
    return Loading(*rehearsal.measured["loading"])


def _measure(rehearsal: Rehearsal) -> Loading:
    trainer, data, asked = rehearsal.trainer, rehearsal.data, rehearsal.asked
    processes = processes_asked(asked)
    loader: Any = trainer.train_dataloader
    ahead = getattr(loader, "prefetch_factor", None) or 2  # None without workers; 2 is the loader's own default
    if not isinstance(loader, PositionedLoader):
        key = f"num_workers of {type(data).__name__}.train_dataloader"
        return Loading(processes, getattr(loader, "num_workers", 0), key, ahead)
    workers = data.workers_of(processes, on_cpu(asked.get("accelerator", "auto")))
    key = "data.num_workers" if isinstance(data.num_workers, int) else ""
    try:
        tensors = list(_tensors(data.probe_batch()))
    except (Exception, SystemExit):  # noqa: BLE001  # a sample that cannot be read: the checks of the data name it
        return Loading(processes, workers, key, ahead)
    # The batch of the rehearsal is shared out to fewer processes than that of the run.
    share = trainer.world_size / (processes * int(asked.get("num_nodes") or 1))
    size = round(sum(one.nbytes for one in tensors) * share) if tensors else None
    return Loading(processes, workers, key, ahead, size, max(2, len(tensors)))


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Unaugmented):
        yield from _tensors(batch.samples)
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def judge_cores(load: Loading, cores: int, threads: str | None, trains_on: str) -> Iterator[Finding]:
    """Hold what would run at the same time against the cores.

    Args:
        load: Processes and their workers; of ``auto`` workers there are never too many.
        cores: That this process may use.
        threads: ``OMP_NUM_THREADS`` as the user has set it; None: not set.
        trains_on: ``cpu``, ``gpu``, or ``auto``: the CPU, since no GPU is here.
    """
    processes, workers = load.processes, load.workers
    here = _count(cores, "core")
    found = []
    # torch warns above the cores as well, but of each process's own workers alone.
    if load.key and processes * workers > cores:
        most = f"to {cores // processes} at most" if cores >= processes else "to 0"
        found.append(
            warning(
                "oversubscribed",
                f"{_count(processes, 'process')} x {workers} ({load.key}) = {processes * workers} loader workers on "
                f"{here}.",
                fix=f"Set data.num_workers to auto, or {most}."
                if load.key == "data.num_workers"
                else f"Set it {most}.",
            )
        )
    each = int(threads) if threads is not None and threads.isdigit() else 0
    if trains_on != "gpu" and each > 1 and processes * each > cores:
        found.append(
            warning(
                "oversubscribed",
                f"{_count(processes, 'process')} x OMP_NUM_THREADS={each} = {processes * each} threads on {here}.",
                fix="unset OMP_NUM_THREADS: the program shares the cores out itself.",
            )
        )
    elif trains_on == "cpu" and processes > cores:
        found.append(
            warning(
                "oversubscribed",
                f"{_count(processes, 'process')} would train on {here}.",
                "Processes that share a core wait for one another.",
                f"Set trainer.devices to {cores} at most.",
            )
        )
    told = f"{_count(processes, 'process')} x {_count(workers, 'worker')}, {here}"
    yield from found or [passed(told)]


def judge_shared_memory(load: Loading, total: int, free: int) -> Iterator[Finding]:
    """Hold the batches that wait in shared memory against its size.

    Args:
        load: Processes, workers and the size of a batch.
        total: Bytes of ``/dev/shm``.
        free: Bytes of it that are left.
    """
    batches = load.processes * load.workers * load.prefetched
    if not batches:
        yield passed("no loader workers")
    elif load.bytes is None:
        if total <= _CONTAINERS_OWN:
            yield warning("shared-memory", f"/dev/shm has {_mib(total)}, and {batches} batches may wait in it.")
        else:
            yield passed(f"{_mib(free)} free")
    elif batches * load.bytes > free:
        yield failure(
            "shared-memory",
            f"/dev/shm has {_mib(free)} of {_mib(total)} left, and {_count(load.processes, 'process')} x "
            f"{_count(load.workers, 'worker')} x {load.prefetched} batches of {_mib(load.bytes)} take "
            f"{_mib(batches * load.bytes)}.",
            fix="docker run --ipc=host or --shm-size=8g, in Kubernetes an emptyDir with medium Memory at /dev/shm; or "
            "a smaller data.num_workers.",
        )
    else:
        yield passed(f"{_mib(free)} free, batches take {_mib(batches * load.bytes)}")


def judge_open_files(load: Loading, opened: int, limit: int, most: int) -> Iterator[Finding]:
    """Hold what a training process would have open against its limit.

    Args:
        load: Workers and the tensors of a batch, each of which they hand over as an open file.
        opened: Files that are open already.
        limit: Of this shell, ``ulimit -n``.
        most: Up to which a user may raise it.
    """
    loaders = _LOADERS * (_FILES_OF_LOADER + _FILES_OF_WORKER * load.workers) if load.workers else 0
    needed = opened + loaders + load.workers * load.prefetched * load.tensors
    if needed > limit:
        yield failure(
            "open-files",
            f"A training process may open {limit} files (ulimit -n), and needs about {needed}: {opened} are open, and "
            f"{_count(load.workers, 'worker')} hand over each of {load.tensors} tensors of a batch as one.",
            fix=f"ulimit -n {max(needed, min(most, 65535))}, or a smaller data.num_workers."
            if most >= needed
            else "A smaller data.num_workers; or let the administrator raise the limit (ulimit -Hn).",
        )
    else:
        yield passed(f"about {needed} of {limit}")


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{plural * (number != 1)}"


def _mib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 10 * 2**30 else f"{size / 2**20:.0f} MiB"


def _elsewhere(rehearsal: Rehearsal, found: Iterator[Finding]) -> Iterator[Finding]:
    """Soften what is found of a machine that the run is not meant for."""
    other = no_gpu_for(rehearsal.asked.get("accelerator", "auto"))
    for one in found:
        yield one._replace(status="warn") if other and one.status == "fail" else one


@check("machine: cores", "oversubscribed")
def cores_suffice(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Training processes, their threads and loader workers are not more than the cores."""
    accelerator = rehearsal.asked.get("accelerator", "auto")
    load, cores = loading(rehearsal), cores_each(1)
    if no_gpu_for(accelerator):
        yield passed(f"{_count(cores, 'core')} here, but the run is meant for GPUs")
        return
    trains_on = "gpu" if not on_cpu(accelerator) else accelerator
    yield from judge_cores(load, cores, rehearsal.environ.get("OMP_NUM_THREADS"), trains_on)


@check("machine: shared memory", "shared-memory")
def shared_memory_suffices(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The batches that workers hand over fit into /dev/shm."""
    if not _SHARED_MEMORY.is_dir():
        yield passed("this system has no /dev/shm")
        return
    size = os.statvfs(_SHARED_MEMORY)
    found = judge_shared_memory(loading(rehearsal), size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize)
    yield from _elsewhere(rehearsal, found)


@check("machine: open files", "open-files")
def open_files_suffice(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Loader workers and their tensors fit into the limit of open files."""
    try:
        import resource
    except ImportError:
        yield passed("this system has no such limit")
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = Path("/proc/self/fd")
    opened = len(list(folder.iterdir())) if folder.is_dir() else 32
    unlimited = 2**31
    limit, most = (unlimited if one == resource.RLIM_INFINITY else one for one in (limit, most))
    yield from _elsewhere(rehearsal, judge_open_files(loading(rehearsal), opened, limit, most))


CHECKS = (
    *gpus.CHECKS,
    *links.CHECKS,
    cores_suffice,
    shared_memory_suffices,
    open_files_suffice,
    *launching.CHECKS,
    *disk.CHECKS,
)
