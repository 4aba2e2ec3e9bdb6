"""Shares, left-out samples and speed: each fault is named, and a healthy data set has none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from template.data.dataset import Case, collate, collate_by_shape
from template.doctor import files, samples
from template.doctor.finding import Finding
from template.doctor.options import Options
from template.doctor.rehearsal import Rehearsal

from .rehearsed import examine, phantom
from .shapes import Pair, Shapes
from .test_repeats import OwnGenerator


def test_healthy_data_sets_pass_all_checks(tmp_path: Path) -> None:
    for data in (phantom(), phantom(dims=3, depth=8, train_cases=4, batch_size=2), Shapes()):
        found = examine(list(samples.CHECKS), tmp_path, data=data)
        assert [one.status for one in found] == ["pass"] * len(samples.CHECKS)
        assert all(len(one.subject) <= 60 for one in found)


class OwnLoader(Shapes):
    """A training loader of its own."""

    def train_dataloader(self) -> Any:
        return DataLoader(self._dataset(self._listed("train"), []), batch_size=4, collate_fn=collate)


def test_a_loader_of_ones_own_is_left_to_the_processes(tmp_path: Path) -> None:
    found = examine(list(samples.CHECKS), tmp_path, data=OwnLoader())
    assert [one.status for one in found] == ["pass"] * len(samples.CHECKS)
    assert sum("of your own: not looked at" in one.subject for one in found) == 3


@pytest.mark.parametrize(
    ("processes", "accumulation", "identifier"),
    [(2, 1, ""), (4, 1, ""), (3, 1, "batch-size"), (2, 2, ""), (2, 4, "batch-size"), (1, 3, "batch-size")],
)
def test_a_batch_that_cannot_be_shared_out_is_named(
    processes: int, accumulation: int, identifier: str, tmp_path: Path
) -> None:
    (found,) = examine(
        samples.shares_are_disjoint_and_complete,
        tmp_path,
        data=Shapes(),
        options=Options(processes=processes),
        asked={"accumulate_grad_batches": accumulation},
    )
    if identifier:
        assert (found.id, found.status, found.check) == (identifier, "fail", "data: shares")
    else:
        assert found.status == "pass"
        assert found.subject.startswith(f"each sample to one of {processes} process")


def test_shares_that_overlap_are_named(tmp_path: Path) -> None:
    class EveryRankIsFirst(Shapes):
        """Each process believes to be the first of two."""

        def _trainer(self) -> Any:
            trainer = super()._trainer()
            if trainer.world_size > 1:
                trainer.global_rank = 0
            return trainer

    found = examine(samples.shares_are_disjoint_and_complete, tmp_path, data=EveryRankIsFirst())
    assert [(one.id, one.status, one.subject) for one in found] == [
        ("shares-differ", "fail", "The shares of 2 processes do not make up micro-batch 0 of one process's epoch."),
        (
            "shares-differ",
            "fail",
            "4 of 4 validation cases are not seen exactly once by 2 processes, as 'val_0', seen 2 times.",
        ),
    ]


@pytest.mark.parametrize(("count", "status"), [(8, "pass"), (9, "pass"), (10, "pass"), (11, "warn"), (7, "warn")])
def test_what_an_epoch_leaves_out_is_counted(count: int, status: str, tmp_path: Path) -> None:
    (found,) = examine(samples.few_samples_are_left_out, tmp_path, data=Shapes(counts=(count, 4, 2)))
    assert found.status == status
    assert f"{count % 4} of {count} samples" in found.subject
    if status == "warn":
        assert found.id == "too-few-samples"
        assert found.fix == "Set data.batch_size to 2, or add cases."


def test_a_sample_is_timed(tmp_path: Path) -> None:
    measured: dict[str, Any] = {}

    def look(rehearsal: Rehearsal) -> list[Finding]:
        found = samples.samples_are_timed(rehearsal)
        measured.update(rehearsal.measured)
        return found

    (found,) = examine(look, tmp_path)
    assert found.status == "pass"
    assert found.subject.endswith("ms to read and transform a sample in one worker")
    assert measured["seconds_per_sample"] > 0


# 20 ms a sample, 8 samples and 100 ms a step: 160 ms of loading, 1.6 workers for one process, 0.8 for each of two.
@pytest.mark.parametrize(("processes", "needed"), [(1, 2), (2, 1), (4, 1)])
def test_workers_that_feed_a_step_are_counted(processes: int, needed: int) -> None:
    assert samples.workers_needed(0.02, 0.1, 8, processes) == needed


@pytest.mark.parametrize(
    ("workers", "per_sample", "status"),
    [
        ("auto", 10.0, "pass"),
        (0, 0.02, "pass"),  # 2 processes x 2 samples x 20 ms of a step of 100 ms
        (0, 0.08, "warn"),
        (1, 0.08, "pass"),
        (1, 0.11, "warn"),
        (4, 0.11, "pass"),
    ],
)
def test_too_few_workers_are_named(workers: Any, per_sample: float, status: str, tmp_path: Path) -> None:
    def look(rehearsal: Rehearsal) -> list[Finding]:
        rehearsal.measured.update(seconds_per_sample=per_sample, step_seconds=0.1)
        rehearsal.data.num_workers = workers
        return samples.workers_keep_up(rehearsal)

    (found,) = examine(look, tmp_path, data=Shapes())
    assert found.status == status
    if status == "warn":
        assert (found.id, found.check) == ("slow-data", "data: workers")
        assert found.subject.startswith(f"data.num_workers {workers} makes the samples of a step in ")
    else:
        assert len(found.subject) <= 60


def test_nothing_is_said_of_workers_before_the_steps(tmp_path: Path) -> None:
    assert examine(samples.workers_keep_up, tmp_path) == []


class _OwnValidation(Shapes):
    sampler: Any = None

    def val_dataloader(self) -> Any:
        dataset = self._dataset(self.cases("val"), None)
        return DataLoader(dataset, batch_size=2, sampler=self.sampler(dataset), collate_fn=collate_by_shape)


@pytest.mark.parametrize(
    ("processes", "drop", "said"),
    [
        (3, False, ("warn", "The DistributedSampler of _OwnValidation.val_dataloader repeats 2 of 4 cases.")),
        (3, True, ("warn", "The DistributedSampler of _OwnValidation.val_dataloader leaves out 1 of 4 cases.")),
        (2, False, ("pass", "4 cases, each once, on 2 processes")),
    ],
)
def test_a_validation_sampler_that_repeats_cases_is_named(
    processes: int, drop: bool, said: tuple[str, str], tmp_path: Path
) -> None:
    data = _OwnValidation()
    data.sampler = lambda dataset: DistributedSampler(dataset, processes, 0, shuffle=False, drop_last=drop)
    (found,) = examine(samples.own_validation_has_each_case_once, tmp_path, data=data)
    assert (found.status, found.subject) == said
    data.sampler = lambda dataset: range(len(dataset))
    assert examine(samples.own_validation_has_each_case_once, tmp_path, data=data) == []
    assert examine(samples.own_validation_has_each_case_once, tmp_path) == []


def test_a_transform_that_fails_is_named_by_one_check(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def forward(self, sample: Any) -> Any:
            raise ValueError("too large")

    def look(rehearsal: Rehearsal) -> list[Finding]:
        rehearsal.data.augment = [Fails()]
        return [one for check in samples.CHECKS for one in check(rehearsal)]

    found = [one for one in examine(look, tmp_path, data=Shapes()) if one.status != "pass"]
    assert [(one.id, one.check) for one in found] == [
        ("transform", "data: augmentation"),
        ("not-checked", "data: speed"),
    ]
    assert found[0].subject.startswith("data.augment[0], Fails, fails on 'train_0'")


def test_a_broken_case_is_left_to_the_check_of_files(tmp_path: Path) -> None:
    class Broken(Shapes):
        def broken(self, case: Case, image: Tensor, mask: Tensor) -> Pair:
            return image if case.name != "train_4" else image[:, :0], mask

    assert not [one for one in examine(list(samples.CHECKS), tmp_path, data=Broken()) if one.status != "pass"]


def test_checks_of_the_data_leave_generators_as_they_were(tmp_path: Path) -> None:
    class Noisy(Shapes):
        def broken(self, case: Case, image: Tensor, mask: Tensor) -> Pair:
            return image + torch.rand(1) + np.random.rand() + random.random(), mask

        def prepare_data(self) -> None:
            torch.rand(1)

    def look(rehearsal: Rehearsal) -> list[Finding]:
        transform = OwnGenerator()
        rehearsal.data.augment = [transform]
        before = (transform.rng.bit_generator.state, np.random.get_state()[2], random.getstate())
        state = torch.get_rng_state()
        found = [one for check in (*files.CHECKS, *samples.CHECKS) for one in check(rehearsal)]
        assert (transform.rng.bit_generator.state, np.random.get_state()[2], random.getstate()) == before
        assert torch.equal(torch.get_rng_state(), state)
        return found

    assert examine(look, tmp_path, data=Noisy())
