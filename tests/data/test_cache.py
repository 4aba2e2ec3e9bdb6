from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from template.data.cache import ArrayCache, key_of
from template.data.nifti import LiTS, Nifti
from template.distributed.faults import NamedError
from tests.ranks import run_ranks

from . import volume_sets


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


def test_what_a_killed_process_has_begun_to_write_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.4711.part").write_bytes(b"half")
    (tmp_path / "b.4711.part").write_bytes(b"of another entry, which may be being written")
    ArrayCache(tmp_path, 1e9).get("a", lambda: np.zeros(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.4711.part"]


def _stumble(rank: int, folder: str) -> list[str]:
    """Make it together with others; the first two who come to it fail."""
    events, cache = Path(folder) / "events", ArrayCache(Path(folder) / "cache", 1e9)

    def make() -> NDArray[Any]:
        place = len(events.read_text()) if events.exists() else 0
        with events.open("a") as file:
            file.write("(")
        time.sleep(0.2)
        with events.open("a") as file:
            file.write(")")
        if place < 4:
            raise NamedError("data-unreadable", "'a.nii' cannot be read.")
        return np.full(1000, 7)

    for _ in range(3):
        try:
            return [str(cache.get("shared", make)[0])]
        except NamedError:
            continue
    return ["never"]


def test_of_those_who_wait_for_one_that_fails_one_alone_tries_again(tmp_path: Path) -> None:
    assert run_ranks(4, _stumble, str(tmp_path)) == [["7"]] * 4
    assert (tmp_path / "events").read_text() == "()()()"  # never two at a time
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["shared.npy"]


def _crowd(rank: int, folder: str) -> bool:
    cache = ArrayCache(Path(folder), 50_000)
    # Each number is asked for by two of the ranks.
    return all(
        (cache.get(f"k{number}", lambda value=number: np.full(1000, value)) == number).all()
        for number in [(rank // 2 * 20 + step) % 40 for step in range(40)]
    )


def test_ranks_that_need_more_than_fits_get_it_all_and_leave_no_more_than_fits(tmp_path: Path) -> None:
    assert run_ranks(4, _crowd, str(tmp_path)) == [True] * 4
    assert {path.suffix for path in tmp_path.iterdir()} == {".npy"}
    ArrayCache(tmp_path, 50_000).get("last", lambda: np.zeros(1000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 50_000 + 128  # the header of the last


def _decode(rank: int, root: str) -> tuple[float, int]:
    data = LiTS(root, cache_dir=str(Path(root).parent / "chosen"), val_fraction=0, test_fraction=0)
    decoded, count = data.decoded._decoded_image, []
    data.decoded._decoded_image = lambda volume: (count.append(1), time.sleep(0.2), decoded(volume))[2]
    return sum(float(data.read(case)[0].double().sum()) for case in data.cases("train")), len(count)


def test_ranks_decode_each_volume_once_into_the_folder_that_is_chosen(tmp_path: Path) -> None:
    root = volume_sets.lits(tmp_path / "lits", 3)
    before = sorted(root.rglob("*"))
    results = run_ranks(3, _decode, str(root))
    assert sum(count for _, count in results) == 3
    assert len({total for total, _ in results}) == 1
    assert sorted(root.rglob("*")) == before
    kinds = [path.name.split("_")[0] for path in (tmp_path / "chosen").iterdir()]
    assert sorted(kinds) == ["image"] * 3 + ["mask"] * 3


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


def test_the_key_changes_with_place_content_time_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, copy = tmp_path / "a.nii", tmp_path / "b.nii"
    for one in (file, copy):
        one.write_bytes(b"x" * 200_000)
        os.utime(one, (5, 5))
    key = key_of(file, spacing=[1.0, None])
    monkeypatch.chdir(tmp_path)
    assert key == key_of(Path("a.nii"), spacing=[1.0, None])
    assert key != key_of(file, spacing=[2.0, None])
    assert key != key_of(copy, spacing=[1.0, None])  # what is not looked at, in the middle, may differ
    os.utime(file, (6, 6))
    assert key != key_of(file, spacing=[1.0, None])
    file.write_bytes(b"x" * 199_999 + b"y")
    os.utime(file, (5, 5))
    assert key != key_of(file, spacing=[1.0, None])


def test_volumes_that_differ_in_the_middle_alone_are_kept_apart(tmp_path: Path) -> None:
    """Brains cut out on one grid, such as those of BraTS: unpacked, of one size and moment, and 0 at both ends."""
    for number in range(3):
        voxels = np.zeros((48, 48, 96), np.uint8)
        voxels[20:30, 20:30, 40 : 41 + number] = 1
        for part in ("i", "m"):
            file = tmp_path / part / f"{number}.nii"
            file.parent.mkdir(exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), file)
            os.utime(file, (5, 5))
    data = Nifti(
        images=str(tmp_path / "i"), masks=str(tmp_path / "m"), classes=["background", "brain"],
        val_fraction=1.0, test_fraction=0.0, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    sums = []
    for case in data.cases("val"):
        image, mask = data.read(case)
        assert mask is not None
        sums.append((int(image.sum()), int(mask.sum())))
    assert sums == [(100, 100), (200, 200), (300, 300)]
