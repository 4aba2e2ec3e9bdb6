"""What is copied for a checkpoint that is written in the background is written as the same bytes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from template.callbacks.background import Snapshots
from template.callbacks.checkpoint_io import AtomicCheckpointIO


def state() -> dict[str, Any]:
    """Tensors of every kind, that share memory in every way, and all that a checkpoint holds besides."""
    weight, net = torch.randn(3, 5), torch.nn.BatchNorm1d(3)
    numbers = [1, 2, 3]
    return {
        "state_dict": OrderedDict(net.state_dict()),
        "with versions": net.state_dict(),
        "tied": [weight, weight],
        "views": (weight[1:, ::2], weight.T, weight[:0]),
        "expanded": torch.ones(1).expand(4),
        "kinds": [torch.tensor(2), torch.zeros(0, 3), torch.ones(2, dtype=torch.bfloat16), torch.tensor([True])],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "complex": torch.tensor([1j, 2]),
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "sparse": torch.eye(3).to_sparse(),
        "shape": torch.Size([1, 2]),
        "plain": [1, 2.0, "x", None, True, b"y", torch.float32, {3, 4}, numbers, {"again": numbers}],
    }


def test_a_copy_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    content, io, snapshots = state(), AtomicCheckpointIO(), Snapshots()
    io.write(content, tmp_path / "one.ckpt")
    for _ in range(2):  # in fresh memory, and in the same again
        io.write(snapshots.take(content), tmp_path / "two.ckpt")
        assert (tmp_path / "two.ckpt").read_bytes() == (tmp_path / "one.ckpt").read_bytes()


def test_a_conjugate_is_copied_as_a_value() -> None:
    content = {"conjugate": torch.tensor([1j, 2]).conj()}
    assert torch.equal(Snapshots().take(content)["conjugate"], torch.tensor([-1j, 2]))


def test_a_copy_does_not_change_with_what_was_copied() -> None:
    content = state()
    copied = Snapshots().take(content)
    expected = torch.clone(content["tied"][0])
    with torch.no_grad():
        content["tied"][0].fill_(7)
        content["parameter"].fill_(7)
    content["plain"][8].append(4)
    content["state_dict"]["more"] = torch.ones(1)
    assert torch.equal(copied["tied"][1], expected)
    assert torch.equal(copied["views"][1], expected.T)
    assert copied["parameter"].tolist() == [1, 1]
    assert copied["plain"][8] == copied["plain"][9]["again"] == [1, 2, 3]
    assert "more" not in copied["state_dict"]


def test_memory_is_taken_again_while_it_is_large_enough() -> None:
    snapshots = Snapshots()
    snapshots.room_for({"w": torch.ones(1000)})()
    places = [snapshots.take({"w": torch.ones(size)})["w"].data_ptr() for size in (1000, 10, 1000)]
    assert len(set(places)) == 1
    assert torch.equal(snapshots.take({"w": torch.ones(10**6)})["w"], torch.ones(10**6))


@pytest.mark.gpu
def test_a_copy_from_a_gpu_is_on_the_cpu_and_does_not_change() -> None:
    content = {"w": torch.randn(1000, 1000, device="cuda"), "step": torch.tensor(3.0)}
    snapshots, expected = Snapshots(), content["w"].cpu()
    for _ in range(2):
        copied = snapshots.take(content)
        assert copied["w"].device.type == "cpu"
        assert copied["w"].is_pinned()
        content["w"] += 1
        assert torch.equal(copied["w"], expected)
        content["w"].copy_(expected)
