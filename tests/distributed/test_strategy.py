"""The strategy on real gloo ranks: knobs, process group, and one result for every world size."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn

from template.callbacks.checkpoint_io import AtomicCheckpointIO
from template.data.phantom import Phantom
from template.distributed.collectives import group
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.ranks import run_ranks


class _Wrapped(Callback):
    """Looks at the module in the middle of a fit."""

    found: dict[str, Any]

    @staticmethod
    def groups() -> list[Any]:
        return [dist.group.WORLD, group() or dist.group.WORLD]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        ddp: Any = trainer.strategy.model
        self.found = {
            "find_unused_parameters": ddp.find_unused_parameters,
            "static_graph": ddp.static_graph,
            "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
            "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
            "broadcast_buffers": ddp.broadcast_buffers,
            "norm": {type(layer).__name__ for layer in pl_module.modules() if "Norm" in type(layer).__name__},
            "timeouts": [g._get_backend(torch.device("cpu")).options._timeout.total_seconds() for g in self.groups()],
            "own group": group() is not None and group() is not dist.group.WORLD,
        }


def fit(
    rank: int,
    world_size: int,
    folder: str,
    knobs: dict[str, Any] | None = None,
    net: nn.Module | None = None,
    **settings: Any,
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
    net = net or UNet(width=4, depth=2)
    data = Phantom(train_cases=12, val_cases=5, test_cases=1, size=32, batch_size=4, num_workers=0)
    module = Segmenter(net, 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
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


@pytest.mark.case("notes/ddp-arguments")
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


@pytest.mark.case("notes/save-every", "notes/sync-batchnorm")
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


class LeftOver(nn.Module):
    """A network with a layer that is never called, or on odd ranks only not called."""

    def __init__(self, on_even_ranks: bool = False) -> None:
        super().__init__()
        self.net = nn.Conv2d(1, 3, 3, padding=1)
        self.extra = nn.Conv2d(3, 3, 1)
        self.on_even_ranks = on_even_ranks

    def forward(self, image: Tensor) -> Tensor:
        logits = self.net(image)
        return self.extra(logits) if self.on_even_ranks and dist.get_rank() % 2 == 0 else logits


def _fit_left_over(rank: int, folder: str, knobs: dict[str, Any], on_even_ranks: bool) -> Any:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        return told, fit(rank, 2, folder, knobs, LeftOver(on_even_ranks))
    except NamedError as error:
        return told, error
    finally:
        logger.removeHandler(handler)


@pytest.mark.case("notes/unused")
def test_unused_parameters_are_refused_by_name(tmp_path: Path) -> None:
    for _, error in run_ranks(2, _fit_left_over, str(tmp_path), {"find_unused_parameters": False}, False):
        assert error.identifier == "unused-parameters"
        assert "net.extra.weight, net.extra.bias (its module is not called in forward" in error.what
        assert "trainer.strategy.init_args.find_unused_parameters is false" in error.cause
        assert error.fix.startswith("Remove the layer, or call it in forward, or freeze it with requires_grad_(False).")


@pytest.mark.case("notes/unused")
def test_auto_turns_the_search_on_and_tells_why(tmp_path: Path) -> None:
    results = run_ranks(2, _fit_left_over, str(tmp_path), {}, True)
    for _, found in results:
        assert found["find_unused_parameters"] is True
    told = " ".join(results[0][0])
    assert "auto turned the search on" in told
    assert "net.extra.weight, net.extra.bias on rank 1 alone (a branch that is taken on other ranks only" in told
    assert torch.equal(*(found["weights"]["net.extra.weight"] for _, found in results))


def test_auto_leaves_the_search_to_a_static_graph(tmp_path: Path) -> None:
    results = run_ranks(2, _fit_left_over, str(tmp_path), {"static_graph": True}, False)
    for _, found in results:
        assert found["find_unused_parameters"] is False
    told = " ".join(results[0][0])
    assert "auto turned" not in told
    assert "static_graph lets DDP find them in its first step" in told
    assert "Remove the layer, or call it in forward" in told


def test_auto_leaves_the_search_off_where_all_are_used(tmp_path: Path) -> None:
    for found in run_ranks(2, _fit, 2, str(tmp_path), {}):
        assert found["find_unused_parameters"] is False


@pytest.mark.case("notes/init-process-group")
def test_the_timeout_is_tightened_once_training_runs(tmp_path: Path) -> None:
    for found in run_ranks(2, _fit, 2, str(tmp_path), {"timeout": "45s"}):
        # The watchdog speaks at 45 s; the collectives' own end comes ten seconds later.
        assert found["timeouts"] == [55, 55]


@pytest.mark.parametrize("hook", ["fp16", "bf16", "powersgd"])
def test_compressed_gradients_keep_ranks_equal(hook: str, tmp_path: Path) -> None:
    results = run_ranks(2, _fit, 2, str(tmp_path), {"comm_hook": hook})
    plain = run_ranks(2, _fit, 2, str(tmp_path), {})[0]["weights"]
    one, other = (found["weights"] for found in results)
    for name in one:
        assert torch.equal(one[name], other[name]), name
    assert any(not torch.equal(one[name], plain[name]) for name in one)  # the hook was in fact used
    apart, size = (
        torch.cat([difference(name).flatten().double() for name in one if "weight" in name]).norm()
        for difference in (lambda name: one[name] - plain[name], lambda name: plain[name])
    )
    assert apart / size < 0.2
