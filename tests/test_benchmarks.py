"""The benchmarks' page has a place for each of them, and what they count is counted right."""

from __future__ import annotations

import importlib
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from benchmarks.__main__ import NAMES, PAGE
from benchmarks.networks import operations, page_faults
from benchmarks.page import put_into
from benchmarks.steps import Again, Clock, ReadyData, ready_batch


def test_a_table_comes_between_the_marks_of_its_page() -> None:
    page = "a\n<!-- steps: begin -->\nold\n<!-- steps: end -->\nb\n"
    assert put_into(page, "new", "steps") == "a\n<!-- steps: begin -->\n\nnew\n\n<!-- steps: end -->\nb\n"
    for broken in ("a", "<!-- steps: begin -->", "<!-- steps: end -->"):
        with pytest.raises(ValueError, match="the page lacks '<!-- steps: begin -->'"):
            put_into(broken, "new", "steps")


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_has_a_place_on_the_page(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)
    assert put_into(PAGE.read_text(encoding="utf-8"), "", name)


def test_the_page_names_no_place_of_a_machine() -> None:
    assert str(Path.home()) not in PAGE.read_text(encoding="utf-8")


def test_operations_of_a_convolution() -> None:
    conv, image = nn.Conv2d(2, 5, 3, padding=1, bias=False), torch.ones(1, 2, 8, 8)
    # 64 pixels x 5 channels x 18 products, two operations each; and as many again for the weights' gradient, the
    # image having none.
    assert operations(lambda: conv(image).sum().backward()) == 2 * (2 * 64 * 5 * 18)


def test_fresh_pages_are_counted() -> None:
    # 64 MiB that are mapped anew in each step, in pages of 4 KiB at most; with huge pages they are fewer.
    assert page_faults(lambda: torch.ones(2**24)) > 10
    assert page_faults(lambda: None) < 10


def test_a_clock_leaves_the_first_steps_out() -> None:
    ticks = iter([100.0, 140.0])
    clock, trainer = Clock(lambda: next(ticks)), Mock(num_training_batches=25)
    for number in range(25):
        clock.on_train_batch_start(trainer, Mock(), None, number)
    assert clock.each() == 10  # from the start of the 21st step to that of the 25th


def test_the_ready_batch_is_given_again_and_again() -> None:
    data = ReadyData(steps=3, share=2, batch_size=4, size=32, train_cases=4, val_cases=1, test_cases=1)
    batches = list(data.train_dataloader())
    assert len(data.train_dataloader()) == len(batches) == 3
    assert batches[0] is batches[2]
    assert batches[0]["image"].shape == (2, 1, 32, 32)
    assert torch.equal(batches[0]["image"], ready_batch(2, 32)["image"])
    assert isinstance(data.train_dataloader(), Again)
