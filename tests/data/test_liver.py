"""The CT itself is not needed: a made-up volume under checksums of its own stands in for it."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from template.data import liver, wheels
from template.data.liver import IMAGE, LABELS, WHEEL, LiverCT, fetch, load, split_slices, threshold_dice
from template.distributed.faults import NamedError

SIDE = 128
MEMBER = "liver_ct_segmentation_package/data/"
REAL_SHA256 = dict(liver.SHA256)


@pytest.fixture(scope="session")
def volumes() -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """A box of liver (100 HU) with a box of tumour (50 HU) in fat, and every voxel's place in its last digits."""
    image = np.full((SIDE, SIDE, SIDE), -100, np.float32)
    labels = np.zeros((SIDE, SIDE, SIDE), np.uint16)
    labels[20:70, 30:90, :] = 1
    labels[40:60, 50:80, :] = 2
    image += 200.0 * (labels > 0) - 50.0 * (labels == 2)
    x, y, z = np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij")
    return image + np.float32((x + 2 * y + 4 * z) / 1024), labels


@pytest.fixture(scope="session")
def contents(volumes: tuple[NDArray[np.float32], NDArray[np.uint16]]) -> dict[str, bytes]:
    image, labels = volumes
    return {IMAGE: bytes(1024) + image.astype("<f4").tobytes(), LABELS: bytes(1024) + labels.astype("<u2").tobytes()}


@pytest.fixture(scope="session")
def wheel(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("wheel") / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("liver_ct_segmentation_package/__init__.py", "raise SystemExit('was run')")
        for name, content in contents.items():
            archive.writestr(MEMBER + name, content)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def checksums(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], wheel: bytes) -> None:
    for name, content in {**contents, WHEEL: wheel}.items():
        monkeypatch.setitem(liver.SHA256, name, hashlib.sha256(content).hexdigest())


class Index:
    """Stands in for pip: serves a wheel, or fails as pip does."""

    def __init__(self, content: bytes | None, errors: str = "") -> None:
        self.content = content
        self.errors = errors
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.content is not None:
            (Path(command[command.index("--dest") + 1]) / WHEEL).write_bytes(self.content)
        return subprocess.CompletedProcess(command, int(self.content is None), stdout="", stderr=self.errors)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> Index:
    served = Index(wheel)
    monkeypatch.setattr(wheels.subprocess, "run", served)
    return served


@pytest.fixture
def folder(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    """A folder with the two files, placed by hand."""
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ready(data: LiverCT) -> LiverCT:
    data.prepare_data()
    data.setup("fit")
    return data


# Splits ------------------------------------------------------------------------------------------------------------


def test_slabs_of_16_slices_are_held_out_with_two_dropped_beside_them() -> None:
    splits = split_slices()
    assert splits["val"] == list(range(32, 48))
    assert splits["test"] == list(range(96, 112))
    assert splits["train"] == [*range(30), *range(50, 94), *range(114, 128)]
    assert len(splits["train"]) == 88


@pytest.mark.parametrize("context", [0, 1])
def test_no_slice_is_an_input_of_two_splits(context: int) -> None:
    seen = [
        {near for k in numbers for near in range(k - context, k + context + 1)} for numbers in split_slices().values()
    ]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


@pytest.mark.parametrize("context", [-1, 2])
def test_context_that_reaches_into_the_next_split_is_refused(context: int) -> None:
    with pytest.raises(NamedError, match=r"data\.context") as caught:
        LiverCT(context=context)
    assert caught.value.identifier == "config"


# Reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [0, 1])
def test_a_slice_is_the_transposed_axial_plane(folder: Path, volumes: Any, context: int) -> None:
    data = ready(LiverCT(str(folder), context=context))
    assert data.in_channels == 1 + 2 * context
    case = data.cases("val")[5]
    assert case == ("slice_037", 37)
    image, mask = data.read(case)
    assert mask is not None
    assert image.dtype == torch.float32
    assert mask.dtype == torch.uint8
    for channel, k in enumerate(range(37 - context, 38 + context)):
        np.testing.assert_array_equal(image[channel].numpy(), volumes[0][:, :, k].T)
    np.testing.assert_array_equal(mask.numpy(), volumes[1][:, :, 37].T)


def test_the_outermost_slice_stands_in_for_neighbours_past_it(folder: Path, volumes: Any) -> None:
    data = LiverCT(str(folder), context=1)
    train = data.cases("train")
    lowest, highest = data.read(train[0])[0], data.read(train[-1])[0]
    assert (train[0].source, train[-1].source) == (0, 127)
    for channel, k in enumerate([0, 0, 1]):
        np.testing.assert_array_equal(lowest[channel].numpy(), volumes[0][:, :, k].T)
    for channel, k in enumerate([126, 127, 127]):
        np.testing.assert_array_equal(highest[channel].numpy(), volumes[0][:, :, k].T)


def test_what_it_says_about_itself(folder: Path) -> None:
    data = LiverCT(str(folder), batch_size=4)
    assert data.classes == ["background", "liver", "tumour"]
    assert {name: list(labels) for name, labels in data.regions.items()} == {"liver": [1, 2], "tumour": [2]}
    everything = [case.name for split in ("train", "val", "test") for case in data.cases(split)]  # type: ignore[arg-type]
    assert len(set(everything)) == 120


def test_a_copy_in_a_loader_worker_reads_the_same(folder: Path) -> None:
    data = LiverCT(str(folder))
    data.setup("test")
    copy = pickle.loads(pickle.dumps(data))
    case = data.cases("test")[0]
    assert torch.equal(copy.read(case)[0], data.read(case)[0])


def test_pictures_show_the_slice_itself_in_the_abdominal_window(folder: Path) -> None:
    image = torch.stack(
        [torch.full((4, 4), 7.0), torch.tensor([[-1000.0, -160.0, 40.0, 240.0]] * 4), torch.zeros(4, 4)]
    )
    shown = LiverCT(str(folder), context=1).display(image)
    assert shown.shape == (3, 4, 4)
    assert shown[:, 0].tolist() == [[0, 0, 127, 255]] * 3


# Fetching ----------------------------------------------------------------------------------------------------------


def test_the_wheel_is_fetched_and_only_two_members_are_taken_out(
    tmp_path: Path, index: Index, contents: dict[str, bytes]
) -> None:
    folder = tmp_path / "data" / "ct"
    fetch(folder)
    assert names(folder) == sorted([IMAGE, LABELS, WHEEL])
    for name, content in contents.items():
        assert (folder / name).read_bytes() == content
    (command,) = index.commands
    assert command[1:6] == ["-m", "pip", "download", "--no-deps", "--only-binary"]
    assert "liver-ct-segmentation-package==1.6.0" in command
    fetch(folder)
    assert len(index.commands) == 1


@pytest.mark.parametrize("by_hand", [[WHEEL], [IMAGE, LABELS]], ids=["wheel", "files"])
def test_files_placed_by_hand_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], wheel: bytes, by_hand: list[str]
) -> None:
    offline = Index(None)
    monkeypatch.setattr(wheels.subprocess, "run", offline)
    for name in by_hand:
        (tmp_path / name).write_bytes({**contents, WHEEL: wheel}[name])
    fetch(tmp_path)
    assert load(tmp_path)[0].shape == (SIDE, SIDE, SIDE)
    assert offline.commands == []


def test_offline_says_which_file_to_put_where_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = "WARNING: Retrying\nERROR: No matching distribution found for liver-ct-segmentation-package==1.6.0\n"
    monkeypatch.setattr(wheels.subprocess, "run", Index(None, errors))
    with pytest.raises(NamedError, match="No matching distribution found") as caught:
        fetch(tmp_path / "ct")
    assert caught.value.identifier == "download"
    for part in (
        WHEEL,
        IMAGE,
        LABELS,
        str((tmp_path / "ct").resolve()),
        "pip download --no-deps --only-binary :all: liver-ct-segmentation-package==1.6.0",
    ):
        assert part in caught.value.fix
    assert names(tmp_path / "ct") == []


def test_a_wheel_that_is_not_the_expected_one_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.subprocess, "run", Index(b"<html>log in</html>"))
    with pytest.raises(NamedError, match="SHA-256") as caught:
        fetch(tmp_path)
    assert caught.value.identifier == "download"
    assert names(tmp_path) == []


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("damaged", [WHEEL, IMAGE, LABELS])
def test_a_damaged_file_is_named(folder: Path, wheel: bytes, contents: dict[str, bytes], damaged: str) -> None:
    if damaged == WHEEL:
        (folder / IMAGE).unlink()
    (folder / damaged).write_bytes({**contents, WHEEL: wheel}[damaged][:-1])
    with pytest.raises(NamedError, match=damaged) as caught:
        ready(LiverCT(str(folder)))
    assert caught.value.identifier == "data-unreadable"
    assert "Delete it" in caught.value.fix


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NamedError, match=IMAGE) as caught:
        LiverCT(str(tmp_path)).setup("fit")
    assert caught.value.identifier == "data-missing"


@pytest.mark.usefixtures("index")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NamedError, match="file") as caught:
        fetch(tmp_path / "file" / "ct")
    assert caught.value.identifier == "folder-not-writable"


# Baseline ----------------------------------------------------------------------------------------------------------


def test_the_best_interval_is_found() -> None:
    truth = torch.tensor([0, 0, 1, 1, 1, 0, 0]).bool()
    train = torch.tensor([-50.0, 40.0, 60.0, 80.0, 99.0, 120.0, 300.0])
    # Best on the training values: from the edge that keeps 40 out to the one that keeps 120 out.
    test = torch.tensor([-50.0, 70.0, 60.0, 80.0, 150.0, 120.0, 300.0])
    # Chosen are 70, 60, 80; two of them are among the three true ones.
    assert threshold_dice(train, truth, test, truth) == pytest.approx(2 * 2 / (3 + 3))


def test_the_best_interval_agrees_with_trying_all() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400, generator=generator) * 15
    truth = (values + torch.randn(400, generator=generator) * 10).abs() < 12
    scores = []
    for low in range(-60, 60):
        for high in range(low + 1, 61):
            found = (values >= low) & (values < high)
            scores.append(2 * (found & truth).sum().item() / (found.sum() + truth.sum()).item())
    assert threshold_dice(values, truth, values, truth) == pytest.approx(max(scores))


def test_the_baseline_of_a_volume_of_plain_boxes(folder: Path) -> None:
    scores = LiverCT(str(folder)).baseline()
    assert list(scores) == ["liver", "tumour"]
    # The boxes differ by 50 HU and more: only voxels next to an edge, which the Gaussian mixes, are wrong.
    assert 0.97 < scores["liver"] <= 1.0
    assert 0.9 < scores["tumour"] <= 1.0


@pytest.mark.slow
def test_the_real_ct_is_what_we_say_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, digest in REAL_SHA256.items():
        monkeypatch.setitem(liver.SHA256, name, digest)
    try:
        data = ready(LiverCT(str(tmp_path)))
    except NamedError as error:
        if error.identifier == "download":
            pytest.skip(str(error))
        raise
    image, labels = load(tmp_path)
    assert image.shape == labels.shape == (128, 128, 128)
    assert (round(float(image.min())), round(float(image.max()))) == (-1063, 1877)
    assert np.bincount(labels.ravel()).tolist() == [1_481_801, 485_268, 130_083]
    scores = data.baseline()
    assert scores["liver"] == pytest.approx(0.870, abs=0.002)
    assert scores["tumour"] == pytest.approx(0.629, abs=0.002)
