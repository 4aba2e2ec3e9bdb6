"""Notebooks are committed as they were run, read well, and run again."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_it_is_committed_as_it_ran_from_top_to_bottom(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 1_000_000
    # Nothing of the machine it ran on.
    assert not re.findall(r"/(?:home|root|tmp|Users)/[\w./]*", json.dumps(outputs))


def test_another_name_of_the_package_changes_one_line(path: Path) -> None:
    lines = [line for cell in code_cells(path) for line in "".join(cell["source"]).splitlines()]
    assert len([line for line in lines if re.search(r"\btemplate\b", line)]) == 1


@pytest.mark.slow
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    # As in a clone, but what it fetches and writes goes to a folder of its own.
    for name in ("template", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(path, folder)
    monkeypatch.setenv("NOTEBOOK_EPOCHS", "1")
    notebook = nbformat.read(folder / path.name, as_version=4)
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment)
    assert list(tmp_path.glob("runs/*/version_0/checkpoints/last.ckpt"))
