from __future__ import annotations

import gzip
import itertools
import zlib
from pathlib import Path

import numpy as np
import pytest

from template.data.unpacked import unpacked

CONTENT = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8).tobytes()


def packed(folder: Path, *parts: bytes) -> Path:
    file = folder / "file.gz"
    file.write_bytes(b"".join(parts))
    return file


@pytest.mark.parametrize("members", [1, 2, 7])
@pytest.mark.parametrize("size", [0, 1, 150_000, 200_000])
def test_joined_files_are_one(members: int, size: int, tmp_path: Path) -> None:
    edges = [len(CONTENT) * n // members for n in range(members + 1)]
    parts = [gzip.compress(CONTENT[a:b]) for a, b in itertools.pairwise(edges)]
    assert unpacked(packed(tmp_path, *parts), size).tobytes() == CONTENT[:size]


def test_what_lies_behind_is_not_looked_at(tmp_path: Path) -> None:
    file = packed(tmp_path, gzip.compress(CONTENT), bytes(1000), b"tail")
    assert unpacked(file, len(CONTENT)).tobytes() == CONTENT


@pytest.mark.parametrize("size", [100, len(CONTENT)])
def test_damage_anywhere_is_seen(size: int, tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(CONTENT, compresslevel=0))
    whole[180_000] ^= 1  # stored as it is: nothing but the checksum tells
    with pytest.raises(zlib.error, match="incorrect data check"):
        unpacked(packed(tmp_path, bytes(whole)), size)


@pytest.mark.parametrize("end", [0, 5, 1000, -1])
def test_a_file_that_ends_too_early_is_refused(end: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it ends after"):
        unpacked(packed(tmp_path, gzip.compress(CONTENT)[:end]), len(CONTENT))


def test_a_file_that_is_not_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(zlib.error, match="incorrect header check"):
        unpacked(packed(tmp_path, CONTENT), 10)
