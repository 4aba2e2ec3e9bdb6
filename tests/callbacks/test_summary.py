from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint

from template.callbacks.summary import ScoreTable, StartSummary
from template.distributed.faults import NamedError

from .conftest import Stripes, segmenter, trainer

NAN = float("nan")


def start_of_fit(folder: Path, capsys: pytest.CaptureFixture[str], data: Stripes, **kwargs: Any) -> list[str]:
    trainer(StartSummary(folder), max_epochs=1, limit_val_batches=0, **kwargs).fit(segmenter(), datamodule=data)
    return capsys.readouterr().out.splitlines()


class TestStartSummary:
    def test_says_what_is_about_to_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert start_of_fit(tmp_path, capsys, Stripes(train=11, val=4, test=3, batch_size=4)) == [
            f"run      {tmp_path}",
            "network  Bright, 1 parameter, all trainable",
            "data     Stripes, 2 classes: background, stripe",
            "samples  11 train, 4 val, 3 test",
            "hardware 1 × cpu, precision 32-true, SingleDeviceStrategy",
            "global batch 4 = 1 process × 4 × 1 accumulation; 2 steps an epoch",
            "smaller last batch: 3 of 11 samples left out of each epoch",
        ]

    def test_shares_the_batch_out_to_accumulation(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        lines = start_of_fit(tmp_path, capsys, Stripes(train=12, batch_size=4), accumulate_grad_batches=2)
        assert lines[-2] == "global batch 4 = 1 process × 2 × 2 accumulation; 3 steps an epoch"
        assert lines[-1].startswith("differs  trainer.accumulate_grad_batches 2: equal to runs with the same number")

    def test_tells_a_schedule_of_the_accumulation(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        schedule = GradientAccumulationScheduler({1: 2, 4: 4})
        fit = trainer(StartSummary(tmp_path), schedule, max_epochs=1, limit_val_batches=0)
        fit.fit(segmenter(), datamodule=Stripes(train=12, batch_size=4))
        told = "GradientAccumulationScheduler: global batch 4 from epoch 1 on, 8 from epoch 2 on, 16 from epoch 5 on"
        assert told in capsys.readouterr().out.splitlines()

    def test_counts_the_steps_that_the_trainer_will_take(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        # 3 of 6 micro-batches: one step of two, one of the last.
        data = Stripes(train=12, batch_size=4)
        lines = start_of_fit(tmp_path, capsys, data, accumulate_grad_batches=2, limit_train_batches=3)
        assert lines[-2] == "global batch 4 = 1 process × 2 × 2 accumulation; 2 steps an epoch"

    def test_counts_frozen_parameters_apart(self, tmp_path: Path) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(1000, 1000, bias=False), torch.nn.Linear(1000, 250, bias=False))
        module[0].requires_grad_(False)
        assert self.network(module, tmp_path) == "Sequential, 1.25 M parameters, 0.25 M trainable"

    def test_counts_few_parameters_finely(self, tmp_path: Path) -> None:
        assert self.network(torch.nn.Linear(4, 200), tmp_path) == "Linear, 1.0 k parameters, all trainable"

    def test_says_what_it_goes_on_with_and_that_nothing_is_left(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        data = Stripes(train=4, val=2, batch_size=2)
        run = trainer(StartSummary(tmp_path), max_epochs=1)
        run.fit(segmenter(), datamodule=data)
        run.save_checkpoint("last.ckpt")
        assert "goes on" not in capsys.readouterr().out
        trainer(StartSummary(tmp_path), max_epochs=2).fit(segmenter(), datamodule=data, ckpt_path="last.ckpt")
        assert "goes on  with epoch 2, after step 2, of last.ckpt" in capsys.readouterr().out.splitlines()
        trainer(StartSummary(tmp_path), max_epochs=1).fit(segmenter(), datamodule=data, ckpt_path="last.ckpt")
        expected = "nothing to do: 1 of 1 epochs are done; raise trainer.max_epochs"
        assert expected in capsys.readouterr().out.splitlines()

    @staticmethod
    def network(module: torch.nn.Module, folder: Path) -> str:
        data = Stripes(train=4)
        run = trainer()
        data.trainer = run
        fake: Any = SimpleNamespace(
            datamodule=data,
            num_training_batches=2,
            precision="32-true",
            strategy=run.strategy,
            world_size=1,
            accumulate_grad_batches=1,
            ckpt_path=None,
            callbacks=[],
        )
        return dict(StartSummary(folder)._lines(fake, module))["network"]  # type: ignore[arg-type]

    def test_a_missing_test_split_does_not_stop_a_fit(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class NoTest(Stripes):
            def cases(self, split: Any) -> Any:
                if split == "test":
                    raise NamedError("data-missing", "'test' does not exist.")
                return super().cases(split)

        assert start_of_fit(tmp_path, capsys, NoTest(train=4, val=2))[3] == "samples  4 train, 2 val"

    def test_only_rank_0_speaks(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        StartSummary(tmp_path).on_train_start(SimpleNamespace(is_global_zero=False), None)  # type: ignore[arg-type]
        assert capsys.readouterr().out == ""


class Logged(LightningModule):
    """Logs given scores, an epoch after another."""

    def __init__(self, stage: str, *epochs: dict[str, float]) -> None:
        super().__init__()
        self.stage, self.epochs = stage, list(epochs)
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.weight * 1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        self._log_next()

    def on_test_epoch_end(self) -> None:
        self._log_next()

    def _log_next(self) -> None:
        if not self.trainer.sanity_checking:
            scores = self.epochs[self.current_epoch]
            self.log_dict({f"{self.stage}/{name}": torch.tensor(value) for name, value in scores.items()})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


SCORES = {
    "loss": 0.25,
    "dice": 0.9,
    "iou": 0.8,
    "dice_liver": 0.9,
    "dice_tumour": NAN,
    "iou_liver": 0.8,
    "iou_tumour": NAN,
}


class TestScoreTable:
    def test_ends_a_test_with_a_table_and_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = trainer(ScoreTable(tmp_path / "test_0"))
        run.test(Logged("test", SCORES), datamodule=Stripes(), verbose=False)
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == "test: 3 samples, loss 0.2500"
        assert [line.split() for line in lines[1:]] == [
            ["region", "Dice", "IoU"],
            ["─" * 24],
            ["liver", "0.9000", "0.8000"],
            ["tumour", "–", "–"],
            ["mean", "0.9000", "0.8000"],
        ]
        written = json.loads((tmp_path / "test_0" / "scores.json").read_text())
        assert written["split"] == "test"
        assert written["scores"] == pytest.approx({**SCORES, "dice_tumour": None, "iou_tumour": None})

    def test_shows_the_baseline_of_a_test_beside_the_network(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class WithBaseline(Stripes):
            def baseline(self) -> dict[str, float]:
                return {"liver": 0.83, "tumour": 0.5}

        model = Logged("test", {**SCORES, "dice_tumour": 0.7, "dice": 0.8})
        trainer(ScoreTable(tmp_path)).test(model, datamodule=WithBaseline(), verbose=False)
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert rows[1] == ["region", "Dice", "IoU", "baseline", "Dice"]
        assert rows[3:] == [
            ["liver", "0.9000", "0.8000", "0.8300"],
            ["tumour", "0.7000", "–", "0.5000"],
            ["mean", "0.8000", "0.8000", "0.6650"],
        ]
        assert json.loads((tmp_path / "scores.json").read_text())["baseline"] == {"liver": 0.83, "tumour": 0.5}

        trainer(ScoreTable(tmp_path)).validate(Logged("val", SCORES), datamodule=WithBaseline(), verbose=False)
        assert "baseline" not in capsys.readouterr().out

    def test_ends_a_fit_with_the_best_validation_and_its_checkpoint(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        epochs = [{"dice": 0.2, "dice_liver": 0.2}, {"dice": 0.6, "dice_liver": 0.7}, {"dice": 0.5, "dice_liver": 0.5}]
        checkpoint = ModelCheckpoint(tmp_path / "checkpoints", "best", monitor="val/dice", mode="max")
        run = trainer(ScoreTable(tmp_path), checkpoint, max_epochs=3, enable_checkpointing=True)
        run.fit(Logged("val", *epochs), datamodule=Stripes())
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "best validation, after 2 epochs: 3 samples"
        assert [line.split() for line in lines[3:5]] == [["liver", "0.7000", "–"], ["mean", "0.6000", "–"]]
        assert lines[-1] == f"best checkpoint  {tmp_path}/checkpoints/best.ckpt"
        written = json.loads((tmp_path / "scores.json").read_text())
        assert (written["split"], written["epochs"]) == ("val", 2)
        assert written["checkpoint"] == f"{tmp_path}/checkpoints/best.ckpt"
        assert written["scores"] == pytest.approx(epochs[1])

    def test_the_best_is_what_the_checkpoints_go_by(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        epochs = [{"dice": 0.9, "loss": 0.5}, {"dice": 0.1, "loss": 0.4}, {"dice": 0.2, "loss": 0.6}]
        checkpoint = ModelCheckpoint(tmp_path, "best", monitor="val/loss", mode="min")
        run = trainer(ScoreTable(tmp_path), checkpoint, max_epochs=3, enable_checkpointing=True)
        run.fit(Logged("val", *epochs), datamodule=Stripes())
        assert capsys.readouterr().out.startswith("best validation, after 2 epochs: 3 samples, loss 0.4000\n")

    def test_a_first_score_that_is_not_a_number_is_beaten(self, tmp_path: Path) -> None:
        run = trainer(ScoreTable(tmp_path), max_epochs=3)
        run.fit(Logged("val", {"dice": NAN}, {"dice": 0.1}, {"dice": NAN}), datamodule=Stripes())
        assert json.loads((tmp_path / "scores.json").read_text())["epochs"] == 2

    def test_a_resumed_fit_knows_the_best_of_before(self, tmp_path: Path) -> None:
        epochs = [{"dice": 0.6}, {"dice": 0.5}]
        first = trainer(ScoreTable(tmp_path / "first"), max_epochs=1)
        first.fit(Logged("val", *epochs), datamodule=Stripes())
        first.save_checkpoint(tmp_path / "last.ckpt")
        content = torch.load(tmp_path / "last.ckpt", weights_only=True)
        assert content["callbacks"]["ScoreTable"] == {"best": {"dice": pytest.approx(0.6)}, "epochs": 1}

        second = trainer(ScoreTable(tmp_path / "second"), max_epochs=2)
        second.fit(Logged("val", *epochs), datamodule=Stripes(), ckpt_path=tmp_path / "last.ckpt")
        assert json.loads((tmp_path / "second" / "scores.json").read_text())["epochs"] == 1

    def test_a_fit_without_validation_reports_no_scores(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trainer(ScoreTable(tmp_path), max_epochs=1, limit_val_batches=0).fit(Logged("val"), datamodule=Stripes())
        assert capsys.readouterr().out == ""
        assert not (tmp_path / "scores.json").exists()

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        run = trainer(ScoreTable(tmp_path / "file" / "test_0"))
        with pytest.raises(NamedError, match=r"'.*/file/test_0/scores.json' cannot be written") as failure:
            run.test(Logged("test", SCORES), datamodule=Stripes(), verbose=False)
        assert failure.value.identifier == "folder-not-writable"

    def test_fits_80_columns_in_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        scores = {f"dice_{'a long name ' * 12}{number}": 0.5 for number in range(2)}
        trainer(ScoreTable(tmp_path)).test(Logged("test", scores), datamodule=Stripes(), verbose=False)
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) == 80
        assert "\x1b" not in out
