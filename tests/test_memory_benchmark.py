"""The benchmark of memory reads what the kernel tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.growth import Blank, seated

ROLLUP = """\
5581c0a00000-7ffd3a5f2000 ---p 00000000 00:00 0                          [rollup]
Rss:              907404 kB
Pss:              633125 kB
Shared_Clean:     273832 kB
Shared_Dirty:         12 kB
Private_Clean:      1024 kB
Private_Dirty:      3072 kB
"""


def test_lines_of_a_table_of_pages_are_added_up() -> None:
    assert memory.kilobytes(ROLLUP, "Private_Clean", "Private_Dirty") == 4096
    assert memory.kilobytes("Name:\tpython\nVmHWM:\t  123456 kB\n", "VmHWM") == 123_456
    with pytest.raises(ValueError, match="there is no line Private, VmPeak"):
        memory.kilobytes(ROLLUP, "Rss", "Private", "VmPeak")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_that_is_a_process_s_own() -> None:
    before = memory.private(os.getpid())
    block = bytearray(os.urandom(1 << 20)) * 64
    assert 60 < memory.private(os.getpid()) - before < 80
    del block


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_loader_processes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "EACH", 2)
    data = seated(Blank(100, batch_size=64))
    dataset = data._dataset(data.cases("train"), [])
    assert abs(memory.loader_memory(dataset, 0, {})) < 20
    assert 0 < memory.loader_memory(dataset, 1, {}) < 200
