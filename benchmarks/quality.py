"""Whether the defaults alone are as good as a plain training with another library: the table of docs/quality.md.

python -m benchmarks.quality
python -m benchmarks.quality --data phantom --seconds 20 --seeds 1  # a quick look
python -m benchmarks.quality --write                                # put the table into the page
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from PIL import Image

from benchmarks.dice import region_dice
from benchmarks.page import put_into
from benchmarks.plain_loop import NETWORKS, data_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "quality.md"
#: Data set: its shipped configuration, and the CPU seconds of a training unless --seconds says others.
DATA = {"liver": (ROOT / "configs" / "liver.yaml", 60.0), "phantom": (ROOT / "configs" / "phantom.yaml", 30.0)}
TITLES = {
    "template": "this template, its defaults",
    "monai-unet": "MONAI `UNet`, plain loop",
    "smp-unet": "segmentation-models-pytorch `Unet`, plain loop",
}
#: Epochs of the run by which the time of one is measured.
TRIAL = 2


class Result(NamedTuple):
    """One training and its scores."""

    data: str
    method: str
    seed: int
    dice: dict[str, float]
    seconds: float
    steps: int
    parameters: int


def epochs_for(seconds: float, epochs: Sequence[float]) -> int:
    """How many epochs fit best into a time, at least one, by the seconds of each of some epochs."""
    return max(1, round(seconds / statistics.mean(epochs)))


def stretched(config: Mapping[str, Any], epochs: int) -> list[str]:
    """Arguments that give a configuration another number of epochs; its schedule keeps its shape."""
    arguments = [f"--trainer.max_epochs={epochs}"]
    for name, value in config["model"]["lr_scheduler"]["init_args"].items():
        if name in {"T_max", "total_steps"}:
            length = round(value * epochs / config["trainer"]["max_epochs"])
            arguments.append(f"--model.lr_scheduler.init_args.{name}={length}")
    return arguments


def score(folder: Path, data: Any) -> dict[str, float]:
    """Dice of a folder of predicted masks against the test cases of a data set, by region."""
    cases = data.cases("test")
    masks = [np.asarray(Image.open(folder / f"{case.name}.png")) for case in cases]
    return region_dice(
        ((mask, data.read(case)[1].numpy()) for mask, case in zip(masks, cases, strict=True)), data.regions
    )


class Bench:
    """Runs trainings of one data set, each in a process of one thread.

    Args:
        name: Of the data set.
        folder: Where runs and masks go.
        seconds: CPU time of each training; None: as of ``DATA``.
    """

    def __init__(self, name: str, folder: Path, seconds: float | None) -> None:
        self.name = name
        self.folder = folder
        self.file, self.seconds = DATA[name][0], seconds or DATA[name][1]
        self.config = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        self.data = data_of(self.config)

    def _run(self, *words: object) -> None:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.folder, env={**os.environ, **threads, "PYTHONPATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def _fit(self, experiment: str, seed: int, epochs: int) -> dict[str, Any]:
        """The real command, with a clock in it."""
        told = self.folder / f"{experiment}.json"
        self._run(
            "template", "fit", "--config", self.file, f"--experiment={experiment}", f"--seed_everything={seed}",
            *stretched(self.config, epochs), "--trainer.accelerator=cpu", "--data.num_workers=0",
            "--trainer.enable_progress_bar=false", "--trainer.callbacks+=benchmarks.cpu_clock.CpuClock",
            f"--trainer.callbacks.file={told}",
        )  # fmt: skip
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
        return found

    def epochs(self) -> int:
        """How many epochs of the template fit into the time."""
        return epochs_for(self.seconds, self._fit(f"{self.name}_trial", 0, TRIAL)["epochs"])

    def template(self, seed: int, epochs: int) -> Result:
        """Train by the shipped configuration, and score the best checkpoint, as `test` would take it."""
        experiment = f"{self.name}_{seed}"
        told = self._fit(experiment, seed, epochs)
        out = self.folder / experiment
        self._run(
            "template", "predict", "--config", self.file, f"--experiment={experiment}", "--out", out,
            "--trainer.accelerator=cpu", "--data.num_workers=0", "--trainer.enable_progress_bar=false",
        )  # fmt: skip
        return self._result("template", seed, out, told)

    def plain(self, net: str, seed: int, seconds: float) -> Result:
        """Train by the plain loop for a time, and score its best weights."""
        out = self.folder / f"{self.name}_{net}_{seed}"
        out.mkdir()
        self._run(
            "benchmarks.plain_loop", "--config", self.file, "--net", net, "--seed", seed, "--seconds", seconds,
            "--out", out,
        )  # fmt: skip
        return self._result(net, seed, out, json.loads((out / "told.json").read_text(encoding="utf-8")))

    def chain(self, seed: int, epochs: int) -> list[Result]:
        """The template, then each plain loop for as long as the template took."""
        results = [self.template(seed, epochs)]
        results += [self.plain(net, seed, results[0].seconds) for net in NETWORKS]
        return results

    def _result(self, method: str, seed: int, out: Path, told: Mapping[str, Any]) -> Result:
        dice = score(out, self.data)
        result = Result(self.name, method, seed, dice, told["seconds"], told["steps"], told["parameters"])
        print(result, file=sys.stderr, flush=True)
        return result


def table(results: Sequence[Result]) -> str:
    """Markdown: one row for each data set and method, over its seeds."""
    rows = ["| data | trained by | liver Dice | tumour Dice | CPU s | steps | parameters |", "| --- " * 7 + "|"]
    for data, method in dict.fromkeys((result.data, result.method) for result in results):
        own = [result for result in results if (result.data, result.method) == (data, method)]
        cells = [data, TITLES[method]]
        cells += [spread([result.dice[region] for result in own], "{:.3f}".format) for region in ("liver", "tumour")]
        cells.append(spread([result.seconds for result in own], "{:.0f}".format))
        cells.append(spread([result.steps for result in own], "{:.0f}".format))
        cells.append(f"{own[0].parameters / 1e6:.1f} M")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def spread(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Median, and the smallest and largest where they look different: ``0.970 (0.961–0.974)``."""
    middle, low, high = (shown(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=[*DATA, "all"], default="all")
    default = ", ".join(f"{name} {seconds:.0f}" for name, (_, seconds) in DATA.items())
    parser.add_argument("--seconds", type=float, help=f"CPU time of each training; default: {default}")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each; default: 3")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, of one thread each; default: 2")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    names = list(DATA) if arguments.data == "all" else [arguments.data]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.jobs) as pool:
        folder = Path(temporary)
        (folder / "data").symlink_to(Path("data").resolve())  # where the CT is, or comes on first use
        benches = [Bench(name, folder, arguments.seconds) for name in names]
        epochs = list(pool.map(Bench.epochs, benches))
        chains = [
            pool.submit(bench.chain, seed, count)
            for bench, count in zip(benches, epochs, strict=True)
            for seed in range(arguments.seeds)
        ]
        results = [result for chain in chains for result in chain.result()]
    found = table(results)
    print(found)
    if arguments.write:
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), found, "table"), encoding="utf-8")


if __name__ == "__main__":
    main()
