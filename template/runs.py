"""Where a run lives: ``runs/<experiment>/version_<n>/`` and what is found in it."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

from .distributed.faults import NamedError

CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"


def claim_folder(parent: Path, stem: str) -> Path:
    """Make the folder ``<stem>_<n>`` with the smallest n above all that exist.

    Making it claims it: two programs that start at the same time get different ones.

    Raises:
        NamedError: The folder cannot be made.
    """
    number = max((n for n, _ in numbered_folders(parent, stem)), default=-1) + 1
    while True:
        folder = parent / f"{stem}_{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise NamedError(
                "folder-not-writable", f"The folder '{folder}' cannot be made: {error.strerror}."
            ) from error
        else:
            return folder


def numbered_folders(parent: Path, stem: str) -> list[tuple[int, Path]]:
    """Folders ``<stem>_<n>`` below a parent, the highest n first."""
    if not parent.is_dir():
        return []
    found = [(re.fullmatch(rf"{re.escape(stem)}_(\d+)", path.name), path) for path in parent.iterdir()]
    return sorted(((int(match[1]), path) for match, path in found if match and path.is_dir()), reverse=True)


def find_checkpoint(experiment: Path, which: str) -> Path | None:
    """The ``last`` or ``best`` checkpoint of the newest run that holds a whole one.

    Args:
        experiment: Folder of the experiment, ``runs/<experiment>``.
        which: ``last``, or ``best`` by the metric that the run monitored.

    Returns:
        The file, or None where no run has one.
    """
    for _, run in numbered_folders(experiment, "version"):
        folder = run / CHECKPOINTS
        last = folder / LAST
        files = sorted(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime, reverse=True)
        whole = [file for file in files if is_whole(file)]
        if not whole:
            continue
        if which == "best":
            best = _recorded_best(next((file for file in [last, *whole] if file in whole), whole[0]))
            if best is not None and folder / best in whole:
                return folder / best
        return last if last in whole else whole[0]
    return None


def is_whole(file: Path) -> bool:
    """Whether a checkpoint was written to its end: its directory, which torch writes last, is there."""
    return file.is_file() and zipfile.is_zipfile(file)


def run_of(checkpoint: Path) -> Path | None:
    """The run's folder that a checkpoint belongs to, or None for a file from elsewhere."""
    run = checkpoint.resolve().parent.parent
    inside = checkpoint.resolve().parent.name == CHECKPOINTS and re.fullmatch(r"version_\d+", run.name)
    return run if inside else None


def _recorded_best(checkpoint: Path) -> str | None:
    import torch  # only when a checkpoint is read: this module is imported by commands that need no torch

    states: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True).get(
        "callbacks", {}
    )
    paths = [state.get("best_model_path") for state in states.values() if isinstance(state, dict)]
    # Only the name: the run's folder may have been moved since.
    return next((Path(path).name for path in paths if path), None)
