from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from template.data.folder import Folder
from template.distributed.faults import NamedError


@pytest.fixture
def data(tmp_path: Path) -> Folder:
    for name in ("b/1 图.png", "a/2.png", "a/notes.txt", "a/deep/1 图.jpg"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".txt":
            file.write_text("no picture", encoding="utf-8")
        else:
            Image.fromarray(np.zeros((4, 6), np.uint8)).save(file)
    return Folder(images=str(tmp_path), classes=["background", "a"])


def test_new_images_of_a_pattern(data: Folder, tmp_path: Path) -> None:
    every = data.predict_cases(tmp_path / "**" / "*")
    assert [(case.name, case.source[0]) for case in every] == [
        ("2", f"{tmp_path}/a/2.png"),
        ("1 图_jpg", f"{tmp_path}/a/deep/1 图.jpg"),
        ("1 图_png", f"{tmp_path}/b/1 图.png"),
    ]
    assert [case.name for case in data.predict_cases(tmp_path / "?" / "*.png")] == ["2", "1 图"]


def test_a_name_with_the_letters_of_a_pattern_is_a_name(data: Folder, tmp_path: Path) -> None:
    file = tmp_path / "scan[1].png"
    (tmp_path / "a" / "2.png").rename(file)
    assert [case.name for case in data.predict_cases(file)] == ["scan[1]"]


def test_a_pattern_without_pictures_is_named(data: Folder, tmp_path: Path) -> None:
    for pattern in ("*.gif", "a/*.txt"):
        with pytest.raises(NamedError, match="no picture matches") as caught:
            data.predict_cases(tmp_path / pattern)
        assert caught.value.identifier == "data-missing"


def test_masks_of_pictures_of_several_folders_may_lie_beside_none_of_them(data: Folder, tmp_path: Path) -> None:
    (case, *_) = data.predict_cases(tmp_path / "a" / "*.png")
    with pytest.raises(NamedError, match="folder of their images"):
        data.write(case, torch.zeros(4, 6, dtype=torch.uint8), tmp_path / "a")
