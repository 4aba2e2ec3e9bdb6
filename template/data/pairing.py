"""Matching images and masks by the stems of their files."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path

from ..distributed.faults import NamedError
from .picture_files import list_pictures
from .pictures import Pair, pair


def by_stem(folder: Path, key: str, suffix: str, other: str | None) -> dict[str, Path]:
    """Pictures of a folder by what the names of an image and its mask have in common.

    Args:
        folder: The folder.
        key: ``data.images`` or ``data.masks``, for messages.
        suffix: What a stem has more than the common part; other files are passed over.
        other: The suffix of the partners, where they lie in the same folder.

    Raises:
        NamedError: ``data-missing``: no such picture; ``data-unpaired``: two of the same stem.
    """
    files: dict[str, Path] = {}
    for file in list_pictures(folder, key):
        # One and the same letter can be written as one or two characters; macOS prefers two.
        stem = unicodedata.normalize("NFC", file.stem)
        of_other = other is not None and len(other) > len(suffix) and stem.endswith(other)
        if not stem.endswith(suffix) or of_other:
            continue
        name = stem.removesuffix(suffix)
        if name in files:
            raise NamedError(
                "data-unpaired",
                f"{key}: '{files[name]}' and '{file.name}' have the same stem.",
                fix="Remove one of them.",
            )
        files[name] = file
    if not files:
        raise NamedError(
            "data-missing",
            f"{key}: no picture in '{folder}' has a name that ends in '{suffix}' before its extension.",
            fix=f"Correct {key[:-1]}_suffix.",
        )
    return files


def matched(images: Mapping[str, Path], masks: Mapping[str, Path]) -> dict[str, Pair]:
    """Pairs of the same name, sorted; all headers are looked at.

    Raises:
        NamedError: ``data-unpaired``, with the files that have no partner; ``data-unreadable``;
            ``data-size-mismatch``.
    """
    for have, lack, what in ((images, masks, "images have no mask"), (masks, images, "masks have no image")):
        lonely = [file.name for name, file in have.items() if name not in lack]
        if lonely:
            names = ", ".join(f"'{name}'" for name in lonely[:5]) + (" …" if len(lonely) > 5 else "")
            partner = next(iter(lack.values()), None)
            where = f" in '{partner.parent}'" if partner else ""
            raise NamedError("data-unpaired", f"{len(lonely)} of {len(have)} {what}{where}: {names}.")
    return {name: pair(images[name], masks[name]) for name in sorted(images)}


def same_folder(first: str | Path, second: str | Path) -> bool:
    """Whether two paths lead to one folder; False where one leads nowhere, which is told when it is listed."""
    try:
        return first == second or Path(first).samefile(second)
    except OSError:
        return False
