"""The U-Net: shapes, numbers of parameters worked out by hand, padding, normalisations, export."""

from __future__ import annotations

import itertools
from typing import Any

import jsonargparse
import pytest
import torch
from torch import nn

from template.distributed.faults import NamedError
from template.models.unet import UNet


def small(**options: Any) -> UNet:
    torch.manual_seed(0)
    return UNet(1, 3, **{"width": 4, "depth": 2, **options})


@pytest.mark.parametrize("size", [(64, 64), (33, 47), (1, 1), (3, 100), (17, 29, 8), (1, 1, 1)])
@pytest.mark.parametrize("normalization", ["batch", "instance", "group", "none"])
def test_logits_have_the_size_of_the_image(size: tuple[int, ...], normalization: str) -> None:
    net = small(dims=len(size), normalization=normalization)
    logits = net(torch.randn(1, 1, *size))
    assert logits.shape == (1, 3, *size)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_number_of_parameters_is_the_sum_worked_out_by_hand() -> None:
    widths, channels, classes = [32, 64, 128, 256, 320], 1, 3

    def block(before: int, after: int) -> int:  # two convolutions 3 x 3, each with a scale and a shift
        return 9 * before * after + 2 * after + 9 * after * after + 2 * after

    expected = block(channels, widths[0]) + widths[0] * classes + classes
    for fine, coarse in itertools.pairwise(widths):
        expected += block(fine, coarse) + 4 * coarse * fine + block(2 * fine, fine)
    assert sum(parameter.numel() for parameter in UNet(channels, classes).parameters()) == expected
    assert 1.9e6 < sum(parameter.numel() for parameter in UNet(1, 3, width=16).parameters()) < 2.0e6


def test_widths_double_up_to_the_largest() -> None:
    assert UNet(width=16, depth=5, max_width=100).widths == [16, 32, 64, 100, 100, 100]


def test_padding_repeats_the_edge_and_is_cropped() -> None:
    net = small().eval()
    image = torch.randn(2, 1, 6, 7)
    padded = torch.cat([image, image[:, :, -1:].expand(-1, -1, 2, -1)], dim=2)
    padded = torch.cat([padded, padded[:, :, :, -1:]], dim=3)
    assert padded.shape[2:] == (8, 8)
    torch.testing.assert_close(net(image), net(padded)[:, :, :6, :7])


@pytest.mark.parametrize("upsampling", ["transposed", "interpolate"])
def test_every_pixel_of_the_coarsest_scale_reaches_the_output(upsampling: str) -> None:
    net = small(upsampling=upsampling, normalization="none").double()
    image = torch.randn(1, 1, 16, 16, dtype=torch.float64, requires_grad=True)
    net(image)[0, :, 8, 8].sum().backward()
    assert image.grad is not None
    # Convolutions at full resolution alone see 4 pixels an axis to each side (2 down, 2 up).
    assert image.grad[0, 0, 8, :4].abs().sum() > 0


def test_deep_supervision_gives_lower_resolutions_in_training_only() -> None:
    net = small(depth=3, deep_supervision=True)
    image = torch.randn(2, 1, 20, 30)
    outputs = net(image)
    assert {name: tuple(logits.shape) for name, logits in outputs.items()} == {
        "out": (2, 3, 20, 30),
        "aux1": (2, 3, 10, 15),
        "aux2": (2, 3, 5, 8),
    }
    assert next(iter(outputs)) == "out"
    sum(logits.sum() for logits in outputs.values()).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert net.eval()(image).shape == (2, 3, 20, 30)
    assert isinstance(small()(image), torch.Tensor)


def test_build_fills_in_what_the_constructor_was_not_told() -> None:
    torch.manual_seed(0)
    late = UNet(width=4, depth=2)
    with pytest.raises(RuntimeError, match="build"):
        late(torch.zeros(1, 1, 8, 8))
    late.build(1, 3)
    reference = small()
    assert late.state_dict().keys() == reference.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(late.parameters(), reference.parameters(), strict=True))

    parameters = [id(parameter) for parameter in late.parameters()]
    late.build(1, 3)
    assert [id(parameter) for parameter in late.parameters()] == parameters


def test_build_refuses_what_contradicts_the_constructor() -> None:
    with pytest.raises(ValueError, match="num_classes is 2, but the data has 3"):
        UNet(num_classes=2).build(1, 3)
    with pytest.raises(ValueError, match="in_channels is 3, but the data has 1"):
        UNet(3, 2).build(1, 2)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"dims": 1}, "dims is 1"),
        ({"width": 0}, "width is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"num_classes": 0}, "num_classes is 0"),
    ],
)
def test_numbers_out_of_range_are_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(NamedError, match=name):
        UNet(**options)


def test_a_volume_is_refused_by_a_network_for_images() -> None:
    with pytest.raises(ValueError, match="5 axes"):
        small()(torch.zeros(1, 1, 8, 8, 8))


@pytest.mark.parametrize(("normalization", "biased"), [("batch", False), ("instance", False), ("none", True)])
def test_no_bias_before_a_normalisation(normalization: str, biased: bool) -> None:
    net = small(normalization=normalization)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 10
    assert all((convolution.bias is not None) is biased for convolution in convolutions)


@pytest.mark.parametrize(("width", "groups"), [(12, [4, 8, 8]), (7, [1, 2, 4])])
def test_groups_divide_the_channels(width: int, groups: list[int]) -> None:
    net = small(normalization="group", width=width)
    found = [next(m.num_groups for m in stage.modules() if isinstance(m, nn.GroupNorm)) for stage in net.encoder]
    assert found == groups
    assert net(torch.randn(1, 1, 8, 8)).shape == (1, 3, 8, 8)


def test_dropout_drops_whole_channels_in_training_only() -> None:
    net = small(dropout=0.5)
    image = torch.randn(1, 1, 16, 16)
    features = net.encoder[0](image).flatten(2)
    assert ((features == 0).all(dim=2) | (features != 0).any(dim=2)).all()
    assert not torch.equal(net(image), net(image))
    net.eval()
    assert torch.equal(net(image), net(image))


def test_configuration_names_it_by_class_path() -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "net")
    parsed = parser.parse_args(["--net=template.models.unet.UNet", "--net.width=4", "--net.normalization=group"])
    net = parser.instantiate(parsed).net
    assert isinstance(net, UNet)
    assert net.widths[0] == 4
    with pytest.raises(jsonargparse.ArgumentError, match="layer"):
        parser.parse_args(["--net=template.models.unet.UNet", "--net.normalization=layer"])


@pytest.mark.parametrize("dims", [2, 3])
def test_exports_with_sizes_left_open(dims: int) -> None:
    net = small(dims=dims).eval()
    sizes = {axis: 4 * torch.export.Dim(f"s{axis}", min=2, max=64) for axis in range(2, dims + 2)}
    program = torch.export.export(net, (torch.randn(2, 1, *([16] * dims)),), dynamic_shapes=(sizes,))
    image = torch.randn(2, 1, *[24, 12, 8][:dims])
    torch.testing.assert_close(program.module()(image), net(image), rtol=1e-4, atol=1e-5)
