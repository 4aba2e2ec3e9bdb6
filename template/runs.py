"""Where a run lives: ``runs/<experiment>/version_<n>/`` and what is found in it."""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .distributed.faults import NamedError

CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"


class Place(NamedTuple):
    """Where a verb writes.

    Attributes:
        run: The run's folder, ``runs/<experiment>/version_<n>``.
        verb: The verb's folder: the run's own for ``fit``, ``test_<n>`` and so on in it for the others.
        checkpoint: The checkpoint to begin with, if any.
    """

    run: Path
    verb: Path
    checkpoint: str | None

    def __str__(self) -> str:
        return json.dumps([str(self.run), str(self.verb), self.checkpoint])

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read what ``str`` wrote."""
        run, verb, checkpoint = json.loads(text)
        return cls(Path(run), Path(verb), checkpoint)


def experiment_folder(runs: str, experiment: str) -> Path:
    """Folder of an experiment, ``<runs>/<experiment>``.

    Raises:
        NamedError: The name is empty, or leads out of the folder of runs.
    """
    if not experiment.strip() or Path(experiment).is_absolute() or ".." in Path(experiment).parts:
        raise NamedError(
            "config",
            f"experiment is '{experiment}', which is no name of a folder below '{runs}'.",
            cause="",
            fix="Give --experiment a name, and --runs the folder of all runs.",
        )
    return Path(runs) / experiment


def decide_place(experiment: Path, verb: str, checkpoint: str | None) -> Place:
    """Choose, and make, the folder of a run; one process decides for all.

    A fit that resumes goes on in the checkpoint's run, if that is one of the experiment; another gets a new version.

    Args:
        experiment: Folder of the experiment, ``runs/<experiment>``.
        verb: ``fit`` or another one.
        checkpoint: ``last``, ``best``, a file, or None.

    Raises:
        NamedError: The checkpoint does not exist, or the folder cannot be made.
    """
    fit = verb == "fit"
    if checkpoint in ("last", "best"):
        found = find_checkpoint(experiment, checkpoint)
        if found is None and not fit:
            raise NamedError("no-checkpoint", f"No run in '{experiment}' holds a checkpoint.", cause="")
        checkpoint = str(found) if found else None
    elif checkpoint and "://" not in checkpoint:
        file = Path(checkpoint)
        if not file.is_file():
            raise NamedError("no-checkpoint", f"The checkpoint '{checkpoint}' does not exist.", cause="")
        if file.suffix == ".ckpt" and (broken := damage(file)):
            raise damaged(file, broken)
    run = run_of(Path(checkpoint)) if checkpoint else None
    if run is None or (fit and run.parent != experiment.resolve()):
        run = claim_folder(experiment, "version")
    run = relative_to_here(run)
    return Place(run, run if fit else claim_folder(run, verb), checkpoint)


def relative_to_here(path: Path) -> Path:
    """The path as seen from the working directory, if it lies below: shorter to read."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


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
    passed: list[str] = []
    for _, run in numbered_folders(experiment, "version"):
        for file in _in_order(run / CHECKPOINTS, which):
            broken = damage(file)
            if broken is None:
                if passed:
                    print(f"{passed[0]}; going on from '{relative_to_here(file)}'.", file=sys.stderr, flush=True)
                return file
            passed.append(f"'{relative_to_here(file)}' is damaged, {broken}")
    if passed:
        raise NamedError(
            "checkpoint-unreadable",
            f"{passed[0]}, and no run in '{experiment}' holds another checkpoint.",
            cause="A disk that fails, or a copy that was interrupted: the program itself never leaves half a file.",
            fix="Bring a whole file back, or remove the damaged one to begin anew.",
        )
    return None


def _in_order(folder: Path, which: str) -> Iterator[Path]:
    """Checkpoints of a run, the wanted one first, then by age."""
    last = folder / LAST
    files = sorted(folder.glob("*.ckpt"), key=lambda file: (file != last, -file.stat().st_mtime))
    if which == "best":
        recorded = next((name for file in files if (name := _recorded_best(file))), None)
        files.sort(key=lambda file: file.name != recorded)
    yield from files


def damage(file: Path) -> str | None:
    """What is wrong with a checkpoint; None where all its bytes are those that were written.

    torch writes a ZIP archive, whose directory comes last, but does not look at its checksums when it loads one.
    """
    size = file.stat().st_size
    if size == 0:
        return "it is empty"
    if not zipfile.is_zipfile(file):
        return f"it is cut off at {size} bytes"
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
    # zipfile meets flipped bytes with whatever their values lead it to.
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        return f"not a whole archive: {error}"
    return f"the checksum of its entry '{broken}' is wrong" if broken else _refusal(file)


def _refusal(file: Path) -> str | None:
    """What torch has against the archive: it reads headers that zipfile passes over."""
    import torch  # only when a checkpoint is read: this module is imported by commands that need no torch

    try:
        torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        return f"not a whole archive: {str(error).partition('. ')[0]}"
    except Exception:  # noqa: BLE001  # whole, but not of plain weights: told when it is loaded
        return None
    return None


def damaged(file: Path, broken: str) -> NamedError:
    """The named failure of a damaged checkpoint."""
    return NamedError("checkpoint-unreadable", f"The checkpoint '{file}' is damaged: {broken}.", "", alternative(file))


def alternative(file: Path) -> str:
    """The newest whole checkpoint beside one that is of no use, as what to do."""
    others = sorted(file.parent.glob("*.ckpt"), key=lambda other: other.stat().st_mtime, reverse=True)
    whole = next((other for other in others if other != file and damage(other) is None), None)
    return f"Use '{whole}', the newest whole one beside it." if whole else "There is no whole one beside it."


def remove_parts(run: Path) -> None:
    """Remove what a killed fit has left half-written; nobody else may be writing there."""
    for leftover in (run / CHECKPOINTS).glob(".*.part"):
        leftover.unlink(missing_ok=True)


def part_of(target: Path) -> Path:
    """Where a checkpoint is written before it gets its name."""
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def run_of(checkpoint: Path) -> Path | None:
    """The run's folder that a checkpoint belongs to, or None for a file from elsewhere."""
    run = checkpoint.resolve().parent.parent
    inside = checkpoint.resolve().parent.name == CHECKPOINTS and re.fullmatch(r"version_\d+", run.name)
    return run if inside else None


def _recorded_best(checkpoint: Path) -> str | None:
    import torch  # only when a checkpoint is read: this module is imported by commands that need no torch

    try:
        content: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        # Ours before a user's own: Lightning names a callback's state by its class.
        callbacks = content.get("callbacks", {})
        states = [callbacks[key] for key in sorted(callbacks, key=lambda key: not key.startswith("RankZeroCheckpoint"))]
    except Exception:  # noqa: BLE001  # whatever a damaged file leads to: it names no best
        return None
    paths = [state.get("best_model_path") for state in states if isinstance(state, dict)]
    # Only the name: the run's folder may have been moved since.
    return next((Path(path).name for path in paths if path), None)
