"""Where masks are written: never among the files that were given, and each whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..distributed.faults import NamedError


def refuse_among(folder: Path, images: Iterable[Path], masks: Iterable[Path]) -> None:
    """Refuse to write masks where images, or the masks that a person has drawn, lie under the same names.

    Args:
        folder: Where to.
        images: Files of the case.
        masks: Folders with the masks of the data set; they need not exist.

    Raises:
        NamedError: ``config``. Links count as their own place and as what they lead to.
    """
    place = folder.resolve()
    for image in images:
        if place in {image.parent.resolve(), image.resolve().parent}:
            raise NamedError(
                "config",
                f"Masks would be written into the folder of their images, '{folder}'.",
                cause="A mask has its image's name.",
                fix="Choose another folder with --out.",
            )
    if place in {one.resolve() for one in masks}:
        raise NamedError(
            "config",
            f"Predicted masks would be written into the folder of the data set's own masks, '{folder}'.",
            cause="They have the same names, and would take their place.",
            fix="Choose another folder with --out.",
        )


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A hidden name beside a file to write it under, which then becomes the file.

    What is killed, or finds no room, leaves the file as it was; so does what writes over a link with what it leads to.

    Args:
        file: To be written; its suffixes are those of the hidden name.
    """
    suffix = ".nii.gz" if file.name.endswith(".nii.gz") else file.suffix
    part = file.with_name(f".{secrets.token_hex(8)}.part{suffix}")
    try:
        yield part
        part.replace(file)
    except OSError as error:
        if error.filename is not None:
            error.filename = str(file)  # the name that the user knows
        raise
    finally:
        part.unlink(missing_ok=True)
