from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from template.data.transforms import RandomIntensity, RandomWarp, Standardize, Window, _drawn, abdominal_window
from template.labels import IGNORE_INDEX

EVERYTHING = {
    "degrees": 30.0,
    "scale": (0.8, 1.3),
    "shear": 8.0,
    "translate": 0.1,
    "horizontal_flip": 0.5,
    "vertical_flip": 0.5,
    "elastic": 0.03,
}


def sample(image: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"image": tv_tensors.Image(image)}
    if mask is not None:
        made["mask"] = tv_tensors.Mask(mask)
    return made


def numbered(height: int, width: int) -> Tensor:
    return torch.arange(height * width, dtype=torch.float32).reshape(1, height, width)


def seeded(module: nn.Module, given: dict[str, Any], seed: int = 3) -> dict[str, Any]:
    torch.manual_seed(seed)
    result: dict[str, Any] = module(given)
    return result


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every strength is drawn at its largest, and every coin falls on no."""
    monkeypatch.setattr("template.data.transforms._drawn", lambda _: lambda low, high: high)


def test_numbers_drawn_at_once_are_those_drawn_one_by_one() -> None:
    torch.manual_seed(3)
    one_by_one = [torch.rand(()).item() for _ in range(9)]
    following = torch.rand(())
    torch.manual_seed(3)
    uniform = _drawn(9)
    assert torch.rand(()) == following
    assert [uniform(0.0, 1.0) for _ in range(4)] == one_by_one[:4]
    assert uniform(2.0, 2.0) == 2.0
    assert [uniform(-1.0, 2.0) for _ in range(4)] == [3.0 * share - 1.0 for share in one_by_one[5:]]


# What every transform keeps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        Window(-100, 100),
        Standardize(),
        RandomIntensity(0.3, 0.2, 0.1, 0.05),
        RandomWarp(**EVERYTHING),  # type: ignore[arg-type]
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("space", [(24, 32), (5, 24, 32)], ids=["2D", "3D"])
def test_types_shapes_and_dtypes_survive_and_the_input_is_left_alone(module: nn.Module, space: tuple[int, ...]) -> None:
    given = sample(torch.randn(2, *space) * 100, torch.randint(0, 3, space, dtype=torch.uint8))
    before = copy.deepcopy(given)
    result = seeded(module, {**given, "case": "kept"})
    assert result["case"] == "kept"
    assert isinstance(result["image"], tv_tensors.Image)
    assert isinstance(result["mask"], tv_tensors.Mask)
    assert result["image"].shape == (2, *space)
    assert result["image"].dtype == torch.float32
    assert result["mask"].shape == space
    assert result["mask"].dtype == torch.uint8
    assert torch.isfinite(result["image"]).all()
    for name, tensor in before.items():
        assert torch.equal(given[name], tensor)


@pytest.mark.parametrize("module", [Window(-1, 1), Standardize(), RandomIntensity(0.3, 0.2, 0.1, 0.05)])
def test_intensity_leaves_the_mask_alone_and_works_without_one(module: nn.Module) -> None:
    image, mask = torch.randn(1, 16, 16), torch.randint(0, 3, (16, 16), dtype=torch.uint8)
    with_mask = seeded(module, sample(image, mask))
    assert torch.equal(with_mask["mask"], mask)
    assert not torch.equal(with_mask["image"], image)
    assert torch.equal(seeded(module, sample(image))["image"], with_mask["image"])


@pytest.mark.parametrize("module", [RandomIntensity(0.3, 0.2, 0.1, 0.05), RandomWarp(**EVERYTHING)])  # type: ignore[arg-type]
def test_the_same_seed_draws_the_same_and_another_seed_does_not(module: nn.Module) -> None:
    given = sample(torch.rand(1, 16, 16), torch.randint(0, 3, (16, 16), dtype=torch.uint8))
    one = seeded(module, given)
    np.random.seed(1)  # numpy's generator is not looked at
    again, other = seeded(module, given), seeded(module, given, seed=4)
    assert torch.equal(one["image"], again["image"])
    assert torch.equal(one["mask"], again["mask"])
    assert not torch.equal(one["image"], other["image"])


def test_no_name_is_one_of_torchvision() -> None:
    for kind in (Window, Standardize, RandomIntensity, RandomWarp):
        assert not hasattr(v2, kind.__name__)


def test_every_knob_is_told() -> None:
    assert repr(Window(-160, 240)) == "Window(low=-160, high=240)"
    assert repr(Standardize()) == "Standardize(eps=1e-06)"
    assert "noise=0.05" in repr(RandomIntensity(noise=0.05))
    assert "degrees=20.0" in repr(RandomWarp(degrees=20.0))


# Intensity ---------------------------------------------------------------------------------------------------------


def test_window() -> None:
    image = torch.tensor([[[-1000.0, -160.0, -60.0, 40.0, 240.0, 1000.0]]])
    result = Window(-160, 240)(sample(image))["image"]
    torch.testing.assert_close(result.as_subclass(Tensor), torch.tensor([[[0.0, 0.0, 0.25, 0.5, 1.0, 1.0]]]))


@pytest.mark.parametrize("ends", [(5.0, 5.0), (5.0, 4.0), (0.0, math.nan)])
def test_a_window_without_width_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="Window: high"):
        Window(*ends)


def test_the_abdominal_window_is_for_hounsfield_units_alone() -> None:
    ct = torch.tensor([-1000.0, -160.0, 40.0, 240.0, 900.0])
    assert abdominal_window(ct).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    preprocessed = torch.tensor([-3.0, 0.5, 4.0])
    assert torch.equal(abdominal_window(preprocessed), preprocessed)


def test_standardize_goes_channel_by_channel() -> None:
    # Channel 0: mean 2, variance ((-2)² + 0 + 0 + 2²) / 4 = 2. Channel 1 is constant.
    image = torch.tensor([[[0.0, 2.0], [2.0, 4.0]], [[7.0, 7.0], [7.0, 7.0]]])
    result = Standardize()(sample(image))["image"].as_subclass(Tensor)
    root = math.sqrt(2)
    torch.testing.assert_close(result, torch.tensor([[[-root, 0.0], [0.0, root]], [[0.0, 0.0], [0.0, 0.0]]]))


@pytest.mark.usefixtures("most")
def test_gamma_bends_between_the_ends_of_the_image() -> None:
    image = torch.tensor([[[1.0, 2.0, 3.0, 5.0]]])
    # Ends 1 and 5 stay; 2 is a quarter of the way and 3 half of it, both squared: gamma is exp(ln 2).
    result = RandomIntensity(gamma=math.log(2), probability=1.5)(sample(image))["image"].as_subclass(Tensor)
    torch.testing.assert_close(result, torch.tensor([[[1.0, 1.25, 2.0, 5.0]]]))


@pytest.mark.usefixtures("most")
def test_contrast_and_brightness() -> None:
    image = torch.tensor([[[0.0, 1.0, 2.0]]])
    # About the mean, 1, distances grow by a half; then 0.1 is added.
    result = RandomIntensity(contrast=0.5, brightness=0.1, probability=1.5)(sample(image))["image"]
    torch.testing.assert_close(result.as_subclass(Tensor), torch.tensor([[[-0.4, 1.1, 2.6]]]))


@pytest.mark.usefixtures("most")
def test_noise_has_the_standard_deviation_that_was_asked_for() -> None:
    torch.manual_seed(0)
    result = RandomIntensity(noise=0.3, probability=1.5)(sample(torch.zeros(1, 200, 200)))["image"]
    assert result.std().item() == pytest.approx(0.3, rel=0.02)
    assert result.mean().item() == pytest.approx(0.0, abs=0.01)


def test_a_constant_image_survives_gamma() -> None:
    image = torch.full((1, 4, 4), 0.5)
    result = RandomIntensity(gamma=0.5)(sample(image))["image"]
    torch.testing.assert_close(result.as_subclass(Tensor), image)


def test_probability_is_the_share_of_changed_samples() -> None:
    module, image = RandomIntensity(brightness=0.5, probability=0.25), torch.zeros(1, 2, 2)
    torch.manual_seed(0)
    changed = sum(bool(module(sample(image))["image"].any()) for _ in range(1000))
    # 250 ± 3.3 standard deviations of sqrt(1000 · 0.25 · 0.75) = 13.7
    assert 205 <= changed <= 295


# Geometry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [(64, 80), (3, 64, 80)], ids=["2D", "3D"])
def test_image_and_mask_go_through_the_same_field(space: tuple[int, ...]) -> None:
    mask = torch.zeros(space, dtype=torch.uint8)
    mask[..., 20:40, 30:60] = 1
    mask[..., 30:50, 10:25] = 2
    module = RandomWarp(**EVERYTHING, fill=-1.0)  # type: ignore[arg-type]
    for seed in range(8):
        result = seeded(module, sample(mask[None].float(), mask), seed)
        painted, label = result["image"][0].as_subclass(Tensor), result["mask"].as_subclass(Tensor)
        known = label != IGNORE_INDEX
        # Where the bilinear picture is a whole number, away from edges, it is the label.
        whole = known & ((painted - painted.round()).abs() < 1e-4)
        assert whole.float().mean() > 0.6
        assert torch.equal(painted[whole].round().to(torch.uint8), label[whole])
        # Within half a pixel of an edge the nearest label lies between the values that bilinear reading mixes.
        assert (painted[known] - label[known].float()).abs().mean() < 0.05
        assert set(label.unique().tolist()) <= {0, 1, 2, IGNORE_INDEX}
        if len(space) == 3:
            assert torch.equal(label[0], label[2])


def test_no_strength_is_the_identity() -> None:
    image, mask = torch.rand(2, 9, 14), torch.randint(0, 3, (9, 14), dtype=torch.uint8)
    result = RandomWarp()(sample(image, mask))
    torch.testing.assert_close(result["image"].as_subclass(Tensor), image)
    assert torch.equal(result["mask"], mask)


@pytest.mark.parametrize(("knob", "axis"), [("horizontal_flip", 2), ("vertical_flip", 1)])
def test_flips_are_exact(knob: str, axis: int) -> None:
    image = numbered(6, 8)
    result = RandomWarp(**{knob: 1.0})(sample(image, image[0].to(torch.uint8)))  # type: ignore[arg-type]
    torch.testing.assert_close(result["image"].as_subclass(Tensor), image.flip(axis), rtol=0, atol=1e-4)
    assert torch.equal(result["mask"], image.flip(axis)[0].to(torch.uint8))


@pytest.mark.usefixtures("most")
def test_a_quarter_turn_goes_counter_clockwise() -> None:
    image = numbered(7, 7)
    result = RandomWarp(degrees=90)(sample(image, image[0].to(torch.uint8)))
    torch.testing.assert_close(result["image"].as_subclass(Tensor), image.rot90(1, (1, 2)), rtol=0, atol=1e-4)
    assert torch.equal(result["mask"], image.rot90(1, (1, 2))[0].to(torch.uint8))


@pytest.mark.usefixtures("most")
def test_a_shift_brings_in_pixels_that_are_told_apart() -> None:
    image = 1 + numbered(4, 8)
    # The largest shift: a quarter of each side, 2 to the right and 1 down.
    result = RandomWarp(translate=0.25, fill=-7.0)(sample(image, image[0].to(torch.uint8)))
    expected = torch.full((1, 4, 8), -7.0)
    expected[:, 1:, 2:] = image[:, :-1, :-2]
    torch.testing.assert_close(result["image"].as_subclass(Tensor), expected, rtol=0, atol=1e-4)
    labels = torch.full((4, 8), IGNORE_INDEX, dtype=torch.uint8)
    labels[1:, 2:] = image[0, :-1, :-2].to(torch.uint8)
    assert torch.equal(result["mask"], labels)


@pytest.mark.usefixtures("most")
def test_scale_magnifies() -> None:
    mask = torch.zeros(32, 32, dtype=torch.uint8)
    mask[12:20, 14:18] = 1
    result = RandomWarp(scale=(1.0, 2.0))(sample(mask[None].float(), mask))["mask"]
    expected = torch.zeros(32, 32, dtype=torch.uint8)
    expected[8:24, 12:20] = 1
    assert torch.equal(result, expected)


@pytest.mark.usefixtures("most")
def test_agrees_with_torchvision() -> None:
    image = F.gaussian_blur(torch.rand(1, 48, 64, generator=torch.Generator().manual_seed(0)), [5, 5])
    module = RandomWarp(degrees=25, scale=(0.5, 0.8), translate=0.125, fill=0.3)
    result = module(sample(image))["image"].as_subclass(Tensor)
    peer = F.affine(
        image,
        angle=-25,  # torchvision counts clockwise
        translate=[8, 6],
        scale=0.8,
        shear=[0.0],
        interpolation=v2.InterpolationMode.BILINEAR,
        fill=[0.3],
    )
    # At the picture's border torchvision takes the share of the picture twice, so that fill shows a dark line.
    apart = (result - peer).abs() > 1e-4
    covered = module(sample(torch.ones(1, 48, 64)))["image"].as_subclass(Tensor)
    assert not apart[(covered > 1 - 1e-4) | (covered < 0.3 + 1e-4)].any()
    assert apart.sum() < 100


@pytest.mark.usefixtures("most")
@pytest.mark.parametrize("fill", [0.0, 0.3])
def test_agrees_with_scipy_at_the_border_as_well(fill: float) -> None:
    image = torch.rand(1, 20, 24, generator=torch.Generator().manual_seed(0))
    result = RandomWarp(degrees=30, fill=fill)(sample(image))["image"][0].as_subclass(Tensor)
    y, x = np.mgrid[:20, :24] - np.array([9.5, 11.5]).reshape(2, 1, 1)
    cos, sin = math.cos(math.radians(30)), math.sin(math.radians(30))
    read_at = [sin * x + cos * y + 9.5, cos * x - sin * y + 11.5]
    peer = ndimage.map_coordinates(image[0].numpy(), read_at, order=1, mode="grid-constant", cval=fill)
    torch.testing.assert_close(result, torch.from_numpy(peer), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [(11, 15), (12, 14)])
def test_a_crop_is_a_part_of_the_picture_and_lies_anywhere_in_it(size: tuple[int, int]) -> None:
    image, (height, width) = numbered(*size), (5, 8)
    module, starts = RandomWarp(crop=(height, width)), set()
    for seed in range(400):
        result = seeded(module, sample(image, image[0].to(torch.uint8)), seed)
        assert result["image"].shape == (1, height, width)
        start = int(result["mask"][0, 0])
        y, x = divmod(start, size[1])
        part = image[:, y : y + height, x : x + width]
        torch.testing.assert_close(result["image"].as_subclass(Tensor), part, rtol=0, atol=1e-3)
        assert torch.equal(result["mask"], part[0].to(torch.uint8))
        starts.add((y, x))
    assert starts == {(y, x) for y in range(size[0] - height + 1) for x in range(size[1] - width + 1)}


def test_a_crop_is_warped_about_its_middle_with_what_is_around_it() -> None:
    settings: dict[str, Any] = {name: value for name, value in EVERYTHING.items() if name != "elastic"}
    image = F.gaussian_blur(torch.rand(1, 90, 100), [5, 5])
    whole = seeded(RandomWarp(**{**settings, "translate": 0.0}), sample(image))["image"].as_subclass(Tensor)
    # Of a picture that is larger by nothing, the crop lies where the picture's own warp has its middle.
    part = seeded(RandomWarp(**{**settings, "translate": 0.0}, crop=(90, 100)), sample(image))["image"]
    torch.testing.assert_close(part.as_subclass(Tensor), whole, rtol=0, atol=1e-4)
    labels = torch.ones(90, 100, dtype=torch.uint8)
    together = RandomWarp(degrees=30, crop=(40, 40))
    apart = nn.Sequential(v2.RandomCrop(40), RandomWarp(degrees=30))
    unknown = [
        sum(int((seeded(module, sample(image, labels), seed)["mask"] == IGNORE_INDEX).sum()) for seed in range(20))
        for module in (together, apart)
    ]
    assert unknown[0] < unknown[1] / 4


def test_a_crop_that_is_larger_than_the_picture_has_it_in_the_middle() -> None:
    image = 1 + numbered(4, 6)
    result = RandomWarp(crop=(8, 6), fill=-1.0)(sample(image, image[0].to(torch.uint8)))
    expected = torch.full((1, 8, 6), -1.0)
    expected[:, 2:6] = image
    torch.testing.assert_close(result["image"].as_subclass(Tensor), expected, rtol=0, atol=1e-4)
    assert (result["mask"] == IGNORE_INDEX).sum() == 24


def test_the_layout_in_memory_changes_nothing() -> None:
    image = torch.rand(32, 40, 3).permute(2, 0, 1)
    for module in (RandomWarp(**EVERYTHING), RandomIntensity(0.3, 0.2, 0.1)):  # type: ignore[arg-type]
        one, other = (seeded(module, sample(given))["image"] for given in (image, image.contiguous()))
        torch.testing.assert_close(one.as_subclass(Tensor), other.as_subclass(Tensor), rtol=0, atol=1e-6)


def test_what_is_no_image_is_not_moved_in_silence() -> None:
    boxes = tv_tensors.BoundingBoxes([[1, 1, 3, 3]], format="XYXY", canvas_size=(8, 8))
    with pytest.raises(TypeError, match="no BoundingBoxes"):
        RandomWarp()({**sample(torch.rand(1, 8, 8)), "boxes": boxes})


@pytest.mark.parametrize("crop", [(8,), (0, 8)])
def test_an_impossible_crop_is_refused(crop: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="RandomWarp: crop"):
        RandomWarp(crop=crop)


@pytest.mark.usefixtures("most")
def test_shear_moves_rows_by_the_tangent_of_its_angle() -> None:
    mask = torch.zeros(33, 33, dtype=torch.uint8)
    mask[:, 16] = 1
    result = RandomWarp(shear=45)(sample(mask[None].float(), mask))["mask"]
    # A row one further down lies one further to the right; the middle row stays.
    for row in (0, 8, 16, 24, 32):
        assert result[row].eq(1).nonzero().flatten().tolist() == [row]


def test_elastic_moves_pixels_by_about_its_strength() -> None:
    x = torch.arange(100.0).expand(1, 100, 100)
    module, moved = RandomWarp(elastic=0.02), []
    for seed in range(20):
        shift = seeded(module, sample(x.clone()), seed)["image"] - x
        moved.append(shift[0, 20:80, 20:80].flatten())
    # 2 pixels at the control points; less between them, where four neighbours are averaged.
    assert 1.0 < torch.cat(moved).as_subclass(Tensor).std().item() < 2.2


@pytest.mark.parametrize("scale", [(0.0, 1.0), (1.2, 0.8), (1.0,)])
def test_an_impossible_scale_is_refused(scale: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="RandomWarp: scale"):
        RandomWarp(scale=scale)
