"""The strategy on real gloo ranks: knobs, process group, and one result for every world size."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from template.callbacks.checkpoint import AtomicCheckpointIO
from template.data.phantom import Phantom
from template.distributed.collectives import group
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy, parse_timeout
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.ranks import run_ranks


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), (" 2 H ", 7200)],
)
def test_a_timeout_is_read(value: float | str, seconds: float) -> None:
    assert parse_timeout(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["soon", "1:30:00", 0, "-5", "5d", ""])
def test_what_is_no_time_is_refused(value: float | str) -> None:
    with pytest.raises(NamedError, match=r"strategy\.timeout is '") as caught:
        SafeDDPStrategy(timeout=value)
    assert caught.value.exit_code == 2


class _Wrapped(Callback):
    """Looks at the module in the middle of a fit."""

    found: dict[str, Any]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        ddp: Any = trainer.strategy.model
        self.found = {
            "find_unused_parameters": ddp.find_unused_parameters,
            "static_graph": ddp.static_graph,
            "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
            "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
            "broadcast_buffers": ddp.broadcast_buffers,
            "norm": {type(layer).__name__ for layer in pl_module.modules() if "Norm" in type(layer).__name__},
            "own group": group() is not None and group() is not dist.group.WORLD,
        }


def fit(
    rank: int, world_size: int, folder: str, knobs: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Train a tiny U-Net in double precision for three steps and score it on five cases."""
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    look = _Wrapped()
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=SafeDDPStrategy(**knobs or {}),
        precision="64-true",
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[look],
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
        **settings,
    )
    data = Phantom(train_cases=12, val_cases=5, test_cases=1, size=32, batch_size=4, num_workers=0)
    module = Segmenter(UNet(width=4, depth=2), 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    trainer.fit(module, datamodule=data)
    scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
    trainer.save_checkpoint(f"{folder}/end.ckpt")
    tested = trainer.test(module, datamodule=data, verbose=False)[0]
    return {
        "scores": scores,
        "tested": tested,
        "weights": {name: value.clone() for name, value in module.state_dict().items()},
        "norm_after": {type(layer).__name__ for layer in module.modules() if "Norm" in type(layer).__name__},
        **look.found,
    }


def _fit(rank: int, world_size: int, folder: str, knobs: dict[str, Any]) -> dict[str, Any]:
    return fit(rank, world_size, folder, knobs)


def test_knobs_reach_ddp(tmp_path: Path) -> None:
    knobs = {
        "find_unused_parameters": True,
        "static_graph": False,
        "gradient_as_bucket_view": False,
        "bucket_cap_mb": 7,
        "broadcast_buffers": True,
    }
    for found in run_ranks(2, _fit, 2, str(tmp_path), {**knobs, "sync_batchnorm": False}):
        assert {name: found[name] for name in knobs} == knobs
        assert found["norm"] == {"BatchNorm2d"}
        assert found["own group"]


def test_one_two_and_four_processes_give_one_result(tmp_path: Path) -> None:
    runs = {}
    for world_size in (1, 2, 4):
        (tmp_path / str(world_size)).mkdir()
        runs[world_size] = run_ranks(world_size, _fit, world_size, str(tmp_path / str(world_size)), {})
    alone = runs[1][0]
    assert alone["norm_after"] == {"BatchNorm2d"}
    for world_size in (2, 4):
        for found in runs[world_size]:
            assert "BatchNorm2d" not in found["norm"]  # synchronised while it trained
            assert found["norm_after"] == {"BatchNorm2d"}
            for name, value in alone["scores"].items():
                assert found["scores"][name] == pytest.approx(value, abs=1e-6, nan_ok=True)
            assert found["tested"] == pytest.approx(alone["tested"], abs=1e-6, nan_ok=True)
            for name, value in alone["weights"].items():
                torch.testing.assert_close(found["weights"][name], value, rtol=1e-9, atol=1e-9, msg=name)
        # Written once, without a wrapper's prefix, and of plain types.
        state = torch.load(tmp_path / str(world_size) / "end.ckpt", weights_only=True)["state_dict"]
        assert state.keys() == alone["weights"].keys()
