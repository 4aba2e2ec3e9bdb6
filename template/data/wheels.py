"""Data in wheels of the package index: fetched through pip and checked; nothing of them is installed or run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ..distributed.faults import NamedError


class Wheel(NamedTuple):
    """A file of the package index.

    Attributes:
        requirement: Package and version, ``name==version``.
        file: Its name.
        sha256: Of its content, hexadecimal.
    """

    requirement: str
    file: str
    sha256: str


def download_wheel(wheel: Wheel, temporary: Path, folder: Path, instead: str = "") -> Path:
    """Fetch a wheel from the package index that pip is configured for.

    Args:
        wheel: Which one.
        temporary: Existing folder that it is put into; the caller moves it to its place, so that it is there whole or
            not at all.
        folder: Where a person can put it where there is no network, for the message.
        instead: What that person can put there in its place, such as ``, or a.txt out of it,``.

    Returns:
        The wheel in ``temporary``.

    Raises:
        NamedError: ``download``: it cannot be had, or is another file.
    """
    # Wheels only: pip would run the setup.py of a source archive.
    command = ["pip", "download", "--no-deps", "--only-binary", ":all:", wheel.requirement]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--disable-pip-version-check", "--retries", "2", "--dest", str(temporary)],
        capture_output=True,
        text=True,
        check=False,
    )
    file = temporary / wheel.file
    if done.returncode != 0 or not file.is_file():
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    elif (found := sha256(file.read_bytes())) != wheel.sha256:
        reason = f"the SHA-256 of what came is {found}, not {wheel.sha256}"
    else:
        return file
    raise NamedError(
        "download",
        f"{wheel.file} could not be fetched: {reason}.",
        fix=f"Where there is a network, run `python -m {' '.join(command)}`; put {wheel.file}{instead} into "
        f"{folder.resolve()}.",
    )


def sha256(content: bytes) -> str:
    """Checksum of a file's content, hexadecimal."""
    return hashlib.sha256(content).hexdigest()
