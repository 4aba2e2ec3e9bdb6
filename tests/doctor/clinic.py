"""The doctor on small projects, in processes that are forked with everything imported: seconds, not half a minute."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from template.distributed.launch import ERROR_FILE, MESSAGE
from template.doctor.events import Listener, Teller
from template.doctor.finding import Finding, of_error
from template.doctor.options import Options
from template.doctor.part import GO, READY, SOLO, STEPS, Plan, leave_word
from template.doctor.verdicts import joined, spoken
from tests.ranks import run_ranks

#: What a project lays its own keys over: four phantoms of 32 pixels, a network of a few thousand parameters.
BASE: dict[str, Any] = {
    "seed_everything": 0,
    "data": {
        "class_path": "Phantom",
        "init_args": {
            "train_cases": 8,
            "val_cases": 4,
            "test_cases": 2,
            "size": 32,
            "batch_size": 4,
            "num_workers": 0,
            "preprocess": [{"class_path": "Window", "init_args": {"low": -160, "high": 240}}],
            "augment": [{"class_path": "RandomWarp", "init_args": {"degrees": 10}}],
        },
    },
    "model": {
        "net": {"class_path": "UNet", "init_args": {"width": 4, "depth": 2}},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}},
    },
    "trainer": {"max_epochs": 3, "accelerator": "cpu", "devices": 1},
}


def diagnose(
    overlay: dict[str, Any],
    folder: Path,
    processes: int = 2,
    options: Options | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What the doctor finds in a project.

    Args:
        overlay: The project's own keys.
        folder: Where it lies: its modules are imported from there.
        processes: Of the doctor; 1: only what one process is examined for.
        options: Of the doctor.
        environ: Variables that it is started with, besides those of this process.
    """
    work = folder / "doctor"
    work.mkdir()
    configs = []
    for number, content in enumerate((BASE, overlay)):
        configs.append(folder / f"config_{number}.yaml")
        configs[-1].write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    arguments = [word for file in configs for word in ("--config", str(file))]
    options = (options or Options())._replace(processes=processes)
    Plan(arguments, options, {**os.environ, **(environ or {})}, str(folder)).write(work)
    for rank in range(processes):
        leave_word(work, READY.format(rank))
    told: list[tuple[str, Finding]] = []
    run_ranks(1, _examine, str(folder), str(work))
    told += _heard(work, SOLO)
    if processes > 1 and (work / GO).exists():
        try:
            run_ranks(processes, _train, str(folder), str(work))
        except ChildProcessError:
            if not _messages(work):  # it was not its watchdog that has ended it
                raise
        told += [one for rank in range(processes) for one in _heard(work, f"rank {rank}")] + _messages(work)
    return joined(told, processes)


def _heard(work: Path, name: str) -> list[tuple[str, Finding]]:
    events = Listener(work / name).news()
    return [(name, Finding(**event.value)) for event in events if event.kind == "finding"]


def _messages(work: Path) -> list[tuple[str, Finding]]:
    """What ranks have left word of that their watchdogs have ended."""
    files = sorted(work.glob(f"rank_*/{MESSAGE}"))
    return [(file.parent.name.replace("_", " "), spoken(file.read_text(encoding="utf-8"))) for file in files]


def _examine(rank: int, folder: str, work: str) -> None:
    _work("examine", folder, Path(work), SOLO)


def _train(rank: int, folder: str, work: str) -> None:
    own = Path(work) / f"rank_{rank}"
    own.mkdir()
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", ERROR_FILE: str(own / "error.json")}
    _work("train", folder, Path(work), f"rank {rank}")


def _work(what: str, folder: str, work: Path, name: str) -> None:
    # A process of a fork server would start its loader workers from another one, which imports torch first.
    multiprocessing.set_start_method("fork", force=True)
    os.chdir(folder)
    sys.path.insert(0, folder)
    teller = Teller(work / name)
    module = importlib.import_module("template.doctor.solo" if what == "examine" else "template.doctor.together")
    try:
        getattr(module, what)(Plan.read(work), work, teller)
    except BaseException as error:  # noqa: BLE001 - as the doctor's own processes do
        teller.find([of_error(error)._replace(check=STEPS)])
    teller.end()
