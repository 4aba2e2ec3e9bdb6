"""What is said at the start of a run whose result depends on the number of processes."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Trainer
from torch import nn

from template.distributed.differences import differences
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet


def found(net: nn.Module, **settings: Any) -> list[str]:
    settings.setdefault("accelerator", "cpu")
    trainer = Trainer(devices=1, logger=False, enable_checkpointing=False, **settings)
    return differences(trainer, Segmenter(net, 3, 1))


def test_nothing_is_said_of_rounding() -> None:
    assert found(UNet(width=4, depth=2)) == []
    assert found(UNet(width=4, depth=2, normalization="instance"), strategy=SafeDDPStrategy(sync_batchnorm=False)) == []


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (UNet(width=4, depth=2, dropout=0.1), "net."),
        (nn.Sequential(nn.Conv2d(1, 3, 1), nn.Dropout2d(0.5), nn.Dropout(0.1)), "net.1 and 1 more"),
        (nn.Sequential(nn.TransformerEncoderLayer(4, 2, dropout=0.1)), "net.0.self_attn and 3 more"),
    ],
)
def test_dropout_is_named_by_its_layer(net: nn.Module, name: str) -> None:
    (reason,) = found(net)
    assert reason.startswith(f"dropout ({name}")


def test_dropout_of_nothing_is_none() -> None:
    assert found(nn.Sequential(nn.Conv2d(1, 3, 1), nn.Dropout(0.0))) == []


def test_stochastic_depth_of_timm_and_torchvision() -> None:
    timm = pytest.importorskip("timm.layers")
    from torchvision.ops import StochasticDepth

    for layer in (timm.DropPath(0.2), StochasticDepth(0.2, "row")):
        assert found(nn.Sequential(nn.Conv2d(1, 3, 1), layer))[0].startswith("dropout (net.1)")
    assert found(nn.Sequential(nn.Conv2d(1, 3, 1), timm.DropPath(0.0))) == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches 2: equal to runs with the same number"),
        ({"precision": "bf16-mixed"}, "trainer.precision bf16-mixed"),
        ({"strategy": SafeDDPStrategy(sync_batchnorm=False)}, "strategy.sync_batchnorm is off"),
        ({"strategy": SafeDDPStrategy(comm_hook="fp16")}, "strategy.comm_hook fp16"),
    ],
)
def test_a_setting_is_named_by_its_key(settings: dict[str, Any], reason: str) -> None:
    (said,) = found(UNet(width=4, depth=2), **settings)
    assert said.startswith(reason)
