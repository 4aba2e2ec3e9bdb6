"""The layout in memory is what the clock says, and nothing of the measurement stays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from template.models import layout as layout_file
from template.models.layout import Layout
from tests.ranks import run_ranks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.5))

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.body(image)
        return out


@pytest.fixture(autouse=True)
def small_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_file, "WORTH", 1)


def clock(seconds: dict[bool, float], layout: Layout) -> Callable[[], float]:
    """A clock by which each pass takes what its order is given; it is read before and after each pass."""

    def ticks() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += seconds[layout.channels_last]
            yield now

    return ticks().__next__


def chosen(
    seconds: dict[bool, float], monkeypatch: pytest.MonkeyPatch, layout: Layout, net: nn.Module | None = None
) -> tuple[Layout, nn.Module]:
    net = Net() if net is None else net
    image = torch.rand(2, 2, 4, 4)
    layout.weights(net)
    monkeypatch.setattr(layout_file.time, "thread_time", clock(seconds, layout))
    layout.choose(net, net, lambda: net(layout.images(image)).square().mean())
    return layout, net


def last(net: nn.Module) -> bool:
    return net.body[0].weight.stride() == (18, 1, 6, 2)  # type: ignore[index, union-attr]  # [3, 2, 3, 3], channels last


@pytest.mark.parametrize(
    ("first", "is_last", "told"),
    [
        (0.10, True, "channels-last: a step takes 0.80 of the time of channels-first"),
        (0.06, False, "channels-first: a step takes 0.75 of the time of channels-last"),
        (0.074, True, "channels-last: a step takes 1.08 of the time of channels-first"),  # not by that much
    ],
)
def test_the_faster_order_is_kept(first: float, is_last: bool, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, net = chosen({True: 0.08, False: first}, monkeypatch, Layout("auto"))
    assert (layout.channels_last, last(net), layout.told) == (is_last, is_last, told)
    assert layout.worth


@pytest.mark.parametrize("wanted", [True, False])
def test_what_the_user_wants_is_not_measured(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, net = chosen({wanted: 1.0}, monkeypatch, Layout(wanted))  # a pass in the other order has no time
    assert (layout.channels_last, last(net), layout.told) == (wanted, wanted, "")


def test_a_small_computation_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 x 3 x 4 x 4 outputs of 2 x 3 x 3 products and as many sums each: 3456 operations
    monkeypatch.setattr(layout_file, "WORTH", 3457)
    layout, _ = chosen({True: 9.0}, monkeypatch, Layout("auto"))
    assert (layout.told, layout.worth) == ("", False)
    monkeypatch.setattr(layout_file, "WORTH", 3456)
    assert chosen({True: 9.0, False: 9.0}, monkeypatch, Layout("auto"))[0].worth


def test_a_resumed_run_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout("auto")
    layout.know(False)
    layout, net = chosen({False: 1.0}, monkeypatch, layout)
    assert (layout.channels_last, last(net)) == (False, False)


def test_volumes_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv3d(2, 1, 1))
    layout = Layout("auto")
    monkeypatch.setattr(layout_file.time, "thread_time", clock({True: 1.0}, layout))
    layout.choose(net, net, lambda: net(torch.rand(1, 2, 2, 2, 2)).sum())
    assert layout.told == ""


def test_nothing_of_the_measurement_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    image = torch.rand(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    layout = Layout("auto")
    monkeypatch.setattr(layout_file.time, "thread_time", clock({True: 0.08, False: 0.02}, layout))
    layout.choose(net, net, lambda: net(layout.images(image)).square().mean())
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def _on_ranks(rank: int, world_size: int) -> Any:
    layout, net, layout_file.WORTH = Layout("auto"), Net(), 1
    fast = {True: 0.08, False: 0.02} if rank == 0 else {True: 0.001, False: 9.0}
    layout_file.time = type("time", (), {"thread_time": staticmethod(clock(fast, layout))})  # type: ignore[assignment]
    layout.choose(net, net, lambda: net(layout.images(torch.ones(2, 2, 4, 4))).mean())
    return layout.channels_last, layout.told


def test_rank_0_decides_for_all() -> None:
    told = "channels-first: a step takes 0.25 of the time of channels-last"
    assert run_ranks(2, _on_ranks, 2) == [(False, told), (False, told)]
