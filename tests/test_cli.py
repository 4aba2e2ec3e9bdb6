"""The verbs, as a person uses them: what they leave, what they say, and that it fits together."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from template.__main__ import main
from template.cli import SegmentationCLI
from template.data.phantom import Phantom
from template.data.transforms import Window
from template.models.unet import UNet
from template.runs import find_checkpoint

from . import tiny

RUN = Path("runs/tiny/version_0")
PACKAGE = Path(__file__).parent.parent / "template"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with one configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    tiny.write()
    return tmp_path


def weights(run: str | Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    """Weights in a run's checkpoint."""
    content: dict[str, Any] = torch.load(Path(run) / "checkpoints" / name, weights_only=True)
    return content["state_dict"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether weights are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def best(run: Path) -> str:
    """Name of a run's best checkpoint."""
    (name,) = (file.name for file in (run / "checkpoints").glob("best-*.ckpt"))
    return name


# What a run leaves --------------------------------------------------------------------------------------------------


def test_fit_leaves_what_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run() == 0
    left = {str(path.relative_to(RUN)) for path in RUN.rglob("*") if path.is_file()}
    assert {"config.yaml", "metrics.csv", "scores.json", "checkpoints/last.ckpt", "rank_0/output.log"} <= left
    assert len([name for name in left if name.startswith("events.out.tfevents")]) == 1
    assert len([name for name in left if name.startswith("rank_0/events.out.tfevents")]) == 1
    assert best(RUN)
    assert not [name for name in left if "error" in name]
    said = capsys.readouterr().out
    assert "global batch 2 = 1 process × 2 × 1 accumulation; 2 steps an epoch" in said
    assert str(RUN) in said
    assert best(RUN) in said


def test_the_saved_configuration_runs_again_bit_for_bit() -> None:
    assert tiny.run() == 0
    assert tiny.run(config=str(RUN / "config.yaml")) == 0
    again = Path("runs/tiny/version_1")
    assert same(weights(RUN), weights(again))
    assert (again / "config.yaml").read_text() == (RUN / "config.yaml").read_text()
    # And another seed is another run: the comparison above can fail.
    assert tiny.run("--seed_everything", "1", config=str(RUN / "config.yaml")) == 0
    assert not same(weights(RUN), weights("runs/tiny/version_2"))


def test_the_printed_configuration_runs_again_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tiny.run("--print_config")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["data"]["init_args"]["batch_size"] == 2
    assert "template" not in text
    Path("printed.yaml").write_text(text, encoding="utf-8")
    assert tiny.run() == 0
    assert tiny.run(config="printed.yaml") == 0
    assert same(weights(RUN), weights("runs/tiny/version_1"))


def test_every_verb_takes_the_saved_configuration_of_a_fit() -> None:
    assert tiny.run() == 0
    saved = str(RUN / "config.yaml")
    for verb in ("validate", "test", "predict"):
        assert tiny.run(verb=verb, config=saved) == 0
    # What another verb has saved is a configuration as well.
    assert tiny.run(verb="validate", config=str(RUN / "predict_0" / "config.yaml")) == 0
    assert {path.name for path in RUN.iterdir() if path.is_dir()} >= {"validate_1", "test_0", "predict_0"}


def test_the_saved_configuration_says_all_and_no_name_of_the_package() -> None:
    assert tiny.run("--trainer.max_epochs", "1", "--model.net.width", "6", "--seed_everything", "true") == 0
    text = (RUN / "config.yaml").read_text(encoding="utf-8")
    assert "template" not in text
    saved = yaml.safe_load(text)
    assert saved["model"]["net"] == {
        "class_path": "UNet",
        "init_args": {
            "in_channels": None,
            "num_classes": None,
            "dims": 2,
            "width": 6,
            "depth": 2,
            "max_width": 320,
            "normalization": "batch",
            "upsampling": "transposed",
            "dropout": 0.0,
            "deep_supervision": False,
        },
    }
    assert [item["class_path"] for item in saved["data"]["init_args"]["augment"]] == ["RandomWarp"]
    assert isinstance(saved["seed_everything"], int)
    assert not isinstance(saved["seed_everything"], bool)  # the number that was drawn
    assert saved["trainer"]["max_epochs"] == 1
    assert "ckpt_path" not in saved


def test_a_run_with_other_settings_in_the_same_folder_keeps_what_ran_before() -> None:
    assert tiny.run() == 0
    before = (RUN / "config.yaml").read_text(encoding="utf-8")
    assert tiny.run("--ckpt_path", "last", "--trainer.max_epochs", "2") == 0
    assert yaml.safe_load((RUN / "config.yaml").read_text(encoding="utf-8"))["trainer"]["max_epochs"] == 2
    assert (RUN / "config_0.yaml").read_text(encoding="utf-8") == before


# Scores -------------------------------------------------------------------------------------------------------------


def scores(file: Path) -> dict[str, float]:
    """Numbers of a ``scores.json``."""
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))["scores"]
    return found


def test_validate_gives_the_numbers_of_the_best_epoch() -> None:
    # A learning rate that makes the first epoch's validation another than the third's.
    assert tiny.run("--trainer.max_epochs", "3", "--model.optimizer.lr", "0.02") == 0
    assert tiny.run("--ckpt_path", "best", verb="validate") == 0
    told = scores(RUN / "scores.json")
    assert told == scores(RUN / "validate_0" / "scores.json")
    with (RUN / "metrics.csv").open(encoding="utf-8", newline="") as file:
        by_epoch = [float(row["val/dice"]) for row in csv.DictReader(file) if row["val/dice"]]
    assert len(by_epoch) == 3
    assert told["dice"] == pytest.approx(max(by_epoch), rel=1e-6)


def test_a_checkpoint_callback_of_ones_own_leaves_the_best_alone(capsys: pytest.CaptureFixture[str]) -> None:
    own = "--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint"
    settings = ["--trainer.callbacks.every_n_train_steps=1", "--trainer.max_epochs=3", "--model.optimizer.lr=0.02"]
    assert tiny.run(own, *settings) == 0
    with (RUN / "metrics.csv").open(encoding="utf-8", newline="") as file:
        dice = [float(row["val/dice"]) for row in csv.DictReader(file) if row["val/dice"]]
    best = find_checkpoint(Path("runs/tiny"), "best")
    assert best is not None
    assert best.name == f"best-{dice.index(max(dice)):03d}-val_dice={max(dice):.4f}.ckpt"
    printed = capsys.readouterr().out
    assert f"best validation, after {dice.index(max(dice)) + 1} epoch" in printed
    assert f"checkpoints/{best.name}" in printed


def test_the_numbers_of_test_are_those_of_the_best_weights_by_hand() -> None:
    assert tiny.run("--trainer.max_epochs", "3", "--model.optimizer.lr", "0.02", "--model.channels_last", "false") == 0
    assert tiny.run("--ckpt_path", "best", verb="test") == 0
    net = UNet(1, 3, width=4, depth=2).eval()
    net.load_state_dict({k.removeprefix("net."): v for k, v in weights(RUN, best(RUN)).items() if k.startswith("net.")})
    data, window = Phantom(test_cases=2, size=32), Window(-160, 240)
    counts = np.zeros((3, 3), dtype=int)  # truth, prediction
    for case in data.cases("test"):
        image, mask = data.read(case)
        assert mask is not None
        with torch.no_grad():
            prediction = net(window.intensity(image, {})[None]).argmax(1)[0]
        np.add.at(counts, (mask.numpy(), prediction.numpy()), 1)
    told = scores(RUN / "test_0" / "scores.json")
    for region, labels in (("liver", [1, 2]), ("tumour", [2])):
        both = counts[np.ix_(labels, labels)].sum()
        sizes = counts[labels].sum() + counts[:, labels].sum()
        assert told[f"dice_{region}"] == pytest.approx(2 * both / sizes, abs=1e-6)
        assert told[f"iou_{region}"] == pytest.approx(both / (sizes - both), abs=1e-6)


# Checkpoints --------------------------------------------------------------------------------------------------------


def test_a_resumed_fit_goes_on_in_its_folder() -> None:
    assert tiny.run() == 0
    assert tiny.run("--trainer.max_epochs", "3", "--ckpt_path", "last") == 0
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
    with (RUN / "metrics.csv").open(encoding="utf-8", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["train/loss_step"]]
    assert steps == [0, 1, 2, 3, 4, 5]
    assert torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 6


def test_resuming_without_a_checkpoint_begins_anew() -> None:
    assert tiny.run("--ckpt_path", "last") == 0
    assert (RUN / "checkpoints/last.ckpt").is_file()


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_the_other_verbs_need_a_checkpoint(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run(verb=verb) == 1
    assert "error: No run in 'runs/tiny' holds a checkpoint. Train first, or give --ckpt_path a file." in (
        capsys.readouterr().err
    )
    assert not Path("runs").exists()


def test_a_checkpoint_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--ckpt_path", "nowhere.ckpt") == 1
    assert "The checkpoint 'nowhere.ckpt' does not exist." in capsys.readouterr().err


@pytest.mark.case("H6")
def test_a_checkpoint_of_another_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run() == 0
    assert tiny.run("--model.net.width", "6", verb="test") == 1
    error = capsys.readouterr().err
    assert "[checkpoint-mismatch]" in error
    assert "net.encoder.0.0.weight" in error


# Prediction ---------------------------------------------------------------------------------------------------------

FOLDER = """\
experiment: pictures
data:
  class_path: Folder
  init_args:
    images: images
    masks: masks
    classes: [background, object]
    size: [32, 32]
    batch_size: 2
    num_workers: 0
model:
  net:
    class_path: UNet
    init_args: {width: 4, depth: 2}
trainer:
  max_epochs: 1
  accelerator: cpu
  devices: 1
  log_every_n_steps: 1
  num_sanity_val_steps: 0
  enable_progress_bar: false
"""


def pictures(folder: str, sizes: dict[str, tuple[int, int]], kind: str) -> None:
    """Pictures of noise, or masks of one disc, by name with their height and width."""
    Path(folder).mkdir()
    rng = np.random.default_rng(0)
    for name, (height, width) in sizes.items():
        y, x = np.mgrid[:height, :width]
        disc = ((y - height / 2) ** 2 + (x - width / 2) ** 2 < (min(height, width) / 4) ** 2).astype(np.uint8) * 255
        noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(disc if kind == "masks" else noise).save(Path(folder) / name)


def pixels(file: Path) -> np.ndarray:
    """What a picture file holds."""
    with Image.open(file) as picture:
        return np.asarray(picture)


def test_masks_and_overlays_of_pictures_of_odd_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write(FOLDER)
    trained_on = {f"{number}.png": (40 + number, 50) for number in range(6)}
    pictures("images", trained_on, "images")
    pictures("masks", trained_on, "masks")
    assert tiny.run() == 0
    new = {"a.png": (97, 211), "b.jpg": (211, 97), "c.tif": (33, 31)}
    pictures("new", new, "images")
    assert tiny.run("--data.predict", "new", "--out", "predicted", verb="predict") == 0
    table = Path("predicted/predict.csv")
    assert [row.split(",")[0] for row in table.read_text(encoding="utf-8").splitlines()] == ["case", "a", "b", "c"]
    table.unlink()
    sizes = {file.name: pixels(file).shape[:2] for file in Path("predicted").iterdir()}
    assert sizes == {
        "a.png": (97, 211),
        "b.png": (211, 97),
        "c.tif": (33, 31),
        "a_overlay.png": (97, 211),
        "b_overlay.png": (211, 97),
        "c_overlay.png": (33, 31),
    }
    for name in ("a.png", "b.png", "c.tif"):
        assert set(np.unique(pixels(Path("predicted") / name))) <= {0, 255}
    assert "3 masks and overlays in predicted" in capsys.readouterr().out


def spoil_nothing_there(images: Path, masks: Path) -> None:
    images.rename("elsewhere")


def spoil_empty(images: Path, masks: Path) -> None:
    for file in images.iterdir():
        file.unlink()


def spoil_lonely(images: Path, masks: Path) -> None:
    (masks / "3.png").unlink()


def spoil_cut(images: Path, masks: Path) -> None:
    (images / "3.png").write_bytes((images / "3.png").read_bytes()[:200])


def spoil_size(images: Path, masks: Path) -> None:
    Image.fromarray(np.zeros((20, 50), dtype=np.uint8)).save(masks / "3.png")


def spoil_values(images: Path, masks: Path) -> None:
    for file in masks.iterdir():
        Image.fromarray(np.where(pixels(file) > 0, 77, 0).astype(np.uint8)).save(file)


@pytest.mark.parametrize(
    ("spoil", "identifier", "words"),
    [
        (spoil_nothing_there, "data-missing", "the folder 'images' cannot be read"),
        (spoil_empty, "data-missing", "the folder 'images' holds no picture"),
        (spoil_lonely, "data-unpaired", "'3.png'"),
        (spoil_cut, "data-unreadable", "'images/3.png' cannot be read"),
        (
            spoil_size,
            "data-size-mismatch",
            "The image 'images/3.png' is 43 × 50 pixels, its mask 'masks/3.png' 20 × 50.",
        ),
        (spoil_values, "mask-values", "77"),
    ],
)
def test_data_that_do_not_fit_end_in_one_sentence(
    spoil: Callable[[Path, Path], None], identifier: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(FOLDER)
    names = {f"{number}.png": (40 + number, 50) for number in range(6)}
    pictures("images", names, "images")
    pictures("masks", names, "masks")
    spoil(Path("images"), Path("masks"))
    # No pair is held out, so that each is read.
    assert tiny.run("--data.val_fraction", "0", "--data.test_fraction", "0", "--trainer.max_epochs", "2") == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    sentence = error[error.index("error: ") :].rstrip("\n")
    assert "\n" not in sentence
    assert words in sentence
    assert sentence.endswith(f"[{identifier}]")


def test_without_out_masks_go_into_the_folder_of_the_run() -> None:
    assert tiny.run() == 0
    assert tiny.run(verb="predict") == 0
    assert len(list((RUN / "predict_0").glob("*.png"))) == 4


# The configuration --------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The configuration that arguments lead to."""
    with pytest.raises(SystemExit):
        tiny.run(*arguments, "--print_config")
    found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return found


@pytest.mark.case("H9")
def test_later_files_and_options_win(capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write("trainer: {max_epochs: 5}\nmodel: {pad_to: 3}\n", "over.yaml")
    found = printed(capsys, "--model.pad_to", "7", "--config", "over.yaml", "--trainer.max_epochs", "9")
    assert (found["trainer"]["max_epochs"], found["model"]["pad_to"]) == (9, 3)
    assert found["data"]["init_args"]["batch_size"] == 2


@pytest.mark.case("H9")
def test_lists_replace_one_another_and_plus_adds(capsys: pytest.CaptureFixture[str]) -> None:
    added = printed(capsys, "--data.preprocess+=Standardize")["data"]["init_args"]["preprocess"]
    assert [item["class_path"] for item in added] == ["Window", "Standardize"]
    text = "data: {init_args: {preprocess: [{class_path: Standardize}]}}\n"
    tiny.write(text, "over.yaml")
    found = printed(capsys, "--config", "over.yaml")["data"]["init_args"]["preprocess"]
    assert [item["class_path"] for item in found] == ["Standardize"]


@pytest.mark.case("H9")
def test_callbacks_of_ones_own_add_to_those_that_are_always_there() -> None:
    stop = ["--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/loss"]
    assert tiny.run(*stop, "--trainer.callbacks.stopping_threshold", "100", "--trainer.max_epochs", "4") == 0
    checkpoint = torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 0  # the loss is below 100 after the first epoch
    assert any(name.startswith("EarlyStopping") for name in checkpoint["callbacks"])
    assert (RUN / "rank_0/output.log").is_file()


def test_a_quick_trial() -> None:
    assert tiny.run("--trainer.fast_dev_run", "true") == 0
    assert not (RUN / "metrics.csv").exists()


def test_other_folders_of_runs() -> None:
    assert tiny.run("--runs", "elsewhere", "--experiment", "mine") == 0
    assert Path("elsewhere/mine/version_0/config.yaml").is_file()
    assert not Path("runs").exists()


# Help ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_help_is_short_and_begins_with_what_is_this_programs(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 450
    assert text.startswith(f"usage: python -m template {verb} --config FILE [--config FILE …] [--KEY VALUE …]")
    assert text.index("--data ") < text.index("--model.net ") < text.index("--trainer.accelerator ")
    assert "Folder" in text
    assert "``" not in text
    assert ":class:" not in text
    assert "known subclasses" not in text
    assert ("--out OUT" in text) == (verb == "predict")


def test_help_of_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--model.net.help", "UNet"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--model.net.width WIDTH Channels at full resolution; doubled at every scale." in text
    assert "(type: a whole number, default: 32)" in text


@pytest.mark.parametrize("argument", ["--help", "-h", "help"])
def test_help_of_the_program(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 0
    text = capsys.readouterr().out
    for verb in ("fit", "validate", "test", "predict"):
        assert re.search(rf"^  {verb} +\w", text, re.MULTILINE)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"template (\d+\.\d+\.\d+|\(not installed\))\n", capsys.readouterr().out)


# Where the program is started ---------------------------------------------------------------------------------------

NET = "from torch import nn\nclass Here(nn.Conv2d):\n    def __init__(self): super().__init__(1, 3, 1)\n"


def test_a_file_in_the_working_directory_is_found_by_the_console_script(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "net_here.py").write_text(NET, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(folder))])
    monkeypatch.delitem(sys.modules, "net_here", raising=False)
    assert printed(capsys, "--model.net", "net_here.Here")["model"]["net"]["class_path"] == "net_here.Here"


@pytest.mark.case("notes/run-button")
def test_started_as_a_file_the_modules_of_the_package_hide_no_others(folder: Path) -> None:
    # As an IDE's run button, or the launcher of several processes, starts it. `runs` is a module of the package too.
    (folder / "runs.py").write_text("import sys\nsys.exit('mine')\n", encoding="utf-8")
    code = "import sys, runpy; sys.argv = [sys.argv[1], '--version']; sys.path[0] = sys.argv[0].rpartition('/')[0]\n"
    code += "try: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: print(sys.path[0])"
    command = [sys.executable, "-c", code, str(PACKAGE / "__main__.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout.splitlines()[-1] == str(PACKAGE.parent)
    assert done.stdout.startswith("template ")


# Failures -----------------------------------------------------------------------------------------------------------


def test_a_named_failure_leaves_its_traceback_in_the_folder_of_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--data.batch_size", "3", "--trainer.accumulate_grad_batches", "2") == 2
    error = capsys.readouterr().err
    assert "data.batch_size 3 cannot be shared out to 1 processes × 2 accumulation steps." in error
    assert "Traceback" not in error
    written = (RUN / "rank_0/error.txt").read_text(encoding="utf-8")
    assert written.startswith("data.batch_size 3 cannot be shared out")
    assert "Traceback" in written


def test_an_error_in_code_of_ones_own_keeps_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = NET.replace("Here", "Broken") + "    def forward(self, x): return self.no_such_layer(x)\n"
    (folder / "net_broken.py").write_text(code, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "net_broken", raising=False)
    assert tiny.run("--model.net", "net_broken.Broken") == 1
    assert "net_broken.py" in (RUN / "rank_0/error.txt").read_text(encoding="utf-8")


def test_only_the_parser_of_the_verb_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    original = SegmentationCLI._prepare_subcommand_parser

    def counted(self: SegmentationCLI, klass: type, subcommand: str, **kwargs: Any) -> Any:
        made.append(subcommand)
        return original(self, klass, subcommand, **kwargs)

    monkeypatch.setattr(SegmentationCLI, "_prepare_subcommand_parser", counted)
    printed(capsys)
    assert made == ["fit"]


@pytest.mark.case("H6")
def test_settings_given_at_a_resume_win_over_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--model.optimizer.lr", "0.05") == 0
    capsys.readouterr()
    assert tiny.run("--model.optimizer.lr", "0.002", "--trainer.max_epochs", "2", "--ckpt_path", "last") == 0
    told = "model.optimizer.lr is 0.002, and was 0.05 when the checkpoint was written: 0.002 is used"
    assert told in capsys.readouterr().err
    checkpoint = torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == 0.002
    assert tiny.run("--model.optimizer.lr", "0.002", "--trainer.max_epochs", "3", "--ckpt_path", "last") == 0
    assert "when the checkpoint was written" not in capsys.readouterr().err


ENDING = """\
import os
import sys
from template.models.unet import UNet

class Ending(UNet):
    def forward(self, x):
        if self.training:
            END
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("sys.exit(0)", "sys.exit(0), raised at ending.py:8 forward."),
        ("exit()", "sys.exit(None), raised at ending.py:8 forward."),
        ("raise KeyboardInterrupt", "KeyboardInterrupt, raised at ending.py:8 forward."),
    ],
)
def test_code_that_ends_the_process_is_a_failure_that_says_where(
    statement: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ending.py").write_text(ENDING.replace("END", statement), encoding="utf-8")
    sys.modules.pop("ending", None)
    assert tiny.run("--model.net", "ending.Ending", "--model.net.width", "4") == 1
    said = capsys.readouterr().err
    assert f"error: {text}" in said
    assert "last checkpoint" not in said
    assert "ending.py" in (RUN / "rank_0" / "error.txt").read_text(encoding="utf-8")


def test_a_module_that_ends_the_process_when_it_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ending.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    sys.modules.pop("ending", None)
    assert tiny.run("--model.net", "ending.Ending") != 0
    assert "sys.exit(0), raised at ending.py:2" in capsys.readouterr().err


def test_a_text_that_is_no_utf_8_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    statement = r'raise ValueError("Gr\udcfc\udcdfe.png is damaged")'
    Path("ending.py").write_text(ENDING.replace("END", statement), encoding="utf-8")
    sys.modules.pop("ending", None)
    assert tiny.run("--model.net", "ending.Ending", "--model.net.width", "4") == 1
    assert r"Gr\udcfc\udcdfe.png is damaged" in capsys.readouterr().err
    assert r"Gr\udcfc\udcdfe.png is damaged" in (RUN / "rank_0" / "error.txt").read_text(encoding="utf-8")
