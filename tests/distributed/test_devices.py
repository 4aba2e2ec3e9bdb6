"""Each process has a GPU of its own, or both are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from template.distributed.devices import Gpu, check_own_gpu
from template.distributed.faults import NamedError
from tests.ranks import run_ranks


def _meet(rank: int, path: str, gpus: list[Gpu]) -> Any:
    try:
        check_own_gpu(dist.FileStore(path, len(gpus)), rank, len(gpus), gpus[rank])
    except NamedError as error:
        return error
    return None


@pytest.mark.case("D5")
@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (
            [Gpu("h", "GPU-1", 0, "0"), Gpu("h", "GPU-1", 0, "0")],
            "Ranks 0 and 1 both use GPU 0 of host h; CUDA_VISIBLE_DEVICES=0.",
        ),
        (
            [Gpu("h", "GPU-1", 1, "not set"), Gpu("h", "GPU-1", 0, "1")],
            (
                "Ranks 0 and 1 both use one GPU of host h: rank 0 as GPU 1 with CUDA_VISIBLE_DEVICES=not set, rank 1 "
                "as GPU 0 with CUDA_VISIBLE_DEVICES=1."
            ),
        ),
    ],
)
def test_two_ranks_on_one_gpu_are_named_on_both(gpus: list[Gpu], told: str, tmp_path: Path) -> None:
    for error in run_ranks(2, _meet, str(tmp_path / "store"), gpus):
        assert error.identifier == "duplicate-gpu"
        assert error.what == told
        assert "no more processes than GPUs" in error.fix


@pytest.mark.case("D5", "notes/set-device")
def test_gpus_of_the_same_number_are_two_where_only_one_is_visible_to_each(tmp_path: Path) -> None:
    gpus = [Gpu("h", "GPU-1", 0, "0"), Gpu("h", "GPU-2", 0, "1")]
    assert run_ranks(2, _meet, str(tmp_path / "store"), gpus) == [None, None]


def test_a_gpu_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "4714d55a"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    monkeypatch.setattr("socket.gethostname", lambda: "h")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert Gpu.of(torch.device("cuda", 1)) == Gpu("h", "4714d55a", 1, "2,3")
