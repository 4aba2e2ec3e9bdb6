"""Which process this is, and how all of them agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from template.distributed import world
from template.distributed.faults import NamedError
from template.distributed.world import World, agree, open_store, read_world
from tests.ranks import run_ranks

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"}


def test_a_process_started_by_hand_is_alone() -> None:
    assert read_world({}) == World(0, 1, 0, 1, None)


def test_torchrun_says_who_this_is() -> None:
    found = read_world(TORCHRUN)
    assert found == World(5, 8, 1, 4, "torchrun")
    assert found.nodes == 2


def test_slurm_says_who_this_is() -> None:
    assert read_world(SLURM) == World(3, 4, 1, 2, "slurm")


def test_a_shell_inside_an_allocation_is_started_by_hand() -> None:
    assert read_world({**SLURM, "SLURM_JOB_NAME": "bash"}).launcher is None


@pytest.mark.parametrize("wrong", [{"RANK": "x"}, {"LOCAL_WORLD_SIZE": ""}])
def test_a_variable_that_does_not_fit_is_named(wrong: dict[str, str]) -> None:
    with pytest.raises(NamedError, match=next(iter(wrong))) as caught:
        read_world({**TORCHRUN, **wrong})
    assert caught.value.identifier == "world-size"


def test_alone_one_decides_for_oneself() -> None:
    assert agree(World(), "folder", lambda: "runs/version_0") == "runs/version_0"


def _agree(rank: int, url: str) -> list[str]:
    here = World(rank, 3, rank, 3, "torchrun")
    assert open_store(here, url) is open_store(here, url) is world.current_store()
    return [agree(here, "folder", lambda: f"folder by {rank}"), agree(here, "seed", lambda: f"seed by {rank}")]


def test_all_ranks_learn_what_rank_0_decided(tmp_path: Path) -> None:
    answers = run_ranks(3, _agree, f"file://{tmp_path}/store")
    assert answers == [["folder by 0", "seed by 0"]] * 3
