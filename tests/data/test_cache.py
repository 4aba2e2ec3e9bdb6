from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from template.data.cache import ArrayCache, key_of
from template.distributed.faults import NamedError
from tests.ranks import run_ranks


def test_an_array_is_made_once_and_mapped(tmp_path: Path) -> None:
    made = []

    def make() -> NDArray[Any]:
        made.append(1)
        return np.arange(6, dtype=np.int16).reshape(2, 3)

    cache = ArrayCache(tmp_path / "cache", 1e9)
    for _ in range(3):
        array = cache.get("a", make)
        assert isinstance(array, np.memmap)
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 9
    assert made == [1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a.npy"]


def _fill(rank: int, folder: str) -> tuple[int, list[int]]:
    made = []

    def make() -> NDArray[Any]:
        made.append(rank)
        time.sleep(0.3)
        return np.full(1000, rank)

    cache = ArrayCache(Path(folder), 1e9)
    return int(cache.get("shared", make)[0]), made


def test_ranks_make_it_once_between_them(tmp_path: Path) -> None:
    results = run_ranks(4, _fill, str(tmp_path))
    makers = [maker for _, made in results for maker in made]
    assert len(makers) == 1
    assert {value for value, _ in results} == set(makers)
    assert [path.name for path in tmp_path.iterdir()] == ["shared.npy"]


def test_a_maker_that_fails_or_is_killed_leaves_the_place_to_others(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, 1e9)

    def fails() -> NDArray[Any]:
        raise NamedError("data-unreadable", "'a.nii' cannot be read.")

    with pytest.raises(NamedError, match="a.nii"):
        cache.get("a", fails)
    child = os.fork()
    if child == 0:

        def dies() -> NDArray[Any]:
            os._exit(3)

        cache.get("a", dies)
    os.waitpid(child, 0)
    assert cache.get("a", lambda: np.zeros(2)).tolist() == [0, 0]


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, 1e9)
    cache.get("a", lambda: np.arange(100_000))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:500])
    assert cache.get("a", lambda: np.arange(3)).tolist() == [0, 1, 2]


def test_the_oldest_entries_make_room(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, 25_000)
    for number, name in enumerate("abc"):
        cache.get(name, lambda: np.zeros(1000))  # 8 kB and a header each
        os.utime(tmp_path / f"{name}.npy", (number, number))
    cache.get("a", lambda: np.ones(1000))  # used again: no longer the oldest
    kept = cache.get("b", lambda: np.ones(1000))
    os.utime(tmp_path / "b.npy", (1, 1))
    cache.get("d", lambda: np.zeros(1000))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c", "d"] or not (tmp_path / "b.npy").exists()
    assert kept.sum() == 0  # who has mapped an entry keeps it


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NamedError, match="data.cache_dir") as raised:
        ArrayCache(tmp_path / "file", 1e9).get("a", lambda: np.zeros(1))
    assert raised.value.identifier == "folder-not-writable"


def test_the_key_changes_with_content_time_and_settings(tmp_path: Path) -> None:
    file, copy = tmp_path / "a.nii", tmp_path / "b.nii"
    for one in (file, copy):
        one.write_bytes(b"x" * 200_000)
        os.utime(one, (5, 5))
    key = key_of(file, spacing=[1.0, None])
    assert key == key_of(copy, spacing=[1.0, None])  # the same under another name
    assert key != key_of(file, spacing=[2.0, None])
    os.utime(file, (6, 6))
    assert key != key_of(file, spacing=[1.0, None])
    copy.write_bytes(b"x" * 199_999 + b"y")
    os.utime(copy, (5, 5))
    assert key != key_of(copy, spacing=[1.0, None])
