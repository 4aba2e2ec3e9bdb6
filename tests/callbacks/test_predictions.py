from __future__ import annotations

import csv
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from template.callbacks.drawing import overlay
from template.callbacks.predictions import PredictionWriter
from template.data.dataset import Case
from template.data.folder import Folder
from template.data.module import SegmentationData, Split
from template.distributed.faults import NamedError
from tests.ranks import run_ranks

from .conftest import Stripes, segmenter, trainer


def predict(folder: Path, data: SegmentationData, **kwargs: Any) -> None:
    trainer(PredictionWriter(folder), **kwargs).predict(segmenter(), datamodule=data, return_predictions=False)


def read(file: Path) -> Tensor:
    return torch.from_numpy(np.array(Image.open(file)))


def expected_overlay() -> Tensor:
    """Bright, and predicted, are the left 4 columns."""
    picture, mask = torch.zeros(6, 10, dtype=torch.uint8), torch.zeros(6, 10, dtype=torch.uint8)
    picture[:, :4], mask[:, :4] = 200, 1
    return overlay(picture.expand(3, -1, -1), mask, ["background", "stripe"]).permute(1, 2, 0)


def test_each_case_gets_a_mask_and_an_overlay_of_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "masks"
    predict(folder, Stripes(test=3))
    names = ["test_0", "test_1", "test_2"]
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [f"{name}.png" for name in names] + [f"{name}_overlay.png" for name in names] + ["predict.csv"]
    )
    for name in names:
        assert read(folder / f"{name}.png").tolist() == [[1] * 4 + [0] * 6] * 6
        assert torch.equal(read(folder / f"{name}_overlay.png"), expected_overlay())
    assert capsys.readouterr().out == f"3 masks and overlays in {folder}\n"


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "predict.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_table_says_how_large_each_class_is(tmp_path: Path) -> None:
    predict(tmp_path, Stripes(test=3))
    assert table(tmp_path) == [
        {"case": f"test_{n}", "file": f"test_{n}.png", "input": "", "stripe": "24", "unit": "pixels"} for n in range(3)
    ]


def test_regions_that_join_classes_have_their_sizes_too(tmp_path: Path) -> None:
    predict(tmp_path, Stripes(test=1, regions={"stripe": [1], "all": [0, 1]}))
    (row,) = table(tmp_path)
    assert list(row) == ["case", "file", "input", "stripe", "region_stripe", "region_all", "unit"]
    assert (row["stripe"], row["region_stripe"], row["region_all"]) == ("24", "24", "60")


def test_an_overlay_takes_no_mask_s_name(tmp_path: Path) -> None:
    class Named(Stripes):
        def cases(self, split: Split) -> list[Case]:
            return [Case(name, None) for name in ("x", "x_overlay", "x_overlay_")]

    predict(tmp_path, Named())
    masks = {name: read(tmp_path / f"{name}.png").tolist() for name in ("x", "x_overlay", "x_overlay_")}
    assert all(mask == [[1] * 4 + [0] * 6] * 6 for mask in masks.values())
    for name in ("x_overlay__", "x_overlay_overlay", "x_overlay__overlay"):
        assert torch.equal(read(tmp_path / f"{name}.png"), expected_overlay())


def pictures(folder: Path, names: Sequence[str], broken: Sequence[str]) -> Folder:
    """Pictures whose left 4 columns are bright, and files that are none."""
    pixels = np.zeros((6, 10), np.uint8)
    pixels[:, :4] = 255
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name in broken:
            (folder / name).write_bytes(b"no picture")
        else:
            Image.fromarray(pixels).save(folder / name)
    return Folder(
        images=str(folder),
        classes=["background", "stripe"],
        in_channels=1,
        num_workers=0,
        batch_size=4,
        predict=str(folder / "**" / "*.png"),
    )


FILES, BROKEN = ["a.png", "b.png", "c.png", "d.png", "e.png", "f/f.png"], ["b.png", "c.png", "f/f.png"]


def _says_what_is_broken(images: Path, masks: Path, error: NamedError) -> None:
    assert error.identifier == "data-unreadable"
    assert error.what == (
        f"'{images / 'b.png'}' cannot be read: it is not a picture. Not predicted either: '{images / 'c.png'}', "
        f"'{images / 'f' / 'f.png'}'. Predicted: 3 of 6 cases."
    )
    rows = [(row["case"], row["file"], row["input"], row["stripe"]) for row in table(masks)]
    assert rows == [(name, f"{name}.png", str(images / f"{name}.png"), "24") for name in "ade"]
    for name in "ade":
        assert read(masks / f"{name}.png").tolist() == [[1] * 4 + [0] * 6] * 6


def test_what_is_good_is_predicted_before_what_is_broken_is_named(tmp_path: Path) -> None:
    images, masks = tmp_path / "images", tmp_path / "masks"
    with pytest.raises(NamedError) as failure:
        predict(masks, pictures(images, FILES, BROKEN))
    _says_what_is_broken(images, masks, failure.value)


def test_one_broken_file_is_named_as_it_is(tmp_path: Path) -> None:
    data = pictures(tmp_path / "images", ["a.png", "b.png"], ["a.png"])
    data.num_workers = 1  # whose failure comes out of another process
    with pytest.raises(NamedError) as failure:
        predict(tmp_path / "masks", data)
    told = f"'{tmp_path / 'images' / 'a.png'}' cannot be read: it is not a picture. Predicted: 1 of 2 cases."
    assert failure.value.what == told
    assert [row["case"] for row in table(tmp_path / "masks")] == ["b"]


def test_the_input_is_told_from_the_folder_that_was_given(tmp_path: Path) -> None:
    data = pictures(tmp_path / "images", ["a.png", "f/a.png"], [])
    data.predict_path = tmp_path / "images" / "f"
    predict(tmp_path / "masks", data)
    assert [(row["case"], row["input"]) for row in table(tmp_path / "masks")] == [("a", "a.png")]


def test_a_failure_that_is_not_of_a_case_ends_at_once(tmp_path: Path) -> None:
    class Full(Stripes):
        def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
            raise NamedError("folder-not-writable", "The cache is full.")

    with pytest.raises(NamedError, match=r"^The cache is full\.") as failure:
        predict(tmp_path, Full(test=3))
    assert failure.value.identifier == "folder-not-writable"


def test_without_somebody_who_tells_it_a_broken_file_ends_at_once(tmp_path: Path) -> None:
    data = pictures(tmp_path / "images", ["a.png", "b.png", "c.png"], ["b.png", "c.png"])
    with pytest.raises(NamedError) as failure:
        trainer().predict(segmenter(), datamodule=data)
    assert failure.value.what == f"'{tmp_path / 'images' / 'b.png'}' cannot be read: it is not a picture."


@pytest.mark.parametrize(
    ("depth", "spacing", "size", "unit"),
    [
        (None, (0.5, 2.5), "30", "mm²"),  # 24 pixels of 1.25 mm²
        (4, (5.0, 0.5, 2.5), "0.15", "ml"),  # 24 voxels of 6.25 mm³
        (4, None, "24", "voxels"),
    ],
)
def test_where_the_spacing_is_known_sizes_are_metric(
    tmp_path: Path, depth: int | None, spacing: Sequence[float] | None, size: str, unit: str
) -> None:
    class Spaced(Volumes):
        def spacing(self, case: Case) -> Sequence[float] | None:
            return spacing

    predict(tmp_path, Spaced(test=1, depth=depth))
    assert table(tmp_path) == [{"case": "test_0", "file": "test_0.nii.gz", "input": "", "stripe": size, "unit": unit}]


class Volumes(Stripes):
    """Keeps the shapes of the masks it is given, and writes files as NIfTI data sets name them."""

    written: list[tuple[str, tuple[int, ...]]]

    def write(self, case: Case, mask: Tensor, folder: Path) -> Path:
        self.written = [*getattr(self, "written", []), (case.name, tuple(mask.shape))]
        file = folder / f"{case.name}.nii.gz"
        file.touch()
        return file


def test_a_volume_is_shown_by_its_fullest_slice(tmp_path: Path) -> None:
    data = Volumes(test=1, depth=4)
    predict(tmp_path, data)
    assert data.written == [("test_0", (4, 6, 10))]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["predict.csv", "test_0.nii.gz", "test_0_overlay.png"]
    assert torch.equal(read(tmp_path / "test_0_overlay.png"), expected_overlay())


def _predict_on_rank(rank: int, folder: Path) -> str:
    import contextlib
    import io
    import warnings

    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")
        environment = TorchElasticEnvironment()
        predict(folder, Stripes(test=3), devices=2, strategy="ddp", plugins=[environment])
    return out.getvalue()


def elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun tells its processes."""
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")  # not used: the group exists already


def test_two_processes_write_their_own_cases_and_one_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic(monkeypatch)
    outputs = run_ranks(2, _predict_on_rank, tmp_path)
    assert outputs == [f"3 masks and overlays in {tmp_path}\n", ""]
    assert len(list(tmp_path.glob("test_?.png"))) == len(list(tmp_path.glob("test_?_overlay.png"))) == 3
    assert [row["case"] for row in table(tmp_path)] == ["test_0", "test_1", "test_2"]


def _predict_broken_on_rank(rank: int, folder: Path) -> tuple[str, str, str]:
    import warnings

    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    data = pictures(folder / f"images {rank}", [], [])
    data.predict_path = folder / "images" / "**" / "*.png"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            environment = TorchElasticEnvironment()
            predict(folder / "masks", data, devices=2, strategy="ddp", plugins=[environment])
    except NamedError as error:
        return error.identifier, error.what, error.fix
    return "", "", ""


def test_two_processes_name_what_is_broken_on_any_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elastic(monkeypatch)
    pictures(tmp_path / "images", FILES, BROKEN)
    first, second = run_ranks(2, _predict_broken_on_rank, tmp_path)
    assert first == second
    _says_what_is_broken(tmp_path / "images", tmp_path / "masks", NamedError(first[0], first[1]))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NamedError, match=r"'.*/file/masks' cannot be written: Not a directory") as failure:
        predict(tmp_path / "file" / "masks", Stripes())
    assert failure.value.identifier == "folder-not-writable"
    assert "--out" in failure.value.fix


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Image.Image, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(NamedError, match=f"'{tmp_path}' cannot be written: No space left on device") as failure:
        predict(tmp_path, Stripes())
    assert failure.value.identifier == "folder-not-writable"


def test_an_image_that_cannot_be_read_is_not_called_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Stripes):
        reads = 0

        def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
            self.reads += 1
            if self.reads > 2:  # the first batch has 2
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", "image.png")
            return super().read(case)

    with pytest.raises(FileNotFoundError):
        predict(tmp_path, Gone())
