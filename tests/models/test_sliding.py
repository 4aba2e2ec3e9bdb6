"""Sliding windows: MONAI's logits, slabs as soon as they are finished, labels on other grids, bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from template.distributed.faults import NamedError
from template.models.sliding import sliding_labels, sliding_logits, sliding_window, window_weights

ROOT = Path(__file__).parents[2]

#: Odd sizes, windows longer than some axes or all, windows of the image's length, axes of one pixel.
SHAPES = [
    ((37, 53), (16, 16)),
    ((37, 53), (40, 16)),
    ((7, 9), (16, 12)),
    ((64, 64), (32, 64)),
    ((16, 1), (5, 3)),
    ((19, 23, 31), (8, 10, 12)),
    ((5, 23, 31), (8, 9, 40)),
    ((33, 8, 8), (7, 8, 9)),
]


@pytest.fixture(scope="module")
def monai() -> Any:
    """The library, without the variables that its import sets for the whole process."""
    before = dict(os.environ)
    library = pytest.importorskip("monai")
    pytest.importorskip("monai.inferers")
    for name in set(os.environ) - set(before):
        del os.environ[name]
    return library


def bordered(axes: int, channels: int = 2, classes: int = 3) -> nn.Module:
    """A network whose logits depend on where the window's border is."""
    kind = nn.Conv2d if axes == 2 else nn.Conv3d
    return nn.Sequential(kind(channels, 4, 3, padding=1), nn.Tanh(), kind(4, classes, 3, padding=1))


def linear(size: tuple[int, ...]) -> str:
    return "bilinear" if len(size) == 2 else "trilinear"


@pytest.mark.parametrize(("size", "window"), SHAPES)
@pytest.mark.parametrize("weights", ["gaussian", "constant"])
def test_logits_are_those_of_monai(monai: Any, size: tuple[int, ...], window: tuple[int, ...], weights: Any) -> None:
    image, net = torch.randn(2, *size), bordered(len(size))
    for overlap in (0.0, 0.1, 0.25, 0.5, 0.625, 0.9):  # 1 - 0.9 is a little less than 0.1: a step may be lost
        with torch.no_grad():
            expected = monai.inferers.sliding_window_inference(
                image[None], window, 3, net, overlap=overlap, mode=weights
            )[0]
        found = sliding_window(image, window, net, overlap=overlap, weights=weights, batch=4)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [(1, 1), (5, 8), (96, 160), (7, 1, 6), (64, 48, 32)])
@pytest.mark.parametrize("weights", ["gaussian", "constant"])
def test_weights_are_those_of_monai(monai: Any, window: tuple[int, ...], weights: Any) -> None:
    expected = monai.data.utils.compute_importance_map(window, mode=weights, sigma_scale=0.125)
    torch.testing.assert_close(window_weights(window, weights), expected, rtol=1e-6, atol=0)


def test_weights_by_hand() -> None:
    # Sigma 0.5: offsets -1.5, -0.5, 0.5, 1.5 give exp(-4.5) = 0.011109 and exp(-0.5) = 0.606531.
    edge, middle = 0.011109, 0.606531
    line = torch.tensor([edge, middle, middle, edge])
    expected = torch.outer(line, line)
    expected[::3, ::3] = 0.001  # 0.000123 is too little
    torch.testing.assert_close(window_weights((4, 4)), expected, rtol=1e-4, atol=0)


def test_mean_of_overlapping_windows_by_hand() -> None:
    # Windows of 4 begin at 0, 2 and, where the image ends, 3. Each says how far a row is from its own first row.
    image = torch.zeros(1, 7, 4)
    found = sliding_window(
        image, (4, 4), lambda windows: windows + torch.arange(4.0)[:, None], overlap=0.5, weights="constant"
    )
    expected = torch.tensor([0, 1, (2 + 0) / 2, (3 + 1 + 0) / 3, (2 + 1) / 2, (3 + 2) / 2, 3])
    torch.testing.assert_close(found, expected[None, :, None].expand(1, 7, 4))


def test_a_small_image_lies_in_the_middle_of_zeros() -> None:
    seen = []

    def run(windows: Tensor) -> Tensor:
        seen.append(windows)
        return windows

    image = torch.arange(1.0, 7).reshape(1, 2, 3)
    torch.testing.assert_close(sliding_window(image, (5, 3), run), image)
    assert torch.equal(torch.cat(seen), torch.tensor([[0, 0, 0], [1, 2, 3], [4, 5, 6], [0] * 3, [0] * 3])[None, None])


@pytest.mark.parametrize("axes", [2, 3])
def test_flips_are_the_mean_logits_over_all_flips(axes: int) -> None:
    size, window, net = (21, 17, 13)[:axes], (8, 8, 8)[:axes], bordered(axes)
    image = torch.randn(2, *size)
    flips: list[tuple[int, ...]] = [(), (2,), (3,), (2, 3)]
    if axes == 3:
        flips += [(4,), (2, 4), (3, 4), (2, 3, 4)]
    calls = []

    def counted(windows: Tensor) -> Tensor:
        calls.append(len(windows))
        return net(windows)

    found = sliding_window(image, window, counted, flips=True, batch=5)
    expected = sliding_window(
        image, window, lambda windows: torch.stack([net(windows.flip(f)).flip(f) for f in flips]).mean(0)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert max(calls) <= 5  # flips need no more memory


def test_batches_change_nothing() -> None:
    image = torch.randn(2, 30, 21)
    mix = torch.randn(3, 2)

    def run(windows: Tensor) -> Tensor:
        return (mix[:, :, None, None] * windows[:, None]).sum(2)

    alone = sliding_window(image, (8, 8), run, batch=1)
    for batch in (2, 3, 7, 1000):
        assert torch.equal(sliding_window(image, (8, 8), run, batch=batch), alone)


@pytest.mark.parametrize(("size", "window"), SHAPES)
def test_a_slab_comes_as_soon_as_no_later_window_touches_it(size: tuple[int, ...], window: tuple[int, ...]) -> None:
    # An image that tells where it is shows which windows have been run.
    image = torch.arange(size[0], dtype=torch.float32).add(1).reshape(1, -1, *[1] * (len(size) - 1)).expand(1, *size)
    firsts: list[int] = []

    def run(windows: Tensor) -> Tensor:
        firsts.extend(int(one[one > 0].min()) - 1 for one in windows)
        return windows

    everything = list(sliding_logits(image, window, run))
    order, firsts = firsts, []
    assert order == sorted(order)
    covered = 0
    for (start, slab), (again, _) in zip(sliding_logits(image, window, run), everything, strict=True):
        assert start == again == covered
        covered += slab.shape[1]
        assert all(first >= covered for first in order[len(firsts) :])  # no later window touches it,
        assert len(firsts) == sum(first <= start for first in order)  # and the last one that was run did
    assert covered == size[0]


@pytest.mark.parametrize(("size", "window"), SHAPES)
def test_logits_on_another_grid_are_those_of_interpolate(size: tuple[int, ...], window: tuple[int, ...]) -> None:
    image, net = torch.randn(2, *size, dtype=torch.float64), bordered(len(size)).double()
    logits = sliding_window(image, window, net)
    shares = ((1.7, 0.6, 0.31), (0.31, 1.7, 0.6), (2, 2, 2), (1, 0.5, 3), (3.4, 1, 1), (0.01, 1, 1))
    for share in shares:
        new = tuple(max(1, int(n * s)) for n, s in zip(size, share, strict=False))
        expected = F.interpolate(logits[None], new, mode=linear(size))[0]
        found = sliding_window(image, window, net, size=new, batch=2)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        labels = sliding_labels(image, window, net, size=new, batch=2)
        assert labels.dtype == torch.uint8
        assert torch.equal(labels, expected.argmax(0).to(torch.uint8))


def test_planes_between_two_planes_by_hand() -> None:
    # Twice as many planes: their centres lie at -0.25 (taken as 0), 0.25, 0.75, 1.25, … of the old ones.
    image = torch.tensor([0.0, 4, 8])[None, :, None].expand(1, 3, 2)
    found = sliding_window(image, (1, 2), lambda windows: windows, size=(6, 2))
    assert found[0, :, 0].tolist() == [0, 1, 3, 5, 7, 8]


def test_labels_are_the_argmax_and_the_first_of_equals() -> None:
    image = torch.randint(0, 3, (4, 40, 30)).float()  # many ties
    labels = sliding_labels(image, (16, 16), lambda windows: windows, weights="constant")
    assert torch.equal(labels, image.argmax(0).to(torch.uint8))


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float16, torch.float32), (torch.bfloat16, torch.float32)])
def test_sums_of_half_precision_are_held_in_float32(dtype: torch.dtype, kept: torch.dtype) -> None:
    image = torch.full((1, 9, 9), 40000.0)  # two of them exceed float16
    logits = sliding_window(image, (4, 4), lambda windows: windows.to(dtype), overlap=0.75, weights="constant")
    assert logits.dtype == kept
    torch.testing.assert_close(logits, image.to(dtype).float())


def test_no_gradients_are_kept_and_the_callers_mode_stays() -> None:
    slabs = sliding_logits(torch.randn(2, 20, 20), (8, 8), bordered(2), size=(30, 30))
    for _, slab in slabs:
        assert not slab.requires_grad
        assert torch.is_grad_enabled()


def test_a_slab_that_is_kept_stays_as_it_was() -> None:
    image = torch.randn(1, 50, 8)
    slabs = list(sliding_logits(image, (8, 8), lambda windows: windows))
    torch.testing.assert_close(torch.cat([slab for _, slab in slabs], 1), image)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"image": torch.zeros(1, 9)}, r"image \[1, 9\]"),
        ({"image": torch.zeros(1, 0, 9)}, r"image \[1, 0, 9\]"),
        ({"window": (4,)}, r"window \[4\]"),
        ({"window": (4, 0)}, r"window \[4, 0\]"),
        ({"size": (4, 4, 4)}, r"size \[4, 4, 4\]"),
        ({"size": (0, 4)}, r"size \[0, 4\]"),
        ({"overlap": 1.0}, r"overlap 1\.0"),
        ({"overlap": -0.1}, r"overlap -0\.1"),
        ({"batch": 0}, "0 windows"),
        ({"run": lambda windows: windows[:, :, ::2]}, r"logits \[1, 1, 2, 4\]"),
        ({"run": lambda windows: windows[0]}, r"logits \[1, 4, 4\]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], named: str) -> None:
    given = {"image": torch.zeros(1, 9, 9), "window": (4, 4), "run": lambda windows: windows, **arguments}
    with pytest.raises(NamedError, match=named):
        sliding_labels(**given)


@pytest.mark.gpu
@pytest.mark.parametrize("leave", [lambda logits: logits, lambda logits: logits.cpu()], ids=["gpu", "cpu"])
def test_windows_of_an_image_in_memory_are_run_on_the_gpu(leave: Callable[[Tensor], Tensor]) -> None:
    image, net = torch.randn(2, 19, 23, 31, dtype=torch.float64), bordered(3).double()
    expected = sliding_window(image, (8, 10, 12), net, size=(25, 20, 40), flips=True)
    net.cuda()

    def run(windows: Tensor) -> Tensor:
        assert windows.is_cuda
        return leave(net(windows))

    found = sliding_window(image, (8, 10, 12), run, size=(25, 20, 40), flips=True, batch=4, device="cuda")
    assert found.device == leave(torch.zeros((), device="cuda")).device
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)


_MEASURE = """
import json, sys
import torch
from template.models.sliding import sliding_labels

def kilobytes(key):
    # Not ru_maxrss, which begins with what the parent process held.
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])

size, window, new = json.loads(sys.argv[1])
torch.set_num_threads(1)  # several would wait for each other on a busy machine
slope = torch.tensor([-1.0, 0.0, 1.0]).reshape(3, *[1] * len(size))
run = lambda windows: windows * slope  # 3 classes: below, (never) at, and above zero
before = kilobytes("VmRSS")
image = torch.rand(1, *size).sub_(0.5)
labels = sliding_labels(image, window, run, size=new)
assert list(labels.shape) == (new or size)
if new is None:
    assert torch.equal(labels[-5:], (image[0, -5:] > 0).to(torch.uint8) * 2)
print(json.dumps((kilobytes("VmHWM") - before) / 2**20))
"""


def gigabytes(size: list[int], window: list[int], new: list[int] | None = None) -> float:
    """Peak of resident memory beyond the program's own, the image and its labels included."""
    command = [sys.executable, "-c", _MEASURE, json.dumps([size, window, new])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@LINUX
@pytest.mark.slow
def test_memory_of_a_large_volume() -> None:
    # The image is 0.39 GB, and its labels 0.1; all its logits would be 1.17 GB, with their weights 1.56.
    assert gigabytes([400, 512, 512], [128, 128, 128]) < 1.4


@LINUX
@pytest.mark.slow
def test_memory_of_a_large_volume_on_another_grid() -> None:
    # Its labels are 0.39 GB; all its logits would be 4.7 GB.
    assert gigabytes([100, 256, 256], [64, 96, 96], [400, 1024, 1024]) < 1


@LINUX
@pytest.mark.slow
def test_memory_of_a_large_image() -> None:
    assert gigabytes([4096, 4096], [512, 512]) < 0.3  # the image is 0.06 GB, all logits would be 0.19 GB
    assert gigabytes([4096, 4096], [512, 512], [16384, 8192]) < 0.6  # labels 0.13 GB, all logits 1.5 GB
