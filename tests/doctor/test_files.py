"""Each fault in the files of a data set is named, and a healthy data set has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from template.data.dataset import Case
from template.data.folder import Folder
from template.data.module import Split
from template.distributed.faults import NamedError
from template.doctor import files, samples, survey
from template.doctor.finding import Finding
from template.doctor.options import Options
from template.doctor.rehearsal import Rehearsal

from .rehearsed import Check, examine, of_status, phantom
from .shapes import Pair, Shapes


def look(
    check: Check | list[Check], folder: Path, break_it: Callable[..., Pair] | None = None, **settings: Any
) -> list[Finding]:
    """Findings of a check on a data set that breaks once the rehearsal has begun to look at it."""
    data = Shapes(**settings)
    if break_it is not None:
        data.broken = break_it  # type: ignore[method-assign]
    return examine(check, folder, data=data)


def test_healthy_data_sets_pass_all_checks(tmp_path: Path) -> None:
    for data in (phantom(), phantom(dims=3, depth=8, train_cases=4, batch_size=2), Shapes()):
        found = examine(list(files.CHECKS), tmp_path, data=data)
        assert [one.status for one in found] == ["pass"] * 4
        assert all(len(one.subject) <= 60 for one in found)
    assert [one.subject for one in found] == [
        "14 cases can be read",
        "2 of 2 classes in the masks of train, val, test",
        "no image in two splits: 8 train, 4 val, 2 test",
        f"values from {found[3].subject.split()[2]} to {found[3].subject.split()[4].rstrip(';')}; no image stands out",
    ]


def _raises(case: Case, image: Tensor, mask: Tensor) -> Pair:
    raise OSError("image file is truncated")


def _exits(case: Case, image: Tensor, mask: Tensor) -> Pair:
    raise SystemExit(3)


BROKEN: dict[str, tuple[Callable[..., Pair], str, str]] = {
    "unreadable": (_raises, "data-unreadable", "OSError: image file is truncated"),
    "exit": (_exits, "exception", "sys.exit(3)"),
    "empty": (lambda case, image, mask: (image[:, :0], mask), "data-unreadable", "an empty image"),
    "array": (lambda case, image, mask: (image.numpy(), mask), "data-unreadable", "as a ndarray"),
    "size": (lambda case, image, mask: (image, mask[1:]), "data-size-mismatch", "[16, 16], its mask [15, 16]"),
    "channels": (lambda case, image, mask: (image.expand(3, -1, -1), mask), "image-channels", "[3, 16, 16]"),
    "nan": (lambda case, image, mask: (image / 0 * 0, mask), "data-not-finite", "NaN"),
    "label": (lambda case, image, mask: (image, mask * 2), "mask-values", "[0, 2]; data.classes names 2"),
    "label channels": (lambda case, image, mask: (image, torch.stack([1 - mask, mask])), "data-size-mismatch", "2, 16"),
    "no mask": (lambda case, image, mask: (image, None), "data-unpaired", "has no mask"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_case_that_does_not_fit_is_named_and_the_others_are_read(fault: str, tmp_path: Path) -> None:
    change, identifier, words = BROKEN[fault]

    def broken(case: Case, image: Tensor, mask: Tensor) -> Pair:
        return change(case, image, mask) if case.name == "train_3" else (image, mask)

    (found,) = look(files.every_case_can_be_read, tmp_path, broken)
    assert (found.id, found.status, found.check) == (identifier, "fail", "data: files")
    assert words in found.subject
    assert fault == "exit" or "'train_3'" in found.subject


def test_many_of_one_kind_are_joined(tmp_path: Path) -> None:
    found = look(files.every_case_can_be_read, tmp_path, lambda case, image, mask: (image, mask * 2))
    assert [one.id for one in found] == ["mask-values"] * 4
    assert found[3].subject == (
        "The same in 11 more cases: 'train_3', 'train_4', 'train_5', 'train_6', 'train_7', 'val_0', 'val_1', 'val_2', "
        "'val_3', 'test_0' and 1 more."
    )


class Unlisted(Shapes):
    """Splits that cannot be listed any more."""

    gone: tuple[str, ...] = ()

    def cases(self, split: Split) -> list[Case]:
        if split in self.gone:
            raise FileNotFoundError(f"no {split}.txt")
        return super().cases(split)


def _listed_anew(rehearsal: Rehearsal) -> list[Finding]:
    rehearsal.data._cases.clear()
    return files.every_case_can_be_read(rehearsal)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_that_cannot_be_listed_is_named(split: Split, tmp_path: Path) -> None:
    def look_again(rehearsal: Rehearsal) -> list[Finding]:
        data.gone = (split,)
        return _listed_anew(rehearsal)

    data = Unlisted()
    (found,) = examine(look_again, tmp_path, data=data)
    if split == "test":  # a fit needs none
        assert (found.status, found.subject) == ("pass", "12 cases can be read")
        return
    assert (found.id, found.status, found.check) == ("exception", "fail", "data: files")
    assert found.subject.startswith(f"FileNotFoundError: no {split}.txt, raised at ")


def test_a_loader_of_ones_own_needs_no_list(tmp_path: Path) -> None:
    class Own(Unlisted):
        gone = ("val",)

        def setup(self, stage: str) -> None:
            self._listed("train")

        def val_dataloader(self) -> Any:
            return [[{"image": torch.zeros(1, 1, 16, 16), "mask": torch.zeros(1, 16, 16).long()}]]

    found = examine(list(files.CHECKS), tmp_path, data=Own())
    assert [one.status for one in found] == ["pass"] * 4


def test_masks_of_a_folder_that_hold_other_values_are_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (16, 16), np.uint8)).save(tmp_path / "images" / f"{number:02}.png")
        mask = np.zeros((16, 16), np.uint8)
        mask[4:9, 4:9] = 255
        suffix = ".jpg" if number == 5 else ".png"
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number:02}{suffix}", quality=40)
    data = Folder(
        images=str(tmp_path / "images"),
        masks=str(tmp_path / "masks"),
        in_channels=1,
        classes=["background", "square"],
        batch_size=2,
        num_workers=0,
    )
    found = of_status(examine(list(files.CHECKS), tmp_path, data=data))
    assert [(one.id, one.check) for one in found] == [("mask-values", "data: files")]
    assert "05.jpg" in found[0].subject
    assert found[0].cause == "JPEG changes pixel values near edges."


def test_a_class_in_no_mask_is_named(tmp_path: Path) -> None:
    (found,) = look(files.every_class_occurs, tmp_path, classes=["background", "square", "circle"])
    assert (found.id, found.status) == ("class-missing", "warn")
    assert found.subject == (
        "The class 'circle' is in none of the 8 masks of train; there are 'background' in 8, 'square' in 8."
    )


def test_a_class_that_validation_lacks_is_named(tmp_path: Path) -> None:
    def broken(case: Case, image: Tensor, mask: Tensor) -> Pair:
        return image, mask * (not case.name.startswith("val"))

    (found,) = look(files.every_class_occurs, tmp_path, broken)
    assert (found.id, found.status) == ("class-missing", "warn")
    assert found.subject.startswith("The class 'square' is in none of the 4 masks of val; there are 'background' in 4.")


def test_black_and_white_masks_that_count_for_nothing_are_named(tmp_path: Path) -> None:
    (found,) = look(files.every_class_occurs, tmp_path, lambda case, image, mask: (image, mask * 255))
    assert (found.id, found.status) == ("mask-values", "fail")
    assert found.subject == "All of the 8 masks of train hold 0 and 255 alone: nothing but 'background' is learnt."


def test_masks_without_a_pixel_that_counts_are_named(tmp_path: Path) -> None:
    def broken(case: Case, image: Tensor, mask: Tensor) -> Pair:
        return image, torch.full_like(mask, 255) if case.name in {"train_1", "train_4"} else mask

    (found,) = look(files.every_class_occurs, tmp_path, broken)
    assert (found.id, found.status) == ("class-missing", "warn")
    assert "2 of the 8 masks of train hold 255 alone, which does not count: 'train_" in found.subject


def test_all_masks_without_a_pixel_that_counts_are_a_failure(tmp_path: Path) -> None:
    found = look(files.every_class_occurs, tmp_path, lambda case, image, mask: (image, torch.full_like(mask, 255)))
    assert {(one.id, one.status) for one in of_status(found)} == {("class-missing", "fail")}


def test_the_same_image_in_two_splits_is_found_by_its_content(tmp_path: Path) -> None:
    class Leaks(Shapes):
        def pair(self, number: int) -> Pair:
            return super().pair({100_002: 5, 200_001: 6}.get(number, number))

    found = examine(files.no_case_is_in_two_splits, tmp_path, data=Leaks())
    assert [(one.id, one.status, one.subject) for one in found] == [
        ("split-leak", "fail", "'train_5' of train and 'val_2' of val are one and the same image."),
        ("split-leak", "fail", "'train_6' of train and 'test_1' of test are one and the same image."),
    ]


def test_empty_tiles_are_no_leak(tmp_path: Path) -> None:
    def broken(case: Case, image: Tensor, mask: Tensor) -> Pair:
        return (image * 0 if case.name.endswith("_1") else image), mask

    found = look([files.no_case_is_in_two_splits, files.values_are_alike], tmp_path, broken)
    assert [(one.check, one.status) for one in found] == [("data: splits", "pass"), ("data: values", "warn")]
    assert "3 of 14 images have one value in all pixels: 'train_1', 'val_1', 'test_1'." in found[1].subject


class Named(Shapes):
    """Cases of validation under names of the training cases.

    Args:
        shared: How many of them.
    """

    def __init__(self, shared: int) -> None:
        super().__init__()
        self.shared = shared

    def cases(self, split: Split) -> list[Case]:
        return [
            case._replace(name=f"train_{number}") if split == "val" and number < self.shared else case
            for number, case in enumerate(super().cases(split))
        ]


def test_a_name_in_two_splits_is_told(tmp_path: Path) -> None:
    (found,) = examine(files.no_case_is_in_two_splits, tmp_path, data=Named(1))
    assert (found.id, found.status) == ("split-leak", "warn")
    assert found.subject == "1 names are in train and in val, with different images: 'train_0'."


def test_numbers_that_begin_anew_in_each_split_are_no_names(tmp_path: Path) -> None:
    assert [one.status for one in examine(files.no_case_is_in_two_splits, tmp_path, data=Named(4))] == ["pass"]


@pytest.mark.parametrize("factor", [255.0, 1 / 255], ids=["larger", "smaller"])
def test_an_image_of_another_scale_is_named(factor: float, tmp_path: Path) -> None:
    def broken(case: Case, image: Tensor, mask: Tensor) -> Pair:
        return image * factor if case.name == "val_1" else image, mask

    (found,) = look(files.values_are_alike, tmp_path, broken)
    assert (found.id, found.status) == ("values-differ", "warn")
    assert found.subject.startswith("'val_1' has values ")


def test_an_image_in_another_range_is_named(tmp_path: Path) -> None:
    def broken(case: Case, image: Tensor, mask: Tensor) -> Pair:
        return image + 1024 * (case.name == "train_7"), mask

    (found,) = look(files.values_are_alike, tmp_path, broken)
    assert found.subject.startswith("'train_7' has values 1024 to 1025")


@pytest.mark.parametrize(
    "kind", ["night and snow", "slices of air", "images of standard deviation 1", "8-bit with dark ones"]
)
def test_ordinary_variety_does_not_stand_out(kind: str, tmp_path: Path) -> None:
    def varied(case: Case, image: Tensor, mask: Tensor) -> Pair:
        odd = case.name in {"train_1", "val_2"}
        if kind == "night and snow":
            return (image * 0.04 if case.name == "train_1" else image * 0.3 + 0.7 if odd else image), mask
        if kind == "slices of air":
            return (image * 20 - 1000 if odd else image * 3000 - 1000), mask
        if kind == "8-bit with dark ones":
            return (image * (4 if odd else 255)).round(), mask
        return (image - image.mean()) / image.std() * (0.3 if odd else 1), mask

    assert [one.status for one in look(files.values_are_alike, tmp_path, varied)] == ["pass"]


def test_a_spacing_far_from_the_others_is_named(tmp_path: Path) -> None:
    class Spaced(Shapes):
        def spacing(self, case: Case) -> tuple[float, ...]:
            return (2.0, 0.0008, 0.0008) if case.name == "train_2" else (5.0 if case.source % 2 else 0.7, 0.8, 0.7)

    (found,) = examine(files.values_are_alike, tmp_path, data=Spaced())
    assert (found.id, found.status) == ("values-differ", "warn")
    assert found.subject.startswith("'train_2' has voxels of 2 × 0.0008 × 0.0008 mm, others of ")


def test_a_sample_is_spread_evenly_and_said_to_be_one(tmp_path: Path) -> None:
    opened: list[str] = []

    def noted(case: Case, image: Tensor, mask: Tensor) -> Pair:
        opened.append(case.name)
        return image, mask

    found = look(list(files.CHECKS), tmp_path, noted, counts=(400, 100, 0), classes=["background", "square", "rare"])
    assert [one.subject for one in found if one.check in {"data: files", "data: splits"}] == [
        "300 of 500 cases can be read; --all opens all",
        "no image in two splits: 200 train, 100 val opened",
    ]
    assert sorted(int(name[6:]) for name in opened if name.startswith("train")) == list(range(0, 400, 2))
    # 200 masks are enough to say so.
    assert [one.subject for one in found if one.status == "warn"] == [
        "The class 'rare' is in none of the 200 opened masks of train; there are 'background' in 200, 'square' in 200."
    ]


def test_a_short_sample_misses_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SECONDS", 0.0)
    found = look(list(files.CHECKS), tmp_path, counts=(90, 8, 2), classes=["background", "square", "rare"])
    assert found[0].subject == "8 of 100 cases can be read; --all opens all"
    assert [one.status for one in found] == ["pass"] * 4
    assert found[1].subject == "2 of 3 classes in 8 opened masks of train, val, test"


def test_all_opens_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SECONDS", 0.0)
    data = Shapes(counts=(300, 100, 0))
    (found,) = examine(files.every_case_can_be_read, tmp_path, data=data, options=Options(all=True))
    assert found.subject == "400 cases can be read"


def test_cases_that_two_splits_seem_to_share_are_opened_first(tmp_path: Path) -> None:
    class Leaks(Shapes):
        def cases(self, split: Split) -> list[Case]:
            if split == "val":
                return [*super().cases(split), Case("again", 1357)]
            return super().cases(split)

    found = of_status(examine(files.no_case_is_in_two_splits, tmp_path, data=Leaks(counts=(3000, 999, 0))))
    assert [one.subject for one in found] == ["'train_1357' of train and 'again' of val are one and the same image."]


def test_prefixes_of_a_spread_are_spread() -> None:
    assert survey.spread(8, 200) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert survey.spread(1000, 4) == [0, 500, 250, 750]
    assert survey.spread(0, 4) == []
    assert sorted(survey.spread(11, 200)) == list(range(11))


def test_each_case_is_read_once_for_all_checks(tmp_path: Path) -> None:
    opened: list[str] = []

    def noted(case: Case, image: Tensor, mask: Tensor) -> Pair:
        opened.append(case.name)
        return image, mask

    look(list(files.CHECKS), tmp_path, noted)
    assert len(opened) == len(set(opened)) == 14


def test_where_no_case_can_be_read_the_rest_is_not_checked(tmp_path: Path) -> None:
    found = look(list(files.CHECKS), tmp_path, _raises)
    assert {one.id for one in found if one.check == "data: files"} == {"data-unreadable"}
    assert [(one.id, one.status) for one in found if one.check != "data: files"] == [("not-checked", "warn")] * 3


def test_a_data_set_of_loaders_alone_has_no_findings(tmp_path: Path) -> None:
    class Loaders(Shapes):
        def cases(self, split: Split) -> list[Case]:
            return []

        def train_dataloader(self) -> Any:
            return [{"image": torch.zeros(1, 1, 16, 16), "mask": torch.zeros(1, 16, 16).long()}]

        def val_dataloader(self) -> Any:
            return self.train_dataloader()

    found = examine([*files.CHECKS, *samples.CHECKS], tmp_path, data=Loaders())
    assert {one.status for one in found} == {"pass"}


def test_cases_of_another_type_are_named(tmp_path: Path) -> None:
    class Strings(Shapes):
        def cases(self, split: Split) -> list[Any]:
            return [case.name for case in super().cases(split)]

    with pytest.raises(NamedError, match=r"^Strings.cases\('train'\) lists a str, and no Case"):
        examine(list(files.CHECKS), tmp_path, data=Strings())


def test_a_case_that_is_listed_twice_is_named(tmp_path: Path) -> None:
    class Twice(Shapes):
        def cases(self, split: Split) -> list[Case]:
            found = super().cases(split)
            return [*found, *found[1:3]] if split == "val" else found

    (found,) = examine(files.no_case_is_in_two_splits, tmp_path, data=Twice())
    names = [case.name for case in Shapes().cases("val")]
    assert (found.id, found.status) == ("case-twice", "warn")
    assert found.subject == f"'{names[1]}' is listed 2 times in val, and so are '{names[2]}'."
