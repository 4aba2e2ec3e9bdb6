from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from template.data.folder import Folder
from template.data.picture_cache import PictureCache
from template.data.picture_files import read_pixels
from template.distributed.faults import NamedError


def never() -> Any:
    raise AssertionError("it is in the cache")


def filed(folder: Path, name: str = "a.png") -> Path:
    file = folder / name
    file.write_bytes(name.encode())
    return file


def entries(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.ones((3, 2), "f4"),
    ],
    ids=lambda array: array.dtype.str,
)
def test_what_is_made_once_is_mapped_from_then_on(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    file, cache = filed(tmp_path), PictureCache(tmp_path / "cache", 1e6)
    assert cache.get(file, "pixels", lambda: array) is array
    again = PictureCache(tmp_path / "cache", 1e6).get(file, "pixels", never)
    assert again.dtype == array.dtype
    assert np.array_equal(again, array)
    assert not again.flags.writeable
    assert [entry.suffix for entry in entries(tmp_path / "cache")] == [".npy"]
    # It is an ordinary .npy file.
    assert np.array_equal(np.load(entries(tmp_path / "cache")[0]), array)


def test_a_turned_array_keeps_its_order(tmp_path: Path) -> None:
    turned = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    file, cache = filed(tmp_path), PictureCache(tmp_path / "cache", 1e6)
    cache.get(file, "pixels", lambda: turned)
    assert np.array_equal(cache.get(file, "pixels", never), turned)


def rewrite(file: Path) -> None:
    file.write_bytes(b"other")  # as long as before, and later


def longer(file: Path) -> None:
    time = file.stat().st_mtime_ns
    file.write_bytes(b"longer")
    os.utime(file, ns=(time, time))


def replace(file: Path) -> None:
    """By a file of the same size and time, as an archive unpacks it."""
    new = file.with_name("new")
    new.write_bytes(b"other")
    shutil.copystat(file, new)
    new.replace(file)


@pytest.mark.parametrize("change", [rewrite, longer, replace])
def test_a_changed_file_is_read_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    file, cache = filed(tmp_path), PictureCache(tmp_path / "cache", 1e6)
    os.utime(file, ns=(10**18, 10**18))
    cache.get(file, "pixels", lambda: np.zeros(3, np.uint8))
    change(file)
    assert cache.get(file, "pixels", lambda: np.ones(3, np.uint8)).all()
    assert cache.get(file, "pixels", never).all()


def test_each_file_and_each_kind_has_its_own_entry(tmp_path: Path) -> None:
    cache, places = PictureCache(tmp_path / "cache", 1e6), []
    for number, (name, kind) in enumerate([("a.png", "pixels"), ("b.png", "pixels"), ("a.png", "labels")]):
        file = filed(tmp_path, name) if not (tmp_path / name).exists() else tmp_path / name
        os.utime(file, ns=(10**18, 10**18))
        cache.get(file, kind, lambda n=number: np.full(3, n, np.uint8))  # type: ignore[misc]
        places.append((file, kind))
    for number, place in enumerate(places):
        assert (cache.get(*place, never) == number).all()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"nonsense" * 40, None], ids=["empty", "cut", "other", "short"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    file, cache = filed(tmp_path), PictureCache(tmp_path / "cache", 1e6)
    cache.get(file, "pixels", lambda: np.arange(100, dtype=np.uint8))
    (entry,) = entries(tmp_path / "cache")
    entry.write_bytes(entry.read_bytes()[:-50] if content is None else content)
    assert cache.get(file, "pixels", lambda: np.arange(100, dtype=np.uint8)).sum() == 4950
    assert cache.get(file, "pixels", never).sum() == 4950


@pytest.mark.parametrize("processes", [1, 2])
def test_it_stays_within_its_limit_and_keeps_what_is_in_it(tmp_path: Path, processes: int) -> None:
    folder, each = tmp_path / "cache", 10_128  # bytes of an entry, header counted
    caches = [PictureCache(folder, 20.5 * each) for _ in range(processes)]
    files = [filed(tmp_path, f"{number}.png") for number in range(40)]
    for number, file in enumerate(files):
        caches[number % processes].get(file, "pixels", lambda: np.zeros(10_000, np.uint8))
    kept = entries(folder)
    assert 19 <= len(kept) <= 20
    assert sum(entry.stat().st_size for entry in kept) <= 20.5 * each
    made = []

    def make() -> Any:
        made.append(1)
        return np.zeros(10_000, np.uint8)

    for file in files:  # the next epoch
        caches[0].get(file, "pixels", make)
    assert len(made) == 40 - len(kept)
    assert entries(folder) == kept


def test_it_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(total=10**9, free=4 * 10**7)
    monkeypatch.setattr("template.data.picture_cache.shutil.disk_usage", lambda folder: usage)
    cache = PictureCache(tmp_path / "cache", 1e12)
    assert cache.get(filed(tmp_path), "pixels", lambda: np.zeros(9, np.uint8)).shape == (9,)
    assert entries(tmp_path / "cache") == []


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    file, cache = filed(tmp_path), PictureCache(None, 1e6)
    for number in range(2):
        assert (cache.get(file, "pixels", lambda n=number: np.full(3, n)) == number).all()  # type: ignore[misc]
    assert entries(tmp_path) == [file]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    cache = PictureCache(filed(tmp_path, "file") / "cache", 1e6)
    with pytest.raises(NamedError, match="data.cache_dir") as raised:
        cache.get(filed(tmp_path), "pixels", lambda: np.zeros(3, np.uint8))
    assert raised.value.identifier == "folder-not-writable"


def _fill(folder: str, number: int) -> int:
    cache = PictureCache(Path(folder) / "cache", 1e9)
    return sum(
        int(cache.get(Path(folder) / f"{n}.png", "pixels", lambda n=n: np.full(5000, n, np.uint8))[0])  # type: ignore[misc]
        for n in range(30)
    )


def test_processes_share_one_folder(tmp_path: Path) -> None:
    for number in range(30):
        filed(tmp_path, f"{number}.png")
    with get_context("fork").Pool(3) as pool:
        sums = pool.starmap(_fill, [(str(tmp_path), n) for n in range(6)])
    assert sums == [sum(range(30))] * 6
    assert len(entries(tmp_path / "cache")) == 30


# In a data set ----------------------------------------------------------------------------------------------------


def data_set(folder: Path, **settings: Any) -> Folder:
    rng = np.random.default_rng(0)
    for part, top in (("images", 256), ("masks", 2)):
        (folder / part).mkdir(exist_ok=True)
        for number in range(4):
            size = (8, 10, 3) if part == "images" and number % 2 else (8, 10)
            Image.fromarray(rng.integers(0, top, size, dtype=np.uint8)).save(folder / part / f"{number}.png")
    return Folder(
        images=str(folder / "images"), masks=str(folder / "masks"), classes=["background", "object"], val_fraction=0,
        test_fraction=0, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
def test_samples_from_the_cache_are_the_same(tmp_path: Path, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = data_set(tmp_path, in_channels=channels)
    kept = data_set(tmp_path, in_channels=channels, cache_dir=str(tmp_path / "cache"))
    decoded = []

    def decode(file: Path) -> Any:
        decoded.append(file)
        return read_pixels(file)

    monkeypatch.setattr("template.data.pictures.read_pixels", decode)
    for epoch in range(2):
        decoded.clear()
        for case in kept.cases("train"):
            image, mask = kept.read(case)
            assert mask is not None
            image += 1  # what a transform may do to what it is given
            mask += 1
        assert len(decoded) == 4 * (epoch == 0)
    for case in plain.cases("train"):
        for one, other in zip(plain.read(case), kept.read(case), strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one, other)
            assert one.dtype == other.dtype


def test_masks_of_another_meaning_are_not_those_of_the_cache(tmp_path: Path) -> None:
    one = data_set(tmp_path, cache_dir=str(tmp_path / "cache"))
    other = data_set(tmp_path, cache_dir=str(tmp_path / "cache"), mask_values={0: 1, 1: 0})
    case = one.cases("train")[0]
    masks = [data.read(case)[1] for data in (one, other)]
    assert masks[0] is not None
    assert masks[1] is not None
    assert torch.equal(masks[0], 1 - masks[1])


def test_new_images_are_not_kept(tmp_path: Path) -> None:
    data = data_set(tmp_path, cache_dir=str(tmp_path / "cache"))
    for case in data.predict_cases(tmp_path / "images"):
        data.read(case)
    assert not (tmp_path / "cache").exists()


def test_by_default_nothing_is_kept(tmp_path: Path) -> None:
    data = data_set(tmp_path)
    data.read(data.cases("train")[0])
    assert {entry.name for entry in tmp_path.iterdir()} == {"images", "masks"}
