"""Memory of predict and test on the sizes that clinics and microscopes have."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.data import volume_sets

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory through /proc")


def peaks(folder: Path, common: list[str], verbs: dict[str, list[str]]) -> dict[str, float]:
    """Gigabytes that each verb takes beyond what is there before, mapped files and all."""
    command = [sys.executable, "-m", "tests.data.large_runs", json.dumps(common), json.dumps(verbs)]
    # Where glibc's own thresholds end up; said, so that a fit does not keep its memory for what follows it here.
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **allocator}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(found)
    return found


def block(low: int, high: int, labels: tuple[int, ...] = (0, 1, 2)) -> NDArray[np.int16]:
    """512 × 512 × 400 voxels, [x, y, z]: a box of 200 × 200 slices from low to high, with another in it."""
    voxels = np.full((512, 512, 400), labels[0], np.int16, order="F")
    voxels[100:300, 150:350, low:high] = labels[1]
    voxels[150:200, 200:250, 180:220] = labels[2]
    return voxels


def network(values: list[float]) -> str:
    """One that needs no training."""
    return f"--model.net={{class_path: tests.data.volume_nets.Lookup, init_args: {{values: {values}}}}}"


@pytest.fixture(scope="module")
def large_volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of nnU-Net whose test case is large."""
    root = volume_sets.nnunet(tmp_path_factory.mktemp("large") / "set", tests=0)
    affine = np.diag([-0.7, 0.7, 1.5, 1.0])
    for part, voxels in (("images", block(104, 304, (-50, 110, 40))), ("labels", block(100, 300).astype(np.uint8))):
        file = root / f"{part}Ts" / ("big_0000.nii.gz" if part == "images" else "big.nii.gz")
        file.parent.mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(voxels, affine), file)
    return root


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("view", ["slices", "patches"])
def test_a_volume_of_512_512_400(view: str, large_volume: Path, tmp_path: Path) -> None:
    common = [
        "--data=NnUNet", f"--data.root={large_volume}", f"--data.view={view}", "--data.patch=[8,128,128]",
        "--data.patches_per_volume=1", "--model.overlap=0.25", network([-50, 110, 40]),
        # Back to what it was, in two steps.
        ("--data.preprocess=[{class_path: Window, init_args: {low: -1000, high: 1000}}, "
        "{class_path: torchvision.transforms.v2.Normalize, init_args: {mean: [0.5], std: [0.0005]}}]"),
    ]  # fmt: skip
    new = large_volume / "imagesTs" / "big_0000.nii.gz"
    found = peaks(tmp_path, common, {"predict": [f"--data.predict={new}", "--out=masks"], "test": []})
    assert max(found.values()) < 1.5
    mask = nibabel.load(tmp_path / "masks" / "big.nii.gz")
    assert mask.get_data_dtype() == np.uint8
    assert np.array_equal(mask.affine, nibabel.load(new).affine)
    assert np.array_equal(np.asanyarray(mask.dataobj), block(104, 304))
    [sizes] = csv.DictReader((tmp_path / "masks" / "predict.csv").read_text().splitlines())
    millilitres = 0.7 * 0.7 * 1.5 / 1000
    assert float(sizes["tumour"]) == pytest.approx(50 * 50 * 40 * millilitres, rel=1e-5)
    [table] = tmp_path.glob("**/cases.csv")
    [scores] = csv.DictReader(table.read_text().splitlines())
    assert float(scores["dice_liver"]) == pytest.approx((196 * 40_000 - 100_000) / (200 * 40_000 - 100_000), rel=1e-5)
    assert float(scores["hd95_liver"]) == pytest.approx(4 * 1.5)  # a third of the surface is moved by 4 slices
    assert (float(scores["hd95_tumour"]), float(scores["volume_error_liver"])) == (0, 0)


@LINUX
@pytest.mark.slow
def test_an_image_of_4096_4096(tmp_path: Path) -> None:
    truth = np.zeros((4096, 4096), np.uint8)
    truth[1000:3000, 500:2500] = 1
    truth[2000:2100, 1000:1100] = 2
    for number in range(5):
        for folder, size in (("images", 64), ("masks", 64)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(np.zeros((size, size), np.uint8)).save(tmp_path / folder / f"{number}.png")
    Image.fromarray((truth * 100).astype(np.uint8)).save(tmp_path / "big.png")
    common = [
        "--data=Folder", "--data.images=images", "--data.masks=masks", "--data.classes=[background,liver,tumour]",
        "--data.in_channels=1", "--data.white=200", "--model.window=[512,512]", network([0, 0.5, 1]),
    ]  # fmt: skip
    found = peaks(tmp_path, common, {"predict": ["--data.predict=big.png", "--out=out"]})
    assert found["predict"] < 1
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "big.png")), truth)
