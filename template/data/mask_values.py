"""What the numbers in mask files mean: values and colours to class indices, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX, class_color

Color = tuple[int, int, int]
LARGEST = 65535
_SHOWN = 10


class MaskValues:
    """Translates between the numbers in mask files and class indices.

    Args:
        num_classes: Number of classes.
        mask_values: File value to class index; several values may join in one class. Default: values are class
            indices, and with two classes a mask of 0 and 255 is taken as classes 0 and 1.
        mask_colors: Colour (RGB, 0-255) of each class in masks that are colour pictures; default: masks hold numbers.
        ignore_index: File value of pixels that do not count.
        ignore_color: The same for colour masks.

    Raises:
        NamedError: ``config``: the arguments contradict each other or the number of classes.
    """

    def __init__(
        self,
        num_classes: int,
        mask_values: Mapping[int, int] | None = None,
        mask_colors: Sequence[Color] | None = None,
        ignore_index: int | None = None,
        ignore_color: Color | None = None,
    ) -> None:
        self.num_classes = num_classes
        self.colored = mask_colors is not None
        if self.colored and (mask_values is not None or ignore_index is not None):
            raise NamedError(
                "config", "data.mask_colors is given together with data.mask_values or data.ignore_index.",
                cause="Masks are either colours or numbers.", fix="Remove one; colours have data.ignore_color.",
            )  # fmt: skip
        if ignore_color is not None and not self.colored:
            raise NamedError("config", "data.ignore_color is given without data.mask_colors.")
        if mask_colors is not None:
            meaning = _color_codes(num_classes, mask_colors, ignore_color)
        else:
            meaning = dict(mask_values) if mask_values is not None else {label: label for label in range(num_classes)}
            _check_values(num_classes, meaning, ignore_index)
            if ignore_index is not None:
                meaning[ignore_index] = IGNORE_INDEX
        # 0/255 masks: 255 is taken as class 1 where nothing says what it is.
        self.two_tone = num_classes == 2 and not self.colored and mask_values is None and ignore_index not in {1, 255}
        self.meaning = meaning
        self.translated = self.colored or mask_values is not None
        self._table = np.full(LARGEST + 1, -1, dtype=np.int16)
        if not self.colored:
            self._table[list(meaning)] = list(meaning.values())
        if self.two_tone:
            self._table[255] = 1
        # Below it each value is its own class: of the masks of most data sets their largest value tells that.
        self._as_stored = int(np.argmax(self._table != np.arange(LARGEST + 1)))

    def told(self) -> str:
        """All that :meth:`to_classes` depends on, in words."""
        return f"labels {sorted(self.meaning.items())} {'colours' * self.colored} {'two tones' * self.two_tone}"

    def to_classes(self, values: npt.NDArray[Any], path: Path) -> npt.NDArray[np.uint8]:
        """Translate what a mask file stores.

        Args:
            values: Integers [H, W] or colours uint8 [H, W, 3], as of ``read_values``.
            path: The file, for messages.

        Returns:
            uint8 [H, W]: class indices and ``IGNORE_INDEX``; ``values`` themselves where they are those.

        Raises:
            NamedError: ``mask-values``: the file has a value or colour that no class has.
        """
        if values.ndim == 3 and not self.colored:
            raise NamedError(
                "mask-values",
                f"The mask '{path}' is a colour picture with the colours {_listed(_codes(values), color=True)}.",
                cause="A mask holds numbers, or colours that data.mask_colors gives to the classes.",
                fix=f"List {self.num_classes} colours in data.mask_colors, one [red, green, blue] for each class.",
            )
        if self.colored:
            codes = _codes(values)
            labels = np.full(codes.shape, -1, dtype=np.int16)
            for code, label in self.meaning.items():
                labels[codes == code] = label
        else:
            fits = values.dtype in (np.uint8, np.uint16)
            largest = int(values.max()) if fits and values.size else LARGEST
            beside = largest
            if largest == self._table[largest] == IGNORE_INDEX and values.dtype == np.uint8:
                beside = int((values + np.uint8(1)).max()) - 1  # of bytes the next one is 0
            if beside < self._as_stored:
                return values.astype(np.uint8, copy=False)
            if largest < LARGEST and not self.two_tone:
                table = self._table[: largest + 1]
                if (table >= 0).all():  # all values have a class, and to look them up takes a tenth of the time
                    looked_up: npt.NDArray[np.uint8] = table.astype(np.uint8)[values]
                    return looked_up
            if self.two_tone and values.dtype == np.uint8 and self._table[[0, 1, 255]].tolist() == [0, 1, 1]:
                ones: npt.NDArray[np.uint8] = (values & 1).astype(np.uint8, copy=False)
                if np.array_equal(ones * np.uint8(255), values):  # 0 and 255, in a tenth of the time as well
                    return ones
            codes = values if fits else values.astype(np.int64)
            inside = codes if fits else np.clip(codes, 0, LARGEST)
            labels = self._table[inside]
            if not fits:
                labels[inside != codes] = -1
        if (labels < 0).any() or (self.two_tone and (codes == 255).any() and (codes == 1).any()):
            raise self._refusal(codes, path)
        return labels.astype(np.uint8)

    def to_values(self, labels: npt.NDArray[np.uint8], two_tone: bool) -> tuple[npt.NDArray[Any], list[Color] | None]:
        """Translate class indices into what the user's own masks store.

        Args:
            labels: uint8 [H, W].
            two_tone: Whether the user's masks hold 0 and 255 (only the masks can tell).

        Returns:
            What ``write_values`` takes: values uint8 or uint16 [H, W], or colours uint8 [H, W, 3]; and a palette of
            class colours where the values are class indices.
        """
        if not self.translated and not two_tone:
            return labels, [class_color(label) for label in range(self.num_classes)]
        back = np.arange(256)
        if two_tone:
            back[1] = 255
        else:
            # Of several values that join in one class the first is written.
            for value, label in reversed(self.meaning.items()):
                back[label] = value
        if self.colored:
            values = back[labels]
            return np.stack([values >> 16, values >> 8 & 255, values & 255], axis=-1).astype(np.uint8), None
        # The table is narrowed, and not what comes out of it: of a volume that would be eight times as large.
        return back.astype(np.uint8 if max(back[: self.num_classes]) < 256 else np.uint16)[labels], None

    def _refusal(self, codes: npt.NDArray[Any], path: Path) -> NamedError:
        found = np.unique(codes)
        cause = fix = None
        if path.suffix.lower() in {".jpg", ".jpeg"}:
            cause, fix = "JPEG changes pixel values near edges.", "Save masks as PNG, from the program that made them."
        elif self.colored:
            cause, fix = "data.mask_colors has other colours.", "Correct data.mask_colors, or set data.ignore_color."
        elif set(found) <= {0, 255}:
            cause = f"0 and 255 are black and white of two classes; data.classes names {self.num_classes}."
            fix = (
                "Name two classes, or give 255 a meaning: data.mask_values: {0: 0, 255: 1}, or data.ignore_index: 255."
            )
        elif 255 in found:
            fix = "Set data.ignore_index: 255 if such pixels do not count, or map values with data.mask_values."
        kind = "colours" if self.colored else "values"
        allowed = _listed(np.array(list(self.meaning)), self.colored) + (", or 0 and 255" if self.two_tone else "")
        what = f"The mask '{path}' has the {kind} {_listed(found, self.colored)}; allowed are {allowed}."
        return NamedError("mask-values", what, cause, fix)


def _check_values(num_classes: int, meaning: Mapping[int, int], ignore_index: int | None) -> None:
    for value, label in meaning.items():
        if not 0 <= value <= LARGEST or not (0 <= label < num_classes or label == IGNORE_INDEX):
            raise NamedError(
                "config",
                f"data.mask_values maps {value} to {label}; file values are 0 to {LARGEST}, classes 0 to "
                f"{num_classes - 1}, and {IGNORE_INDEX} means: does not count.",
            )
    missing = sorted(set(range(num_classes)) - set(meaning.values()))
    if missing:
        raise NamedError("config", f"data.mask_values gives no file value to the classes {missing}.")
    if ignore_index is not None and not 0 <= ignore_index <= LARGEST:
        raise NamedError("config", f"data.ignore_index is {ignore_index}; file values are 0 to {LARGEST}.")


def _color_codes(num_classes: int, mask_colors: Sequence[Color], ignore_color: Color | None) -> dict[int, int]:
    colors = [*mask_colors, *([ignore_color] if ignore_color else [])]
    legal = all(0 <= level <= 255 for color in colors for level in color)
    if len(mask_colors) != num_classes or len(set(map(tuple, colors))) != len(colors) or not legal:
        raise NamedError(
            "config",
            f"data.mask_colors lists {len(mask_colors)} colours for {num_classes} classes.",
            cause="Each class has one colour [red, green, blue] of its own, 0 to 255; so has data.ignore_color.",
        )
    labels = [*range(num_classes), IGNORE_INDEX]
    return {red << 16 | green << 8 | blue: label for (red, green, blue), label in zip(colors, labels, strict=False)}


def _codes(colors: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """One number 0xRRGGBB for each colour of [H, W, 3]."""
    red, green, blue = np.moveaxis(colors.astype(np.int64), -1, 0)
    codes: npt.NDArray[np.int64] = red << 16 | green << 8 | blue
    return codes


def _listed(codes: npt.NDArray[Any], color: bool = False) -> str:
    found = np.unique(codes).tolist()
    names = [str([code >> 16, code >> 8 & 255, code & 255]) if color else str(code) for code in found[:_SHOWN]]
    return ", ".join(names) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
