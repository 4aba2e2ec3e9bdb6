"""The README and the page on own data say what works: their commands are taken from them and run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from template.__main__ import main
from template.data import liver  # at the top: what Lightning sets in the environment is then no test's fault

# Warnings of a run of a second are not what these tests are about.
pytestmark = pytest.mark.filterwarnings("default")

ROOT = Path(__file__).parent.parent
README, YOUR_DATA = ROOT / "README.md", ROOT / "docs" / "your-data.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
#: A fit that takes a second.
SHORT = [
    "--trainer.max_epochs=1",
    "--trainer.accelerator=cpu",
    "--trainer.log_every_n_steps=1",
    "--model.net.init_args.width=4",
    "--model.net.init_args.depth=2",
]


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """Title and content of a page's code blocks in a language."""
    fence = re.compile(rf'^```{language}(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
    return [(title, content) for title, content in fence.findall(page.read_text(encoding="utf-8"))]


def commands(page: Path) -> list[list[str]]:
    """Each shell command of a page, as words."""
    lines = [line for _, content in blocks(page, "bash") for line in content.replace("\\\n", " ").splitlines()]
    parts = [part for line in lines for part in line.split(" && ")]
    return [words for words in (shlex.split(part, comments=True) for part in parts) if words]


def program(page: Path) -> list[list[str]]:
    """The arguments of each call of the program on a page."""
    return [words[3:] for words in commands(page) if words[:3] == ["python", "-m", "template"]]


EVERY = [(page, words) for page in (README, YOUR_DATA) for words in program(page)]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what a clone has beside the package, the files that the pages show, and a network of one's own."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for language in ("python", "yaml"):
        for title, content in blocks(YOUR_DATA, language):
            (tmp_path / title).write_text(content, encoding="utf-8")
    (tmp_path / "my_net.py").write_text(
        "import torch\n\n\nclass MyNet(torch.nn.Conv2d):\n"
        "    def __init__(self, width: int) -> None:\n        super().__init__(1, 3, 1)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("my_data", "my_net"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("page", "words"), EVERY, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
@pytest.mark.usefixtures("clone")
def test_every_call_of_the_program_is_accepted(
    page: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ending = [] if "--help" in words or "--print_config" in words else ["--print_config"]
    if any(word.startswith("segmentation_models_pytorch") for word in words):
        pytest.importorskip("segmentation_models_pytorch")
    with pytest.raises(SystemExit) as ended:
        main([*words, *ending])
    assert ended.value.code == 0, page
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_commands_are_known(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for words in commands(page):
        if words[0] == "make":
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words[1:])
        elif words[:2] == ["pip", "install"]:
            for extra in re.findall(r"\[(.*)\]", words[-1]):
                assert all(re.search(rf"^{name} = \[", extras, re.MULTILINE) for name in extra.split(","))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_what_the_readme_says_about_the_ct_is_what_is_fetched() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    sizes = {split: len(slices) for split, slices in liver.split_slices().items()}
    assert liver.REQUIREMENT in text
    assert liver.WHEEL in text
    assert "for research and teaching" in text.lower()
    assert f"{sizes['train']} of the axial slices are for training, {sizes['val']} for validation" in text
    assert f"and {sizes['test']} for the test" in text


def test_readme_begins_within_two_screens() -> None:
    before_details, _, _ = README.read_text(encoding="utf-8").partition("\n---\n")
    assert len(before_details.splitlines()) <= 100
    assert README.read_text(encoding="utf-8") != before_details


def picture(path: Path, height: int, width: int, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(path)


@pytest.mark.parametrize("page", [README, YOUR_DATA], ids=lambda page: page.name)
def test_own_pictures_in_four_commands(clone: Path, page: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(12):
        height, width = 40 + number, 60 - number
        picture(clone / "PICTURES" / f"{number}.jpg", height, width, rng)
        mask = np.zeros((height, width), np.uint8)
        mask[10:20, 10:30] = 255
        (clone / "MASKS").mkdir(exist_ok=True)
        Image.fromarray(mask).save(clone / "MASKS" / f"{number}.png")
    picture(clone / "NEW_PICTURES" / "odd.jpg", 97, 211, rng)

    (block,) = (content for _, content in blocks(page, "bash") if "NEW_PICTURES" in content)
    prepare, *calls = block.strip().splitlines()
    assert prepare == "mkdir -p data && cp -r PICTURES data/images && cp -r MASKS data/masks"
    (clone / "data").mkdir()
    (clone / "PICTURES").rename(clone / "data" / "images")
    (clone / "MASKS").rename(clone / "data" / "masks")
    assert [call.split()[3] for call in calls] == ["fit", "test", "predict"]
    for call in calls:
        small = [*SHORT, "--data.size=[32,32]"]
        assert main([*call.split()[3:], *small]) == 0

    with (
        Image.open(clone / "predicted" / "odd.png") as mask,
        Image.open(clone / "predicted" / "odd_overlay.png") as seen,
    ):
        assert mask.size == seen.size == (211, 97)
        assert set(np.unique(np.asarray(mask))) <= {0, 255}


def test_a_data_set_of_ones_own(clone: Path) -> None:
    folder = clone / yaml.safe_load((clone / "my_data.yaml").read_text("utf-8"))["data"]["init_args"]["folder"]
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(10):
        image = rng.normal(size=(1, 24, 32)).astype(np.float32)
        np.savez(folder / f"{number}.npz", image=image, mask=(image[0] > 1).astype(np.uint8))
    for words in program(YOUR_DATA):
        if "my_data.yaml" in words:
            assert main([*words, *SHORT]) == 0
    (predicted,) = clone.glob("runs/my_data/version_0/predict_0/?.png")
    with Image.open(predicted) as mask:
        assert mask.size == (32, 24)
