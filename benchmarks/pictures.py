"""Training samples out of 512 x 512 pictures and their masks on one thread, side by side with other libraries.

python -m benchmarks.pictures [--json FILE] [--rounds 7] [--cpu]

Everyone reads the same PNG files, cuts 256 x 256 out, flips, turns, scales and shifts, changes brightness and contrast,
and makes a float image of 0 to 1 and a mask; ours also checks both and seeds each sample. Ours reads PNG files through
ISA-L where it is installed (the extra ``fast``).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.io import decode_image
from torchvision.transforms import v2

from benchmarks.measure import Measured, interleaved, machine, ratio, table
from template.allocator import keep_freed_memory
from template.data import png
from template.data.folder import Folder
from template.data.transforms import RandomIntensity, RandomWarp

PICTURES, SIZE, CROP = 24, 512, 256
DEGREES, SCALE, SHIFT, LIGHT = 15.0, (0.8, 1.25), 0.05, 0.2
PEER = "torchvision v2"

Pairs = list[tuple[str, str]]
Sample = Callable[[str, str], object]


def pictures(folder: Path) -> Pairs:
    """Write smooth pictures with the noise of a camera, of which PNG makes 0.44 MB, and masks of discs."""
    rng = np.random.default_rng(0)
    places = [folder / part for part in ("images", "masks")]
    for place in places:
        place.mkdir()
    y, x = np.mgrid[:SIZE, :SIZE]
    for number in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
        picture = np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)
        mask = np.zeros((SIZE, SIZE), np.uint8)
        for label in (1, 2):
            middle, radius = rng.uniform(100, 400, 2), rng.uniform(60, 140)
            mask[np.hypot(y - middle[0], x - middle[1]) < radius] = label
        for place, array in zip(places, (picture, mask), strict=True):
            Image.fromarray(array).save(place / f"{number:02}.png")
    return [(str(file), str(places[1] / file.name)) for file in sorted(places[0].iterdir())]


def ours(folder: Path, *more: Any, **settings: Any) -> Callable[[], None]:
    """One epoch of the data set, as the loader's workers make its samples."""
    warp = RandomWarp(
        DEGREES, SCALE, translate=SHIFT, horizontal_flip=0.5, vertical_flip=0.5, crop=(CROP, CROP)
    )  # fmt: skip
    data = Folder(
        images=str(folder / "images"), masks=str(folder / "masks"), classes=["background", "one", "two"], seed=0,
        val_fraction=0, test_fraction=0, augment=[warp, *more], **settings,
    )  # fmt: skip
    dataset = data._dataset(data.cases("train"), data.augment)
    epochs = iter(range(1_000_000))

    def epoch() -> None:
        number = next(epochs)
        for index in range(len(dataset)):
            dataset[number, index]

    return epoch


def without_isal(epoch: Callable[[], None]) -> Callable[[], None]:
    """The same where ISA-L is not installed."""

    def slower() -> None:
        installed, png.isal_zlib = png.isal_zlib, None
        try:
            epoch()
        finally:
            png.isal_zlib = installed

    return slower


def by_torchvision() -> Sample:
    """Its transforms one after the other, on bytes as long as possible."""
    transforms = v2.Compose([
        v2.RandomCrop(CROP), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(),
        v2.RandomAffine(DEGREES, (SHIFT, SHIFT), SCALE, interpolation=v2.InterpolationMode.BILINEAR),
        v2.ColorJitter(LIGHT, LIGHT), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
    ])  # fmt: skip
    return lambda image, mask: transforms(
        {"image": tv_tensors.Image(decode_image(image)), "mask": tv_tensors.Mask(decode_image(mask))}
    )


def by_albumentations() -> Sample:
    """Its transforms on OpenCV's arrays."""
    A: Any = import_module("albumentations")
    cv2: Any = import_module("cv2")
    to_tensor = import_module("albumentations.pytorch").ToTensorV2()
    cv2.setNumThreads(0)
    transforms = A.Compose([
        A.RandomCrop(CROP, CROP), A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5),
        A.Affine(scale=SCALE, translate_percent=(-SHIFT, SHIFT), rotate=(-DEGREES, DEGREES), p=1),
        A.RandomBrightnessContrast(LIGHT, LIGHT, p=1), A.Normalize((0, 0, 0), (1, 1, 1)), to_tensor,
    ])  # fmt: skip
    return lambda image, mask: transforms(
        image=cv2.imread(image, cv2.IMREAD_COLOR_RGB), mask=cv2.imread(mask, cv2.IMREAD_UNCHANGED)
    )


def by_monai() -> Sample:
    """Its dictionary transforms."""
    M: Any = import_module("monai.transforms")
    both = ["image", "mask"]
    transforms = M.Compose([
        M.LoadImaged(both, reader="PILReader", image_only=True), M.EnsureChannelFirstd(both),
        M.RandSpatialCropd(both, (CROP, CROP), random_size=False),
        M.RandFlipd(both, prob=0.5, spatial_axis=0), M.RandFlipd(both, prob=0.5, spatial_axis=1),
        M.RandAffined(
            both, prob=1, rotate_range=np.pi * DEGREES / 180, scale_range=((SCALE[0] - 1, SCALE[1] - 1),) * 2,
            translate_range=SHIFT * CROP, mode=("bilinear", "nearest"), padding_mode="zeros",
        ),
        M.ScaleIntensityRanged("image", 0, 255, 0, 1),
        M.RandScaleIntensityd("image", LIGHT, prob=1), M.RandShiftIntensityd("image", LIGHT, prob=1),
        M.EnsureTyped(both),
    ])  # fmt: skip
    return lambda image, mask: transforms({"image": image, "mask": mask})


def measure(rounds: int, clock: Callable[[], float]) -> dict[str, Measured]:
    """Samples a second of everyone, and how many times torchvision's ours are."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = pictures(folder)

        def over(sample: Sample) -> Callable[[], None]:
            def epoch() -> None:
                for pair in pairs:
                    sample(*pair)

            return epoch

        light = RandomIntensity(contrast=LIGHT, brightness=LIGHT)
        scanner = RandomIntensity(0.2, LIGHT, LIGHT, 0.02)
        candidates: dict[str, Callable[[], object]] = {
            "decoding alone, Pillow": over(lambda *pair: [np.asarray(Image.open(file)) for file in pair]),
            "decoding alone, torchvision": over(lambda *pair: [decode_image(file) for file in pair]),
            "ours": ours(folder, light),
            "ours, without ISA-L": without_isal(ours(folder, light)),
            "ours, with gamma and noise": ours(folder, scanner),
            PEER: over(by_torchvision()),
            "albumentations": over(by_albumentations()),
            "MONAI": over(by_monai()),
            "ours, from the cache": ours(folder, light, cache_dir=str(folder / "cache")),
        }
        seconds = interleaved(candidates, rounds, clock=clock)
    return {
        **{f"{name}, samples/s": of.each(lambda s: PICTURES / s) for name, of in seconds.items()},
        **{f"{name}, times {PEER}": ratio(seconds[PEER], of) for name, of in seconds.items() if name != PEER},
        "ours, part of Pillow's decoding alone": ratio(seconds["decoding alone, Pillow"], seconds["ours"]),
        "ours, from the cache, times ours": ratio(seconds["ours"], seconds["ours, from the cache"]),
    }


def main() -> None:
    """Measure, print a table, and write JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write as well")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="time of this process alone, where others are busy")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does that trains on the CPU; all candidates have it
    found = measure(asked.rounds, time.process_time if asked.cpu else time.perf_counter)
    print(", ".join(f"{key} {value}" for key, value in machine().items()), end="\n\n")
    print(table(["", "median (range)"], [(name, of.told()) for name, of in found.items()]))
    if asked.json:
        content = {"machine": machine(), "results": {name: of.plain() for name, of in found.items()}}
        asked.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
