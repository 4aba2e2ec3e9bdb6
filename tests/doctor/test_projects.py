"""All deliberately broken projects are found out by name, and their healthy twins are let through."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.doctor.projects import PROJECTS, Project, found
from tests.ranks import start_server

#: Those that every change is tried on; all of them take some minutes.
QUICK = {"branch_by_rank", "cuda_in_forward", "layers_in_a_list", "mask_of_another_size", "siamese"}


def parameters(quick: bool) -> list[object]:
    return [pytest.param(one, id=one.name) for one in PROJECTS if (one.name in QUICK) is quick]


def check(project: Project, folder: Path) -> None:
    """The broken one and its healthy twin at the same time: much of it is waiting."""
    start_server()
    with ThreadPoolExecutor(2) as pool:
        folders = {broken: folder / ("broken" if broken else "healthy") for broken in (True, False)}
        runs = {broken: pool.submit(found, project, broken, path) for broken, path in folders.items()}
    findings, clean = ([one for one in runs[broken].result() if one.status != "pass"] for broken in (True, False))
    says = project.says
    mine = [one for one in findings if (one.id, one.status) == (says["id"], says["status"])]
    assert mine, findings
    text = " ".join(part for one in mine for part in (one.subject, one.cause, one.fix))
    assert not [name for name in says["names"] if str(name) not in text], text
    # Nothing else is blamed, but for what the project says that follows.
    assert not [one for one in findings if one.id != says["id"] and one.id not in project.also]
    assert clean == []


@pytest.mark.parametrize("project", parameters(quick=True))
def test_the_fault_is_found_by_name_and_its_healthy_twin_is_clean(project: Project, tmp_path: Path) -> None:
    check(project, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("project", parameters(quick=False))
def test_so_are_the_others(project: Project, tmp_path: Path) -> None:
    check(project, tmp_path)


def test_there_are_enough_and_all_that_are_quick_are_there() -> None:
    assert len(PROJECTS) >= 100
    assert {one.name for one in PROJECTS} >= QUICK
