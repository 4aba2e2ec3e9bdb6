"""Checkpoints: whole or not there, plain, and readable whoever wrote them."""

from __future__ import annotations

import os
import pathlib
from pathlib import Path
from typing import Any

import pytest
import torch

from template.callbacks.checkpoint import RankZeroCheckpoint
from template.callbacks.checkpoint_io import AtomicCheckpointIO, continues, normalize, plain
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


def test_plain_types_pass() -> None:
    plain({"a": [1, 2.0, "x", None, True, b"y", (torch.ones(1), torch.float32)], 3: {"b": set()}})


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
