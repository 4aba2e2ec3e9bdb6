"""Networks that are not this project's, by their class_path: trained for two steps, and predicted with."""

from __future__ import annotations

import csv
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from . import tiny

RGB = "--data.preprocess+=torchvision.transforms.v2.RGB"
SEGMENTATION = "torchvision.models.segmentation"
SMP = "segmentation_models_pytorch"

MYNET = '''
from torch import nn


class Small(nn.Module):
    def __init__(self, in_channels: int = 1, num_classes: int = 3, width: int = 4):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x):
        return self.head(self.body(x))


class Untyped(Small):
    def __init__(self, width=4):
        super().__init__(width=width)


class Told(nn.Module):
    """Learns channels and classes from the data, as the project's UNet does."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.width = width

    def build(self, in_channels, num_classes):
        self.net = Small(in_channels, num_classes, self.width)

    def forward(self, x):
        return self.net(x)


class Two(Small):
    """The main output first, then a coarse one."""

    def forward(self, x):
        out = super().forward(x)
        return [out, out[:, :, ::2, ::2]]


class Named(Two):
    """As torchvision's, but with the main output last."""

    def forward(self, x):
        out, coarse = super().forward(x)
        return {"aux": coarse, "out": out}


class Coarse(Small):
    """At a quarter of the resolution, as many transformers answer."""

    def forward(self, x):
        return super().forward(x)[:, :, ::4, ::4]


def small(width: int = 4) -> nn.Module:
    return Small(width=width)


def handing(**kwargs) -> nn.Module:
    return make_elsewhere(kwargs)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration and with networks of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    tiny.write()
    (tmp_path / "mynet.py").write_text(MYNET, encoding="utf-8")
    return tmp_path


def trained(*arguments: str, height: int = 32) -> dict[str, Any]:
    """Train for two steps, predict the test cases, and check what is left; return the checkpoint."""
    assert tiny.run(*arguments, "--data.size", str(height)) == 0
    run = Path("runs/tiny/version_0")
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        losses = [float(row["train/loss_step"]) for row in csv.DictReader(file) if row.get("train/loss_step")]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    # The saved configuration, not the command line, brings the network back.
    assert tiny.run("--out", "masks", verb="predict", config=str(run / "config.yaml")) == 0
    names = sorted(path.name for path in Path("masks").glob("*.png"))
    assert names == [f"test_000{n}{what}.png" for n in (0, 1) for what in ("", "_overlay")]
    with Image.open("masks/test_0000.png") as picture:
        mask = np.asarray(picture)
    assert mask.shape == (height, height)
    assert mask.max() <= 2
    checkpoint: dict[str, Any] = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2
    return checkpoint


TORCHVISION = ["--model.net.weights_backbone", "null", "--model.net.num_classes", "3", RGB]


def test_torchvision() -> None:
    weights = trained("--model.net", f"{SEGMENTATION}.lraspp_mobilenet_v3_large", *TORCHVISION)["state_dict"]
    assert weights["net.classifier.low_classifier.weight"].shape[0] == 3


def test_torchvision_with_an_auxiliary_head() -> None:
    # A factory function, whose networks return {"out": …, "aux": …}.
    net = f"{SEGMENTATION}.deeplabv3_mobilenet_v3_large"
    checkpoint = trained("--model.net", net, *TORCHVISION, "--model.net.aux_loss", "true")
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    parameters = [name for name in checkpoint["state_dict"] if not name.endswith(statistics)]
    assert any(name.startswith("net.aux_classifier.") for name in parameters)
    # AdamW keeps a state for every parameter that ever had a gradient.
    (optimizer,) = checkpoint["optimizer_states"]
    assert len(optimizer["state"]) == len(parameters)


@pytest.mark.slow
@pytest.mark.parametrize("net", ["fcn_resnet50", "deeplabv3_resnet50"])
def test_torchvision_with_a_large_backbone(net: str) -> None:
    trained("--model.net", f"{SEGMENTATION}.{net}", *TORCHVISION, "--model.net.aux_loss", "true")


def test_a_network_for_colour_says_how_grey_images_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    net = f"{SEGMENTATION}.lraspp_mobilenet_v3_large"
    assert tiny.run("--model.net", net, *TORCHVISION[:-1]) == 1
    error = capsys.readouterr().err
    assert "It is built for 3 channels, and the images have 1." in error
    assert "Make colour of grey: torchvision.transforms.v2.RGB, last in data.preprocess. [network-output]" in error


def test_a_network_that_is_told_the_channels_of_the_data_and_gets_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run(RGB) == 1
    assert "data.preprocess makes 3 channels out of the 1 of data.in_channels." in capsys.readouterr().err


SMP_UNET = [
    *("--model.net", f"{SMP}.Unet", "--model.net.encoder_name", "mobilenet_v2", "--model.net.encoder_weights", "null"),
    *("--model.net.in_channels", "1", "--model.net.classes", "3", "--model.pad_to", "32"),
]


def test_segmentation_models_pytorch() -> None:
    pytest.importorskip(SMP)
    weights = trained(*SMP_UNET, height=40)["state_dict"]  # no multiple of 32: padded to 64 and cropped
    assert weights["net.segmentation_head.0.weight"].shape[0] == 3


def test_short_names_stay_clear_beside_other_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(SMP)
    pytest.importorskip("timm")
    assert tiny.run("--data.preprocess+=Standardize", "--model.loss", "CrossEntropyDice") == 0
    capsys.readouterr()


@pytest.mark.slow
def test_segmentation_models_pytorch_by_its_factory() -> None:
    pytest.importorskip(SMP)
    # What create_model hands on by **kwargs is not in its signature; such arguments go below dict_kwargs.
    text = tiny.CONFIG.replace(
        "    init_args: {width: 4, depth: 2}", "    dict_kwargs: {decoder_segmentation_channels: 64}"
    )
    tiny.write(text)
    factory = ["--model.net", f"{SMP}.create_model", "--model.net.arch", "fpn"]
    weights = trained(*factory, *SMP_UNET[2:])["state_dict"]
    assert weights["net.segmentation_head.0.weight"].shape[:2] == (3, 64)


def test_an_argument_that_a_factory_hands_on(capsys: pytest.CaptureFixture[str]) -> None:
    factory = ["--model.net", "mynet.handing", "--model.net.widthh", "8"]
    assert tiny.run(*factory) == 2
    error = capsys.readouterr().err
    assert (
        "handing has no argument 'widthh' (model.net.widthh). Its arguments are none; those that it hands on" in error
    )
    assert "by **kwargs go below dict_kwargs." in error


OWN = {
    "mynet.Small": {"net.head.weight": (3, 4, 1, 1)},
    "mynet.small --model.net.width 8": {"net.head.weight": (3, 8, 1, 1)},
    "mynet.Untyped": {"net.head.weight": (3, 4, 1, 1)},
    "mynet.Told --model.net.width 6": {"net.net.head.weight": (3, 6, 1, 1)},
    "mynet.Two": {"net.head.weight": (3, 4, 1, 1)},
    "mynet.Named": {"net.head.weight": (3, 4, 1, 1)},
    "mynet.Coarse": {"net.head.weight": (3, 4, 1, 1)},
}


@pytest.mark.case("notes/networks")
@pytest.mark.parametrize(("net", "shapes"), OWN.items(), ids=list(OWN))
def test_a_file_of_ones_own(net: str, shapes: dict[str, tuple[int, ...]]) -> None:
    # Images of 34 pixels: half of them is 17, a quarter 9.
    weights = trained("--model.net", *net.split(), height=34)["state_dict"]
    # `width` of the UNet in the file is passed on where the network has an argument of that name.
    assert {name: tuple(weights[name].shape) for name in shapes} == shapes


def test_a_file_in_a_folder_of_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nets").mkdir()
    (folder / "mynet.py").rename(folder / "nets" / "mynet.py")
    for name in ("nets", "nets.mynet"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    trained("--model.net", "nets.mynet.Small")


def test_a_wrong_number_of_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--model.net", "mynet.Small", "--model.net.num_classes", "5") == 1
    error = capsys.readouterr().err
    assert "The network Small returns [2, 5, 32, 32] for images [2, 1, 32, 32]" in error
    assert "one channel for each of the 3 classes of data.classes." in error
    assert "Set model.net.init_args.num_classes to 3." in error


def test_a_number_of_classes_that_contradicts_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--model.net.num_classes", "5") == 1
    assert "UNet does not fit the data: num_classes is 5, but the data has 3;" in capsys.readouterr().err


def test_a_network_without_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--model.net", "torch.nn.Identity") == 2
    assert "The network Identity has nothing to train." in capsys.readouterr().err


# The page on networks -----------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parent.parent / "docs" / "your-network.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```(?:python|yaml) title="(.*?)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page shows, in the working directory."""
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".yaml")])
def test_files_of_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # importing MONAI sets it: put back afterwards
    for library in (SMP, "monai"):
        if library in FILES[name]:
            pytest.importorskip(library)
    trained("--config", name)


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("net", ["my_net.MyNet", "my_net.my_small_net"])
def test_the_network_of_the_page(net: str) -> None:
    weights = trained("--model.net", net, "--model.net.width", "24")["state_dict"]
    assert weights["net.layers.0.weight"].shape == (24, 1, 3, 3)


def test_commands_of_the_page_name_what_is_there() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("python -m template")]
    assert lines
    for line in lines:
        for word in line.split():
            if word.endswith(".yaml") and not word.startswith("runs/"):
                assert word in FILES or (Path(__file__).parent.parent / word).is_file()


def test_the_page_knows_every_argument_of_the_unet() -> None:
    from inspect import signature

    from template.models.unet import UNet

    told = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert told == set(signature(UNet).parameters) - {"in_channels", "num_classes"}
