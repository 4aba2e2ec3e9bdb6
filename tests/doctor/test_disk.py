"""Whether the run's folder and its room are measured."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from template.doctor import disk
from template.doctor.disk import Size, files_at_once, find_size, judge_folder, judge_room
from template.doctor.finding import Finding

from .rehearsed import examine

MIB = 2**20


def only(found: list[Finding], status: str, identifier: str, *words: str) -> None:
    assert [(one.status, one.id) for one in found] == [(status, identifier)], found
    for word in words:
        assert word in " ".join(found[0]), (word, found[0])


def net() -> nn.Module:
    """Of 1 MiB, the first layer frozen."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    layers[0].requires_grad_(False)
    return layers


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.AdamW(p, lr=0.1), 2),
        (lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True), 3),
    ],
)
def test_size_of_a_checkpoint(optimizer: Any, states: int) -> None:
    module = net()
    made = optimizer(module.parameters())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.optim.lr_scheduler.StepLR(made, 1)  # hangs its own counter on the optimizer's step
    size = find_size(module, [made])
    assert MIB <= size.weights < 1.02 * MIB
    assert size.optimizer is not None
    # Three layers of four are trained.
    assert states * 0.75 * MIB <= size.optimizer < states * 0.75 * MIB + 0.02 * MIB
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not made.state
    assert all(parameter.grad is None for parameter in module.parameters())


def test_it_is_the_size_that_torch_writes() -> None:
    module = net()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad])
    size = find_size(module, [optimizer])
    module(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"state_dict": module.state_dict(), "optimizer_states": [optimizer.state_dict()]}, file)
    assert size.bytes == pytest.approx(len(file.getvalue()), rel=0.02)


def test_an_optimizer_that_cannot_be_tried() -> None:
    size = find_size(net(), [torch.optim.LBFGS(net().parameters())])
    assert size.optimizer is None
    only(list(judge_room(Path("runs"), size, 4, MIB)), "fail", "disk-full", "without the optimizer's state")
    assert "weights alone" in next(iter(judge_room(Path("runs"), size, 4, 8 * MIB))).subject


def test_how_many_checkpoints_there_are() -> None:
    # The best, its successor, the last and its successor.
    assert files_at_once(1, 80) == 4
    assert files_at_once(3, 80) == 6
    assert files_at_once(0, 80) == 2
    assert files_at_once(-1, 80) == 83


def test_room() -> None:
    size = Size(10 * MIB, 20 * MIB)
    found = list(judge_room(Path("runs/liver"), size, 4, 119 * MIB))
    only(found, "fail", "disk-full", "'runs/liver' has 119.0 MiB left", "4 checkpoints of 30.0 MiB take 120.0 MiB")
    assert [one.status for one in judge_room(Path("runs"), size, 4, 120 * MIB)] == ["pass"]


def test_folders(tmp_path: Path) -> None:
    assert not list(judge_folder(tmp_path / "runs" / "liver"))
    assert not list(judge_folder(tmp_path))
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").write_text("a file")
    only(list(judge_folder(tmp_path / "runs" / "liver")), "fail", "folder-not-writable", "runs' is a file", "--runs")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to, not even root")
def test_a_folder_that_cannot_be_written() -> None:
    found = list(judge_folder(Path("/proc/runs/liver")))
    only(found, "fail", "folder-not-writable", "'/proc/runs/liver'", "in '/proc', the part of it that exists")


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = list(disk.CHECKS)
    found = examine(checks, tmp_path)
    assert [(one.check, one.status) for one in found] == [("machine: run's folder", "pass"), ("machine: room", "pass")]
    assert all(len(one.subject) <= 60 and len(one.check) <= 22 for one in found)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(MIB, MIB, 1000))
    found = examine(checks, tmp_path)
    assert [(one.id, one.status) for one in found] == [("folder-not-writable", "pass"), ("disk-full", "fail")]


def test_the_folder_is_that_of_the_configuration(tmp_path: Path) -> None:
    config = SimpleNamespace(
        runs=str(tmp_path / "file"), experiment="liver", checkpoint=SimpleNamespace(save_top_k=3, every_n_epochs=1)
    )
    (tmp_path / "file").touch()
    rehearsal: Any = SimpleNamespace(config=config, folder=tmp_path, asked={})
    only(disk.folder_is_writable(rehearsal), "fail", "folder-not-writable", str(tmp_path / "file"))
    assert not disk.checkpoints_have_room(rehearsal)  # said once
