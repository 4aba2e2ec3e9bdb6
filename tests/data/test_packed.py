from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from template.data.dataset import Case, CaseDataset
from template.data.loader import start_worker
from template.data.packed import Packed, packed


class Part(NamedTuple):
    files: tuple[str, ...]
    number: int
    place: Path | None = None


def cases(number: int) -> list[Case]:
    return [Case(f"case_{n}", Part((f"images/{n}.png", "ü" * (n % 5)), n, Path("a"))) for n in range(number)]


def test_it_is_the_list() -> None:
    items = cases(1500)
    block = packed(items)
    assert isinstance(block, Packed)
    assert len(block) == 1500
    assert list(block) == items
    assert block[-1] == items[-1]
    assert block[3:9:2] == items[3:9:2]
    assert type(block[7]) is Case
    assert type(block[7].source) is Part
    assert items[1200] in block
    with pytest.raises(IndexError):
        block[1500]


def test_it_survives_pickling() -> None:
    block = packed(cases(1000))
    again: Any = pickle.loads(pickle.dumps(block))
    assert list(again) == list(block)


@pytest.mark.parametrize(
    "items",
    [cases(999), [], [Case("a", torch.zeros(3))] * 1000, [Case("a", ("b", [1, 2]))] * 1000],
    ids=["few", "none", "tensors", "lists"],
)
def test_few_cases_and_those_of_other_things_stay_as_they_are(items: list[Case]) -> None:
    assert packed(items) is items


def _read(case: Case) -> tuple[Tensor, Tensor]:
    return torch.full((1, 2, 2), float(case.source[1])), torch.zeros(2, 2, dtype=torch.uint8)


def _private() -> float:
    """Memory that this process shares with no other, MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def _look(dataset: CaseDataset, answer: Any) -> None:
    start_worker(0)
    dataset[0, 0]
    before = _private()
    for index in range(0, len(dataset), 20):  # objects beside each other share a page
        dataset[0, index]
    answer.send(_private() - before)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_loader_process_has_no_copy_of_the_cases() -> None:
    many = [Case(f"case_{n}", (f"images/case_{n}.png", n)) for n in range(200_000)]  # as a list, 49 MB are copied
    dataset = CaseDataset(
        many, _read, classes=["background", "object"], in_channels=1, preprocess=[], augment=[], seed=0
    )
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=_look, args=(dataset, there))
    worker.start()
    worker.join()
    assert here.recv() < 30
    assert dataset[0, 123_456]["image"].flatten().tolist() == [123_456] * 4
