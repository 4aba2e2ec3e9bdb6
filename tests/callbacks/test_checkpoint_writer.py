"""Files that are written in the background: in order, one at a time, the moment's state, and no error is lost."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from template.callbacks.background import BackgroundWriter
from template.callbacks.checkpoint_io import AtomicCheckpointIO, Plan
from template.distributed.faults import NamedError

from .slow_disk import Slow, full


def background(*first: Path, outdated: tuple[str, ...] = ()) -> Plan:
    return Plan(True, tuple(map(str, first)), outdated)


def test_a_save_returns_before_the_file_is_there_and_holds_that_moment(tmp_path: Path) -> None:
    io, weight, last = Slow(), torch.zeros(3), tmp_path / "last.ckpt"
    io.save_checkpoint({"state_dict": {"net.w": weight}}, last, background())
    assert io.writer.busy
    assert not last.exists()
    weight += 1
    io.may.set()
    assert io.load_checkpoint(last)["state_dict"]["net.w"].tolist() == [0, 0, 0]  # waits
    assert not io.writer.busy


def test_what_is_outdated_goes_when_all_is_written(tmp_path: Path) -> None:
    io, old = Slow(), tmp_path / "old.ckpt"
    io.write({"epoch": 0}, old)
    io.save_checkpoint({"epoch": 1}, tmp_path / "last.ckpt", background(tmp_path / "best.ckpt", outdated=(str(old),)))
    assert old.exists()
    io.may.set()
    io.writer.drain()
    assert io.steps == ["write old.ckpt", "write best.ckpt", "write last.ckpt", "remove old.ckpt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.ckpt", "last.ckpt"]


def test_the_next_save_waits_for_the_one_before(tmp_path: Path) -> None:
    io = Slow()
    io.save_checkpoint({"epoch": 1}, tmp_path / "a.ckpt", background())
    threading.Timer(0.3, io.may.set).start()
    io.save_checkpoint({"epoch": 2}, tmp_path / "b.ckpt")  # of a user's own code: the file is there when it returns
    assert io.steps == ["write a.ckpt", "write b.ckpt"]
    assert torch.load(tmp_path / "b.ckpt", weights_only=True) == {"epoch": 2}


def test_what_cannot_be_stored_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(NamedError, match="entry 'path' is a ") as caught:
        AtomicCheckpointIO().save_checkpoint({"path": Path("x")}, tmp_path / "a.ckpt", background())
    assert caught.value.identifier == "checkpoint-not-plain"


def test_an_error_is_raised_once_by_whoever_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, last, old = AtomicCheckpointIO(), tmp_path / "last.ckpt", tmp_path / "old.ckpt"
    io.write({"epoch": 0}, old)
    io.write({"epoch": 0}, last)
    monkeypatch.setattr(os, "fsync", full)
    io.save_checkpoint({"epoch": 1}, last, background(outdated=(str(old),)))
    with pytest.raises(NamedError, match="No space left on device") as caught:
        io.writer.drain()
    assert caught.value.identifier == "disk-full"
    io.writer.drain()
    assert {path.name: torch.load(path, weights_only=True)["epoch"] for path in tmp_path.iterdir()} == {
        "last.ckpt": 0,
        "old.ckpt": 0,
    }


def test_a_wait_tells_that_it_gets_on() -> None:
    writer, ticks, said, done = BackgroundWriter(), iter(range(100)), threading.Event(), threading.Event()
    writer.progress, writer.moving = lambda: next(ticks), said.set
    writer.start(lambda: done.set() if said.wait(60) else None)
    writer.drain()
    assert done.is_set()
    stands = BackgroundWriter()
    stands.moving = lambda: pytest.fail("nothing moves")
    stands.start(lambda: time.sleep(1.5))
    stands.drain()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="of Linux")
def test_a_forked_process_holds_no_file_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go, flush = threading.Event(), threading.Event(), os.fsync

    def hold(descriptor: Any) -> None:
        reached.set()
        assert go.wait(60)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", hold)
    io = AtomicCheckpointIO()
    io.save_checkpoint({"epoch": 1}, tmp_path / "last.ckpt", background())
    assert reached.wait(60)

    def held() -> list[str]:
        links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
        return [target for link in links if (target := os.path.realpath(link)).startswith(str(tmp_path))]

    assert len(held()) == 1
    child = os.fork()
    if child == 0:
        os._exit(len(held()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    io.writer.drain()
    assert torch.load(tmp_path / "last.ckpt", weights_only=True) == {"epoch": 1}
