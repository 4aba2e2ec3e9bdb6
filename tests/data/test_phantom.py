from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from template.data.phantom import Phantom, draw
from template.distributed.faults import NamedError

AIR, FAT = -1000.0, -100.0


def pictures(data: Phantom, split: Any = "train") -> tuple[Tensor, Tensor]:
    drawn = [data.read(case) for case in data.cases(split)]
    masks = [mask for _, mask in drawn if mask is not None]
    return torch.stack([image for image, _ in drawn]), torch.stack(masks)


@pytest.mark.parametrize(("dims", "space"), [(2, (48, 48)), (3, (12, 48, 48))])
def test_shapes_types_and_labels(dims: Any, space: tuple[int, ...]) -> None:
    images, masks = pictures(Phantom(train_cases=8, dims=dims, size=48, depth=12))
    assert images.shape == (8, 1, *space)
    assert images.dtype == torch.float32
    assert masks.shape == (8, *space)
    assert masks.dtype == torch.uint8
    assert masks.unique().tolist() == [0, 1, 2]
    assert torch.isfinite(images).all()


def test_a_case_depends_on_seed_split_and_number_alone() -> None:
    few, many = Phantom(train_cases=2, batch_size=4), Phantom(train_cases=50, val_cases=3, seed=9)
    case = few.cases("train")[1]
    assert case == many.cases("train")[1]
    image, mask = few.read(case)
    np.random.seed(5)
    torch.manual_seed(5)
    many.read(many.cases("val")[0])
    again, mask_again = many.read(case)
    assert mask is not None
    assert mask_again is not None
    assert torch.equal(image, again)
    assert torch.equal(mask, mask_again)


def test_all_cases_differ_in_image_and_mask() -> None:
    one, other = Phantom(train_cases=6, val_cases=6, test_cases=6), Phantom(train_cases=6, drawing_seed=1)
    sets = [pictures(one, split) for split in ("train", "val", "test")] + [pictures(other)]
    for kind in (0, 1):
        drawn = [picture.numpy().tobytes() for pair in sets for picture in pair[kind]]
        assert len(set(drawn)) == 24


def test_names_are_unique_and_tell_the_split() -> None:
    data = Phantom(train_cases=3, val_cases=2, test_cases=1)
    names = {split: [case.name for case in data.cases(split)] for split in ("train", "val", "test")}  # type: ignore[arg-type]
    assert names == {
        "train": ["train_0000", "train_0001", "train_0002"],
        "val": ["val_0000", "val_0001"],
        "test": ["test_0000"],
    }


def test_tissues_have_their_hounsfield_units() -> None:
    data = Phantom(train_cases=40, noise=0.0)
    images, masks = pictures(data)
    images = images[:, 0]
    liver, tumour = images[masks == 1], images[masks == 2]
    assert liver.median().item() == pytest.approx(110, abs=6)
    # 40 to 65 below the liver
    assert liver.median().item() - tumour.median().item() == pytest.approx(52.5, abs=8)
    assert images[:, 0, 0].tolist() == [AIR] * 40
    assert ((images - FAT).abs() < 1).float().mean() > 0.05
    assert images.max() > 330  # bone
    # Every liver has the patient's right side: the left of the picture.
    columns = torch.arange(96.0)
    centres = ((masks > 0).sum(1) * columns).sum(1) / (masks > 0).sum((1, 2))
    assert (centres < 48).all()


def test_classes_are_unbalanced_as_in_a_ct_and_no_slice_lacks_one() -> None:
    masks = pictures(Phantom(train_cases=100))[1]
    share = [(masks == label).float().mean().item() for label in range(3)]
    assert 0.75 < share[0] < 0.9
    assert 0.08 < share[1] < 0.2
    assert 0.01 < share[2] < 0.05
    for label in range(3):
        assert (masks == label).flatten(1).any(1).all()


@pytest.mark.parametrize("noise", [10.0, 40.0])
def test_noise_has_its_standard_deviation_and_is_correlated(noise: float) -> None:
    images = pictures(Phantom(train_cases=20, noise=noise))[0]
    corner = images[:, 0, 1:10, 1:10]  # air; the blur repeats the outermost pixels
    assert corner.std().item() == pytest.approx(noise, rel=0.06)
    # Neighbours under the weights (1, 2, 1): (1·2 + 2·1) / (1 + 4 + 1) = 2/3 of the variance.
    joint = ((corner[..., 1:] + 1000) * (corner[..., :-1] + 1000)).mean().item()
    assert joint / noise**2 == pytest.approx(2 / 3, abs=0.1)


def test_noise_changes_no_mask() -> None:
    assert torch.equal(pictures(Phantom(noise=0.0))[1], pictures(Phantom(noise=50.0))[1])


def test_tumours_lie_in_the_liver_in_volumes_too() -> None:
    image, mask = draw(np.random.default_rng(3), size=64, depth=24, noise=0.0)
    assert image.shape == mask.shape == (24, 64, 64)
    tumour = mask == 2
    assert tumour.any()
    # Every tumour voxel has liver or tumour beside it on most sides: eroding the joint region keeps most of it.
    joint = mask > 0
    inner = joint[:, 1:-1, 1:-1] & joint[:, :-2, 1:-1] & joint[:, 2:, 1:-1] & joint[:, 1:-1, :-2] & joint[:, 1:-1, 2:]
    assert (inner & tumour[:, 1:-1, 1:-1]).sum() > 0.7 * tumour.sum()
    # The liver ends within the volume; the body does not.
    assert not (mask[0] > 0).any()
    assert (image[0] > -200).any()
    assert (image[-1] > -200).any()


def test_what_it_says_about_itself() -> None:
    data = Phantom(batch_size=12)
    assert data.classes == ["background", "liver", "tumour"]
    assert {name: list(labels) for name, labels in data.regions.items()} == {"liver": [1, 2], "tumour": [2]}
    assert (data.in_channels, data.num_classes, data.batch_size) == (1, 3, 12)


def test_a_copy_in_a_loader_worker_draws_the_same() -> None:
    data = Phantom(train_cases=1)
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(pictures(copy)[0], pictures(data)[0])


def test_pictures_for_people_show_soft_tissue() -> None:
    data = Phantom(train_cases=1)
    image, mask = data.read(data.cases("train")[0])
    assert mask is not None
    shown = data.display(image)
    assert shown.shape == (3, 96, 96)
    assert shown.dtype == torch.uint8
    # The abdominal window is -160 to 240: liver at 110 is (110 + 160) / 400 of 255 = 172.
    assert shown[0][mask == 1].float().median().item() == pytest.approx(172, abs=12)
    assert shown[:, 0, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [{"train_cases": -1}, {"size": 8}, {"depth": 0}, {"noise": -1.0}, {"drawing_seed": -1}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_numbers_that_make_no_picture_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(NamedError, match=f"data.{next(iter(wrong))}") as caught:
        Phantom(**wrong)
    assert caught.value.identifier == "config"
