"""Freed memory is kept: counted in page faults, which no load of the machine changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Each round frees 2 x 64 MiB, as a step frees its activations; a fresh page costs a fault when it is first written.
_ROUNDS = """
import resource, sys
import torch
from template.allocator import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
def step():
    a = torch.ones(2**24)
    b = a + 1
    return b[0].item()
for _ in range(6):  # until all blocks have found their places
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, **environment: str) -> tuple[bool, int]:
    shared = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _ROUNDS, mode],
        env=shared | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    kept, number = done.stdout.split()
    return kept == "True", int(number)


def test_steps_take_no_fresh_pages() -> None:
    given_back, kept = faults("give"), faults("keep")
    assert kept[0]
    # 5 x 128 MiB in pages of 4 KiB are 163,840 faults; with huge pages the kernel counts fewer.
    assert kept[1] < 100 < given_back[1]


@pytest.mark.parametrize(
    "chosen", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_a_users_own_choice_stands(chosen: dict[str, str]) -> None:
    assert faults("keep", **chosen)[0] is False


_GIVEN_BACK = """
from pathlib import Path
import torch
from template.allocator import give_back_freed_memory, keep_freed_memory
def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
kept = keep_freed_memory()
blocks = [torch.ones(2**22) for _ in range(8)]
above = torch.ones(2**22)  # what is freed below it stays, whatever the thresholds are
full = megabytes()
del blocks
freed = megabytes()
print(kept, full - freed, give_back_freed_memory(), full - megabytes())
"""


def test_what_is_kept_can_be_given_back_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _GIVEN_BACK],
        env={name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    kept, at_once, given, later = done.stdout.split()
    assert (kept, given) == ("True", "True")
    assert float(at_once) < 8
    assert float(later) > 120  # of 8 x 16 MiB
