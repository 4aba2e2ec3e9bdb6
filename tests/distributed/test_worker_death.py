"""A data-loader worker that dies is named with what it died of."""

from __future__ import annotations

import os
import re
import signal

import pytest
from torch.utils.data import DataLoader, Dataset

from template.distributed.raised import named, said
from template.distributed.worker_death import worker_death


class Deadly(Dataset[int]):
    """Ends the process that reads it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if self.how == "exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, self.how))
        return index


@pytest.mark.parametrize(
    ("how", "text", "fix"),
    [
        ("SIGSEGV", "(SIGSEGV|Segmentation fault)", "data.num_workers: 0"),
        ("SIGKILL", "(SIGKILL|Killed)", "Lower data.num_workers"),
        ("exit", "ended itself with exit code 7", "data.num_workers: 0"),
    ],
)
def test_how_a_worker_died(how: str, text: str, fix: str) -> None:
    with pytest.raises(RuntimeError, match="DataLoader worker") as caught:
        list(DataLoader(Deadly(how), num_workers=1))
    death = named(caught.value)
    assert death.identifier == "loader-worker-died"
    assert fix in death.fix
    assert said(caught.value) == str(death)
    assert re.search(text, death.what)


def test_the_kernel_s_words_for_too_little_shared_memory() -> None:
    death = worker_death(RuntimeError("DataLoader worker (pid 2345) is killed by signal: Bus error. It is possible"))
    assert death is not None
    assert death.identifier == "shared-memory"
    assert death.what == "A data-loader worker (process 2345) was ended by a signal: Bus error."


def test_other_exceptions_are_none_of_its_business() -> None:
    assert worker_death(RuntimeError("DataLoader worker is fine")) is None
    assert worker_death(ValueError("DataLoader worker (pid 3) exited unexpectedly")) is None
