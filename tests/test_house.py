"""Rules of the house that a linter does not know."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "template"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 350


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_package_works_under_any_name(path: Path) -> None:
    absolute = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            absolute += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            absolute.append(node.module or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # class paths, `-m template`
            absolute += [word for word in node.value.replace("'", " ").split() if word.startswith("template.")]
    assert not [name for name in absolute if name.split(".")[0] == PACKAGE.name]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_folders_of_tests_mirror_the_package() -> None:
    # But for those of the public failure reports, which go across the package.
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests" / "cases"}
    for folder in folders:
        assert (PACKAGE / folder.relative_to(ROOT / "tests")).is_dir(), folder
        assert (folder / "__init__.py").is_file(), f"{folder}: two tests of one name would collide"


def imported_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running the code."""
    report = f"{code}\nimport sys\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", report], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("module", ["template", "template.distributed.faults", "template.labels"])
def test_light_modules_import_no_torch(module: str) -> None:
    assert not imported_by(f"import {module}") & {"torch", "lightning", "numpy"}


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["help", "nothing"])
def test_the_table_of_verbs_imports_no_torch(arguments: list[str]) -> None:
    code = f"""
from template.__main__ import main
import sys
sys.argv = ["template", *{arguments}]
try:
    main()
except SystemExit:
    pass
"""
    assert not imported_by(code) & {"torch", "lightning", "jsonargparse"}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=name_of)
def test_shipped_configurations_are_accepted(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from template.__main__ import main

    monkeypatch.chdir(ROOT)
    below = ["--config", "configs/phantom.yaml"] if "data" not in yaml.safe_load(path.read_text("utf-8")) else []
    with pytest.raises(SystemExit) as ended:
        main(["fit", *below, "--config", str(path), "--print_config"])
    assert ended.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["class_path"]


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


def test_every_dependency_says_what_it_needs() -> None:
    for name, requirement in requirements().items():
        assert name.startswith("types-") or any(bound.operator == ">=" for bound in requirement.specifier), name


@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_releases_of_lightning_that_an_attacker_published_are_refused(version: str) -> None:
    assert not requirements()["lightning"].specifier.contains(version)


def test_newer_releases_of_lightning_are_accepted() -> None:
    assert requirements()["lightning"].specifier.contains("2.6.6")
