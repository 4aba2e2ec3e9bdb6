"""Runs of the shipped configurations on tiny volumes: two steps, and masks of new ones."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

import template.cli  # noqa: F401  # the imports of the first run would change the environment during a test
from template.__main__ import main

CONFIGS = Path(__file__).parents[2] / "configs"
#: Two steps of a network of some hundred parameters.
SHORT = [
    "--trainer.max_steps=2", "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.num_sanity_val_steps=0",
    "--trainer.enable_progress_bar=false", "--trainer.log_every_n_steps=1", "--trainer.precision=32-true",
    "--data.batch_size=2", "--data.num_workers=0",
]  # fmt: skip
TINY = ["--model.net.init_args.width=4", "--model.net.init_args.depth=2"]
PATCHES = ["--data.patch=[4,16,16]", "--data.patches_per_volume=2"]


def trained_and_predicted(name: str, new: str, *arguments: str) -> list[Path]:
    """Train, score and predict with a shipped configuration in the working directory.

    Returns:
        The masks of the new volumes, sorted.
    """
    config = ["--config", str(CONFIGS / f"{name}.yaml"), *SHORT, *TINY, *arguments]
    assert main(["fit", *config]) == 0
    assert (Path("runs") / name / "version_0" / "checkpoints" / "last.ckpt").is_file()
    assert main(["test", *config]) == 0
    assert main(["predict", *config, "--data.predict", new, "--out", "masks"]) == 0
    masks = sorted(Path("masks").glob("*.nii*"))
    assert len(list(Path("masks").glob("*_overlay.png"))) == len(masks) > 0
    return masks


def check_on_image(mask: Path, image: Path, values: set[int]) -> None:
    """See that a mask has the shape and place of its image, and no other values than these."""
    written, given = nibabel.load(mask), nibabel.load(image)
    assert written.shape == given.shape[:3]
    assert np.allclose(written.affine, given.affine, atol=1e-5)
    assert written.get_data_dtype() == np.uint8
    assert set(np.unique(written.dataobj).tolist()) <= values
    with Image.open(mask.with_name(f"{mask.name.partition('.nii')[0]}_overlay.png")) as picture:
        assert picture.mode == "RGB"
