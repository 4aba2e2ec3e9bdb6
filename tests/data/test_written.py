"""Predicted masks take no other file's place, and none is there by half."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from template.data.decathlon import Decathlon
from template.data.folder import Folder
from template.data.module import SegmentationData
from template.data.nifti import Nifti
from template.data.nnunet import NnUNet
from template.data.written import whole
from template.distributed.faults import NamedError

from . import volume_sets

CLASSES = ["background", "object"]
NEW = torch.zeros(10, 26, 28, dtype=torch.uint8)


def _pictures(root: Path) -> Folder:
    for part, shape in (("images", (6, 5, 3)), ("masks", (6, 5))):
        (root / part).mkdir(parents=True)
        Image.fromarray(np.ones(shape, np.uint8)).save(root / part / "1.png")
    return Folder(images=str(root / "images"), masks=str(root / "masks"), classes=CLASSES)


def _nifti(root: Path) -> Nifti:
    for part, voxels in zip(("images", "masks"), volume_sets.body(0), strict=True):
        volume_sets.save(root / part / "1.nii.gz", voxels)
    return Nifti(images=str(root / "images"), masks=str(root / "masks"), classes=CLASSES)


@pytest.mark.parametrize("build", [_pictures, _nifti])
def test_masks_that_were_drawn_are_not_replaced(
    build: Callable[[Path], SegmentationData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = build(tmp_path)
    (case,) = data.predict_cases(tmp_path / "images")
    drawn = {file: file.read_bytes() for file in tmp_path.rglob("1.*")}
    (tmp_path / "link").symlink_to("masks")
    monkeypatch.chdir(tmp_path / "images")
    for folder in (tmp_path / "masks", tmp_path / "link", Path("../masks")):
        with pytest.raises(NamedError, match="own masks"):
            data.write(case, NEW, folder)
    for folder in (tmp_path / "images", Path()):
        with pytest.raises(NamedError, match="folder of their images"):
            data.write(case, NEW, folder)
    assert {file: file.read_bytes() for file in tmp_path.rglob("1.*")} == drawn


@pytest.mark.parametrize("build", [_pictures, _nifti])
def test_what_links_lead_to_is_not_replaced(build: Callable[[Path], SegmentationData], tmp_path: Path) -> None:
    """Data sets are often folders of links into a store, whose files may have the same names."""
    data = build(tmp_path)
    (image,) = (tmp_path / "images").iterdir()
    links = tmp_path / "links"
    links.mkdir()
    (links / image.name).symlink_to(image)
    (case,) = data.predict_cases(links)
    content = image.read_bytes()
    for folder in (links, tmp_path / "images"):
        with pytest.raises(NamedError, match="folder of their images"):
            data.write(case, NEW, folder)
    elsewhere = tmp_path / "out"
    elsewhere.mkdir()
    (elsewhere / image.name).symlink_to(image)  # from an older look at both side by side
    new = NEW if image.name.endswith(".nii.gz") else NEW[0, :6, :5]
    assert data.write(case, new, elsewhere) == elsewhere / image.name
    assert not (elsewhere / image.name).is_symlink()
    assert image.read_bytes() == content


def test_labels_of_tasks_are_not_replaced(tmp_path: Path) -> None:
    decathlon = Decathlon(str(volume_sets.decathlon(tmp_path / "d", 2)))
    nnunet = NnUNet(str(volume_sets.nnunet(tmp_path / "n", 2)))
    for data, root in ((decathlon, tmp_path / "d"), (nnunet, tmp_path / "n")):
        case = data.predict_cases(root / "imagesTs")[0]
        with pytest.raises(NamedError, match="own masks"):
            data.write(case, NEW, root / "labelsTr")


def test_what_is_cut_short_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.ones((2, 3, 4), np.uint8), np.eye(4)), file)
    before = file.read_bytes()

    def write(full: bool) -> None:
        with whole(file) as part:
            assert part.parent == tmp_path
            assert part.name.startswith(".")
            assert part.name.endswith(".nii.gz")
            part.write_bytes(b"half")
            if full:
                raise OSError(28, "No space left on device", str(part))

    with pytest.raises(OSError, match="No space left") as raised:
        write(full=True)
    assert raised.value.filename == str(file)
    assert file.read_bytes() == before
    write(full=False)
    assert file.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [file]
