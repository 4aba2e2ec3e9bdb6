"""All deliberately broken projects are found out by name, and their healthy twins are let through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.projects import PROJECTS, Project, found

PARAMETERS = [pytest.param(project, id=project.name) for project in PROJECTS]


@pytest.mark.parametrize("project", PARAMETERS)
def test_the_fault_is_found_by_name(project: Project, tmp_path: Path) -> None:
    findings = [one for one in found(project, True, tmp_path) if one.status != "pass"]
    says = project.says
    mine = [one for one in findings if (one.id, one.status) == (says["id"], says["status"])]
    assert mine, findings
    text = " ".join(part for one in mine for part in (one.subject, one.cause, one.fix))
    assert not [name for name in says["names"] if str(name) not in text], text
    # Nothing else is blamed, but for what the project says that follows.
    assert not [one for one in findings if one.id != says["id"] and one.id not in project.also]


@pytest.mark.parametrize("project", PARAMETERS)
def test_its_healthy_twin_is_clean(project: Project, tmp_path: Path) -> None:
    assert [one for one in found(project, False, tmp_path) if one.status != "pass"] == []
