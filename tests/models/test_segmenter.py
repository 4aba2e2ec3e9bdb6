"""The segmenter: outputs of any network, checks, losses and scores."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn

from template.data.dataset import Case
from template.distributed.faults import NamedError
from template.models.losses import CrossEntropyDice
from template.models.segmenter import Segmenter
from template.models.unet import UNet


class Returns(nn.Module):
    """A network that returns what a function makes of logits [N, 3, H, W]."""

    def __init__(self, make: Callable[[Tensor], Any] = lambda logits: logits, count: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, count, 1)
        self.make = make

    def forward(self, image: Tensor) -> Any:
        return self.make(self.conv(image))


def segmenter(net: nn.Module, **settings: Any) -> Segmenter:
    module = Segmenter(net, 3, 1, **settings)
    module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    return module


IMAGE = torch.arange(32.0).reshape(1, 1, 4, 8) / 32
MASK = torch.arange(32).reshape(1, 4, 8) % 3


def test_a_mapping_s_main_output_is_out() -> None:
    outputs = segmenter(Returns(lambda x: {"aux": x * 0, "out": x}))(IMAGE)
    assert outputs[0].abs().sum() > 0
    assert outputs[1].abs().sum() == 0


def test_further_outputs_count_half_as_much_each() -> None:
    net = Returns(lambda x: [x, 2 * x, 3 * x])
    logits = net.conv(IMAGE)
    loss = CrossEntropyDice()
    expected = (loss(logits, MASK) + loss(2 * logits, MASK) / 2 + loss(3 * logits, MASK) / 4) / 1.75
    found = segmenter(net).training_step({"image": IMAGE, "mask": MASK.byte()}, 0)
    torch.testing.assert_close(found, expected)


def test_a_smaller_output_is_held_against_smaller_labels() -> None:
    net = Returns(lambda x: [x, x[..., ::2, ::2]])
    small = net.conv(IMAGE)[..., ::2, ::2]
    loss = CrossEntropyDice()
    # nearest-exact at half size takes the second pixel of each pair
    expected = (loss(net.conv(IMAGE), MASK) + loss(small, MASK[:, 1::2, 1::2]) / 2) / 1.5
    torch.testing.assert_close(segmenter(net).training_step({"image": IMAGE, "mask": MASK.byte()}, 0), expected)


def test_images_are_padded_for_a_network_that_asks_for_it() -> None:
    sizes: list[torch.Size] = []

    def note(logits: Tensor) -> Tensor:
        sizes.append(logits.shape)
        return logits

    output = segmenter(Returns(note), pad_to=5)(IMAGE)[0]
    assert sizes == [(1, 3, 5, 10)]
    assert output.shape == (1, 3, 4, 8)


class Sized(Returns):
    """Its class has the argument that the fix names."""

    def __init__(self, n_classes: int) -> None:
        super().__init__(count=n_classes)


@pytest.mark.parametrize(
    ("net", "words", "cause", "fix"),
    [
        (
            Returns(count=2),
            "returns [1, 2, 4, 8] for images [1, 1, 4, 8]; expected are logits [1, 3, …]",
            "number of classes",
            "Give its last layer 3 channels",
        ),
        (Sized(5), "returns [1, 5, 4, 8]", "number of classes", "Set model.net.init_args.n_classes to 3."),
        (Sized(1), "returns [1, 1, 4, 8]", "as for a sigmoid", "init_args.n_classes to 3, without a sigmoid."),
        (Returns(lambda x: x.argmax(1)), "returns [1, 4, 8]", "no axis of classes", "logits [N, 3, …], and not labels"),
        (Returns(lambda x: x[0]), "returns [3, 4, 8]", "axes of the images", "Return logits [N, 3, …]."),
        (Returns(lambda x: "text"), "returns no tensor", "logits [1, 3, …]", "Return a tensor"),
        (Returns(lambda x: None), "returns no tensor", "logits [1, 3, …]", "Return a tensor"),
        (
            Returns(lambda x: {"out": x, "edge": x[:, :1]}),
            "its output 'edge' has 1 channel, expected 3, one for",
            "Every output",
            "leave out",
        ),
        (Returns(lambda x: [x, x[:, :2]]), "its output number 1 has 2 channels, expected 3, one", "Every", "leave out"),
        (
            Returns(lambda x: (x, x[0, 0])),
            "its output number 1 has the shape [4, 8], expected [1, 3,",
            "Every",
            "leave out",
        ),
        (
            Returns(lambda x: {"edge": x, "main": x}),
            "returns a mapping of 'edge', 'main', and none of them is called 'out'.",
            "under 'out'",
            "Call the main output 'out'",
        ),
        (
            nn.Conv2d(3, 3, 1),
            "Conv2d fails on its first batch of images [1, 1, 4, 8]",
            "built for 3 channels",
            "to 1, ",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_named(net: nn.Module, words: str, cause: str, fix: str) -> None:
    with pytest.raises(NamedError) as caught:
        segmenter(net)(IMAGE)
    assert caught.value.identifier == "network-output"
    assert words in caught.value.what
    assert cause in caught.value.cause
    assert fix in caught.value.fix


def test_the_only_tensor_of_a_mapping_is_the_main_output() -> None:
    assert segmenter(Returns(lambda x: {"logits": x, "loss": None}))(IMAGE)[0].shape == (1, 3, 4, 8)


def test_what_is_returned_in_training_alone_is_checked_as_well() -> None:
    net = Returns()
    module = segmenter(net)
    module(IMAGE)
    net.make = lambda logits: {"out": logits, "edge": logits[:, :1]}
    with pytest.raises(NamedError, match="its output 'edge' has 1 channel"):
        module(IMAGE)


def test_a_unet_is_told_channels_and_classes() -> None:
    net = UNet(width=4, depth=1)
    assert Segmenter(net, 5, 2)(torch.zeros(1, 2, 8, 8))[0].shape == (1, 5, 8, 8)
    with pytest.raises(NamedError, match="UNet does not fit the data"):
        Segmenter(UNet(1, 4, width=4, depth=1), 5, 1)


@pytest.mark.case("notes/build-optimizer")
def test_the_optimizer_gets_what_is_trainable() -> None:
    net = Returns()
    net.conv.bias.requires_grad_(False)
    settings = segmenter(
        net,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
        lr_interval="step",
    ).configure_optimizers()
    assert settings["optimizer"].param_groups[0]["params"] == [net.conv.weight]
    assert settings["lr_scheduler"]["interval"] == "step"


def group(image: Tensor, mask: Tensor) -> dict[str, Any]:
    return {"image": image, "mask": mask.byte(), "case": [Case("a", 0)] * len(image), "size": [mask.shape[1:]]}


def test_validation_loss_is_the_mean_of_the_samples_own_losses() -> None:
    images, masks = torch.randn(3, 1, 4, 8), torch.randint(0, 3, (3, 4, 8))
    net = Returns()
    loss = CrossEntropyDice()
    with torch.no_grad():
        expected = sum(loss(net(image[None]), mask[None]) for image, mask in zip(images, masks, strict=True)) / 3
    for batches in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        module = segmenter(net)
        for number, part in enumerate(batches):
            module.validation_step([group(images[part], masks[part])], number)
        torch.testing.assert_close(module.val_loss.compute().float(), expected)


def test_scores_are_counted_in_the_pixels_of_the_mask() -> None:
    net = Returns(lambda x: torch.stack([x[:, 0] * 0, x[:, 0] * 0 + 1, x[:, 0] * 0], 1))  # always class 1
    module = segmenter(net)
    mask = torch.zeros(1, 8, 16, dtype=torch.long)
    mask[:, :2] = 1  # 32 of 128 pixels, and the image has a quarter of the mask's
    predictions = module.test_step([group(IMAGE, mask)], 0)["prediction"]
    assert predictions[0].shape == (1, 8, 16)
    assert predictions[0].dtype == torch.uint8
    # all 128 pixels are called class 1: Dice = 2 * 32 / (128 + 32)
    assert module.test_scores.compute()["dice_class_1"] == pytest.approx(0.4)


def test_predictions_have_the_size_of_the_image_on_disk() -> None:
    predictions = segmenter(Returns()).predict_step([{"image": IMAGE, "size": [(9, 21)]}], 0)["prediction"]
    assert predictions[0].shape == (1, 9, 21)


def test_an_empty_share_is_evaluated_to_nothing() -> None:
    assert segmenter(Returns()).validation_step([], 0) == {"prediction": []}


def test_channels_last_is_for_weights_of_2d_convolutions() -> None:
    for dims in (2, 3):
        net = UNet(width=4, depth=1, dims=dims)
        module = Segmenter(net, 3, 1)
        module.trainer = SimpleNamespace(datamodule=None, precision_plugin=Precision())  # type: ignore[assignment]
        module.setup("fit")
        assert module(torch.zeros(1, 1, *[8] * dims))[0].shape == (1, 3, *[8] * dims)
        flat = [p.is_contiguous(memory_format=torch.channels_last) for p in net.parameters() if p.ndim == 4]
        assert all(flat)
        assert bool(flat) == (dims == 2)


def test_a_loss_that_is_not_finite_ends_the_run_with_its_samples() -> None:
    module = segmenter(Returns(lambda x: x * float("nan")))
    module.trainer = SimpleNamespace(global_step=3, datamodule=None)  # type: ignore[assignment]
    batch = {"image": IMAGE, "mask": MASK.byte(), "case": [Case("slice_7", 0)]}
    with pytest.raises(NamedError, match=r"The loss is nan in step \d+, at the samples slice_7") as caught:
        module.training_step(batch, 0)
    assert caught.value.identifier == "loss-not-finite"
