"""The page "From one GPU to many": its two scripts run, and what it shows, names and promises is so."""

from __future__ import annotations

import csv
import difflib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import template.cli  # noqa: F401  # the imports of the first run would change the environment during a test
from template.__main__ import main
from template.distributed.faults import FAULTS
from template.distributed.recognize import recognize_text
from tests.ports import free_port
from tests.ranks import run_ranks

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "from-one-gpu-to-many.md").read_text(encoding="utf-8")
SINGLE, BY_HAND = (ROOT / "docs" / "examples" / name for name in ("single_gpu.py", "many_gpus_by_hand.py"))
EDITED = BY_HAND.read_text(encoding="utf-8")
#: Number of an edit to its section.
SECTIONS = {
    int(number): text for number, text in re.findall(r"^### (\d+)\. (.*?)(?=^##)", PAGE, flags=re.MULTILINE | re.DOTALL)
}
SMALL = ["--cases", "8", "--epochs", "2", "--batch-size", "4"]


def blocks(language: str, text: str = PAGE) -> list[tuple[str, str]]:
    """Title and content of the code blocks in a language."""
    return re.findall(rf'^ *```{language}(?: title="(.*?)")?\n(.*?)^ *```$', text, flags=re.MULTILINE | re.DOTALL)


def run_script(path: Path, *arguments: str) -> None:
    """Run a script as the interpreter would, in this process."""
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the only process of a launch."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))


# The page and the scripts ---------------------------------------------------------------------------------------------


@pytest.mark.case("notes/two-files")
def test_there_are_thirteen_edits_and_each_is_marked_in_the_script() -> None:
    marked = {int(number) for number in re.findall(r"# edit (\d+)", EDITED)}
    assert list(SECTIONS) == list(range(1, 14))
    assert marked == set(SECTIONS)


def test_nothing_else_is_edited() -> None:
    # From the first class on: above are the description and the imports that the edits need.
    before, after = (
        text[text.index("class Discs") :].splitlines() for text in (SINGLE.read_text(encoding="utf-8"), EDITED)
    )
    for kind, _, _, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        # A mark stands in the changed lines or above them.
        assert kind == "equal" or any("# edit" in line for line in after[start - 2 : end]), after[start:end]


@pytest.mark.parametrize("number", SECTIONS)
def test_the_lines_shown_are_those_of_the_script(number: int) -> None:
    lines = {line.partition("  # edit")[0].strip() for line in EDITED.splitlines()}
    shown = [line.strip() for _, code in blocks("python", SECTIONS[number]) for line in code.splitlines()]
    assert shown
    assert not [line for line in shown if line not in lines]


@pytest.mark.case("notes/two-files")
@pytest.mark.parametrize("number", SECTIONS)
def test_each_edit_says_what_when_forgotten_and_where_it_went(number: int) -> None:
    text = SECTIONS[number]
    parts = ["**By hand.**", "**What goes wrong.**", "**Here.**", "In the code:", "Shown by"]
    assert sorted(parts, key=text.index) == parts
    files = re.findall(r"`(template/[\w/]+\.py)`", text)
    code = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    listed = text[text.index("In the code:") : text.index("Shown by")]
    assert all(re.search(rf"(class|def) {name}\b", code) for name in re.findall(r"`(\w+)`", listed))
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("number", SECTIONS)
def test_messages_have_the_identifier_that_the_edit_names(number: int) -> None:
    for _, message in blocks("text", SECTIONS[number]):
        for finding in recognize_text(message):
            assert f"`{finding.fault.identifier}`" in SECTIONS[number]


def test_identifiers_are_those_of_the_catalogue() -> None:
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", PAGE))
    assert len(named) > 15
    assert not named - set(FAULTS)


# An edit that is forgotten --------------------------------------------------------------------------------------------


def message_shown(error: BaseException) -> bool:
    """Whether the page shows the first line of an error, numbers aside."""
    plain = [re.sub(r"\d+", "0", text) for text in (str(error).strip().splitlines()[0].strip(), PAGE)]
    return plain[0][:150] in plain[1]


@pytest.mark.parametrize(
    ("right", "wrong", "identifier"),
    [
        pytest.param(
            "batch_size, sampler=train",
            "batch_size, shuffle=True, sampler=train",
            "sampler-and-shuffle",
            id="3 shuffle",
        ),
        pytest.param(
            'if device.type == "cuda":\n        model', "if True:\n        model", "sync-batchnorm-device", id="5 CPU"
        ),
        pytest.param(' if device.type == "cuda" else None', "", "ddp-device", id="6 not moved"),
        pytest.param(
            'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',
            "",
            "no-process-group",
            id="10 no process group",
        ),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="these are the messages of a CPU")
def test_a_forgotten_edit_ends_as_the_page_says(
    right: str, wrong: str, identifier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert right in EDITED
    script = tmp_path / "script.py"
    script.write_text(EDITED.replace(right, wrong), encoding="utf-8")
    alone(monkeypatch)
    with pytest.raises(ValueError, match=r"\w") as raised:
        run_script(script, "--out", str(tmp_path / "out"), *SMALL)
    if dist.is_initialized():
        dist.destroy_process_group()
    assert message_shown(raised.value)
    found = [finding.fault.identifier for finding in recognize_text(f"ValueError: {raised.value}")]
    assert found == [identifier]


def test_a_launcher_s_argument_that_the_script_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_script(SINGLE, "--out", str(tmp_path / "out"), "--local-rank=2")
    said = capsys.readouterr().err
    assert "error: unrecognized arguments: --local-rank=2" in said
    assert [finding.fault.identifier for finding in recognize_text(said)] == ["launcher-argument"]


# The scripts run ------------------------------------------------------------------------------------------------------


def test_the_script_for_one_gpu_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(SINGLE, "--out", str(tmp_path / "out"), *SMALL)
    assert re.findall(r"epoch (\d)  loss \d\.\d+  val Dice", capsys.readouterr().out) == ["1", "2"]
    assert torch.load(tmp_path / "out" / "unet.pt")["head.weight"].shape == (2, 8, 1, 1)


def _by_hand(rank: int, source: str, folder: str, port: str) -> None:
    dist.destroy_process_group()  # the script makes its own
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    script = Path(folder) / f"script_{rank}.py"
    script.write_text(source, encoding="utf-8")
    run_script(script, "--out", f"{folder}/out", *SMALL)


def test_the_script_for_many_runs_on_two(tmp_path: Path) -> None:
    run_ranks(2, _by_hand, EDITED, str(tmp_path), str(free_port()))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank_0", "rank_1", "unet.pt"]
    assert torch.load(tmp_path / "out" / "unet.pt")["head.weight"].shape == (2, 8, 1, 1)


def test_a_layer_that_is_left_over_stops_the_script_for_many(tmp_path: Path) -> None:
    made = "self.up, self.head ="
    spare = EDITED.replace(made, f"self.spare = nn.Conv2d(width, classes, 1)\n        {made}")
    with pytest.raises(RuntimeError, match="Expected to have finished reduction") as raised:
        run_ranks(2, _by_hand, spare, str(tmp_path), str(free_port()))
    assert message_shown(raised.value)
    assert re.search(r"did not receive grad for rank \d: 14 15$", str(raised.value), flags=re.MULTILINE)


# The commands of the page ---------------------------------------------------------------------------------------------


def commands() -> list[list[str]]:
    """Each shell command of the page, as words."""
    lines = [line.strip() for _, content in blocks("bash") for line in content.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what a clone has, and the files that the page shows."""
    for name in ("configs", "docs", "template"):
        (tmp_path / name).symlink_to(ROOT / name)
    for language in ("python", "yaml"):
        for title, content in blocks(language):
            if title:
                (tmp_path / title).write_text(content, encoding="utf-8")
    (tmp_path / "train.log").write_text("FileExistsError: [Errno 17] File exists: 'runs/May22_10-11-12_node7'\n")
    return tmp_path


def test_calls_of_the_program_are_accepted(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    monkeypatch.syspath_prepend(clone)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shutil.copy(SINGLE, "my_script.py")
    calls = [words[words.index("template") + 1 :] for words in commands() if "template" in words]
    assert len(calls) > 8
    for words in calls:
        if words[0] == "explain":
            assert main(words) == 0
            continue
        with pytest.raises(SystemExit) as ended:
            main([*words, "--print_config"])
        assert ended.value.code == 0
    assert "folder-race" in capsys.readouterr().out
    for name in ("discs", "my_script"):
        sys.modules.pop(name, None)


def run(words: list[str], folder: Path) -> str:
    """Run a command, and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_", "RANK"))}
    launchers = {
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"],
    }
    command = [*launchers.get(words[0], [words[0]]), *words[1:]]
    environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, timeout=180, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def losses(run_folder: Path) -> list[float]:
    with (run_folder / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss_epoch"]) for row in csv.DictReader(file) if row["train/loss_epoch"]]


@pytest.mark.slow
def test_all_commands_from_the_script_to_the_old_checkpoint(clone: Path) -> None:
    printed: dict[str, str] = {}
    for words in commands():
        if "configs/phantom.yaml" not in words and " ".join(words) not in printed:
            printed[" ".join(words)] = run(words, clone)

    # The edits by hand make another training of it, on whichever device.
    single, by_hand = (re.findall(r"loss (\S+)", out) for words, out in printed.items() if "--out runs/" in words)
    assert len(single) == len(by_hand) == 5
    assert single != by_hand

    # The same loss with one process, with two, by torchrun, and with the knobs in sight.
    runs = sorted(path.parent for path in (clone / "runs" / "discs").glob("version_*/metrics.csv"))
    runs = runs[1:]  # the first had a schedule
    assert len(runs) == 4
    for folder in runs[1:]:
        assert losses(folder) == pytest.approx(losses(runs[0]), rel=1e-3)
    assert len(list((clone / "masks").glob("test_?.png"))) == 9

    # The weights under the names of a wrapper score the same.
    weights = torch.load(clone / "runs" / "by_hand" / "unet.pt")
    torch.save({f"module.{name}": value for name, value in weights.items()}, clone / "wrapped.pth")
    (old,) = (words for words in commands() if "test" in words and "--ckpt_path" in words)
    again = run([*old[:-1], "wrapped.pth"], clone)
    assert re.findall(r"disc +(\S+)", again) == re.findall(r"disc +(\S+)", printed[" ".join(old)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "launch", [[], ["-m", "torch.distributed.launch", "--nproc_per_node=2"]], ids=["spawn", "launch"]
)
def test_other_launches_of_the_script_for_many(launch: list[str], tmp_path: Path) -> None:
    port, script = str(free_port()), tmp_path / "script.py"
    script.write_text(EDITED.replace("12355", port), encoding="utf-8")
    launch = [*launch, f"--master_port={port}"] if launch else []
    out = run(["python", *launch, str(script), "--out", "out", *SMALL], tmp_path)
    assert re.findall(r"epoch (\d)", out) == ["1", "2"]


@pytest.mark.slow
def test_the_network_of_the_script_trains_on_the_phantom(clone: Path) -> None:
    shutil.copy(SINGLE, clone / "my_script.py")
    (fit,) = (words for words in commands() if "configs/phantom.yaml" in words)
    assert "epoch 1/1" in run([*fit, "--trainer.max_epochs", "1"], clone)
