"""Which process this is, and how all of them agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from template.distributed import world
from template.distributed.faults import NamedError
from template.distributed.world import World, agree, open_store, read_world
from tests.ranks import run_ranks

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_a_process_started_by_hand_is_alone() -> None:
    assert read_world({}) == World(0, 1, 0, 1, None)


def test_torchrun_says_who_this_is() -> None:
    found = read_world(TORCHRUN)
    assert found == World(5, 8, 1, 4, "torchrun")
    assert found.nodes == 2


@pytest.mark.parametrize(
    "more", [{}, {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, {"SLURM_STEP_TASKS_PER_NODE": "2,2"}, {"SLURM_STEP_ID": "7"}]
)
def test_slurm_says_who_this_is(more: dict[str, str]) -> None:
    assert read_world({**SLURM, **more}) == World(3, 4, 1, 2, "slurm")


def test_mpirun_says_who_this_is() -> None:
    assert read_world(MPIRUN) == World(3, 4, 1, 2, "mpirun")


@pytest.mark.parametrize("inner", [TORCHRUN, MPIRUN], ids=["torchrun", "mpirun"])
def test_the_launcher_inside_of_srun_wins(inner: dict[str, str]) -> None:
    one_task = {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}
    assert read_world({**one_task, **inner}) == read_world(inner)


@pytest.mark.parametrize(
    "shell",
    [
        {"SLURM_STEP_ID": ""},  # a batch script without srun
        {"SLURM_STEP_ID": "4294967290"},  # the shell that salloc opens as a step: 0xfffffffa
        {"SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "bash"},  # srun --pty bash
    ],
    ids=["sbatch", "salloc", "srun --pty bash"],
)
def test_a_shell_inside_an_allocation_is_started_by_hand(shell: dict[str, str]) -> None:
    assert read_world({**SLURM, **shell}) == World()


@pytest.mark.parametrize("step", [{"SLURM_STEP_ID": "1", "SLURM_JOB_NAME": "bash"}, {"SLURM_JOB_NAME": "interactive"}])
def test_srun_in_such_a_shell_starts_tasks(step: dict[str, str]) -> None:
    assert read_world({**SLURM, **step}).launcher == "slurm"


@pytest.mark.case("E2")
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK is 'x', no number"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE is '', no number"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 is not below 8"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "local rank 4 is not below 4"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, "all machines need the same number"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, "all machines need the same number"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "3"}, "all machines need the same number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "it sets all four: RANK=0, WORLD_SIZE=2"),
        ({**SLURM, "SLURM_PROCID": "4"}, "rank 4 is not below 4"),
        ({**SLURM, "SLURM_LOCALID": "2"}, "local rank 2 is not below 2"),
        ({**SLURM, "SLURM_NTASKS": "5"}, "all machines need the same number"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, "all machines need the same number"),
        ({**SLURM, "SLURM_NNODES": "two"}, "SLURM_NNODES is 'two', no number"),
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "4"}, "rank 4 is not below 4"),
    ],
)
def test_variables_that_do_not_fit_are_named(variables: dict[str, str], told: str) -> None:
    with pytest.raises(NamedError, match=told) as caught:
        read_world(variables)
    assert caught.value.identifier == "world-size"
    assert "unset" in caught.value.fix


def test_variables_of_one_process_without_a_place_are_no_launch() -> None:
    assert read_world({"RANK": "0", "WORLD_SIZE": "1"}) == World()


def test_alone_one_decides_for_oneself() -> None:
    assert agree(World(), "folder", lambda: "runs/version_0") == "runs/version_0"


def _agree(rank: int, url: str) -> list[str]:
    here = World(rank, 3, rank, 3, "torchrun")
    assert open_store(here, url) is open_store(here, url) is world.current_store()
    return [agree(here, "folder", lambda: f"folder by {rank}"), agree(here, "seed", lambda: f"seed by {rank}")]


@pytest.mark.case("G1")
def test_all_ranks_learn_what_rank_0_decided(tmp_path: Path) -> None:
    answers = run_ranks(3, _agree, f"file://{tmp_path}/store")
    assert answers == [["folder by 0", "seed by 0"]] * 3
