from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from template.data.dataset import CaseDataset
from template.data.folder import Folder
from template.data.module import SegmentationData
from template.data.picture_files import read_values
from template.distributed.faults import NamedError

_IMAGE = np.array([[0, 51, 102], [153, 204, 255]], dtype=np.uint8)
_MASK = np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8)


def _save(file: Path, pixels: np.ndarray, **options: Any) -> Path:
    file.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(pixels).save(file, **options)
    return file


def _pairs(root: Path, *stems: str, mask: np.ndarray = _MASK, **arguments: Any) -> Folder:
    for stem in stems:
        _save(root / "images" / f"{stem}.png", _IMAGE)
        _save(root / "masks" / f"{stem}.png", mask)
    return _folder(root, **arguments)


def _folder(root: Path, **arguments: Any) -> Folder:
    defaults: dict[str, Any] = {
        "images": str(root / "images"), "masks": str(root / "masks"), "classes": ["background", "a", "b"],
        "in_channels": 1, "val_fraction": 0.0, "test_fraction": 0.0,
    }  # fmt: skip
    return Folder(**{**defaults, **arguments})


def _fails(data: Folder, identifier: str, split: Any = "train") -> NamedError:
    with pytest.raises(NamedError) as caught:
        data.cases(split)
    assert caught.value.identifier == identifier
    return caught.value


def test_pairs_are_read_as_unit_floats_and_class_indices(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "b", "a 图")
    cases = data.cases("train")
    assert [case.name for case in cases] == ["a 图", "b"]
    image, mask = data.read(cases[0])
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, torch.tensor([[[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]]]))
    assert mask is not None
    assert mask.dtype == torch.uint8
    assert mask.tolist() == _MASK.tolist()
    assert _folder(tmp_path, in_channels=3, white=51).read(cases[0])[0][:, 0, 1].tolist() == [1.0, 1.0, 1.0]


def test_a_palette_mask_keeps_its_indices(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a")
    palette = Image.fromarray(_MASK)
    palette.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    palette.save(tmp_path / "masks" / "a.png")
    assert data.read(data.cases("train")[0])[1].tolist() == _MASK.tolist()  # type: ignore[union-attr]


def test_the_split_is_the_same_for_every_instance_and_disjoint(tmp_path: Path) -> None:
    stems = [f"s{number}" for number in range(20)]
    fractions = {"val_fraction": 0.2, "test_fraction": 0.1}
    first = _pairs(tmp_path, *stems, **fractions)
    second = _folder(tmp_path, **fractions, seed=5)
    splits = {split: first.cases(split) for split in ("train", "val", "test")}
    assert {split: len(cases) for split, cases in splits.items()} == {"train": 14, "val": 4, "test": 2}
    assert {case.name for cases in splits.values() for case in cases} == set(stems)
    assert {split: second.cases(split) for split in ("train", "val", "test")} == splits
    assert _folder(tmp_path, **fractions, split_seed=1).cases("train") != splits["train"]


def test_an_empty_split_is_named_except_for_validation(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a", test_fraction=1.0)
    assert len(data.cases("test")) == 1
    assert data.cases("val") == []
    assert "train" in _fails(data, "too-few-samples").what


def test_suffixes_match_files_of_two_folders_and_of_one(tmp_path: Path) -> None:
    _save(tmp_path / "images" / "car.jpg", np.zeros((2, 2), dtype=np.uint8))
    _save(tmp_path / "masks" / "car_mask.gif", np.zeros((2, 2), dtype=np.uint8))
    (case,) = _folder(tmp_path, mask_suffix="_mask").cases("train")
    assert case == ("car", (str(tmp_path / "images" / "car.jpg"), str(tmp_path / "masks" / "car_mask.gif")))
    one = str(tmp_path / "one")
    _save(tmp_path / "one" / "7_sat.jpg", np.zeros((2, 2), dtype=np.uint8))
    _save(tmp_path / "one" / "7_mask.png", np.zeros((2, 2), dtype=np.uint8))
    (case,) = _folder(tmp_path, images=one, masks=one, image_suffix="_sat", mask_suffix="_mask").cases("train")
    assert case.name == "7"
    _save(tmp_path / "one" / "7.png", np.zeros((2, 2), dtype=np.uint8))
    (tmp_path / "one" / "7_sat.jpg").unlink()
    (case,) = _folder(tmp_path, images=one, masks=one, mask_suffix="_mask").cases("train")
    assert case.source == (f"{one}/7.png", f"{one}/7_mask.png")
    with pytest.raises(NamedError, match="same folder"):
        _folder(tmp_path, images=one, masks=one)
    assert "'_lab'" in _fails(_folder(tmp_path, mask_suffix="_lab"), "data-missing").what


def test_names_match_however_their_accents_are_encoded(tmp_path: Path) -> None:
    _save(tmp_path / "images" / f"{unicodedata.normalize('NFC', 'é')}.png", _IMAGE)
    _save(tmp_path / "masks" / f"{unicodedata.normalize('NFD', 'é')}.png", _MASK)
    assert len(_folder(tmp_path).cases("train")) == 1


def test_lonely_files_are_named_and_counted(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a", *(f"lonely {number}" for number in range(7)))
    for number in range(7):
        (tmp_path / "masks" / f"lonely {number}.png").unlink()
    what = _fails(data, "data-unpaired").what
    assert what.startswith("7 of 8 images have no mask in ")
    assert "'lonely 0.png', 'lonely 1.png', 'lonely 2.png', 'lonely 3.png', 'lonely 4.png' …" in what
    for number in range(7):
        (tmp_path / "images" / f"lonely {number}.png").unlink()
    _save(tmp_path / "masks" / "left.png", _MASK)
    assert "1 of 2 masks have no image in " in _fails(data, "data-unpaired").what


def test_a_stem_with_two_extensions_is_refused(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a")
    _save(tmp_path / "images" / "a.jpg", _IMAGE)
    error = _fails(data, "data-unpaired")
    assert "a.jpg" in error.what
    assert "a.png" in error.what


def test_folders_and_files_that_fail_at_the_start_are_named(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a", "b")
    assert "data.images" in _fails(_folder(tmp_path, images=str(tmp_path / "gone")), "data-missing").what
    (tmp_path / "empty").mkdir()
    assert "data.masks" in _fails(_folder(tmp_path, masks=str(tmp_path / "empty")), "data-missing").what
    assert "data.masks" in _fails(_folder(tmp_path, masks=None), "config").what
    (tmp_path / "images" / "b.png").write_bytes(b"")
    assert "b.png" in _fails(data, "data-unreadable").what


def test_a_mask_of_another_size_is_named_with_both_sizes(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a")
    _save(tmp_path / "masks" / "a.png", _MASK.T)
    what = _fails(data, "data-size-mismatch").what
    assert "is 2 × 3 pixels" in what
    assert what.endswith("3 × 2.")


def test_no_pixel_is_read_before_it_is_needed(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    file = _save(tmp_path / "images" / "a.png", noise)
    file.write_bytes(file.read_bytes()[:2000])
    _save(tmp_path / "masks" / "a.png", noise)
    data = _folder(tmp_path)
    (case,) = data.cases("train")
    with pytest.raises(NamedError, match=r"a\.png"):
        data.read(case)
    _save(file, noise)
    with pytest.raises(NamedError) as caught:
        data.read(case)
    assert caught.value.identifier == "mask-values"


def _two_sizes(root: Path, **arguments: Any) -> Folder:
    _save(root / "images" / "a.png", np.zeros((6, 4), dtype=np.uint8))
    _save(root / "masks" / "a.png", np.zeros((6, 4), dtype=np.uint8))
    _save(root / "images" / "b.png", np.zeros((4, 6), dtype=np.uint8))
    _save(root / "masks" / "b.png", np.zeros((4, 6), dtype=np.uint8))
    return _folder(root, **arguments)


def test_images_of_two_sizes_are_refused_unless_something_makes_them_one(tmp_path: Path) -> None:
    error = _fails(_two_sizes(tmp_path), "sizes-differ")
    assert "b.png' is 4 × 6 pixels" in error.what
    assert "a.png' 6 × 4." in error.what
    assert "data.size" in error.fix
    _fails(_two_sizes(tmp_path, augment=[v2.RandomHorizontalFlip()]), "sizes-differ")
    for arguments in (
        {"size": (8, 8)},
        {"preprocess": [v2.CenterCrop(4)]},
        {"augment": [v2.Compose([v2.RandomCrop(3)])]},
        {"batch_size": 1},
    ):
        assert len(_two_sizes(tmp_path, **arguments).cases("train")) == 2
    assert len(_two_sizes(tmp_path, test_fraction=1.0).cases("test")) == 2


def test_the_size_check_leaves_the_global_random_numbers_alone(tmp_path: Path) -> None:
    data = _two_sizes(tmp_path, augment=[v2.RandomCrop(3)])
    torch.manual_seed(0)
    data.cases("train")
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.rand(1) == after


def test_size_resizes_image_and_mask_in_training_and_the_image_alone_afterwards(tmp_path: Path) -> None:
    data = _two_sizes(tmp_path, size=(8, 10), preprocess=[v2.Normalize([0.5], [0.5])])
    shared: dict[str, Any] = {
        "classes": data.classes, "in_channels": 1, "preprocess": data.preprocess, "seed": 0,
    }  # fmt: skip
    for augment, mask_shape in (([], (8, 10)), (None, (6, 4))):
        sample = CaseDataset(data.cases("train"), data.read, augment=augment, **shared)[(0, 0)]
        assert sample["image"].shape == (1, 8, 10)
        assert sample["image"].unique().tolist() == [-1.0]
        assert sample["mask"].shape == mask_shape


def _predicted(data: Folder, name: str, labels: Tensor, out: Path) -> np.ndarray:
    out.mkdir(exist_ok=True)
    (case,) = (case for case in data.predict_cases(data.images) if case.name == name)
    file = data.write(case, labels, out)
    assert file.parent == out
    return read_values(file, color=data.mask_values.colored)


def test_new_images_are_predicted_without_masks_and_never_overwrite_each_other(tmp_path: Path) -> None:
    odd = np.zeros((97, 211, 3), dtype=np.uint8)
    for name in ("a.jpg", "a.png", "b 图.TIF", "c.bmp", "d.jpeg", "e.gif"):
        _save(tmp_path / "images" / name, odd)
    data = _folder(tmp_path, masks=None)
    cases = data.predict_cases(data.images)
    assert [case.name for case in cases] == ["a_jpg", "a_png", "b 图", "c", "d", "e"]
    labels = torch.arange(3, dtype=torch.uint8).repeat(97 * 211)[: 97 * 211].reshape(97, 211)
    files = [data.write(case, labels, tmp_path) for case in cases]
    with pytest.raises(NamedError, match="--out"):
        data.write(cases[0], labels, data.images)
    assert [file.name for file in files] == ["a_jpg.png", "a_png.png", "b 图.TIF", "c.bmp", "d.png", "e.png"]
    for case, file in zip(cases, files, strict=True):
        assert data.read(case)[1] is None
        assert data.read(case)[0].shape == (1, 97, 211)
        assert (read_values(file) == labels.numpy()).all()
    (one,) = data.predict_cases(tmp_path / "images" / "a.jpg")
    assert one.name == "a"
    with pytest.raises(NamedError, match=r"data\.predict"):
        data.predict_cases(tmp_path / "gone")
    with pytest.raises(NamedError, match="not a picture"):
        data.predict_cases(Path(__file__))


def test_predicted_masks_look_like_the_user_s_own(tmp_path: Path) -> None:
    binary = torch.tensor([[0, 1, 0], [1, 1, 0]], dtype=torch.uint8)
    white = (binary * 255).numpy()
    two = _pairs(tmp_path / "two", "b", mask=white, classes=["background", "car"])
    _save(tmp_path / "two" / "images" / "a.png", _IMAGE)
    _save(tmp_path / "two" / "masks" / "a.png", np.zeros((2, 3), dtype=np.uint8))
    assert two.read(two.cases("train")[1])[1].tolist() == binary.tolist()  # type: ignore[union-attr]
    assert _predicted(two, "b", binary, tmp_path / "out").tolist() == white.tolist()
    ones = _pairs(tmp_path / "ones", "a", mask=binary.numpy(), classes=["background", "car"])
    assert _predicted(ones, "a", binary, tmp_path / "out").tolist() == binary.tolist()
    mapped = _folder(tmp_path / "ones", classes=["background", "car"], mask_values={0: 0, 700: 1})
    assert _predicted(mapped, "a", binary, tmp_path / "out").max() == 700
    colored = _folder(tmp_path / "ones", classes=["background", "car"], mask_colors=[(0, 0, 0), (255, 0, 9)])
    assert _predicted(colored, "a", binary, tmp_path / "out")[0, 1].tolist() == [255, 0, 9]
    bmp = tmp_path / "ones" / "images" / "c.bmp"
    _save(bmp, _IMAGE)
    assert mapped.write(mapped.predict_cases(bmp)[0], binary, tmp_path).name == "c.png"  # BMP has 8 bits


def test_masks_that_are_gone_when_predicting_are_told(tmp_path: Path) -> None:
    data = _pairs(tmp_path, "a", classes=["background", "car"], masks=str(tmp_path / "gone"))
    with pytest.warns(UserWarning, match="class indices"):
        assert _predicted(data, "a", torch.ones(2, 3, dtype=torch.uint8), tmp_path / "out").tolist() == [[1] * 3] * 2


def test_a_predicted_mask_stands_upright_as_its_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    _save(tmp_path / "images" / "a.jpg", np.zeros((8, 16), dtype=np.uint8), exif=exif)
    data = _folder(tmp_path, masks=None)
    (case,) = data.predict_cases(data.images)
    assert data.read(case)[0].shape == (1, 16, 8)


@pytest.mark.parametrize("fractions", [(-0.1, 0.1), (0.6, 0.5), (0.0, 1.1)])
def test_fractions_that_make_no_split_are_refused(tmp_path: Path, fractions: tuple[float, float]) -> None:
    with pytest.raises(NamedError, match="val_fraction"):
        _folder(tmp_path, val_fraction=fractions[0], test_fraction=fractions[1])


def test_the_command_line_takes_every_argument() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(SegmentationData, "data")
    values = {
        "images": "i", "masks": "m", "classes": ["background", "a"], "mask_values": {0: 0, 9: 1}, "size": [4, 5],
        "mask_colors": None, "ignore_index": 7, "white": 4095, "batch_size": 2,
        "augment": [{"class_path": "torchvision.transforms.v2.RandomHorizontalFlip", "init_args": {"p": 0.3}}],
    }  # fmt: skip
    config = parser.parse_object({"data": {"class_path": "template.data.folder.Folder", "init_args": values}})
    data = parser.instantiate(config).data
    assert data.mask_values.meaning == {0: 0, 9: 1, 7: 255}
    assert isinstance(data.preprocess[0], v2.Resize)
    assert isinstance(data.augment[0], nn.Module)
    assert data.batch_size == 2
    typed = [
        "--data.mask_values",
        '{"0": 0, "9": 1}',
        "--data.size",
        "[4, 5]",
        "--data.mask_colors",
        "[[0,0,0],[1,2,3]]",
    ]
    with_defaults = ["--data=template.data.folder.Folder", "--data.images=i", "--data.classes=[a, b]", *typed]
    init = parser.parse_args(with_defaults).data.init_args
    assert (init.mask_values, init.size, init.mask_colors) == ({0: 0, 9: 1}, (4, 5), [(0, 0, 0), (1, 2, 3)])
