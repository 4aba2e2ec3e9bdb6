"""Checkpoints: whole or not there, plain, and readable whoever wrote them."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from lightning import Trainer
from torchvision import tv_tensors

from template.callbacks.checkpoint import RankZeroCheckpoint
from template.callbacks.checkpoint_io import AtomicCheckpointIO, check_room, continues, normalize
from template.callbacks.plain import plain
from template.distributed.faults import NamedError
from template.models.segmenter import Segmenter

WEIGHTS = {"conv.weight": torch.ones(2), "conv.bias": torch.zeros(1)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    io, file = AtomicCheckpointIO(), tmp_path / "checkpoints" / "last.ckpt"
    io.save_checkpoint({"state_dict": {"net.w": torch.arange(3)}, "epoch": 4}, file)
    loaded = io.load_checkpoint(file)
    assert loaded["epoch"] == 4
    assert loaded["state_dict"]["net.w"].tolist() == [0, 1, 2]
    assert [path.name for path in file.parent.iterdir()] == ["last.ckpt"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, file = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"epoch": 1, "state_dict": {"net.w": torch.ones(1)}}, file)
    before = file.read_bytes()

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NamedError, match="No space left on device") as caught:
        io.save_checkpoint({"epoch": 2, "state_dict": {"net.w": torch.ones(1)}}, file)
    assert caught.value.identifier == "disk-full"
    assert str(file) in caught.value.what
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_the_target_never_holds_half_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, file = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    seen: list[tuple[bool, bool]] = []
    rename = pathlib.Path.replace

    def look(part: Path, target: Path) -> Path:
        seen.append((target.exists(), torch.load(part, weights_only=True)["epoch"] == 1))
        return rename(part, target)

    monkeypatch.setattr(pathlib.Path, "replace", look)
    io.save_checkpoint({"epoch": 1}, file)
    assert seen == [(False, True)]  # whole before the name exists


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("must-not-exist",)


@pytest.mark.parametrize("entry", [Path("x"), torch.nn.Linear(1, 1), torch.optim.SGD, Code()])
def test_objects_are_refused_with_their_place(entry: Any, tmp_path: Path) -> None:
    with pytest.raises(NamedError, match=r"entry 'callbacks\.mine\[1\]\.where' is a ") as caught:
        AtomicCheckpointIO().save_checkpoint({"callbacks": {"mine": [0, {"where": entry}]}}, tmp_path / "a.ckpt")
    assert caught.value.identifier == "checkpoint-not-plain"
    assert not list(tmp_path.iterdir())


@pytest.mark.case("G5")
def test_numbers_of_numpy_and_subclasses_are_stored_plainly(tmp_path: Path) -> None:
    class Pair(NamedTuple):
        one: Any
        two: Any

    file = tmp_path / "a.ckpt"
    content = {"lr": np.float64(0.5), "pair": Pair(np.int64(2), "x"), "mask": tv_tensors.Mask(torch.ones(2))}
    AtomicCheckpointIO().save_checkpoint({"state_dict": WEIGHTS, "hyper_parameters": content}, file)
    loaded = torch.load(file, weights_only=True)["hyper_parameters"]
    assert loaded == {"lr": 0.5, "pair": (2, "x"), "mask": loaded["mask"]}
    assert type(loaded["lr"]) is float
    assert type(loaded["mask"]) is torch.Tensor


@pytest.mark.case("G5")
def test_hyper_parameters_that_would_not_load_are_refused_before_the_training(tmp_path: Path) -> None:
    module = Segmenter(torch.nn.Conv2d(1, 2, 1), 2, 1)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    check_room(tmp_path, module, copies=3)
    module.save_hyperparameters({"root": {"images": Path("x")}})
    with pytest.raises(NamedError, match=r"entry 'hyper_parameters\.root\.images' is a pathlib\.PosixPath") as caught:
        check_room(tmp_path, module, copies=3)
    assert caught.value.identifier == "checkpoint-not-plain"


def small_disk(folder: Path, size: str) -> None:
    """Mount a file system of a size, or skip where that is not allowed."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("only root may mount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    try:
        small_disk(folder, "300k")
        yield folder
    finally:
        subprocess.run(["umount", folder], capture_output=True, check=False)


@pytest.mark.case("G3")
def test_a_full_disk_is_named_and_the_old_checkpoint_stays(disk: Path) -> None:
    io, file = AtomicCheckpointIO(), disk / "last.ckpt"
    io.save_checkpoint({"state_dict": {"net.w": torch.zeros(40_000)}}, file)  # 160 of 300 KB
    before = file.read_bytes()
    with pytest.raises(NamedError, match=r"The checkpoint '.*last\.ckpt' cannot be written: .* are left\.") as caught:
        io.save_checkpoint({"state_dict": {"net.w": torch.ones(40_000)}}, file)
    assert caught.value.identifier == "disk-full"
    assert file.read_bytes() == before
    assert [path.name for path in disk.iterdir()] == ["last.ckpt"]


@pytest.mark.case("G3")
def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    file, before = tmp_path / "last.ckpt", resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(NamedError) as caught:
            AtomicCheckpointIO().save_checkpoint({"state_dict": {"net.w": torch.ones(40_000)}}, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.identifier == "disk-full"
    assert not list(tmp_path.iterdir())


@pytest.mark.case("G4")
def test_a_folder_that_is_read_only_is_named_before_and_while_saving(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    module = Segmenter(torch.nn.Conv2d(1, 2, 1), 2, 1)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(NamedError, match=r"No checkpoint can be written to '.*disk': .*Read-only") as caught:
        check_room(disk, module, copies=3)
    assert caught.value.identifier == "folder-not-writable"
    with pytest.raises(NamedError, match="Read-only file system") as caught:
        AtomicCheckpointIO().save_checkpoint({"state_dict": WEIGHTS}, disk / "last.ckpt")
    assert caught.value.identifier == "folder-not-writable"


@pytest.mark.case("G4")
def test_a_permission_error_while_saving_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    with pytest.raises(NamedError, match=r"'.*last\.ckpt' cannot be written: \[Errno 13\] Permission denied") as caught:
        AtomicCheckpointIO().save_checkpoint({"state_dict": WEIGHTS}, tmp_path / "last.ckpt")
    assert caught.value.identifier == "folder-not-writable"


@pytest.mark.case("G3")
def test_too_little_room_is_told_before_the_training(disk: Path) -> None:
    module = Segmenter(torch.nn.Conv2d(1, 2, 1), 2, 1)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    module.net.register_buffer("large", torch.zeros(30_000))  # 120 KB
    with pytest.warns(UserWarning, match=r"has .* left; 3 checkpoints with the state of an optimizer .* take 1 MiB"):
        check_room(disk, module, copies=3)
    module.net.register_buffer("larger", torch.zeros(80_000))
    with pytest.raises(NamedError, match=r"has .* left, and the weights of one checkpoint take .*\. ") as caught:
        check_room(disk, module, copies=3)
    assert caught.value.identifier == "disk-full"
    assert not list(disk.iterdir())


def test_plain_types_pass() -> None:
    content = {"a": [1, 2.0, "x", None, True, b"y", (torch.ones(1), torch.float32)], 3: {"b": set()}}
    assert plain(content) is content


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": WEIGHTS, "x": Code()}, "evil.ckpt")
    with pytest.raises(NamedError, match=r"'evil\.ckpt' cannot be loaded") as caught:
        AtomicCheckpointIO().load_checkpoint("evil.ckpt")
    assert caught.value.identifier == "checkpoint-unreadable"
    assert not Path("must-not-exist").exists()


@pytest.mark.parametrize("keep", [0, 1, 100, -10])
def test_a_damaged_file_is_named(keep: int, tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    torch.save({"state_dict": WEIGHTS}, file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(NamedError, match=r"last\.ckpt' is damaged: it is (empty|cut off at \d+ bytes)\.") as caught:
        AtomicCheckpointIO().load_checkpoint(file)
    assert caught.value.identifier == "checkpoint-unreadable"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NamedError, match=r"none\.ckpt' does not exist") as caught:
        AtomicCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")
    assert caught.value.identifier == "no-checkpoint"


@pytest.mark.case("notes/dataparallel")
@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,  # torch.save(net.state_dict())
        {f"module.{name}": value for name, value in WEIGHTS.items()},  # DataParallel, DDP
        {"state_dict": {f"module.{name}": value for name, value in WEIGHTS.items()}, "epoch": 3},
        {"model": {f"module.{name}": value for name, value in WEIGHTS.items()}},
        {"state_dict": {f"net.module.{name}": value for name, value in WEIGHTS.items()}},
        {"state_dict": {f"module.net.{name}": value for name, value in WEIGHTS.items()}},
        {"state_dict": {f"net.{name}": value for name, value in WEIGHTS.items()}},
    ],
)
def test_all_that_people_call_a_checkpoint_is_taken(content: dict[str, Any]) -> None:
    assert sorted(normalize(content, Path("x"))["state_dict"]) == ["net.conv.bias", "net.conv.weight"]


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, {"state_dict": {}}])
def test_what_holds_no_weights_is_refused(content: Any) -> None:
    with pytest.raises(NamedError, match="'x' holds"):
        normalize(content, Path("x"))


def test_names_of_the_best_say_by_what() -> None:
    checkpoint = RankZeroCheckpoint()
    name = checkpoint.format_checkpoint_name({"epoch": torch.tensor(7), "val/dice": torch.tensor(0.91234)})
    assert name == "best-007-val_dice=0.9123.ckpt"


def test_a_fit_begins_anew_with_bare_weights(tmp_path: Path) -> None:
    module = Segmenter(torch.nn.Conv2d(1, 2, 1), 2, 1)
    weights = {"module.weight": torch.full((2, 1, 1, 1), 3.0), "module.bias": torch.ones(2)}
    torch.save(weights, tmp_path / "old.pth")
    assert not continues(str(tmp_path / "old.pth"), module)
    assert module.net.weight.unique().tolist() == [3]
    torch.save({"state_dict": {"net.weight": torch.ones(1)}, "optimizer_states": []}, tmp_path / "run.ckpt")
    assert continues(str(tmp_path / "run.ckpt"), module)
    torch.save({"weight": torch.ones(1)}, tmp_path / "other.pth")
    with pytest.raises(NamedError) as caught:
        continues(str(tmp_path / "other.pth"), module)
    assert caught.value.identifier == "checkpoint-mismatch"
