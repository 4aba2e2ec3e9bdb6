"""Cross-entropy and Dice: against peer implementations, by hand, and over ranks against the joined batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from template.distributed.faults import NamedError
from template.labels import IGNORE_INDEX
from template.models.losses import CrossEntropyDice

from ..ranks import run_ranks

CLASSES = 3


def sample(count: int, size: tuple[int, ...] = (6, 5), ignored: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, CLASSES, *size, generator=generator, dtype=torch.float64)
    target = torch.randint(CLASSES, (count, *size), generator=generator)
    target[torch.rand(target.shape, generator=generator) < ignored] = IGNORE_INDEX
    return logits, target


def numpy_dice(logits: Tensor, target: Tensor, smooth: float = 1e-5, first: int = 0) -> float:
    x: NDArray[np.float64] = np.moveaxis(logits.numpy(), 1, -1).reshape(-1, CLASSES)
    y: NDArray[np.int64] = target.numpy().reshape(-1)
    x, y = x[y != IGNORE_INDEX], y[y != IGNORE_INDEX]
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    scores = []
    for k in range(first, CLASSES):
        overlap = p[y == k, k].sum()
        scores.append((2 * overlap + smooth) / (p[:, k].sum() + (y == k).sum() + smooth))
    return 1 - float(np.mean(scores))


def test_value_worked_out_by_hand() -> None:
    # Two pixels of class 0 and 1 with p = (3/4, 1/4) each, and one that is ignored.
    logits = torch.tensor([3.0, 1.0]).log().view(1, 2, 1).expand(1, 2, 3).double()
    target = torch.tensor([[0, 1, IGNORE_INDEX]])
    cross_entropy = (math.log(4 / 3) + math.log(4)) / 2
    # Class 0: overlap 3/4, predicted 3/2, true 1. Class 1: overlap 1/4, predicted 1/2, true 1.
    dice = 1 - ((2 * 0.75 + 1) / (1.5 + 1 + 1) + (2 * 0.25 + 1) / (0.5 + 1 + 1)) / 2
    assert CrossEntropyDice(smooth=1)(logits, target).item() == pytest.approx(cross_entropy + dice, rel=1e-7)
    assert CrossEntropyDice(2, 0)(logits, target).item() == pytest.approx(2 * cross_entropy, rel=1e-7)
    assert CrossEntropyDice(0, 3, smooth=1)(logits, target).item() == pytest.approx(3 * dice, rel=1e-7)


@pytest.mark.parametrize("size", [(6, 5), (3, 4, 5)])
@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.5]])
def test_cross_entropy_is_that_of_torch(size: tuple[int, ...], weights: list[float] | None) -> None:
    logits, target = sample(4, size)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = CrossEntropyDice(1, 0, class_weights=weights)(ours, target)
    tensor = None if weights is None else torch.tensor(weights).double()
    expected = F.cross_entropy(theirs, target, weight=tensor, ignore_index=IGNORE_INDEX)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("size", [(6, 5), (3, 4, 5)])
@pytest.mark.parametrize("include_background", [True, False])
def test_dice_is_that_of_numpy(size: tuple[int, ...], include_background: bool) -> None:
    logits, target = sample(4, size)
    loss = CrossEntropyDice(0, 1, include_background=include_background)(logits, target)
    assert loss.item() == pytest.approx(numpy_dice(logits, target, first=0 if include_background else 1), rel=1e-12)


def test_gradient_is_the_numerical_one() -> None:
    logits, target = sample(2, (2, 2))
    loss = CrossEntropyDice(class_weights=[1.0, 2.0, 0.5])
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits.requires_grad_())


def test_ignored_pixels_do_not_count() -> None:
    logits, target = sample(2, ignored=0.5)
    other = torch.where((target == IGNORE_INDEX).unsqueeze(1), 17.0, logits).requires_grad_()
    loss = CrossEntropyDice()(other, target)
    loss.backward()
    assert loss.item() == pytest.approx(CrossEntropyDice()(logits, target).item(), rel=1e-14)
    assert other.grad is not None
    assert other.grad.masked_select((target == IGNORE_INDEX).unsqueeze(1)).eq(0).all()


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 2.0]])
@pytest.mark.case("A4")
def test_all_ignored_is_zero_with_zero_gradients(weights: list[float] | None) -> None:
    logits, target = sample(2)
    logits.requires_grad_()
    loss = CrossEntropyDice(class_weights=weights)(logits, torch.full_like(target, IGNORE_INDEX))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


def test_only_classes_of_weight_zero_have_no_cross_entropy() -> None:
    logits, target = sample(1, ignored=0)
    loss = CrossEntropyDice(1, 0, class_weights=[0.0, 1.0, 1.0])(logits.requires_grad_(), torch.zeros_like(target))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    # More pixels than float16 can count to (65,504).
    logits, target = sample(1, (300, 300))
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        loss = CrossEntropyDice()(half, target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(CrossEntropyDice()(half.detach().double(), target).item(), rel=1e-5)
    assert half.grad is not None
    assert half.grad.dtype == dtype


def test_confident_logits_stay_finite() -> None:
    logits = torch.tensor([[[1e4, -1e4], [-1e4, 1e4]]], requires_grad=True)
    loss = CrossEntropyDice()(logits, torch.tensor([[1, 1]]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4 + 1 - (1e-5 / (1 + 1e-5) + 2 / 3) / 2, rel=1e-5)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_labels_of_8_bits_are_taken() -> None:
    logits, target = sample(2)
    assert torch.equal(CrossEntropyDice()(logits, target.to(torch.uint8)), CrossEntropyDice()(logits, target))


def test_class_weights_stay_out_of_checkpoints() -> None:
    assert CrossEntropyDice(class_weights=[1.0, 2.0]).state_dict() == {}


def test_compiles_in_one_graph() -> None:
    logits, target = sample(2)
    loss = CrossEntropyDice(class_weights=[1.0, 2.0, 3.0])
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"class_weights": [1.0, 1.0]}, "class_weights has 2 numbers, but there are 3 classes"),
        ({"class_weights": [1.0, 1.0, -1.0]}, "must not be negative"),
        ({"dice": -1.0}, "must not be negative"),
        ({"smooth": 0.0}, "smooth is 0"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], match: str) -> None:
    logits, target = sample(1)
    with pytest.raises(NamedError, match=match):
        CrossEntropyDice(**options)(logits, target)


def test_other_sizes_are_named() -> None:
    logits, target = sample(1)
    with pytest.raises(NamedError, match=r"logits \[1, 3, 6, 5\] for labels \[1, 5, 5\]"):
        CrossEntropyDice()(logits, target[:, 1:])


# Rank 0 holds three samples, rank 1 one that is all ignored, rank 2 one with few labels, rank 3 none at all.
SHARES = {2: [3, 1], 4: [3, 1, 1, 0]}


def joined(world_size: int) -> tuple[Tensor, Tensor]:
    images, target = sample(sum(SHARES[world_size]), ignored=0.3)
    target[3] = IGNORE_INDEX
    if world_size == 4:
        target[4, 1:] = IGNORE_INDEX
    return images, target


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Conv2d(CLASSES, CLASSES, 3, padding=1).double()


def train_share(rank: int, world_size: int, weights: list[float] | None) -> tuple[float, list[Tensor]]:
    images, target = (part.split(SHARES[world_size])[rank] for part in joined(world_size))
    net = DistributedDataParallel(network())
    loss = CrossEntropyDice(class_weights=weights)(net(images), target)
    loss.backward()
    return loss.item(), [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.5]])
def test_ranks_give_the_gradient_of_the_joined_batch(world_size: int, weights: list[float] | None) -> None:
    net = network()
    images, target = joined(world_size)
    loss = CrossEntropyDice(class_weights=weights)(net(images), target)
    loss.backward()
    for share_loss, gradients in run_ranks(world_size, train_share, world_size, weights):
        assert share_loss == pytest.approx(loss.item(), rel=1e-12)
        for ours, parameter in zip(gradients, net.parameters(), strict=True):
            torch.testing.assert_close(ours, parameter.grad, rtol=1e-12, atol=1e-12)


def count_collectives(rank: int) -> int:
    calls = 0
    all_reduce = dist.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counted
    try:
        logits, target = sample(1)
        CrossEntropyDice()(logits.requires_grad_(), target).backward()
    finally:
        dist.all_reduce = all_reduce
    return calls


def test_one_collective_a_call() -> None:
    assert run_ranks(2, count_collectives) == [1, 1]


def ignore_everything(rank: int) -> tuple[float, Tensor | None]:
    logits, target = sample(1)
    logits.requires_grad_()
    loss = CrossEntropyDice()(logits, torch.full_like(target, IGNORE_INDEX))
    loss.backward()
    return loss.item(), logits.grad


@pytest.mark.case("A4")
def test_all_ignored_on_all_ranks_is_zero() -> None:
    for loss, gradient in run_ranks(2, ignore_everything):
        assert loss == 0
        assert gradient.eq(0).all()


@pytest.mark.parametrize("label", [2, 254, -1])
def test_labels_that_are_no_class_are_refused(label: int) -> None:
    target = torch.tensor([[0, 1, 255, label]])
    with pytest.raises(NamedError, match=r"The loss got the labels .* for logits \[1, 2, 4\]\.") as caught:
        CrossEntropyDice()(torch.zeros(1, 2, 4), target)
    assert caught.value.identifier == "mask-values"
    assert "classes 0 to 1; 255 does not count" in caught.value.cause


@pytest.mark.gpu
def test_on_a_gpu_they_make_the_loss_nan_without_a_wait() -> None:
    logits, target = torch.zeros(1, 2, 4, device="cuda"), torch.tensor([[0, 1, 255, 2]], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = CrossEntropyDice()(logits, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.isnan()
