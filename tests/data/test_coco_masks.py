from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from template.data.coco_masks import decode, draw, run_lengths

from .picture_sets import rectangle
from .refused import refused

coco = pytest.importorskip("pycocotools.mask")
# pycocotools' own decode, which the tests compare with, is not written for NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SIZE = (40, 48)


def _runs(pixels: np.ndarray, compressed: bool = True) -> dict[str, Any]:
    """Run lengths as files have them."""
    runs = coco.encode(np.asfortranarray(pixels.astype(np.uint8)))
    text = runs["counts"].decode("ascii")
    return {"size": list(pixels.shape), "counts": text if compressed else run_lengths(text)}


def _block(top: int, left: int, bottom: int, right: int) -> np.ndarray:
    pixels = np.zeros(SIZE, bool)
    pixels[top:bottom, left:right] = True
    return pixels


def test_polygons_and_run_lengths_of_a_rectangle_are_its_pixels() -> None:
    block = _block(10, 5, 30, 25)
    assert (decode([rectangle(10, 5, 30, 25)], SIZE) == block).all()
    for compressed in (True, False):
        assert (decode(_runs(block, compressed), SIZE) == block).all()


def test_run_lengths_by_hand() -> None:
    # 3 rows, 4 columns, the second column is the object: 3 without, 3 with, 6 without, column by column.
    assert run_lengths("336") == [3, 3, 6]
    assert decode({"size": [3, 4], "counts": [3, 3, 6]}, (3, 4)).tolist() == [[False, True, False, False]] * 3
    assert decode({"size": [3, 4], "counts": "336"}, (3, 4)).tolist() == [[False, True, False, False]] * 3


def test_run_lengths_are_those_of_pycocotools() -> None:
    rng = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.5, 1.0):
        pixels = rng.random((57, 91)) < density
        changes = np.flatnonzero(np.diff(np.concatenate([[False], pixels.T.ravel(), [not pixels.T.ravel()[-1]]])))
        expected = np.diff(np.concatenate([[0], changes])).tolist()
        assert _runs(pixels, compressed=False)["counts"] == expected
        assert (decode(_runs(pixels), (57, 91)) == pixels).all()


def test_an_object_of_several_polygons_is_all_of_them() -> None:
    parts = [rectangle(0, 0, 4, 4), rectangle(2, 2, 6, 6), [1.0, 1.0, 30.0, 30.0], [3.0, 3.0]]
    # 16 + 16 pixels, 4 of them in both; two points and one have no area.
    assert decode(parts, SIZE).sum() == 28
    assert decode([[1.0, 1.0, 30.0, 30.0]], SIZE).sum() == 0


def test_polygons_may_reach_beyond_the_image() -> None:
    assert (decode([rectangle(-10, 40, 10, 80)], SIZE) == _block(0, 40, 10, 48)).all()


OBJECTS = [
    (2, False, [rectangle(0, 0, 20, 20)]),
    (1, False, [rectangle(10, 10, 30, 30)]),
    (1, False, [rectangle(25, 25, 28, 28)]),
    (3, True, [rectangle(0, 0, 40, 5)]),
]


def test_pixels_of_two_objects_do_not_count() -> None:
    mask = draw(OBJECTS, SIZE, "ignore")
    assert (mask[12, 12], mask[26, 26]) == (255, 255)  # of two classes, and of two objects of one class
    assert (mask[2, 10], mask[24, 24]) == (2, 1)
    assert (mask[30, 2], mask[2, 2], mask[39, 47]) == (255, 2, 0)  # crowd, an object in it, and nothing
    # 400 + 400 pixels less the 100 and the 9 that two have; the crowd is 40 × 5 less the 100 of the object.
    assert [int((mask == value).sum()) for value in (2, 1, 255)] == [300, 291, 100 + 9 + 100]


def test_pixels_of_two_objects_are_the_smaller_one_s() -> None:
    mask = draw([(1, False, [rectangle(0, 0, 4, 4)]), (2, False, [rectangle(0, 0, 40, 48)])], SIZE, "smallest")
    assert (mask[0, 0], mask[3, 3], mask[4, 4]) == (1, 1, 2)
    same = [(1, False, [rectangle(0, 0, 4, 4)]), (2, False, [rectangle(0, 2, 4, 6)])]
    assert draw(same, SIZE, "smallest")[0].tolist()[:8] == [1, 1, 2, 2, 2, 2, 0, 0]
    assert draw(OBJECTS, SIZE, "smallest")[26, 26] == 1


def test_objects_are_drawn_as_torchvision_s_reference_training_does() -> None:
    rng = np.random.default_rng(1)
    objects = []
    for _ in range(12):
        corners = rng.uniform(-5, 50, (int(rng.integers(3, 8)), 2)).round(2)
        objects.append((int(rng.integers(1, 20)), False, [corners.ravel().tolist()]))
    # As references/segmentation/coco_utils.py, in one go over a stack of all masks.
    decoded = [coco.decode(coco.frPyObjects(polygons, *SIZE)) for _, _, polygons in objects]
    masks = torch.stack([torch.from_numpy(pixels).any(2) for pixels in decoded])
    expected = (masks * torch.tensor([label for label, *_ in objects])[:, None, None]).amax(0)
    expected[masks.sum(0) > 1] = 255
    drawn = draw(objects, SIZE, "ignore")
    assert (drawn == expected.numpy()).all()
    assert 0 < (drawn == 255).sum() < drawn.size


def test_an_image_without_objects_is_background() -> None:
    assert draw([], SIZE, "ignore").shape == SIZE
    assert not draw([], SIZE, "smallest").any()


@pytest.mark.parametrize("counts", ["", "0", "336", "33", "3Z6", "33 6", "3猫6", "o", "K0" * 50])
def test_damaged_run_lengths_are_refused(counts: str) -> None:
    with pytest.raises(ValueError, match="run lengths"):
        decode({"size": list(SIZE), "counts": counts}, SIZE)


def test_a_missing_pycocotools_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    error = refused("not-installed", lambda: decode([rectangle(0, 0, 4, 4)], SIZE), "pycocotools")
    assert "[coco]" in error.fix
