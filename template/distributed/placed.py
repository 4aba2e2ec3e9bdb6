"""Exceptions of a user's own class that the catalogue knows; first of all of code that chooses a device by itself."""

from __future__ import annotations

from .faults import NamedError
from .raised import headline, raised_at
from .recognize import recognize

#: What a device that is written into a network leads to where it is not there, or not this rank's.
_DEVICES = ("no-driver", "gpu-count", "module-device", "tensors-on-devices")
_PLACING = (".cuda(", ".to(", "cuda")


def known_failure(error: BaseException, what: str, but: str = "") -> NamedError | None:
    """Name an exception by the catalogue.

    Args:
        error: The exception.
        what: The beginning of the sentence: which class, and what it was doing.
        but: A file whose line would say nothing.

    Returns:
        The named failure; None for an exception that the catalogue does not know.
    """
    finding = recognize(error)
    if finding is None:
        return None
    identifier, place = finding.fault.identifier, raised_at(error, but)
    line, _, code = place.partition(": ")
    if identifier in _DEVICES and any(part in code for part in _PLACING):
        said = headline(error).partition(". ")[0].rstrip(".")
        return NamedError(
            "fixed-device",
            f"{what}: {line} chooses a device by itself: {code} ({said}).",
        )
    return NamedError(identifier, f"{what}: {headline(error).rstrip('.')}{f', at {place}' if place else ''}.")
