"""Reading slices of ``.nii.gz`` volumes, and predicting in sliding windows, side by side with other libraries.

python -m benchmarks.volumes [--json FILE] [--rounds 5] [--only reading|sliding] [--cpu]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Measured, interleaved, machine, ratio, table
from template.data.nifti import Nifti
from template.data.transforms import Window
from template.models.sliding import sliding_window
from template.models.unet import UNet

Clock = Callable[[], float]

VOLUMES, SIZE = 4, (256, 256, 64)  # x, y, z
#: Slices of a round of those who decode a whole volume for each slice.
FEW = 8
IMAGE, WINDOW, OVERLAP = 1024, 256, 0.5


def volumes(folder: Path) -> list[tuple[Path, Path]]:
    """Write images as noisy as a CT, and masks: pairs of files."""
    rng = np.random.default_rng(0)
    pairs = []
    for number in range(VOLUMES):
        pair = folder / "images" / f"{number}.nii.gz", folder / "masks" / f"{number}.nii.gz"
        voxels = rng.normal(0, 25, SIZE).round().astype(np.int16)
        labels = np.zeros(SIZE, np.uint8)
        labels[60:180, 80:200, 10:50] = 1
        for file, array in zip(pair, (voxels + 100 * labels, labels), strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(array.astype(array.dtype), np.diag([0.8, 0.8, 2.5, 1])), file)
        pairs.append(pair)
    return pairs


def slices_of(folder: Path, cache: Path, preprocess: Iterable[Any] = ()) -> Any:
    """The training slices of all volumes, as the loader's workers read them."""
    data = Nifti(
        images=str(folder / "images"), masks=str(folder / "masks"), classes=["background", "liver"], seed=0,
        val_fraction=0, test_fraction=0, cache_dir=str(cache), preprocess=list(preprocess),
    )  # fmt: skip
    return data._dataset(data.cases("train"), [])


def reading(rounds: int, clock: Clock) -> dict[str, Any]:
    """Slices through the data set, in its first and in later epochs."""
    from monai.transforms import LoadImage

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = volumes(folder)
        load = LoadImage(image_only=True)
        order = np.random.default_rng(1).permutation(VOLUMES * SIZE[2]).tolist()
        few = [(n // SIZE[2], n % SIZE[2]) for n in order[:FEW]]

        def read_all(data: Any) -> None:
            for n in order:
                data[0, n]

        def first_epoch() -> None:
            shutil.rmtree(folder / "fresh", ignore_errors=True)
            read_all(slices_of(folder, folder / "fresh"))

        def decompression() -> None:
            for file in (file for pair in pairs for file in pair):
                np.asanyarray(nibabel.load(file).dataobj)

        first = interleaved({"ours": first_epoch, "decompression": decompression}, rounds, clock=clock)

        kept = slices_of(folder, folder / "kept")
        windowed = slices_of(folder, folder / "kept", [Window(-160, 240)])
        maps = []
        for n, pair in enumerate(pairs):
            for part, file in zip("im", pair, strict=True):
                np.save(folder / f"{part}{n}.npy", np.ascontiguousarray(np.asanyarray(nibabel.load(file).dataobj).T))
            maps.append([np.load(folder / f"{part}{n}.npy", mmap_mode="r") for part in "im"])

        def read_alone() -> None:
            for n in order:
                kept.read(kept.cases[n])

        def mapped() -> None:
            for n in order:
                image, mask = maps[n // SIZE[2]]
                np.array(image[n % SIZE[2]], np.float32), np.array(mask[n % SIZE[2]])

        def by_nibabel() -> None:
            for n, k in few:
                for file in pairs[n]:
                    nibabel.load(file).dataobj[..., k]

        def by_get_fdata() -> None:
            for n, k in few:
                for file in pairs[n]:
                    nibabel.load(file).get_fdata()[..., k]

        def by_monai() -> None:
            for n, k in few:
                for file in pairs[n]:
                    load(file)[..., k]

        candidates: dict[str, Callable[[], object]] = {
            "memory map": mapped, "ours, read alone": read_alone,
            "ours": lambda: read_all(kept), "ours, windowed": lambda: read_all(windowed),
            "nibabel, dataobj": by_nibabel, "nibabel, get_fdata": by_get_fdata, "MONAI, LoadImage": by_monai,
        }  # fmt: skip
        seconds = interleaved(candidates, rounds, clock=clock)
    read = {name: FEW if "nibabel" in name or "MONAI" in name else len(order) for name in candidates}
    return {
        "first epoch, of one decompression": ratio(first["ours"], first["decompression"]),
        **{f"slices/s: {name}": of.each(lambda s, n=read[name]: n / s) for name, of in seconds.items()},
    }


@torch.no_grad()
def sliding(rounds: int, clock: Clock, width: int) -> dict[str, Any]:
    """A UNet over 1024² in windows of 256² with an overlap of one half."""
    from monai.inferers import sliding_window_inference

    torch.manual_seed(0)
    net = UNet(1, 3, width=width).eval()
    image = torch.randn(1, IMAGE, IMAGE)
    starts = range(0, IMAGE - WINDOW + 1, int(WINDOW * (1 - OVERLAP)))

    def bare() -> None:
        for y in starts:
            for x in starts:
                net(image[None, :, y : y + WINDOW, x : x + WINDOW])

    def ours() -> Tensor:
        return sliding_window(image, (WINDOW, WINDOW), net, overlap=OVERLAP)

    def by_monai() -> Tensor:
        found = sliding_window_inference(image[None], (WINDOW, WINDOW), 1, net, overlap=OVERLAP, mode="gaussian")
        assert isinstance(found, Tensor)
        return found[0]

    apart = float((ours() - by_monai()).abs().max())
    seconds = interleaved({"bare windows": bare, "ours": ours, "MONAI": by_monai}, rounds, warm=False, clock=clock)
    return {
        "largest difference of the logits from MONAI's": Measured((apart,)),
        "bare windows, s": seconds["bare windows"],
        **{f"{name}, of the bare windows": ratio(seconds[name], seconds["bare windows"]) for name in ("ours", "MONAI")},
    }


def main() -> None:
    """Measure, print a table, and write JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write as well")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=32, help="of the UNet")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=["reading", "sliding"])
    parser.add_argument("--cpu", action="store_true", help="time of this process alone, where others are busy")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    clock = time.process_time if asked.cpu else time.perf_counter
    found: dict[str, Measured] = {}
    if asked.only != "sliding":
        found |= reading(asked.rounds, clock)
    if asked.only != "reading":
        found |= sliding(asked.rounds, clock, asked.width)
    print(", ".join(f"{key} {value}" for key, value in machine().items()), end="\n\n")
    print(table(["", "median (range)"], [(name, of.told()) for name, of in found.items()]))
    if asked.json:
        content = {"machine": machine(), "results": {name: of.plain() for name, of in found.items()}}
        asked.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
