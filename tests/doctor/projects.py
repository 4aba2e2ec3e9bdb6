"""The deliberately broken projects: what each must be told, and its healthy twin."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from template.doctor.finding import Finding
from template.doctor.options import Options
from tests.doctor.clinic import diagnose

#: What depends on how busy this machine is, as networks so small take no time at all.
_BY_THE_CLOCK = ("slow-data", "slow-exchange")
FOLDER = Path(__file__).parent / "projects"


class Project(NamedTuple):
    """A project of ``projects/<name>/``.

    Attributes:
        name: Of its folder.
        says: ``id`` and ``status`` of the finding that the doctor must come to, and ``names`` that it must hold.
        broken: Configuration, laid over :data:`tests.doctor.clinic.BASE`.
        healthy: The same without the fault.
        processes: Of the doctor; 1 where one process shows the fault.
        cases: Public failure reports that it stands for.
        also: Identifiers of what follows from the fault, and is told as well.
        environ: Variables that the broken one is started with.
        timeout: Seconds without a sign of life after which the doctor takes a rank for hanging.
    """

    name: str
    says: Mapping[str, Any]
    broken: dict[str, Any]
    healthy: dict[str, Any]
    processes: int
    cases: list[str]
    also: list[str]
    environ: dict[str, str]
    timeout: float


def read(folder: Path) -> Project:
    """Read ``project.yaml``."""
    content = yaml.safe_load((folder / "project.yaml").read_text(encoding="utf-8"))
    both = content.get("both", {})
    return Project(
        folder.name,
        content["says"],
        laid_over(both, content.get("broken", {})),
        laid_over(both, content.get("healthy", {})),
        content.get("processes", 1),
        content.get("cases", []),
        content.get("also", []),
        {name: str(value) for name, value in content.get("environ", {}).items()},
        content.get("timeout", Options().timeout),
    )


def found(project: Project, broken: bool, folder: Path) -> list[Finding]:
    """Copy a project into a folder of the test, draw its files, and ask the doctor.

    ``make`` of its files.py may return something that is held open until the doctor is done, such as a socket.
    """
    shutil.copytree(FOLDER / project.name, folder, dirs_exist_ok=True)
    files = folder / "files.py"
    with contextlib.ExitStack() as held:
        if files.exists():
            spec = importlib.util.spec_from_file_location(f"files_of_{project.name}", files)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            made = module.make(folder, broken=broken)
            if made is not None:
                held.callback(made.close)
        overlay, environ = (project.broken, project.environ) if broken else (project.healthy, {})
        findings = diagnose(overlay, folder, project.processes, Options(timeout=project.timeout), environ)
    return [one for one in findings if one.id not in _BY_THE_CLOCK or one.id == project.says["id"]]


def laid_over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """A configuration laid over another."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = laid_over(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


PROJECTS = [read(file.parent) for file in sorted(FOLDER.glob("*/project.yaml"))]
