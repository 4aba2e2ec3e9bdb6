"""Names of cases: which split they belong to, and how they stay unique."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from .volume_files import stem


def split_names(
    names: Sequence[str], seed: int, val_fraction: float, test_fraction: float
) -> dict[Literal["train", "val", "test"], list[str]]:
    """Split names into training, validation and test.

    The names are put in the order of a hash of seed and name: a permutation that is the same on every process, machine
    and version of every library, in whatever order the names come.

    Args:
        names: Unique names.
        seed: Another seed gives another split.
        val_fraction: Part for validation, at least one name unless 0.
        test_fraction: Part for the test, at least one name unless 0.

    Returns:
        Sorted names of each split.
    """
    order = sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest())
    test, val = (max(1, round(len(names) * part)) if part > 0 else 0 for part in (test_fraction, val_fraction))
    return {
        "train": sorted(order[test + val :]),
        "val": sorted(order[test : test + val]),
        "test": sorted(order[:test]),
    }


def unique_stems(files: Sequence[Path]) -> list[str]:
    """Stems, with the extension added (``a_jpg``) where several files share one, so that no output meets another."""
    stems = Counter(file.stem for file in files)
    taken = {stem for stem, count in stems.items() if count == 1}
    names = []
    for file in files:
        name = file.stem
        if stems[name] > 1:
            name = f"{name}_{file.suffix[1:]}"
            while name in taken:
                name += "_"
            taken.add(name)
        names.append(name)
    return names


def unique_volume_names(files: Sequence[Path]) -> list[str]:
    """Stems, with the folder before it (``a_ct``) and then a number where several files share one."""
    names: list[str] = []
    stems = Counter(map(stem, files))
    taken = {name for name, count in stems.items() if count == 1}
    for file in files:
        name = stem(file)
        if stems[name] > 1:
            full = f"{file.parent.name}_{name}"
            name = next(one for one in (full, *(f"{full}_{n}" for n in range(2, len(files) + 2))) if one not in taken)
            taken.add(name)
        names.append(name)
    return names


def overlay_stem(stem: str, masks: Collection[str]) -> str:
    """Stem of the picture beside a mask: ``<stem>_overlay``, with ``_`` added while a mask is called so.

    Args:
        stem: Of the mask.
        masks: Stems of all masks in the folder.
    """
    name = f"{stem}_overlay"
    while name in masks:
        name += "_"  # no other overlay is called so: without its ``_`` it would be the same mask's
    return name


def input_of(source: Any, given: Path | None) -> str:
    """Path of a case's first file, relative to the folder that was given, else as it is.

    Args:
        source: Of the case: a path, a tuple that begins with one, or a volume with its ``images``.
        given: What ``predict`` was given.

    Returns:
        The path; empty where the source begins with no path.
    """
    while isinstance(source, (tuple, list)) and source:
        source = getattr(source, "images", source[0])
    if not isinstance(source, (str, Path)):
        return ""
    file = Path(source)
    if given is None or file == given or not file.is_relative_to(given):
        return str(source)
    return str(file.relative_to(given))
