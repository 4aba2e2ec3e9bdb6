"""HD95: by hand, against MONAI, and on a volume of the size that clinics have."""

from __future__ import annotations

import math
import os
import resource
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from template.models.surface import hd95


@pytest.fixture(scope="module")
def metrics() -> Any:
    """MONAI's metrics, without the variables that their import sets for the whole process."""
    before = dict(os.environ)
    library = pytest.importorskip("monai.metrics")
    for name in set(os.environ) - set(before):
        del os.environ[name]
    return library


def ball(size: tuple[int, ...], centre: tuple[float, ...], radius: float) -> NDArray[np.bool_]:
    grid = np.ogrid[tuple(slice(n) for n in size)]
    return sum((axis - c) ** 2 for axis, c in zip(grid, centre, strict=True)) <= radius**2


def test_two_points_by_hand() -> None:
    truth, prediction = np.zeros((10, 10), bool), np.zeros((10, 10), bool)
    truth[2, 2], prediction[5, 6] = True, True
    assert hd95(truth, prediction, (1, 1)) == pytest.approx(5.0)  # 3, 4, 5
    assert hd95(truth, prediction, (2.0, 0.5)) == pytest.approx(math.hypot(6, 2))
    assert hd95(truth, truth, (1, 1)) == 0


def test_one_far_pixel_in_a_hundred_does_not_show_but_ten_do() -> None:
    truth, prediction = np.zeros((1, 400), bool), np.zeros((1, 400), bool)
    truth[0, 200:300] = prediction[0, 200:300] = True
    prediction[0, 0] = True
    assert hd95(truth, prediction, (1, 1)) == 0
    prediction[0, :10] = True  # 10 of 110 pixels, 200 to 191 away; the 95th percentile lies at place 103.55 of 109
    assert hd95(truth, prediction, (1, 1)) == pytest.approx(194.55)


@pytest.mark.parametrize("empty", ["truth", "prediction", "both"])
def test_an_empty_mask_has_no_distance(empty: str) -> None:
    masks = {name: np.ones((4, 4), bool) for name in ("truth", "prediction")}
    for name, mask in masks.items():
        mask[:] = empty not in (name, "both")
    assert math.isnan(hd95(masks["truth"], masks["prediction"], (1, 1)))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        hd95(np.ones((4, 4), bool), np.ones((4, 5), bool), (1, 1))
    with pytest.raises(ValueError, match="do not fit"):
        hd95(np.ones((4, 4), bool), np.ones((4, 4), bool), (1, 1, 1))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of MONAI about itself
@pytest.mark.parametrize("size", [(23, 31), (9, 14, 17)])
def test_equals_monai(metrics: Any, size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for trial in range(12):
        spacing = rng.uniform(0.5, 4, len(size)) if trial else np.ones(len(size))
        pair = []
        for _ in range(2):
            mask = np.zeros(size, bool)
            for _ in range(rng.integers(1, 4)):  # balls, also cut off by the edge of the image
                mask |= ball(size, tuple(rng.uniform(0, n) for n in size), float(rng.uniform(1.5, min(size) / 2)))
            mask ^= rng.random(size) < 0.02 * (trial % 3)
            pair.append(mask)
        one_hot = [torch.from_numpy(mask)[None, None].float() for mask in pair]
        expected = metrics.compute_hausdorff_distance(
            one_hot[1], one_hot[0], include_background=True, percentile=95, spacing=list(spacing)
        )
        assert hd95(pair[0], pair[1], tuple(spacing)) == pytest.approx(expected.item(), abs=1e-4)


def test_a_large_volume_takes_little_memory() -> None:
    size = (400, 512, 512)
    truth = np.zeros(size, bool)
    truth[100:300, 150:400, 100:350] = ball((200, 250, 250), (100, 125, 125), 99)
    prediction = np.roll(truth, 3, axis=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Caps are moved by 3 slices, of 2 mm each; the sides by less: the surface is crossed at a slant.
    assert 4 < hd95(truth, prediction, (2.0, 0.8, 0.8)) <= 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024  # KiB
