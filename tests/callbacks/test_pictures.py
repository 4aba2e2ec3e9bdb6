from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from template.callbacks.drawing import panel, stack
from template.callbacks.pictures import PicturesCallback

from .conftest import Stripes, segmenter, trainer


def pictures(folder: Path) -> dict[int, Tensor]:
    """Step to picture, as TensorBoard shows them."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    if "val/pictures" not in events.Tags()["images"]:
        return {}
    return {
        event.step: torch.from_numpy(np.array(Image.open(io.BytesIO(event.encoded_image_string)))).permute(2, 0, 1)
        for event in events.Images("val/pictures")
    }


def board(folder: Path) -> TensorBoardLogger:
    return TensorBoardLogger(folder, name="", version="")


def expected(names: list[str]) -> Tensor:
    """Panels of the stripes: bright are the left 4 columns, labelled the left 3, predicted the left 4."""
    image, truth, prediction = (torch.zeros(6, 10, dtype=torch.uint8) for _ in range(3))
    image[:, :4], truth[:, :3], prediction[:, :4] = 200, 1, 1
    rows = [
        panel(image.expand(3, -1, -1), truth, prediction, ["background", "stripe"], name=name, legend=name == names[-1])
        for name in names
    ]
    return stack(rows)


def test_draws_the_first_samples_every_n_epochs_and_at_the_end(tmp_path: Path) -> None:
    callback = PicturesCallback(every_n_epochs=2, samples=2)
    trainer(callback, max_epochs=5, logger=board(tmp_path)).fit(segmenter(), datamodule=Stripes())
    drawn = pictures(tmp_path)
    # 5 samples in batches of 2: 2 steps an epoch; epochs 2, 4 and the last.
    assert sorted(drawn) == [4, 8, 10]
    for picture in drawn.values():
        assert torch.equal(picture, expected(["val_0", "val_1"]))


def test_draws_the_last_epoch_once(tmp_path: Path) -> None:
    trainer(PicturesCallback(every_n_epochs=1), max_epochs=2, logger=board(tmp_path)).fit(
        segmenter(), datamodule=Stripes()
    )
    assert sorted(pictures(tmp_path)) == [2, 4]


def test_a_run_that_stops_early_ends_with_a_picture(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 2

    run = trainer(PicturesCallback(every_n_epochs=50), Stop(), max_epochs=100, logger=board(tmp_path))
    run.fit(segmenter(), datamodule=Stripes())
    assert sorted(pictures(tmp_path)) == [6]


def test_shows_the_fullest_slice_of_a_volume(tmp_path: Path) -> None:
    callback = PicturesCallback(samples=1)
    trainer(callback, max_epochs=1, logger=board(tmp_path)).fit(segmenter(), datamodule=Stripes(depth=4))
    assert torch.equal(pictures(tmp_path)[2], expected(["val_0, slice 2"]))


def test_computes_nothing_twice_and_nothing_in_the_sanity_check(tmp_path: Path) -> None:
    model = segmenter()
    trainer(PicturesCallback(every_n_epochs=1), max_epochs=1, logger=board(tmp_path), num_sanity_val_steps=-1).fit(
        model, datamodule=Stripes()
    )
    # Validation has 2 batches, twice with the sanity check; training 2.
    assert model.net.calls == 2 + 2 + 2
    assert sorted(pictures(tmp_path)) == [2]


@pytest.mark.parametrize("kind", ["none", "csv"])
def test_draws_nothing_without_tensorboard(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("template.callbacks.pictures.panel", lambda *_, **__: pytest.fail("drawn"))
    logger = CSVLogger(tmp_path, name="", version="") if kind == "csv" else False
    trainer(PicturesCallback(every_n_epochs=1), max_epochs=1, logger=logger).fit(segmenter(), datamodule=Stripes())


def test_other_ranks_and_the_validate_verb_keep_nothing(tmp_path: Path) -> None:
    for rank, verb in ((1, "fit"), (0, "validate")):
        process: Any = SimpleNamespace(
            is_global_zero=rank == 0,
            state=SimpleNamespace(fn=verb),
            sanity_checking=False,
            loggers=[board(tmp_path)],
            current_epoch=0,
            global_step=1,
            datamodule=None,
        )
        callback = PicturesCallback(every_n_epochs=1)
        callback.on_validation_epoch_start(process, None)  # type: ignore[arg-type]
        # A batch or outputs that were looked at would raise.
        callback.on_validation_batch_end(process, None, None, None, 0)  # type: ignore[arg-type]
        callback.on_validation_end(process, None)  # type: ignore[arg-type]
        callback.on_train_end(process, None)  # type: ignore[arg-type]
    assert not pictures(tmp_path)
