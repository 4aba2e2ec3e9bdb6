from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from template.callbacks.case_scores import CaseScores, scores_of
from template.callbacks.drawing import panel
from template.callbacks.measures import unit_of
from template.callbacks.summary import ScoreTable
from template.data.module import Case
from template.distributed.faults import NamedError
from template.labels import IGNORE_INDEX
from tests.ranks import run_ranks

from .conftest import HEIGHT, WIDTH, Stripes, segmenter, trainer


class Bands(Stripes):
    """Case n is predicted to be bright in 4 columns, and labelled in n + 1; case 4 in none, case 5 nowhere bright."""

    spaced: tuple[float, ...] | None = None

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        image, mask = super().read(case)
        number = int(case.source)
        mask[:] = 0
        if number == 5:
            image[:] = 0
        if number < 4:
            (mask if self.depth is None else mask[2])[:, : number + 1] = 1
        return image, mask

    def spacing(self, case: Case) -> Sequence[float] | None:
        return self.spaced


def test(folder: Path, data: Stripes, **kwargs: Any) -> CaseScores:
    scores = CaseScores(folder)
    trainer(scores, ScoreTable(folder), **kwargs).test(segmenter(), datamodule=data, verbose=False)
    return scores


test.__test__ = False  # type: ignore[attr-defined]  # the verb, no test


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "cases.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def numbers(row: dict[str, str]) -> dict[str, float]:
    return {
        key: float(value) for key, value in row.items() if value and key not in ("case", "hd95_unit", "volume_unit")
    }


# Worked out by hand: predicted are 4 columns of 6 pixels, true n + 1 of them. The right edges lie 3 - n columns apart;
# of the 20 edge pixels of the wider band more than a twentieth are that far from the other.
EXPECTED = [
    (f"test_{n}", {"dice": 2 * (n + 1) / (n + 5), "iou": (n + 1) / 4, "hd95": 3.0 - n, "volume_error": 6.0 * (3 - n)})
    for n in range(4)
]


def test_each_case_has_its_scores_under_its_name(tmp_path: Path) -> None:
    test(tmp_path, Bands(test=6, batch_size=4))
    found = rows(tmp_path)
    assert [row["case"] for row in found] == [f"test_{n}" for n in range(6)]
    for row, (name, values) in zip(found, EXPECTED, strict=False):
        assert row["case"] == name
        means = {"dice": values["dice"], "iou": values["iou"]}
        assert numbers(row) == pytest.approx({**means, **{f"{key}_stripe": v for key, v in values.items()}}, rel=1e-5)
        assert (row["hd95_unit"], row["volume_unit"]) == ("pixels", "pixels")
    # Nothing true, 24 pixels predicted: no distance. Nothing true and nothing predicted: no Dice either.
    assert numbers(found[4]) == {"dice": 0, "iou": 0, "dice_stripe": 0, "iou_stripe": 0, "volume_error_stripe": 24}
    assert numbers(found[5]) == {"volume_error_stripe": 0}


def test_validate_writes_what_test_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test(tmp_path / "test", Bands(test=6))
    said = capsys.readouterr().out
    scores = CaseScores(tmp_path / "val")
    watched = trainer(scores, ScoreTable(tmp_path / "val"))
    watched.validate(segmenter(), datamodule=Bands(val=6), verbose=False)
    as_test = [{**row, "case": row["case"].replace("val_", "test_")} for row in rows(tmp_path / "val")]
    assert as_test == rows(tmp_path / "test")
    names = ["worst_1_val_4.png", "worst_2_val_0.png", "worst_3_val_1.png"]
    assert sorted(file.name for file in (tmp_path / "val").glob("*.png")) == names
    found = [json.loads((tmp_path / verb / "scores.json").read_text())["cases"] for verb in ("test", "val")]
    assert {**found[1], "worst": None} == {**found[0], "worst": None}
    table, after = (out.partition("\n")[2].replace(str(tmp_path), "") for out in (said, capsys.readouterr().out))
    assert after == table.replace("test_", "val_").replace("/test/", "/val/")


def test_the_validation_of_a_fit_is_not_written_case_by_case(tmp_path: Path) -> None:
    trainer(CaseScores(tmp_path / "cases"), max_epochs=1).fit(segmenter(), datamodule=Bands())
    assert not (tmp_path / "cases").exists()


def test_means_are_in_the_table_and_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test(tmp_path, Bands(test=6))
    cases = json.loads((tmp_path / "scores.json").read_text())["cases"]
    dice = sum(values["dice"] for _, values in EXPECTED) / 5  # the fifth is 0
    assert cases["cases"] == 6
    assert cases["dice"] == cases["dice_stripe"] == pytest.approx(dice)
    assert cases["iou_stripe"] == pytest.approx((1 + 2 + 3 + 4) / 4 / 5)
    assert cases["hd95_stripe"] == pytest.approx((3 + 2 + 1 + 0) / 4)
    assert cases["volume_error_stripe"] == pytest.approx((18 + 12 + 6 + 0 + 24 + 0) / 6)
    assert cases["hd95_left_out"] == {"stripe": 2}
    assert cases["worst"] == {"test_4": 0, "test_0": pytest.approx(0.4), "test_1": pytest.approx(2 / 3)}
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if line.startswith("stripe"))
    assert row.split()[3:] == [f"{dice:.4f}", "0.5000", "1.50", "10.00"]
    assert f"6 cases in {tmp_path}/cases.csv\n" in said
    assert "worst: test_4 (Dice 0.0000), test_0 (Dice 0.4000), test_1 (Dice 0.6667)\n" in said
    assert "HD95 leaves out 2 of stripe: truth or prediction is empty there\n" in said


def test_the_worst_cases_are_drawn(tmp_path: Path) -> None:
    test(tmp_path, Bands(test=6))
    names = ["worst_1_test_4.png", "worst_2_test_0.png", "worst_3_test_1.png"]
    assert sorted(file.name for file in tmp_path.glob("*.png")) == names
    image, truth, prediction = (torch.zeros(HEIGHT, WIDTH, dtype=torch.uint8) for _ in range(3))
    image[:, :4], truth[:, :1], prediction[:, :4] = 200, 1, 1
    expected = panel(image.expand(3, -1, -1), truth, prediction, ["background", "stripe"], name="test_0")
    assert np.array_equal(np.array(Image.open(tmp_path / names[1])), expected.permute(1, 2, 0).numpy())


def test_where_the_spacing_is_known_it_is_millimetres(tmp_path: Path) -> None:
    data = Bands(test=2)
    data.spaced = (2.0, 0.5)
    test(tmp_path, data)
    first = rows(tmp_path)[0]
    assert (first["hd95_unit"], first["volume_unit"]) == ("mm", "mm²")
    assert float(first["hd95_stripe"]) == pytest.approx(3 * 0.5)
    assert float(first["volume_error_stripe"]) == pytest.approx(18 * 2 * 0.5)


def test_of_a_volume_the_slice_with_the_most_errors_is_drawn(tmp_path: Path) -> None:
    data = Bands(test=1, depth=4)
    data.spaced = (5.0, 2.0, 0.5)
    test(tmp_path, data)
    (row,) = rows(tmp_path)
    assert (row["hd95_unit"], row["volume_unit"]) == ("mm", "ml")
    # One slice: all of its pixels are edges. Of the 24 predicted 6 each are 0, 1, 2 and 3 columns away.
    assert float(row["hd95_stripe"]) == pytest.approx(3 * 0.5)
    assert float(row["volume_error_stripe"]) == pytest.approx(18 * 5 * 2 * 0.5 / 1000)
    image, truth, prediction = (torch.zeros(HEIGHT, WIDTH, dtype=torch.uint8) for _ in range(3))
    image[:, :4], truth[:, :1], prediction[:, :4] = 200, 1, 1
    expected = panel(image.expand(3, -1, -1), truth, prediction, ["background", "stripe"], name="test_0, slice 2")
    assert np.array_equal(np.array(Image.open(tmp_path / "worst_1_test_0.png")), expected.permute(1, 2, 0).numpy())


def test_cases_of_several_units_have_no_mean(tmp_path: Path) -> None:
    class Mixed(Bands):
        def spacing(self, case: Case) -> Sequence[float] | None:
            return (1.0, 1.0) if case.source else None

    scores = test(tmp_path, Mixed(test=2))
    assert scores.summary is not None
    assert [row["hd95_unit"] for row in rows(tmp_path)] == ["pixels", "mm"]
    assert math.isnan(scores.summary.means["hd95_stripe"])
    assert math.isnan(scores.summary.means["volume_error_stripe"])
    assert scores.summary.means["dice_stripe"] > 0


def test_pixels_that_do_not_count_count_nowhere() -> None:
    truth = np.array([[0, 1, 1, IGNORE_INDEX], [0, 2, 2, IGNORE_INDEX]], np.uint8)
    prediction = np.array([[0, 1, 1, 1], [0, 2, 0, 2]], np.uint8)
    values = scores_of(truth, prediction, {"both": [1, 2], "second": [2]}, unit_of(None, 2))
    assert values["dice_both"] == pytest.approx(6 / 7)
    assert values["iou_second"] == pytest.approx(0.5)
    assert values["volume_error_both"] == -1
    assert values["dice"] == pytest.approx((6 / 7 + 2 / 3) / 2)


def _test_on_rank(rank: int, folder: Path) -> str:
    import contextlib
    import io
    import warnings

    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")
        test(folder, Bands(test=5), devices=2, strategy="ddp", plugins=[TorchElasticEnvironment()])
    return out.getvalue()


def test_two_processes_write_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")  # not used: the group exists already
    said = run_ranks(2, _test_on_rank, tmp_path / "two")
    test(tmp_path / "one", Bands(test=5))
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert {name: content for name, content in one.items() if name != "scores.json"} == {
        name: content for name, content in two.items() if name != "scores.json"
    }
    cases = [json.loads(files["scores.json"])["cases"] for files in (one, two)]
    assert cases[0] == cases[1]
    assert said == [capsys.readouterr().out.replace("/one/", "/two/"), ""]


def test_a_process_without_a_case_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    run_ranks(2, _test_one_case, tmp_path)
    assert [row["case"] for row in rows(tmp_path)] == ["test_0"]


def _test_one_case(rank: int, folder: Path) -> None:
    import warnings

    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test(folder, Bands(test=1), devices=2, strategy="ddp", plugins=[TorchElasticEnvironment()])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NamedError, match=r"'.*/file/test_0/cases.csv' cannot be written") as failure:
        test(tmp_path / "file" / "test_0", Bands())
    assert failure.value.identifier == "folder-not-writable"
