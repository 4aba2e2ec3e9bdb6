"""Names of classes, and the regions that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..distributed.faults import NamedError
from ..labels import MAX_CLASSES, check_regions, default_regions


def check_classes(classes: Sequence[str]) -> None:
    """See whether masks can have these classes.

    Raises:
        NamedError: They are too few or too many, or two have one name.
    """
    if not 2 <= len(classes) <= MAX_CLASSES or len(set(classes)) != len(classes):
        raise NamedError(
            "config",
            f"data.classes names {len(classes)} classes {classes if len(classes) < 20 else ''}.",
            cause=f"A mask needs 2 to {MAX_CLASSES} classes of different names, the background counted.",
            fix="Name the background too: data.classes: [background, liver].",
        )


def scored_regions(regions: Mapping[str, Sequence[int]] | None, classes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The regions that are scored: those asked for, or every class but the background.

    Raises:
        NamedError: One of them joins labels that no class has.
    """
    found = {name: tuple(labels) for name, labels in (regions or default_regions(classes)).items()}
    try:
        check_regions(found, len(classes))
    except ValueError as error:
        raise NamedError("config", f"data.regions does not fit data.classes: {error}.") from error
    return found
