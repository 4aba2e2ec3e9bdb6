"""Every mistake in a configuration ends in one sentence with its place, its key and the fix, and exit code 2."""
# ruff: noqa: E501  # a mistake and what is said of it stand in one line

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from template.__main__ import main
from template.config.errors import refuse_strategy
from template.distributed.faults import NamedError
from tests import tiny

NET = "--model.net.class_path"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with one valid configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    tiny.write()
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 2) -> str:
    """The sentence that a command ends with."""
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "usage:" not in error
    sentence = error[error.index("error: ") :].rstrip("\n")
    assert "\n" not in sentence
    assert len(sentence) < 480  # three lines of a wide terminal
    return sentence


# On the command line ----------------------------------------------------------------------------------------------

COMMAND_LINE = {
    # class paths
    f"{NET} torchvison.models.segmentation.fcn_resnet50": "no module 'torchvison'. Did you mean 'torchvision.models.seg",
    f"{NET} torchvision.models.segmentaton.fcn_resnet50": "Did you mean 'torchvision.models.segmentation.fcn_resnet50'",
    f"{NET} torchvision.models.segmentation.fcn_resnet5": "has no 'fcn_resnet5'. Did you mean 'torchvision.models.segm",
    f"{NET} unet": "model.net: no torch.nn.Module has the name 'unet'. Did you mean 'UNet'?",
    f"{NET} Phantom": "model.net: no torch.nn.Module has the name 'Phantom'",
    f"{NET} torch.optim.AdamW": "model.net: 'torch.optim.AdamW' is no torch.nn.Module",
    f"{NET} collections.OrderedDict": "model.net: 'collections.OrderedDict' is no torch.nn.Module",
    f"{NET} math.pi": "model.net: 'math.pi' is a float, no torch.nn.Module",
    f"{NET} os.path.join": "'os.path.join' does not say what it returns. Annotate it: def join(…) -> torch.nn.Module:",
    f"{NET} sysconfig.get_path_names": "'sysconfig.get_path_names' does not say what it returns",
    f"{NET} no_such_library.Net": "there is no module 'no_such_library'. Install the library, or put no_such_library.py",
    "--data.class_path Phantm": "data: no SegmentationData has the name 'Phantm'. Did you mean 'Phantom'?",
    "--data AdamW": "data: no SegmentationData has the name 'AdamW'. Give the name of one of this program's own (COCO, ",
    "--model.optimizer torch.optim.AdamV": "'torch.optim' has no 'AdamV'. Did you mean 'torch.optim.Adam'?",
    "--model.optimizer Adamw": "model.optimizer: no torch.optim.Optimizer has the name 'Adamw'. Did you mean 'AdamW'?",
    "--model.loss CrossEntropyDise": "model.loss: no torch.nn.Module has the name 'CrossEntropyDise'. Did you mean 'Cro",
    "--model.lr_scheduler CosineAnealingLR": "Did you mean 'CosineAnnealingLR'?",
    "--model.lr_scheduler StepLR": "StepLR needs the argument 'step_size', and model.lr_scheduler.step_size is not give",
    "--trainer.callbacks EarlyStoping": "Did you mean 'EarlyStopping'?",
    "--trainer.strategy.class_path SaveDDPStrategy": "Did you mean 'SafeDDPStrategy'?",
    # keys
    "--trainer.max_epoch 3": "command line: the key 'trainer.max_epoch' is unknown. Did you mean 'trainer.max_epochs'?",
    "--trainer.max_epoch=3": "Did you mean 'trainer.max_epochs'?",
    "--expriment x": "command line: the key 'expriment' is unknown. Did you mean 'experiment'?",
    "--batch_size 4": "the key 'batch_size' is unknown. Did you mean 'data.batch_size'?",
    "--max_epochs 4": "the key 'max_epochs' is unknown. Did you mean 'trainer.max_epochs'?",
    "--out masks": "the key 'out' is unknown.",
    "--data.batchsize 4": "Phantom has no argument 'batchsize' (data.batchsize). Did you mean 'batch_size'?",
    "--data.images x": "Phantom has no argument 'images' (data.images). Its arguments are train_cases, val_cases,",
    "--model.net.widht 4": "UNet has no argument 'widht' (model.net.widht). Did you mean 'width'?",
    "--model.net.init_args.widht 4": "UNet has no argument 'widht' (model.net.widht). Did you mean 'width'?",
    "--trainer.strategy SafeDDPStrategy --trainer.strategy.time_out 3": "Did you mean 'timeout'?",
    "-trainer.max_epochs 3": "'-trainer.max_epochs 3' is no key with its value. Write --KEY VALUE, with two dashes.",
    "trainer.max_epochs=3": "'trainer.max_epochs=3' is no key with its value.",
    "--trainer.max_epochs": "--trainer.max_epochs needs a value, and none is given.",
    "--model.num_classes 7": "model.num_classes is 7, but this number is said once, in the data, and comes from data.cla",
    "--model.in_channels 3": "comes from data.in_channels. Remove model.in_channels.",
    # values
    "--model.optimizer.lr abc": "model.optimizer.lr is 'abc'; it must be a number. The default is 0.001.",
    "--model.optimizer.lr null": "model.optimizer.lr is null; it must be a number.",
    "--model.optimizer.lr -1": "model.optimizer is refused: Invalid learning rate: -1.0.",
    "--data.batch_size two": "command line: data.batch_size is 'two'; it must be a whole number. The default is 8.",
    "--data.batch_size 2.5": "data.batch_size is 2.5; it must be a whole number.",
    "--data.num_workers many": "data.num_workers is 'many'; it must be a whole number or 'auto'.",
    "--data.preprocess 3": "data.preprocess is 3; it must be a list of torch.nn.Module (by class_path) or null.",
    "--trainer.max_epochs many": "trainer.max_epochs is 'many'; it must be a whole number or null.",
    "--trainer.precision 17": "trainer.precision is 17; it must be 64, 32, 16,",
    "--trainer.logger wandb": "trainer.logger is 'wandb'; it must be a lightning.pytorch.loggers.Logger (by class_path)",
    "--model.net.normalization layer": "is 'layer'; it must be 'batch', 'instance', 'group' or 'none'.",
    "--model.channels_last maybe": "model.channels_last is 'maybe'; it must be true or false or 'auto'.",
    "--model 3": "model is 3; it must be a section of keys with values. Its keys are net, loss,",
    "--model.net.width 0": "UNet: width is 0; it must be at least 1.",
    "--data.size 3": "data.size is 3; it must be at least 16.",
    "--trainer.strategy.time_out 3": "SafeDDPStrategy has no argument 'time_out' (trainer.strategy.time_out). Did you mean 'timeout'?",
    "--trainer.strategy dpp": "trainer.strategy is 'dpp', and no strategy has this name. Did you mean 'ddp'?",
    "--trainer.accelerator cpuu": "You selected an invalid accelerator name: `accelerator='cpuu'`. Available names are",
    "--trainer.devices two": "The trainer refuses its settings: `devices` selected with `CPUAccelerator` should be an int",
    "--trainer.devices 0": "The trainer refuses its settings: `Trainer(devices='0')` value is not a valid input",
    "--checkpoint.monitor val/dise": "checkpoint.monitor is 'val/dise', which nothing logs. There are train/loss, val/lo",
    "--checkpoint.mode up": "checkpoint.mode is 'up'; it must be 'max' or 'min'.",
    "--config nowhere.yaml": "The configuration file 'nowhere.yaml' does not exist. There are tiny.yaml.",
    "--config tiny.yml": "The configuration file 'tiny.yml' does not exist. Did you mean 'tiny.yaml'?",
    "--config .": "The configuration file '.' cannot be read: it is a folder.",
    "--config": "--config needs a value, and none is given.",
}


@pytest.mark.case("H3", "H4", "H5")
@pytest.mark.parametrize(("arguments", "words"), COMMAND_LINE.items(), ids=list(COMMAND_LINE))
def test_a_mistake_on_the_command_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", *arguments.split()])
    assert words in sentence
    assert sentence.endswith("[config]")


# In a file --------------------------------------------------------------------------------------------------------

IN_A_FILE = [
    ("max_epochs: 1", "max_epoch: 1", "tiny.yaml:26: the key 'trainer.max_epoch' is unknown. Did you mean 'trainer.max"),
    ("model:", "modell:", "tiny.yaml:18: the key 'modell' is unknown. Did you mean 'model'?"),
    ("  optimizer:", "  optimiser:", "tiny.yaml:22: the key 'model.optimiser' is unknown. Did you mean 'model.optimiz"),
    ("batch_size: 2", "batchsize: 2", "tiny.yaml:10: Phantom has no argument 'batchsize' (data.batchsize). Did you m"),
    ("width: 4", "widht: 4", "tiny.yaml:21: UNet has no argument 'widht'"),
    ("lr: 1e-3", "learning_rate: 1e-3", "tiny.yaml:24: AdamW has no argument 'learning_rate' (model.optimizer.learnin"),
    ("    init_args: {width: 4, depth: 2}", "    width: 4", "tiny.yaml:21: 'width' stands beside class_path in model.net"),
    ("class_path: UNet", "class_path: UNett", "tiny.yaml:20: model.net: no torch.nn.Module has the name 'UNett'."),
    ("class_path: UNet", "class_path: 3", "tiny.yaml:20: model.net names no class; class_path is 3."),
    ("    class_path: UNet\n", "", "tiny.yaml:19: model.net does not say which class; class_path is missing."),
    ("init_args: {width: 4, depth: 2}", "init_args: 4", "tiny.yaml:21: init_args of model.net is 4; it must be keys"),
    ("class_path: Window", "class_path: Windw", "tiny.yaml:13: data.preprocess[0]: no torch.nn.Module has the name 'Win"),
    ("high: 240", "hight: 240", "tiny.yaml:14: Window has no argument 'hight' (data.preprocess[0].hight). Did you mean"),
    ("high: 240", "high: warm", "tiny.yaml:14: data.preprocess[0].high is 'warm'; it must be a number."),
    (", high: 240", "", "tiny.yaml:13: Window needs the argument 'high', and data.preprocess[0].high is not given."),
    ("low: -160", "low: 300", "Window: high (240.0) must be above low (300.0)."),
    ("degrees: 10", "degrees: null", "tiny.yaml:17: data.augment[0].degrees is null; it must be a number."),
    ("lr: 1e-3", "lr: abc", "tiny.yaml:24: model.optimizer.lr is 'abc'; it must be a number."),
    ("lr: 1e-3", "lr: null", "tiny.yaml:24: model.optimizer.lr is null; it must be a number."),
    ("batch_size: 2", "batch_size: two", "tiny.yaml:10: data.batch_size is 'two'; it must be a whole number."),
    ("batch_size: 2", "batch_size: null", "tiny.yaml:10: data.batch_size is null; it must be a whole number."),
    ("model:", "model:\n  num_classes: 7", "tiny.yaml:19: model.num_classes is 7, but this number is said once"),
    ("max_epochs: 1", "max_epochs: 1\n  max_epochs: 4", "tiny.yaml:27: the key 'max_epochs' is given twice, first in line 26."),
    ("    train_cases: 4", "     train_cases: 4", "tiny.yaml:7:5: this is no valid YAML"),
    ("  class_path: Phantom", "\tclass_path: Phantom", "tiny.yaml:4:1: this is no valid YAML: a tab. Indent with space"),
    ("experiment: tiny", "experiment: {tiny", "tiny.yaml:2:16: this is no valid YAML"),
    (tiny.CONFIG, "", "The configuration file 'tiny.yaml' is empty."),
    (tiny.CONFIG, "- 1\n- 2\n", "The configuration file 'tiny.yaml' holds no keys."),
    (tiny.CONFIG, "model: {net: UNet}\n", "The configuration is incomplete: data is missing."),
    (tiny.CONFIG, "data: Phantom\n", "The configuration is incomplete: model.net is missing."),
    (tiny.CONFIG, "seed_everything: 0\n", "The configuration is incomplete: data and model.net are missing. Give a complete file, such"),
    (tiny.CONFIG, "data: [1]\nmodel: {net: UNet}\n", "tiny.yaml:1: data is [1]; it must be a SegmentationData (by class"),
]  # fmt: skip


@pytest.mark.case("H3", "H4", "H5", "H9")
@pytest.mark.parametrize(("old", "new", "words"), IN_A_FILE, ids=[case[2][:60] for case in IN_A_FILE])
def test_a_mistake_in_a_file(old: str, new: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.CONFIG.count(old) == 1
    tiny.write(tiny.CONFIG.replace(old, new))
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml"])
    assert sentence.startswith(f"error: {words}")
    assert sentence.endswith("[config]")


@pytest.mark.case("H4")
def test_the_file_that_is_wrong_is_named_among_several(capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write("trainer:\n  strategy: auto\n  max_epoch: 3\n", "over.yaml")
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", "--config", "over.yaml"])
    assert sentence.startswith("error: over.yaml:3: the key 'trainer.max_epoch' is unknown.")


def test_a_file_that_is_no_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tiny.yaml").write_bytes(b"\xff\xfe\x00")
    assert "'tiny.yaml' is no text. Give a YAML file in UTF-8." in refused(capsys, ["fit", "--config", "tiny.yaml"])


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_the_other_verbs_speak_alike(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'data.batch_size'?" in refused(capsys, [verb, "--config", "tiny.yaml", "--batch_size", "2"])


# Networks in files of the user's own --------------------------------------------------------------------------------

OWN = {
    "from torch import nn\nclass Good(nn.Module): ...\n": (
        "mynet.God",
        "'mynet' has no 'God'. Did you mean 'mynet.Good'?",
    ),
    "def f(:\n": ("mynet.f", "importing 'mynet' fails: SyntaxError, "),
    "import monai_but_not_there\n": ("mynet.f", "importing 'mynet' fails: ModuleNotFoundError, "),
    "x = 1 / 0\n": ("mynet.x", "importing 'mynet' fails: ZeroDivisionError, "),
    "def net(): ...\n": ("mynet.net", "the function 'mynet.net' does not say what it returns. Annotate it: def net(…)"),
    "def net() -> int: ...\n": ("mynet.net", "the function 'mynet.net' returns no torch.nn.Module."),
    "from torch import nn\nclass Bad(nn.Module):\n    def __init__(self):\n        nn.Conv2d(1, 'three', 1)\n": (
        "mynet.Bad",
        "mynet.Bad refuses its arguments: ",
    ),
    "from torch import nn\nclass Bad(nn.Module):\n    def __init__(self):\n        raise KeyError('no such encoder')\n": (
        "mynet.Bad",
        "mynet.Bad cannot be made: KeyError: no such encoder (mynet.py:4).",
    ),
    "from torch import nn\nclass Gpu(nn.Module):\n    def __init__(self):\n        raise MemoryError('CUDA error: out of memory')\n": (
        "mynet.Gpu",
        "mynet.Gpu cannot be made: MemoryError: CUDA error: out of memory, at mynet.py:4 __init__: raise MemoryError",
    ),
    "from torch import nn\nfrom urllib.error import URLError\ndef net() -> nn.Module: raise URLError('Name not known')\n": (
        "mynet.net",
        "net cannot be made: URLError: <urlopen error Name not known> (mynet.py:3). Pretrained weights cannot be",
    ),
}


@pytest.mark.parametrize(("code", "told"), OWN.items(), ids=[words for _, words in OWN.values()])
def test_a_network_of_ones_own_that_fails(
    code: str, told: tuple[str, str], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mynet.py").write_text(code, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    class_path, words = told
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", NET, class_path], code=1 if "Gpu" in class_path else 2)
    assert words in sentence
    if "importing" in words:
        assert "mynet.py:1" in sentence


PLACES_ITSELF = """\
from torch import nn
class Early(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Conv2d(1, 3, 1).cuda()
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Conv2d(1, 3, 1)
    def forward(self, x):
        return self.main(x.to("cuda"))
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Early", "mynet.Early cannot be made: mynet.py:5 __init__ chooses a device by itself: self.main = nn.Conv2d"),
        (
            "Late",
            "The network Late fails on its first batch of images [2, 1, 32, 32]: mynet.py:11 forward chooses a device",
        ),
    ],
)
def test_a_network_that_chooses_its_device(
    name: str, told: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("it works here")
    (folder / "mynet.py").write_text(PLACES_ITSELF, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", NET, f"mynet.{name}"], code=1)
    assert told in sentence
    assert "The strategy places the network and its batches" in sentence
    assert "Remove .cuda() and .to(device) from the network" in sentence
    assert sentence.endswith("[fixed-device]")


@pytest.mark.parametrize(
    ("class_path", "extra"), [("monai.networks.nets.UNet", "medical"), ("timm.create_model", "encoders")]
)
def test_an_optional_library_that_is_not_installed(
    class_path: str, extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = class_path.partition(".")[0]

    class Nowhere:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == library:
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nowhere, *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", NET, class_path])
    assert f"there is no module '{library}'. Install it: pip install -e '.[{extra}]'" in sentence


@pytest.fixture
def theirs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is imported already, with classes of the same names as others."""
    code = "from torch import nn\nclass UNet(nn.Module): ...\nclass ConvTranspose2d(nn.Module): ...\n"
    (folder / "theirs.py").write_text(code, encoding="utf-8")
    importlib.import_module("theirs")
    monkeypatch.delitem(sys.modules, "theirs")


@pytest.mark.usefixtures("theirs")
def test_a_short_name_means_the_class_of_this_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert "class_path: UNet\n" in printed(capsys)  # in the file
    assert "class_path: UNet\n" in printed(capsys, "--model.net", "UNet")
    assert "class_path: theirs.UNet\n" in printed(capsys, "--model.net", "theirs.UNet")


@pytest.mark.usefixtures("theirs")
def test_a_short_name_that_two_other_classes_have(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", "--data.preprocess+=ConvTranspose2d"])
    assert "data.preprocess[1]: 'ConvTranspose2d' is the name of several classes. Give the full path: " in sentence
    assert "theirs.ConvTranspose2d" in sentence


# Devices ----------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for devices in ("1", "4"):  # 4: before any process is started for them
        arguments = ["--trainer.accelerator", "cuda", "--trainer.devices", devices]
        sentence = refused(capsys, ["fit", "--config", "tiny.yaml", *arguments])
        assert "trainer.accelerator is 'cuda', but this machine has no GPU that torch can use." in sentence
        assert "Set trainer.accelerator to cpu or auto." in sentence


@pytest.mark.case("notes/visible-devices")
@pytest.mark.parametrize("devices", ["3", "[0, 2]", "'0,2'"])
def test_more_gpus_than_there_are(
    devices: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    arguments = ["--trainer.accelerator", "gpu", "--trainer.devices", devices]
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", *arguments])
    assert sentence.startswith(f"error: trainer.devices is {devices.strip(chr(39))}, but this machine has 2 GPUs.")


# Verbs ------------------------------------------------------------------------------------------------------------

VERBS = {
    "fitt": "'fitt' is no verb; there are fit, validate, test, predict",
    "train --config tiny.yaml": "Did you mean 'fit'?",
    "score": "Did you mean 'validate'?",
    "dance": "See python -m template --help.",
    "--config tiny.yaml": "The verb is missing; there are fit, validate, test, predict",
    "tiny.yaml": "python -m template fit --config tiny.yaml",
    "--seed_everything 3 fit --config tiny.yaml": "The verb comes first: python -m template fit --seed_everything 3 --c",
}


@pytest.mark.parametrize(("arguments", "words"), VERBS.items(), ids=list(VERBS))
def test_a_verb_that_is_not_there(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, arguments.split())


def test_nothing_at_all_shows_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "fit        train a network" in capsys.readouterr().out


# What is accepted -------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What ``--print_config`` prints."""
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "tiny.yaml", *arguments, "--print_config"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.case("H1")
def test_a_number_in_scientific_notation_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lr: 0.001\n" in printed(capsys)
    assert "lr: 0.02\n" in printed(capsys, "--model.optimizer.lr", "2e-2")


def test_yaml_anchors_and_merges(capsys: pytest.CaptureFixture[str]) -> None:
    merged = "init_args: {<<: *base, depth: 3}"
    tiny.write("base: &base {width: 4}\n" + tiny.CONFIG.replace("init_args: {width: 4, depth: 2}", merged))
    assert "the key 'base' is unknown" in refused(capsys, ["fit", "--config", "tiny.yaml"])
    anchored = tiny.CONFIG.replace("{degrees: 10}", "&base {degrees: 10}").replace(
        "{lr: 1e-3}", "{lr: 1e-3, <<: *base}"
    )
    tiny.write(anchored)
    assert "tiny.yaml:17: AdamW has no argument 'degrees'" in refused(capsys, ["fit", "--config", "tiny.yaml"])


def test_a_configuration_given_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert "max_epochs: 7\n" in printed(capsys, "--config", "{trainer: {max_epochs: 7}}")
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", "--config", "{trainer: {max_epoch: 7}}"])
    assert "command line: the key 'trainer.max_epoch' is unknown." in sentence


def test_integers_as_keys(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "data:\n  class_path: Folder\n  init_args:\n    images: x\n    classes: [a, b]\n    mask_values: {0: 0, 38: 1}\n"
    tiny.write(lines + "    white: red\nmodel:\n  net: UNet\n")
    assert "tiny.yaml:7: data.white is 'red'; it must be a number or null." in refused(
        capsys, ["fit", "--config", "tiny.yaml"]
    )


@pytest.mark.case("H8")
def test_what_becomes_of_the_arguments_of_a_replaced_class(capsys: pytest.CaptureFixture[str]) -> None:
    # The run ends before training, at a metric that nothing logs.
    arguments = [
        "--model.optimizer",
        "torch.optim.SGD",
        "--model.net",
        "torchvision.ops.MLP",
        "--checkpoint.monitor",
        "x",
    ]
    main(
        [
            "fit",
            "--config",
            "tiny.yaml",
            *arguments,
            "--model.net.in_channels",
            "1",
            "--model.net.hidden_channels",
            "[1]",
        ]
    )
    told = capsys.readouterr().err
    assert "model.net: MLP in place of UNet, dropped width, depth\n" in told
    assert "model.optimizer: SGD in place of AdamW, kept lr\n" in told


@pytest.mark.case("notes/dataparallel")
def test_dataparallel_is_answered_with_what_to_use() -> None:
    with pytest.raises(NamedError, match="trainer.strategy is 'dp', which Lightning no longer has") as caught:
        refuse_strategy("dp")
    assert "30 on two devices is 15 each" in caught.value.fix
    assert caught.value.exit_code == 2


KNOBS = "--trainer.strategy SafeDDPStrategy --trainer.strategy.find_unused_parameters true"


def test_knobs_that_do_not_go_together_are_refused_before_processes_meet(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*KNOBS.split(), "--trainer.strategy.static_graph", "true"]
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", *arguments])
    key = "trainer.strategy.init_args"
    assert f"{key}.find_unused_parameters is true, which cannot be used. {key}.static_graph is true as well" in sentence
    assert f"Set {key}.find_unused_parameters to auto, or {key}.static_graph to false. [config]" in sentence


def test_a_path_on_the_command_line_that_is_no_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    folder = b"Gr\xfc\xdfe".decode("utf-8", "surrogateescape")
    sentence = refused(capsys, ["fit", "--config", "tiny.yaml", "--data.predict", folder])
    assert sentence.startswith(r"error: 'Gr\udcfc\udcdfe' on the command line is no UTF-8. ")
    assert "ln -s" in sentence


def test_characters_that_yaml_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bell.yaml").write_text("experiment: \a\n", encoding="utf-8")
    assert "bell.yaml: this is no valid YAML" in refused(capsys, ["fit", "--config", "bell.yaml"])
