from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from template.data.mask_values import MaskValues
from template.distributed.faults import NamedError
from template.labels import class_color

_FILE = Path("mask a.png")


def _mask(*values: int, dtype: str = "uint8") -> np.ndarray:
    return np.array([values], dtype=dtype)


def _refused(values: MaskValues, mask: np.ndarray, file: Path = _FILE) -> NamedError:
    with pytest.raises(NamedError) as caught:
        values.to_classes(mask, file)
    assert caught.value.identifier == "mask-values"
    assert f"'{file}'" in caught.value.what
    return caught.value


def test_class_indices_are_taken_as_they_are() -> None:
    for dtype in ("uint8", "uint16", ">u2", "int32", "int64"):
        classes = MaskValues(3).to_classes(_mask(0, 2, 1, dtype=dtype), _FILE)
        assert classes.dtype == np.uint8
        assert classes.tolist() == [[0, 2, 1]]


def test_with_two_classes_255_is_class_1() -> None:
    two = MaskValues(2)
    assert two.to_classes(_mask(0, 255, 0), _FILE).tolist() == [[0, 1, 0]]
    assert two.to_classes(_mask(255, 255), _FILE).tolist() == [[1, 1]]
    assert two.to_classes(_mask(0, 1), _FILE).tolist() == [[0, 1]]


def test_255_beside_1_is_ambiguous() -> None:
    error = _refused(MaskValues(2), _mask(0, 1, 255))
    assert error.what == "The mask 'mask a.png' has the values 0, 1, 255; allowed are 0, 1, or 0 and 255."
    assert "ignore_index: 255" in error.fix


def test_0_and_255_with_three_classes_is_refused() -> None:
    error = _refused(MaskValues(3), _mask(0, 255))
    assert "two classes" in error.cause
    assert "names 3" in error.cause


def test_ignored_values_become_255() -> None:
    assert MaskValues(2, ignore_index=255).to_classes(_mask(0, 1, 255), _FILE).tolist() == [[0, 1, 255]]
    assert MaskValues(2, ignore_index=255).to_classes(_mask(0, 255), _FILE).tolist() == [[0, 255]]
    assert MaskValues(3, ignore_index=7).to_classes(_mask(2, 7), _FILE).tolist() == [[2, 255]]
    assert MaskValues(3, ignore_index=255).to_classes(_mask(255, 255), _FILE).tolist() == [[255, 255]]
    assert MaskValues(2, ignore_index=128).to_classes(_mask(0, 128, 255), _FILE).tolist() == [[0, 255, 1]]
    assert MaskValues(2, {0: 0, 9: 1, 5: 255}).to_classes(_mask(9, 5), _FILE).tolist() == [[1, 255]]


@pytest.mark.parametrize("value", [3, 254])
def test_a_value_beside_the_ignored_one_that_no_class_has_is_named(value: int) -> None:
    assert f"values 0, {value}, 255;" in _refused(MaskValues(3, ignore_index=255), _mask(0, value, 255)).what


def test_values_are_mapped() -> None:
    values = MaskValues(2, {0: 0, 38: 1, 700: 1}, ignore_index=75)
    mask = _mask(0, 38, 700, 75, dtype="uint16")
    assert values.to_classes(mask, _FILE).tolist() == [[0, 1, 1, 255]]
    assert "values 0, 1; allowed are 0, 38, 75, 700" in _refused(values, _mask(0, 1)).what


@pytest.mark.parametrize(("value", "dtype"), [(3, "uint8"), (-1, "int32"), (70000, "int32"), (65536, "int64")])
def test_a_value_that_no_class_has_is_named(value: int, dtype: str) -> None:
    assert str(value) in _refused(MaskValues(3), _mask(0, value, dtype=dtype)).what


def test_many_values_are_counted_and_jpeg_is_explained() -> None:
    error = _refused(MaskValues(2), np.arange(100, dtype=np.uint8)[None], Path("a.JPG"))
    assert "values 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more" in error.what
    assert "JPEG" in error.cause


_RED_BLUE = np.array([[[255, 0, 0], [0, 0, 255], [0, 0, 0]]], dtype=np.uint8)


def test_colors_are_mapped() -> None:
    values = MaskValues(2, mask_colors=[(0, 0, 0), (255, 0, 0)], ignore_color=(0, 0, 255))
    assert values.to_classes(_RED_BLUE, _FILE).tolist() == [[1, 255, 0]]
    assert "colours [0, 0, 0], [0, 0, 255], [255, 0, 0]; allowed are [0, 0, 0], [255, 0, 0]" in (
        _refused(MaskValues(2, mask_colors=[(0, 0, 0), (255, 0, 0)]), _RED_BLUE).what
    )


def test_a_color_mask_without_mask_colors_lists_its_colors() -> None:
    error = _refused(MaskValues(3), _RED_BLUE)
    assert "[0, 0, 0], [0, 0, 255], [255, 0, 0]" in error.what
    assert "mask_colors" in error.fix


def test_predictions_get_the_user_s_own_values() -> None:
    labels = _mask(0, 1)
    values, palette = MaskValues(2).to_values(labels, two_tone=False)
    assert values.tolist() == [[0, 1]]
    assert palette == [class_color(0), class_color(1)]
    values, palette = MaskValues(2).to_values(labels, two_tone=True)
    assert (values.dtype, values.tolist(), palette) == (np.uint8, [[0, 255]], None)
    values, palette = MaskValues(2, {10: 0, 700: 1, 38: 1}).to_values(labels, two_tone=False)
    assert (values.dtype, values.tolist(), palette) == (np.uint16, [[10, 700]], None)
    values, palette = MaskValues(2, {10: 0, 38: 1}).to_values(labels, two_tone=False)
    assert (values.dtype, values.tolist(), palette) == (np.uint8, [[10, 38]], None)
    values, palette = MaskValues(2, mask_colors=[(0, 0, 0), (1, 2, 3)]).to_values(labels, two_tone=False)
    assert (values.dtype, values.tolist(), palette) == (np.uint8, [[[0, 0, 0], [1, 2, 3]]], None)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"mask_values": {0: 0, 1: 2}}, "data.mask_values maps 1 to 2"),
        ({"mask_values": {0: 0, 70000: 1}}, "data.mask_values maps 70000"),
        ({"mask_values": {0: 0, 255: 0}}, "no file value to the classes [1]"),
        ({"ignore_index": -1}, "data.ignore_index is -1"),
        ({"mask_colors": [(0, 0, 0)]}, "data.mask_colors lists 1 colours for 2 classes"),
        ({"mask_colors": [(0, 0, 0), (0, 0, 0)]}, "data.mask_colors"),
        ({"mask_colors": [(0, 0, 0), (0, 0, 256)]}, "data.mask_colors"),
        ({"mask_colors": [(0, 0, 0), (1, 1, 1)], "ignore_color": (1, 1, 1)}, "data.mask_colors"),
        ({"mask_colors": [(0, 0, 0), (1, 1, 1)], "ignore_index": 3}, "data.ignore_index"),
        ({"ignore_color": (0, 0, 0)}, "data.ignore_color"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(NamedError) as caught:
        MaskValues(2, **arguments)
    assert caught.value.identifier == "config"
    assert key in caught.value.what
