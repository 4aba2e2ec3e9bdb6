"""``export``: files that run without this program, give the network's logits, and say what cannot be exported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from template.data.folder import Folder
from template.data.nifti import Nifti
from template.data.transforms import Window
from template.distributed.faults import NamedError
from template.export import input_of, steps_of
from template.exported import LogitsOnly, Sizes, difference, exported, padded, stride_of, to_onnx, tried
from template.models.inference import Inference
from template.models.unet import UNet

from . import tiny

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SCRIPT = Path(__file__).parents[1] / "docs" / "examples" / "run_exported.py"


def image(*size: int, channels: int = 1) -> Tensor:
    return torch.randn(1, channels, *size)


class Fixed(nn.Module):
    """Takes 32 × 32 pixels alone: it adds a place's own value."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 2, 32, 32))
        self.head = nn.Conv2d(1, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.places


class Gate(nn.Module):
    """Takes another way for bright images."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Bessel(nn.Module):
    """Has no operation in ONNX."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


class Blocks(nn.Module):
    """Holds its layers in a list, which is never called itself."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(1, 2, 3, padding=1), *layers])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Coarse(nn.Module):
    """As torchvision's: a dictionary, at half of the resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 2, stride=2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"aux": x, "out": self.down(x)}


@pytest.mark.parametrize(("depth", "dims"), [(1, 2), (3, 2), (2, 3)])
def test_the_stride_of_a_unet_is_that_of_its_depth(depth: int, dims: int) -> None:
    net = UNet(1, 2, dims=dims, width=2, depth=depth).eval()
    assert stride_of(net, image(*[20] * dims), 1) == 2**depth


def test_an_output_that_is_coarser_or_in_a_dictionary_becomes_logits_in_the_size_of_the_image() -> None:
    net, x = Coarse().eval(), image(8, 12)
    logits = LogitsOnly(net, x)(x)
    expected = nn.functional.interpolate(net.down(x), (8, 12), mode="bilinear")
    assert torch.equal(logits, expected)
    program, sizes = exported(LogitsOnly(net, x).eval(), x, 2)
    assert sizes == Sizes(2, 16)
    assert program.module()(image(18, 30)).shape == (1, 2, 18, 30)


def test_a_network_without_a_stride_takes_any_size() -> None:
    net = Blocks(nn.BatchNorm2d(2), nn.ReLU()).eval()
    program, sizes = exported(LogitsOnly(net, image(9, 9)).eval(), image(9, 9), 1)
    assert str(sizes) == "with sides of 16 pixels or more"
    for size in ((17, 31), (16, 16), (40, 23)):
        x = torch.randn(2, 1, *size)
        assert torch.allclose(program.module()(x), net(x), atol=1e-6)


def test_a_network_of_one_size_is_exported_for_that(tmp_path: Path) -> None:
    x = image(32, 32)
    net = LogitsOnly(Fixed(), x).eval()
    assert stride_of(net, x, 1) == 1
    program, sizes = exported(net, x, 1)
    assert sizes == Sizes(None, 0, (32, 32))
    assert str(sizes) == "of 32 × 32 pixels alone"
    assert difference(program.module(), net, tried(x, sizes), "") < 1e-6
    to_onnx(net, program, x, tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    three = torch.randn(3, 1, 32, 32)
    assert np.allclose(session.run(None, {"image": three.numpy()})[0], net(three).detach(), atol=1e-6)


@pytest.mark.parametrize("nested", [False, True])
def test_a_layer_that_cannot_be_traced_is_named(nested: bool) -> None:
    net = Blocks(nn.Sequential(nn.ReLU(), Gate())) if nested else Blocks(Gate())
    with pytest.raises(NamedError, match=r"cannot be exported to torch.export: \w*DataDependent\w*") as failure:
        exported(LogitsOnly(net, image(8, 8)).eval(), image(8, 8), 1)
    assert failure.value.identifier == "export-unsupported"
    name = "blocks.1.1" if nested else "blocks.1"
    assert failure.value.what.startswith(f"The layer '{name}', Gate, cannot")


def test_a_layer_that_onnx_does_not_know_is_named(tmp_path: Path) -> None:
    net, x = LogitsOnly(Blocks(Bessel()), image(8, 8)).eval(), image(8, 8)
    program, _ = exported(net, x, 1)
    with pytest.raises(NamedError, match="The layer 'blocks.1', Bessel, cannot be exported to ONNX: .*bessel_j0"):
        to_onnx(net, program, x, tmp_path / "network.onnx")


def test_logits_that_differ_are_a_failure_with_the_number() -> None:
    with pytest.raises(NamedError, match=r"the exported program gives logits that are \d[\d.]* away") as failure:
        exported(LogitsOnly(Blocks(Noise()), image(8, 8)).eval(), image(8, 8), 1)
    assert failure.value.identifier == "export-differs"
    net, x = nn.Identity(), torch.zeros(1, 1, 4, 4)
    assert difference(lambda images: images + 9e-5, net, [x], "it") == pytest.approx(9e-5)
    for wrong in (1.1e-4, math.nan):
        with pytest.raises(NamedError, match="it gives"):
            difference(lambda images, wrong=wrong: images + wrong, net, [x], "it")
    with pytest.raises(NamedError, match="are inf away"):
        difference(lambda images: images[..., 1:], net, [x], "it")
    # A float32 of 100 has no more than 5 digits behind the point.
    assert difference(lambda images: images + 1e-3, net, [x + 100], "it") == pytest.approx(1e-3, rel=0.1)


def test_of_a_volume_the_network_is_given_a_slice_with_neighbours_or_a_window() -> None:
    volume = torch.arange(2 * 5 * 6 * 7.0).view(1, 2, 5, 6, 7)

    def given(**way: Any) -> Tensor:
        return input_of(SimpleNamespace(inference=Inference(**way)), volume)

    assert torch.equal(given(planes=0), volume[:, :, 2])
    # As in training: the channels of the neighbours one after the other, lowest slice first.
    assert torch.equal(given(planes=1), volume[:, :, 1:4].flatten(1, 2))
    assert torch.equal(given(window=(3, 8, 5)), volume[:, :, 1:4, :, 1:6])
    assert torch.equal(given(planes=0, window=(4, 3)), volume[:, :, 2, 1:5, 2:5])
    assert torch.equal(given(), volume)


def test_what_a_data_set_does_before_preprocess_is_told() -> None:
    two = ["background", "object"]
    plain = Nifti(images="images", masks="masks", classes=two, preprocess=[Window(0.0, 1.0)])
    axial, window = steps_of(plain)
    assert axial.startswith("slices axial")
    assert window == "Window(low=0.0, high=1.0)"
    resampled = Nifti(images="images", masks="masks", classes=two, spacing=(2.5, None, 0.8), standardize=True)
    assert steps_of(resampled) == [
        axial,
        "resampled to voxels of [2.5, as in the file, 0.8] mm: depth, height, width",
        "mean 0 and standard deviation 1 of each channel over the whole volume",
    ]
    camera, size = steps_of(Folder(images="images", classes=two, white=4095, size=(8, 8)))
    assert camera == "values divided by 4095"
    assert size.startswith("Resize(")
    assert "255, 65535" in steps_of(Folder(images="images", classes=two))[0]


def test_sides_are_filled_up_with_their_edge() -> None:
    x = torch.arange(6.0).view(1, 1, 2, 3)
    assert padded(x, 1, 2).tolist() == [[[[0, 1, 2, 2], [3, 4, 5, 5]]]]
    assert padded(x, 3, 1)[0, 0, 2].tolist() == [3, 4, 5]


# The verb -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tiny.write()
    return tmp_path


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where neither Lightning nor this package can be imported."""
    code = f"""
import runpy, sys
class Refused:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("lightning", "pytorch_lightning", "template", "torchmetrics", "jsonargparse"):
            raise ImportError(f"{{name}} is not to be imported")
sys.meta_path.insert(0, Refused())
sys.argv = {[str(SCRIPT), *arguments]!r}
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.case("G9")
def test_an_exported_network_runs_without_lightning_and_without_this_program(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny.run() == 0
    capsys.readouterr()
    assert tiny.run("--out", "out", verb="export") == 0
    said = capsys.readouterr().out
    assert "takes any number of images with sides of a multiple of 4 pixels, 16 or more; all of it in out" in said
    about = json.loads(Path("out/network.json").read_text(encoding="utf-8"))
    assert about["classes"] == ["background", "liver", "tumour"]
    assert about["regions"] == {"liver": [1, 2], "tumour": [2]}
    assert about["preprocessing"] == ["Window(low=-160.0, high=240.0)"]
    assert (about["input"]["channels"], about["input"]["layout"]) == (1, "[N, C, H, W]")
    assert about["network"]["class_path"] == "UNet"
    assert about["network"]["init_args"]["width"] == 4
    assert max(about["largest_difference_from_the_network"].values()) < 1e-4

    # The weights are the checkpoint's, without a prefix, and fit a network that is made by hand.
    net = UNet(1, 3, width=4, depth=2)
    net.load_state_dict(torch.load("out/weights.pt", weights_only=True))
    checkpoint: dict[str, Any] = torch.load(about["checkpoint"], weights_only=True)["state_dict"]
    assert all(torch.equal(value, checkpoint[f"net.{name}"]) for name, value in net.state_dict().items())

    # A size that is no multiple; the network itself fills such up in the same way.
    x = np.random.default_rng(0).random((1, 37, 50), np.float32)
    np.save("image.npy", x)
    labels = net.eval()(torch.from_numpy(x)[None]).argmax(1)
    counts = dict(zip(about["classes"], torch.bincount(labels.flatten(), minlength=3).tolist(), strict=True))
    done = run_alone("out", "image.npy")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"torch.export {counts}", f"ONNX {counts}"]
    assert float(lines[2].removeprefix("largest difference ")) < 1e-4


def test_nothing_but_the_files_of_an_export_is_left_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small_net.py").write_text(
        "from torch import nn\n"
        "class SmallNet(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3))\n",
        encoding="utf-8",
    )
    own = ["--model.net", "small_net.SmallNet"]
    assert tiny.run(*own) == 0
    run = Path("runs/tiny/version_0")
    assert tiny.run(*own, "--trainer.devices", "2", "--trainer.precision", "bf16-mixed", verb="export") == 0
    files = {path.name for path in (run / "export_0").iterdir() if path.is_file()}
    assert files == {"network.pt2", "network.onnx", "weights.pt", "network.json", "sample.npy", "config.yaml"}
    assert (
        "images with sides of 16 pixels or more; all of it in runs/tiny/version_0/export_0" in capsys.readouterr().out
    )


def test_without_its_libraries_the_extra_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    assert tiny.run() == 0
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else find(name, *rest))
    assert tiny.run(verb="export") == 1
    assert "export needs onnx, which is not installed. " in capsys.readouterr().err


def test_an_experiment_without_a_checkpoint_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run(verb="export") == 1
    assert "[no-checkpoint]" in capsys.readouterr().err
