"""Synchronised BatchNorm: against torch's own BatchNorm over the joined batch, and the change of class itself."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as TorchSyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from template.distributed import collectives, sync_batchnorm

from ..ranks import run_ranks

CHANNELS = 4
#: Samples on each rank: unequal, one alone, none.
SHARES = {2: [4, 1], 4: [2, 1, 0, 3]}
LAYERS: dict[int, type[nn.Module]] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def tensors(world_size: int, ndim: int, offset: float = 1.0) -> tuple[Tensor, Tensor]:
    """Input and the gradient of the output, float64 [N, C, *S]."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(SHARES[world_size]), CHANNELS, 3, 2, 5)[:ndim]
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + offset
    return x, torch.randn(shape, generator=generator, dtype=torch.float64)


def layer(ndim: int, **options: Any) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    made = LAYERS[ndim](CHANNELS, **options).double()
    for parameter in made.parameters():
        parameter.data.normal_(generator=generator)
    return made


def step(made: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Two steps, so that momentum counts; what the second leaves."""
    made(x * -2)
    x = x.clone().requires_grad_()
    y = made(x)
    y.backward(grad)
    assert x.grad is not None
    found = {"y": y.detach(), "x.grad": x.grad}
    found |= {name: buffer.clone() for name, buffer in made.named_buffers()}
    return found | {f"{name}.grad": p.grad for name, p in made.named_parameters() if p.grad is not None}


def step_share(rank: int, world_size: int, made: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    sync_batchnorm.convert(made)
    shares = (part.split(SHARES[world_size])[rank] for part in (x, grad))
    return step(made, *shares)


def join(name: str, found: list[Tensor]) -> Tensor:
    if name in ("y", "x.grad"):
        return torch.cat(found)
    if name.endswith(".grad"):  # each rank's share, which DDP averages
        return torch.stack(found).sum(0)
    assert all(torch.equal(one, found[0]) for one in found)
    return found[0]


def assert_joined(results: list[dict[str, Tensor]], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert results[0].keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(join(name, [r[name] for r in results]), value, rtol=tolerance, atol=tolerance)


@pytest.mark.case("notes/sync-batchnorm")
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("ndim", [2, 3, 4, 5])
def test_ranks_compute_what_one_process_does(world_size: int, ndim: int) -> None:
    x, grad = tensors(world_size, ndim)
    made = layer(ndim)
    results = run_ranks(world_size, step_share, world_size, made, x, grad)
    assert_joined(results, step(made, x, grad))


@pytest.mark.parametrize(
    "options",
    [
        {"affine": False},
        {"momentum": None},
        {"momentum": 0.7},
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False},
        {"eps": 0.5},
        {"bias": False},
    ],
    ids=str,
)
def test_options_mean_the_same(options: dict[str, Any]) -> None:
    x, grad = tensors(2, 4)
    made = layer(4, **options)
    results = run_ranks(2, step_share, 2, made, x, grad)
    assert_joined(results, step(made, x, grad))


@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_frozen_parameters_get_no_gradient(frozen: str) -> None:
    x, grad = tensors(2, 4)
    made = layer(4)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(frozen not in (name, "both"))
    results = run_ranks(2, step_share, 2, made, x, grad)
    assert_joined(results, step(made, x, grad))


def input_without_gradient(rank: int, made: nn.Module, x: Tensor, grad: Tensor) -> Tensor | None:
    sync_batchnorm.convert(made)(x.split(SHARES[2])[rank]).backward(grad.split(SHARES[2])[rank])
    return made.get_parameter("weight").grad


def test_an_input_that_needs_no_gradient() -> None:
    x, grad = tensors(2, 4)
    made = layer(4)
    results = run_ranks(2, input_without_gradient, made, x, grad)
    made(x).backward(grad)
    torch.testing.assert_close(sum(results), made.get_parameter("weight").grad, rtol=1e-10, atol=1e-10)


def test_a_large_mean_costs_no_digits() -> None:
    # The sum of squares of these numbers, 1e16 each, has no digit left for a variance of 9.
    x, grad = tensors(2, 4, offset=1e8)
    made = layer(4)
    results = run_ranks(2, step_share, 2, made, x, grad)
    assert_joined(results, step(made, x, grad), tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("whole", [False, True], ids=["parameters in float32", "all in one precision"])
def test_low_precision_is_accumulated_in_float32(dtype: torch.dtype, whole: bool) -> None:
    x, grad = (part.to(dtype) for part in tensors(2, 4))
    made = layer(4).to(dtype if whole else torch.float32)
    results = run_ranks(2, step_share, 2, made, x, grad)
    expected = step(layer(4).to(made.get_parameter("weight").dtype).double(), x.double(), grad.double())
    assert results[0]["y"].dtype == results[0]["x.grad"].dtype == dtype
    for name, value in expected.items():
        found = join(name, [result[name].double() for result in results])
        tolerance = 20 * torch.finfo(results[0][name].dtype if value.is_floating_point() else torch.float32).eps
        torch.testing.assert_close(found, value.double(), rtol=tolerance, atol=tolerance * float(value.abs().max()))


def evaluate(rank: int, made: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    made = sync_batchnorm.convert(nn.Sequential(made)).train()
    made[0].eval()
    # Only rank 0 has batches: a collective would wait for ever.
    y = made(x) if rank == 0 else x
    return y, made[0].state_dict()


@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}], ids=str)
def test_layers_in_evaluation_need_no_other_rank(options: dict[str, Any]) -> None:
    x, _ = tensors(2, 4)
    made = layer(4, **options)
    (y, state), _ = run_ranks(2, evaluate, made, x)
    torch.testing.assert_close(y, made.eval()(x), rtol=1e-12, atol=1e-12)
    assert state.keys() == made.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in made.state_dict().items())


def one_value_a_channel(rank: int, samples: int) -> Tensor:
    made = sync_batchnorm.convert(nn.BatchNorm1d(CHANNELS))
    output: Tensor = made(torch.full((samples if rank == 0 else 0, CHANNELS), 1.0))
    return output


def test_one_value_in_all_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        run_ranks(2, one_value_a_channel, 1)
    assert run_ranks(2, one_value_a_channel, 2)[0].shape == (2, CHANNELS)


class Activated(nn.BatchNorm2d):
    """Computes BatchNorm in a ``forward`` of its own and adds to it, as timm's BatchNormAct2d does."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        x = nn.functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )
        return x.clamp(min=0.25)


def activated() -> nn.Module:
    return Activated(CHANNELS).double()


def from_timm() -> nn.Module:
    timm = pytest.importorskip("timm.layers")
    made: nn.Module = timm.BatchNormAct2d(CHANNELS, act_layer=nn.Hardswish).double()
    return made


@pytest.mark.parametrize("make", [activated, from_timm])
def test_subclasses_keep_what_they_add(make: Callable[[], nn.Module]) -> None:
    x, grad = tensors(2, 4)
    made = make()
    results = run_ranks(2, step_share, 2, made, x, grad)
    assert_joined(results, step(made, x, grad))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Conv2d(CHANNELS, 2, 1, bias=False), nn.BatchNorm2d(2, affine=False)),
    ).double()


def use_own_group() -> None:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    collectives.use_group(group)


def train(net: nn.Module, plain: nn.Module, x: Tensor) -> tuple[list[float], dict[str, Tensor]]:
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        y = net(x)
        total = collectives.global_sum(torch.stack([(y**3 - y).sum(), y.new_tensor(float(y.numel()))]))
        loss = total[0] / total[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, plain.state_dict()


def train_share(rank: int, world_size: int, x: Tensor) -> tuple[list[float], dict[str, Tensor]]:
    use_own_group()
    plain = sync_batchnorm.convert(network())
    ddp = DistributedDataParallel(plain, bucket_cap_mb=1e-4)
    return train(ddp, plain, x.split(SHARES[world_size])[rank])


@pytest.mark.parametrize("world_size", [2, 4])
def test_training_under_ddp_is_that_of_one_process(world_size: int) -> None:
    x = torch.randn(sum(SHARES[world_size]), 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = network()
    losses, state = train(plain, plain, x)
    for found_losses, found in run_ranks(world_size, train_share, world_size, x):
        assert found_losses == pytest.approx(losses, rel=1e-11)
        for name, value in state.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-11)


def compile_share(rank: int, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    use_own_group()
    net = sync_batchnorm.convert(network())
    gradients = []
    for backend in ("eager", "aot_eager"):
        one = copy.deepcopy(net)
        run = torch.compile(one, fullgraph=True, backend=backend) if backend == "aot_eager" else one
        run(x.split(SHARES[2])[rank]).pow(3).sum().backward()
        gradients.append(one.get_parameter("0.weight").grad)
    return gradients[0], gradients[1]


def test_compiles_in_one_graph() -> None:
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for eager, compiled in run_ranks(2, compile_share, x):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.case("notes/sync-batchnorm")
def test_one_process_is_plain_batchnorm() -> None:
    x, grad = tensors(2, 4)
    assert_joined([step(sync_batchnorm.convert(layer(4)), x, grad)], step(layer(4), x, grad), tolerance=0)
    with pytest.raises(ValueError, match="expected 4D input"):
        sync_batchnorm.convert(layer(4))(torch.zeros(2, CHANNELS))


def test_a_converted_network_keeps_its_objects_and_comes_back() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    classes = [type(module) for module in net.modules()]
    objects = [id(item) for item in [*net.modules(), *net.parameters(), *net.buffers()]]
    keys = list(net.state_dict())

    assert sync_batchnorm.convert(sync_batchnorm.convert(net)) is net
    assert [type(module).__name__ for module in net.modules() if isinstance(module, nn.BatchNorm2d)] == [
        "SyncBatchNorm2d",
        "SyncBatchNorm2d",
    ]
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in net.modules())  # which DDP refuses on the CPU
    assert list(net.state_dict()) == keys
    assert optimizer.param_groups[0]["params"][0] is net[0].weight

    assert sync_batchnorm.revert(net) is net
    assert [type(module) for module in net.modules()] == classes
    assert [id(item) for item in [*net.modules(), *net.parameters(), *net.buffers()]] == objects


def test_a_network_that_is_one_layer() -> None:
    made: nn.Module = Activated(CHANNELS)
    assert type(sync_batchnorm.convert(made)).__name__ == "SyncActivated"
    assert type(sync_batchnorm.revert(made)) is Activated


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, nn.LazyBatchNorm2d, nn.InstanceNorm2d])
def test_other_layers_are_left_alone(kind: type[nn.Module]) -> None:
    made = nn.Sequential(nn.LazyBatchNorm2d() if kind is nn.LazyBatchNorm2d else kind(CHANNELS))
    assert type(sync_batchnorm.convert(made)[0]) is kind


def through_torch(net: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net)), through_torch])
def test_copies_are_converted_and_come_back(duplicate: Callable[[nn.Module], Any]) -> None:
    net = sync_batchnorm.convert(network())
    other = duplicate(net)
    assert [type(module) for module in other.modules()] == [type(module) for module in net.modules()]
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), net.parameters(), strict=True))
    assert other[1].weight is not net[1].weight
    assert type(sync_batchnorm.revert(other)[1]) is nn.BatchNorm2d
    assert type(net[1]) is not nn.BatchNorm2d


def call_on_another_device(rank: int) -> dict[str, str]:
    called: dict[str, str] = {}
    signature = inspect.signature(TorchSyncBatchNorm.forward)

    class Recorder:
        @staticmethod
        def apply(x: Tensor, *arguments: Any) -> Tensor:
            called.update({name: str(value) for name, value in signature.bind(None, x, *arguments).arguments.items()})
            return x

    setattr(sync_batchnorm, "TorchSyncBatchNorm", Recorder)  # noqa: B010 - mypy takes it for private
    made = sync_batchnorm.convert(nn.BatchNorm2d(CHANNELS, momentum=0.3, eps=0.01).to("meta"))
    made(torch.zeros(2, CHANNELS, 2, 2, device="meta"))
    return called


def test_other_devices_run_the_kernels_of_torch() -> None:
    called = run_ranks(2, call_on_another_device)[0]
    assert called["momentum"] == "0.3"
    assert called["eps"] == "0.01"
    assert called["world_size"] == "2"
    assert "ProcessGroup" in called["process_group"]


def step_share_on_gpu(rank: int, made: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    found = step_share(rank, 2, made.cuda(), x.cuda(), grad.cuda())
    return {name: value.cpu() for name, value in found.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_ranks_on_a_gpu_compute_what_one_process_does() -> None:
    x, grad = tensors(2, 4)
    made = layer(4)
    assert_joined(run_ranks(2, step_share_on_gpu, made, x, grad), step(made, x, grad), tolerance=1e-8)
