"""Each format of pictures from its shipped configuration: two steps of training, and masks of new images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import template.cli  # noqa: F401  # the imports of the first run would change the environment during a test
from template.__main__ import main

from . import picture_sets
from .picture_sets import photo

CONFIGS = Path(__file__).parents[2] / "configs"
#: Two steps of a network of some hundred parameters.
SHORT = [
    "--trainer.max_steps=2", "--trainer.max_epochs=2", "--trainer.accelerator=cpu", "--trainer.num_sanity_val_steps=0",
    "--trainer.enable_progress_bar=false", "--trainer.log_every_n_steps=1", "--data.batch_size=2",
    "--data.num_workers=0", "--model.net.init_args.width=4", "--model.net.init_args.depth=2",
]  # fmt: skip
NAMES = ["a 图 1", "a_2", "a_3", "a_4"]
#: The shipped crop of Cityscapes is larger than the tiny images.
CROP = '--data.augment=[{"class_path": "torchvision.transforms.v2.RandomCrop", "init_args": {"size": [32, 32]}}]'

pytestmark = pytest.mark.filterwarnings("default")  # of a run of a second


def _voc() -> None:
    root = picture_sets.voc(Path("data/VOCdevkit"), {"train": NAMES, "val": ["b"], "test": ["c"]})
    (root / "SegmentationClass" / "c.png").unlink()


def _oxford_pet() -> None:
    picture_sets.oxford_pet(Path("data"), [*NAMES, "b"], ["c"])


def _cityscapes() -> None:
    picture_sets.cityscapes(Path("data/cityscapes"), {"train": NAMES[:2], "val": ["b_1"]})


def _coco() -> None:
    pytest.importorskip("pycocotools")
    picture_sets.coco(Path("data/coco"), {"train": [f"{name}.jpg" for name in NAMES], "val": ["b.jpg"]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build", "values", "score"),
    [
        ("voc", _voc, set(range(21)), "validate"),
        ("oxford_pet", _oxford_pet, {1, 2}, "test"),
        ("cityscapes", _cityscapes, {*range(7, 9), *range(11, 14), 17, *range(19, 29), *range(31, 34)}, "validate"),
        ("coco", _coco, set(range(4)), "validate"),
    ],
)
def test_a_shipped_configuration_trains_scores_and_predicts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    build: Callable[[], None],
    values: set[int],
    score: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    build()
    config = ["--config", str(CONFIGS / f"{name}.yaml"), *SHORT, *([CROP] if name == "cityscapes" else [])]
    assert main(["fit", *config]) == 0
    assert main([score, *config]) == 0
    photo(Path("new/一 1.jpg"), 0, (37, 53))
    assert main(["predict", *config, "--data.predict", "new", "--out", "masks"]) == 0
    with Image.open("masks/一 1.png") as mask, Image.open("masks/一 1_overlay.png") as overlay:
        assert mask.size == overlay.size == (53, 37)
        assert set(np.unique(mask).tolist()) <= values
    assert (tmp_path / "runs" / name / "version_0" / "checkpoints" / "last.ckpt").is_file()
    if score == "validate":
        assert main(["test", *config]) == 1
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert "not public" in said or "no public masks" in said
