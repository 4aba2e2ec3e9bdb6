"""Failure reports about devices and registration, as a run meets them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from torch import Tensor, nn

from template.callbacks.probe import ProbeStep
from template.data.phantom import Phantom
from template.distributed.environment import WorldEnvironment
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from template.distributed.world import World
from template.models.losses import CrossEntropyDice
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from tests import tiny
from tests.distributed.test_strategy import fit
from tests.ranks import run_ranks


class PlainList(nn.Module):
    """A network whose heads are in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(1, 3, 1)
        self.heads = [nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)]

    def forward(self, image: Tensor) -> Tensor:
        features = self.trunk(image)
        return self.heads[0](features) + self.heads[1](features)


def _fit_plain_list(rank: int, world_size: int, folder: str) -> Any:
    try:
        return fit(rank, world_size, folder, {}, PlainList().double())
    except NamedError as error:
        return error


@pytest.mark.case("D1")
def test_layers_in_a_plain_list_end_the_run_before_its_first_step(tmp_path: Path) -> None:
    for error in run_ranks(2, _fit_plain_list, 2, str(tmp_path)):
        assert error.identifier == "unregistered-module"
        assert error.what == "net.heads is a plain list of 2 layers (Conv2d): they are neither moved nor trained."
        assert error.fix.startswith("Use nn.ModuleList. ")
        assert "averaged over the processes" in error.cause


NET = """\
from torch import nn
class PlainList(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Conv2d(1, 3, 1)
        self.heads = [nn.Conv2d(3, 3, 1)]
    def forward(self, x): return self.heads[0](self.trunk(x))
"""


@pytest.mark.case("D1")
def test_the_same_in_one_process_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "net_list.py").write_text(NET, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "net_list", raising=False)
    tiny.write()
    assert tiny.run("--model.net", "net_list.PlainList") == 1
    assert (
        "error: net.heads is a plain list of 1 layer (Conv2d): it is neither moved nor trained."
        in capsys.readouterr().err
    )


@pytest.mark.case("D4", "notes/build-optimizer")
def test_an_optimizer_of_a_layer_that_was_replaced_since_ends_the_run(tmp_path: Path) -> None:
    old = nn.Conv2d(1, 3, 1)
    net = nn.Conv2d(1, 3, 1)
    module = Segmenter(net, 3, 1, optimizer=lambda _: torch.optim.SGD(old.parameters(), lr=0.1))
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=1,
        use_distributed_sampler=False,
        callbacks=[ProbeStep()],
        default_root_dir=tmp_path,
    )
    with pytest.raises(NamedError, match="the network has net.weight, net.bias, which no optimizer has") as caught:
        trainer.fit(module, datamodule=Phantom(train_cases=2, val_cases=1, test_cases=1, size=32, num_workers=0))
    assert caught.value.identifier == "optimizer-parameters"


def _fit_in_detail(rank: int, folder: str) -> Any:
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # what the variable does when torch is imported
    with pytest.warns(UserWarning, match="TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch crash"):
        return fit(rank, 2, folder)["scores"]


@pytest.mark.case("C10", "notes/debug-levels")
def test_the_debug_level_that_crashes_ddp_on_the_cpu_does_no_harm(tmp_path: Path) -> None:
    one, other = run_ranks(2, _fit_in_detail, str(tmp_path))
    assert one == pytest.approx(other, nan_ok=True)


@pytest.mark.case("notes/set-device")
def test_each_process_has_the_gpu_of_its_local_rank() -> None:
    strategy = SafeDDPStrategy()
    strategy.parallel_devices = [torch.device("cuda", index) for index in range(4)]
    for local_rank in range(4):
        strategy.cluster_environment = WorldEnvironment(World(4 + local_rank, 8, local_rank, 4, "torchrun"))
        assert strategy.root_device == torch.device("cuda", local_rank)
        assert strategy.determine_ddp_device_ids() == [local_rank]


@pytest.mark.case("notes/loss-device")
def test_weights_of_the_loss_move_with_the_network() -> None:
    module = Segmenter(UNet(width=4, depth=2), 3, 1, loss=CrossEntropyDice(class_weights=[1, 2, 3]))
    module.to("meta")
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    assert "loss.class_weights" in tensors
    assert {value.device.type for value in tensors.values()} == {"meta"}
