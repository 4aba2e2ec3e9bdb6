"""Every public failure report, and every row of the notes that the project started from, has a test that covers it.

The titles are ours; the reports behind them are issues and questions of Lightning, PyTorch and projects that use them.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.doctor.projects import PROJECTS

TESTS = Path(__file__).parents[1]

REPORTS = {
    # Gradients
    "A1": "a trainable parameter that the loss does not use",
    "A2": "a branch of the loss that some ranks skip",
    "A4": "a loss that is not finite on one rank",
    "A5": "a training step without a result",
    "A7": "gradient checkpointing under DDP",
    "A8": "layers unfrozen while training",
    "A9": "layers frozen while training",
    # Normalisation
    "B1": "two forward passes in a step with BatchNorm",
    "B2": "synchronised BatchNorm on the CPU",
    "B4": "checkpoints from plain to synchronised BatchNorm and back",
    "B5": "running statistics that differ between ranks",
    # Waiting for others
    "C1": "ranks with different numbers of batches",
    "C2": "a checkpoint saved on rank 0 alone",
    "C4": "a property that is a collective",
    "C6": "metrics logged in another order",
    "C7": "a monitored metric that ranks see differently",
    "C8": "long work on one rank",
    "C10": "metrics on another device than the backend's, and a debug switch that crashes",
    # Devices
    "D1": "layers in a plain list",
    "D4": "an optimizer of parameters that were replaced",
    "D5": "two ranks on one GPU",
    # Starting
    "E1": "arguments that old launchers add",
    "E2": "another number of processes than the configuration's",
    "E4": "one visible GPU for each SLURM task",
    "E5": "a port that is taken",
    "E6": "several processes from a notebook",
    "E8": "a script that cannot be started again: changed directory, standard input",
    "E10": "code after the training",
    # Data
    "F1": "a resumed run that replays an epoch's order",
    "F2": "scores of samples that a sampler repeats",
    "F4": "the same augmentation in each process",
    "F5": "a random split of each process's own",
    "F7": "state that only one process sets",
    "F9": "labels outside of the classes",
    "F10": "masks of 0 and 255",
    "F11": "masks in colour, and palettes that are read as grey",
    "F14": "a number of classes that the network does not have",
    "F15": "an image and a mask that do not fit, without a file's name",
    "F17": "volumes: orientation, values, types; fewer samples than a batch",
    # Files
    "G1": "run folders made by several processes at once",
    "G3": "checkpoints that are cut off, empty or missing, and a full disk",
    "G4": "a checkpoint that was silently not written",
    "G5": "objects in a checkpoint that plain loading refuses",
    "G7": "resuming inside an epoch",
    "G9": "a checkpoint used without Lightning",
    # Configuration
    "H1": "numbers in scientific notation",
    "H3": "a class that does not exist",
    "H4": "a key that does not exist",
    "H5": "a number that the model takes from the data",
    "H6": "settings of a checkpoint against those given at a resume",
    "H8": "arguments of a class that is replaced",
    "H9": "several files over each other",
}
NOTES = {
    "notes/dataparallel": "one process with many threads, and what its batch size means",
    "notes/second-cuda": "a device written into the code",
    "notes/ddp-arguments": "the arguments of DistributedDataParallel",
    "notes/init-process-group": "backend, address, port and timeout of the process group",
    "notes/watchdog-timeout": "a collective that ran half an hour before it timed out",
    "notes/set-device": "a GPU for each process",
    "notes/unused": "parameters without a gradient, cause unknown",
    "notes/debug-levels": "debug levels of torch",
    "notes/sync-batchnorm": "synchronised BatchNorm, also on one process",
    "notes/in-place": "a buffer modified by an operation in place",
    "notes/sampler": "samplers, their epochs, and loaders",
    "notes/launch-arguments": "the launcher's argument in each spelling",
    "notes/spawn": "processes started from the script",
    "notes/visible-devices": "environment variables for GPUs and threads",
    "notes/run-button": "started by an IDE",
    "notes/build-optimizer": "optimizer and schedule of the wrapped network",
    "notes/save-every": "checkpoints every n steps, by one process, without a prefix",
    "notes/tensorboard-race": "several writers of one log folder",
    "notes/loss-device": "a loss on the first device",
    "notes/networks": "other networks, siamese ones among them",
    "notes/two-files": "a script for one GPU and one for many, line by line",
    "notes/warnings": "warnings that were ignored",
}
KNOWN = REPORTS.keys() | NOTES.keys()


@functools.cache
def marked() -> dict[str, list[str]]:
    """Identifier -> the tests that carry it."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.case":
                continue
            for argument in node.args:
                # A name in place of a text would hide from this search.
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}"
                found.setdefault(str(argument.value), []).append(f"{path.relative_to(TESTS)}:{node.lineno}")
    for project in PROJECTS:  # each is a test of the doctor's
        for identifier in project.cases:
            found.setdefault(identifier, []).append(f"doctor/projects/{project.name}")
    return found


@pytest.mark.parametrize("identifier", sorted(KNOWN))
def test_each_report_has_a_test(identifier: str) -> None:
    tests = marked().get(identifier, [])
    assert tests, REPORTS.get(identifier) or NOTES[identifier]


def test_no_test_carries_an_unknown_identifier() -> None:
    assert {name: where for name, where in marked().items() if name not in KNOWN} == {}
