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
from template.data.module import Case
from template.distributed.faults import NamedError
from tests.ranks import run_ranks

from .conftest import Stripes, segmenter, trainer


def predict(folder: Path, data: Stripes, **kwargs: Any) -> None:
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
        {"case": f"test_{n}", "file": f"test_{n}.png", "stripe": "24", "unit": "pixels"} for n in range(3)
    ]


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
    assert table(tmp_path) == [{"case": "test_0", "file": "test_0.nii.gz", "stripe": size, "unit": unit}]


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


def test_two_processes_write_their_own_cases_and_one_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")  # not used: the group exists already
    outputs = run_ranks(2, _predict_on_rank, tmp_path)
    assert outputs == [f"3 masks and overlays in {tmp_path}\n", ""]
    assert len(list(tmp_path.glob("test_?.png"))) == len(list(tmp_path.glob("test_?_overlay.png"))) == 3
    assert [row["case"] for row in table(tmp_path)] == ["test_0", "test_1", "test_2"]


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
