"""Compiled training steps: the same losses, the same names in checkpoints, one sentence where it cannot be done."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning import Callback, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from template.callbacks.probe import ProbeStep
from template.callbacks.speed import speed_notes
from template.data.phantom import Phantom
from template.distributed.faults import NamedError
from template.distributed.probe import NOT_CALLED, find_unused
from template.distributed.strategy import SafeDDPStrategy
from template.models import compiled as compiled_file
from template.models.compiled import Compiled, Mode
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.ranks import run_ranks


class Losses(Callback):
    """Losses of the steps."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
        self.values.append(float(outputs["loss"]))


class Counted:
    """A backend that runs graphs as they are, and counts those that it was given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return cast(Callable[..., Any], graph.forward)


def fit(rank: int, world_size: int, folder: str, compile: bool | Mode, backend: Any = "aot_eager") -> Any:  # noqa: A002
    """Train a tiny U-Net for three steps, and validate it."""
    silence_known()
    torch._dynamo.reset()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    losses = Losses()
    module = Segmenter(
        UNet(width=4, depth=1),
        3,
        1,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),  # type: ignore[arg-type]
        compile=compile,
    )
    data = Phantom(train_cases=6, val_cases=2, test_cases=2, size=16, batch_size=2, num_workers=0)
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=SafeDDPStrategy() if world_size > 1 else "auto",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[losses, *([ProbeStep()] if world_size == 1 else [])],
        default_root_dir=folder,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_file, "BACKEND", backend)
        trainer.fit(module, datamodule=data)
    return losses.values, module.state_dict(), speed_notes(trainer, module)


def test_losses_are_those_of_an_uncompiled_run(tmp_path: Path) -> None:
    losses, weights, notes = fit(0, 1, str(tmp_path), False)
    backend = Counted()
    same, names, told = fit(0, 1, str(tmp_path), "default", backend)
    assert len(losses) == 3
    assert same == pytest.approx(losses, abs=1e-5)
    assert list(names) == list(weights)
    assert backend.graphs > 0
    assert (len(told), len(notes)) == (1, 0)
    assert "mode default" in told[0]


@pytest.mark.slow
def test_two_processes_compile_alike(tmp_path: Path) -> None:
    expected = fit(0, 1, str(tmp_path), False)[0]
    for losses, names, _ in run_ranks(2, fit, 2, str(tmp_path), True):
        assert losses == pytest.approx(expected, abs=1e-5)
        assert not [name for name in names if "_orig_mod" in name or "module." in name]


class Steps(nn.Module):
    """As the segmenter: its network is called within DDP's forward pass, and not by DDP."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.net(values)
        return out


def _graphs_within_ddp(rank: int, bucket_cap_mb: float) -> int:
    backend, module = Counted(), Steps()
    compiled_file.BACKEND = backend
    Compiled(True).start(module.net)
    # A layer's parameters take 513 x 512 x 4 bytes, a little more than 1 MiB, which is
    # the size of DDP's first bucket in any case.
    DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb)(torch.ones(1, 512)).sum().backward()
    return backend.graphs


@pytest.mark.parametrize(("bucket_cap_mb", "graphs"), [(25, 2), (1, 3)])
def test_programs_end_where_ddp_s_buckets_end(bucket_cap_mb: float, graphs: int) -> None:
    assert run_ranks(1, _graphs_within_ddp, bucket_cap_mb) == [graphs]


class Net(nn.Module):
    """Two layers, one of them left over."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Conv2d(1, 2, 1), nn.Conv2d(1, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.used(image)
        return out


IMAGE = torch.rand(1, 1, 4, 4)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Counted:
    torch._dynamo.reset()
    backend = Counted()
    monkeypatch.setattr(compiled_file, "BACKEND", backend)
    return backend


def test_training_alone_is_compiled(graphs: Counted) -> None:
    net = Net()
    Compiled(True).start(net)
    net.eval()(IMAGE)
    assert graphs.graphs == 0
    net.train()(IMAGE)
    assert graphs.graphs == 1


def test_nothing_is_compiled_unless_it_is_asked_for(graphs: Counted) -> None:
    net, compiled = Net(), Compiled(False)
    compiled.start(net)
    net(IMAGE)
    assert (graphs.graphs, compiled.told, net._compiled_call_impl) == (0, "", None)


def test_a_second_start_changes_nothing(graphs: Counted) -> None:
    net, compiled = Net(), Compiled(True)
    compiled.start(net)
    first = net._compiled_call_impl
    compiled.start(net)
    assert net._compiled_call_impl is first


def test_checkpoints_load_in_either(graphs: Counted) -> None:
    plain, net = Net(), Net()
    Compiled(True).start(net)
    net.load_state_dict(plain.state_dict())
    assert torch.equal(net(IMAGE), plain(IMAGE))
    plain.load_state_dict(net.state_dict())
    assert copy.deepcopy(net)._compiled_call_impl is None  # and a copy, as for an average of weights, can be made


def test_unused_parameters_are_found_behind_a_compiled_network(graphs: Counted) -> None:
    net = Net()
    Compiled(True).start(net)
    net(IMAGE)
    unused = find_unused(net, lambda: net(IMAGE).sum())
    assert [(one.name, one.cause) for one in unused] == [("spare.weight", NOT_CALLED), ("spare.bias", NOT_CALLED)]
    assert net._compiled_call_impl is not None


def test_what_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiled_file, "BACKEND", fails)
    net = Net()
    Compiled("default").start(net)
    with pytest.raises(NamedError, match="Net cannot be compiled .model.compile default.: .*no compiler here") as error:
        net(IMAGE)
    assert error.value.identifier == "not-compiled"


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_gpu_trains_alike_in_each_mode(mode: Mode) -> None:
    batch = {"image": torch.rand(2, 1, 32, 32, device="cuda"), "mask": torch.randint(3, (2, 32, 32), device="cuda")}
    found = []
    for wanted in (False, mode):
        torch.manual_seed(0)
        module = Segmenter(UNet(width=4, depth=1), 3, 1, compile=wanted).cuda()
        module.compiled.start(module.net)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = module.training_loss(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-3)
