"""Whether cores, shared memory and open files suffice, on numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from template.data.phantom import Phantom
from template.doctor import machine
from template.doctor.finding import Finding, passed
from template.doctor.machine import Loading, judge_cores, judge_open_files, judge_shared_memory

from .rehearsed import examine, of_status, phantom

MIB = 2**20


def only(found: list[Finding], status: str, identifier: str, *words: str) -> None:
    assert [(one.status, one.id) for one in found] == [(status, identifier)], found
    for word in words:
        assert word in " ".join(found[0]), (word, found[0])


def load(processes: int = 4, workers: int = 2, key: str = "data.num_workers", **rest: Any) -> Loading:
    return Loading(processes, workers, key, **rest)


def cores(load: Loading, cores: int, threads: str | None = None, trains_on: str = "auto") -> list[Finding]:
    return list(judge_cores(load, cores, threads, trains_on))


def test_more_workers_than_cores() -> None:
    found = cores(load(4, 16), 8)
    only(found, "warn", "oversubscribed", "4 processes x 16 (data.num_workers) = 64 loader workers on 8 cores", "2 at")
    only(cores(load(4, 1), 2), "warn", "oversubscribed", "Set data.num_workers to auto, or to 0.")
    own = cores(load(4, 16, "num_workers of Mine.train_dataloader"), 8, trains_on="gpu")
    only(own, "warn", "oversubscribed", "num_workers of Mine.train_dataloader", "Set it to 2 at most")
    assert cores(load(4, 2), 8) == [passed("4 processes x 2 workers, 8 cores")]
    assert cores(load(1, 1), 1) == [passed("1 process x 1 worker, 1 core")]


def test_auto_workers_are_never_too_many() -> None:
    assert [one.status for one in cores(load(8, 1, key=""), 4)] == ["pass"]


def test_more_threads_than_cores() -> None:
    found = cores(load(4, 0), 8, "8", "cpu")
    only(found, "warn", "oversubscribed", "4 processes x OMP_NUM_THREADS=8 = 32 threads on 8 cores")
    # As many as there are; GPUs that compute in their place; OpenMP's list for nested regions; one each.
    for threads, trains_on in (("2", "cpu"), ("8", "gpu"), ("4,2", "cpu")):
        assert [one.status for one in cores(load(4, 0), 8, threads, trains_on)] == ["pass"]


def test_more_processes_than_cores() -> None:
    only(cores(load(4, 0), 2, "1", "cpu"), "warn", "oversubscribed", "4 processes would train on 2 cores")
    # Meant for GPUs that are not here.
    assert [one.status for one in cores(load(4, 0), 2, "1", "auto")] == ["pass"]


def test_batches_that_do_not_fit_into_shared_memory() -> None:
    # 4 processes x 2 workers x 2 batches x 10 MiB = 160 MiB.
    tight = load(bytes=10 * MIB)
    found = list(judge_shared_memory(tight, 64 * MIB, 63 * MIB))
    only(found, "fail", "shared-memory", "63 MiB of 64 MiB left", "160 MiB", "--shm-size")
    assert [one.status for one in judge_shared_memory(tight, 200 * MIB, 160 * MIB)] == ["pass"]
    only(list(judge_shared_memory(tight, 200 * MIB, 159 * MIB)), "fail", "shared-memory")
    assert [one.status for one in judge_shared_memory(load(workers=0, bytes=MIB), MIB, 0)] == ["pass"]


def test_batches_of_unknown_size() -> None:
    only(list(judge_shared_memory(load(), 64 * MIB, 64 * MIB)), "warn", "shared-memory", "16 batches")
    assert [one.status for one in judge_shared_memory(load(), 65 * MIB, 1)] == ["pass"]


def test_more_files_than_may_be_open() -> None:
    # 20 are open; two loaders of 16 workers: 2 x (2 + 4 x 16) = 132; 16 x 2 batches of 2 tensors: 64; in all 216.
    many = load(workers=16)
    only(list(judge_open_files(many, 20, 215, 4096)), "fail", "open-files", "about 216", "ulimit -n 4096")
    only(list(judge_open_files(many, 20, 215, 215)), "fail", "open-files", "ulimit -Hn")
    only(list(judge_open_files(many, 20, 215, 10**6)), "fail", "open-files", "ulimit -n 65535")
    assert next(iter(judge_open_files(many, 20, 216, 4096))).subject == "about 216 of 216"
    assert next(iter(judge_open_files(load(workers=0), 20, 64, 64))).subject == "about 20 of 64"


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system has to tell of open files")
def test_open_files_of_a_loader_are_counted_right() -> None:
    files = Path("/proc/self/fd")
    before = len(list(files.iterdir()))
    batches = iter(DataLoader(Numbers(), num_workers=2))
    held = len(list(files.iterdir())) - before
    waiting = 2 * 2  # workers x batches ahead, each of one tensor
    assert held <= machine._FILES_OF_LOADER + 2 * machine._FILES_OF_WORKER + waiting
    assert held >= 2 * machine._FILES_OF_WORKER - 2
    del batches


CHECKS = [machine.cores_suffice, machine.shared_memory_suffices, machine.open_files_suffice]


def test_a_batch_is_measured_as_the_run_would_have_it(tmp_path: Path) -> None:
    seen: list[Loading] = []

    def look(rehearsal: Any) -> list[Finding]:
        seen.append(machine.loading(rehearsal))
        assert machine.loading(rehearsal) == seen[-1]
        return []

    # Shared out to 4 processes on 1 machine, or on 2.
    for nodes in (1, 2):
        examine(look, tmp_path, data=phantom(num_workers=1), asked={"devices": 4, "num_nodes": nodes})
    sample = 32 * 32 * (4 + 1)  # float32 and a label of one byte
    assert [load.bytes for load in seen] == [sample, sample // 2]
    assert (seen[0].processes, seen[0].workers, seen[0].key, seen[0].tensors) == (4, 1, "data.num_workers", 2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 16")  # torch's own, of each loader by itself
def test_the_checks_name_what_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores_each", lambda processes: 8 // processes)
    asked = {"devices": 4, "accelerator": "cpu"}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = examine(CHECKS, tmp_path, asked=asked)
    assert [(one.check, one.status) for one in found] == [
        ("machine: cores", "pass"),
        ("machine: shared memory", "pass"),
        ("machine: open files", "pass"),
    ]
    assert all(len(one.subject) <= 60 and len(one.check) <= 22 for one in found)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    found = examine(machine.cores_suffice, tmp_path, data=phantom(num_workers=16), asked=asked)
    assert [one.id for one in of_status(found, "warn")] == ["oversubscribed"] * 2


@pytest.mark.filterwarnings("ignore:This DataLoader will create 16")
def test_numbers_of_another_machine_are_not_held_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "no_gpu_for", lambda accelerator: accelerator == "gpu")
    asked = {"devices": 8, "accelerator": "gpu"}
    found = examine(machine.cores_suffice, tmp_path, data=phantom(num_workers=16), asked=asked)
    assert [one.status for one in found] == ["pass"]
    monkeypatch.setattr(machine, "judge_open_files", lambda *_: judge_open_files(load(workers=16), 20, 64, 64))
    only(examine(machine.open_files_suffice, tmp_path, asked=asked), "warn", "open-files")


class OwnLoader(Phantom):
    """A data set with a training loader of its own."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        return DataLoader(loader.dataset, batch_size=4, collate_fn=loader.collate_fn, num_workers=0)


class Unreadable(Phantom):
    """A data set of which no sample can be read."""

    def read(self, case: Any) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize("kind", [OwnLoader, Unreadable])
def test_a_batch_that_cannot_be_measured(kind: type[Phantom], tmp_path: Path) -> None:
    data = kind(train_cases=8, val_cases=4, test_cases=2, size=32, batch_size=4, num_workers=0)
    assert [one.status for one in examine(CHECKS, tmp_path, data=data)] == ["pass"] * 3


def test_all_checks_of_the_group_pass_here(tmp_path: Path) -> None:
    found = examine(list(machine.CHECKS), tmp_path)
    assert [one for one in found if one.status != "pass"] == []
    assert len(found) == len({one.check for one in found}) == len(machine.CHECKS)
    assert all(len(one.subject) <= 60 for one in found)
