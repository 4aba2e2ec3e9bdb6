"""The sum over ranks: its value, and its gradient after DDP's averaging."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from template.distributed import collectives

from ..ranks import run_ranks

#: Shares s_r = r + 1 times (1, 2): with 3 ranks the sum is (6, 12).
FACTORS = torch.tensor([1.0, 2.0], dtype=torch.float64)


def test_one_process_gets_its_share_back() -> None:
    share = torch.ones(3, requires_grad=True)
    assert collectives.world_size() == 1
    assert collectives.global_sum(share) is share


def sum_shares(rank: int) -> tuple[int, Tensor, Tensor, Tensor]:
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    share = (rank + 1) * weight * FACTORS
    before = share.detach().clone()
    total = collectives.global_sum(share)
    (total[0] * total[1]).backward()
    assert torch.equal(share, before)
    assert weight.grad is not None
    gradient = weight.grad.clone()
    dist.all_reduce(gradient)
    return collectives.world_size(), total.detach(), weight.grad, gradient / dist.get_world_size()


def test_averaged_gradients_are_the_gradient_of_the_sum() -> None:
    for rank, (size, total, gradient, averaged) in enumerate(run_ranks(3, sum_shares)):
        assert size == 3
        assert total.tolist() == [6, 12]
        # L = 6 w * 12 w, so dL/dw = 144 at w = 1. A share's own: dL/ds = (12, 6) times (r + 1) (1, 2) times 3 ranks.
        assert gradient.item() == 3 * (12 * (rank + 1) + 6 * 2 * (rank + 1))
        assert averaged.item() == 144


def sum_locally(rank: int) -> tuple[float, float]:
    share = torch.tensor(float(rank + 1))
    with collectives.local_sums():
        # Only rank 0 calls: a collective would wait for ever.
        local = collectives.global_sum(share).item() if rank == 0 else 0.0
        with pytest.raises(ZeroDivisionError), collectives.local_sums():
            raise ZeroDivisionError
        if rank == 0:
            local += collectives.global_sum(share).item()
    return local, collectives.global_sum(share).item()


def test_local_sums_leave_the_process_alone_and_end() -> None:
    assert run_ranks(2, sum_locally) == [(2.0, 3.0), (0.0, 3.0)]


def sum_in_a_group(rank: int) -> tuple[float, bool]:
    alone = [dist.new_group([other]) for other in range(2)][rank]
    assert isinstance(alone, dist.ProcessGroup)
    collectives.use_group(alone)
    apart = collectives.global_sum(torch.tensor(float(rank + 1))).item()
    collectives.use_group(None)
    return apart, collectives.group() is None


def test_sums_run_in_the_group_that_was_given() -> None:
    # A group of one rank shows which group was used: nothing is added.
    assert run_ranks(2, sum_in_a_group) == [(1.0, True), (2.0, True)]
