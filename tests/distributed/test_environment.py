"""What Lightning is told about the processes, and whether each of them has a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.plugins.io import TorchCheckpointIO

from template.distributed.environment import WorldEnvironment, check_visible_gpus, plugins
from template.distributed.faults import NamedError
from template.distributed.world import World


def test_lightning_sees_the_same_world() -> None:
    environment = WorldEnvironment(World(5, 8, 1, 4, "slurm"))
    environment.set_global_rank(0)
    environment.set_world_size(1)
    assert (environment.global_rank(), environment.world_size()) == (5, 8)
    assert (environment.local_rank(), environment.node_rank()) == (1, 1)
    assert environment.creates_processes_externally


def test_the_address_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    environment = WorldEnvironment(World())
    assert (environment.main_address, environment.main_port) == ("10.0.0.1", 29500)


def test_a_shell_in_an_allocation_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Lightning by itself takes the shell for one of the four tasks, and refuses --ntasks.
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, plugins=[WorldEnvironment(World())]
    )
    assert (trainer.world_size, trainer.global_rank) == (1, 0)


@pytest.mark.parametrize("plugin", [LightningEnvironment(), TorchCheckpointIO()], ids=["environment", "checkpoints"])
def test_a_plugin_in_the_place_of_this_programs_own_is_refused_by_name(plugin: Any) -> None:
    for given in (plugin, [Other(), plugin]):
        with pytest.raises(NamedError, match=f"trainer.plugins holds a {type(plugin).__name__}") as caught:
            plugins(given, World())
        assert caught.value.fix == "Remove it."
        assert caught.value.exit_code == 2


class Other:
    """A plugin of another kind."""


def test_other_plugins_are_the_users() -> None:
    one = Other()
    assert [type(plugin) for plugin in plugins(one, World())] == [Other, WorldEnvironment]
    assert plugins([one], World())[0] is one
    assert len(plugins(None, World())) == 1


@pytest.mark.case("E4", "D5", "notes/visible-devices")
@pytest.mark.parametrize(
    ("launcher", "gpus", "processes", "fix"),
    [
        ("slurm", 1, 2, "Ask for --gpus-per-node=2 --ntasks-per-node=2"),
        ("slurm", 2, 4, "Start as many processes as there are GPUs"),
        ("torchrun", 1, 2, "Start as many processes as there are GPUs"),
    ],
)
def test_too_few_gpus_for_the_processes_are_named(
    launcher: str, gpus: int, processes: int, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(NamedError, match="CUDA_VISIBLE_DEVICES=1") as caught:
        check_visible_gpus(World(1, processes, 1, processes, launcher), "auto")
    assert f"{launcher} started {processes} processes on this machine, and rank 1 sees {gpus} GPU" in caught.value.what
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize(("gpus", "accelerator"), [(0, "auto"), (1, "cpu"), (2, "gpu"), (4, "auto")])
def test_enough_gpus_or_none_wanted(gpus: int, accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    check_visible_gpus(World(1, 2, 1, 2, "slurm"), accelerator)
