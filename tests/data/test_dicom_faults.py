"""What can be wrong around a DICOM series: its mask, its files, and the folders about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from template.data.dicom import Dicom
from template.distributed.faults import NamedError

from . import volume_sets
from .refused import refused
from .test_volume_faults import FAULTS

pydicom = pytest.importorskip("pydicom")


def read_all(root: Path) -> int:
    """Read a data set as a training does: its list, then each case."""
    data = Dicom(
        images=str(root / "dicom"), masks=str(root / "masks"), classes=["background", "liver", "tumour"],
        val_fraction=0.0, test_fraction=0.0, cache_dir=str(root / "cache"),
    )  # fmt: skip
    cases = data.cases("train")
    for case in cases:
        data.read(case)
    return len(cases)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if FAULTS[fault].of == 1])
def test_a_fault_of_a_mask_is_named_with_the_file(fault: str, tmp_path: Path) -> None:
    file = volume_sets.dicom(tmp_path, 1) / "masks" / "patient 0_ct.nii.gz"
    FAULTS[fault].spoil(file)
    with pytest.raises(NamedError) as caught:
        read_all(tmp_path)
    assert caught.value.identifier in FAULTS[fault].identifiers
    assert "\n" not in caught.value.what
    # Of a mask that is not there, its folder is named.
    assert file.name in caught.value.what or fault == "mask missing"


def test_odd_names_are_read(tmp_path: Path) -> None:
    assert read_all(volume_sets.dicom(tmp_path / "my set 数据", 2, name="病人 {} (1)/扫描 ct")) == 20


def test_links_to_the_folders_themselves_and_pipes_are_passed_over(tmp_path: Path) -> None:
    root = volume_sets.dicom(tmp_path, 1)
    (root / "dicom" / "again").symlink_to(root / "dicom")
    (root / "dicom" / "patient 0" / "ct" / "around").symlink_to(root / "dicom" / "patient 0")
    os.mkfifo(root / "dicom" / "patient 0" / "ct" / "pipe.dcm")
    os.mkfifo(root / "dicom" / "patient 0" / "ct" / "1")
    assert read_all(root) == 10


def test_a_slice_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = volume_sets.dicom(tmp_path, 1)
    file, read = root / "dicom" / "patient 0" / "ct" / "003.dcm", pydicom.dcmread

    def denied(path: Path, **options: Any) -> Any:
        if path == file:  # rights do not stop root
            raise PermissionError(13, "Permission denied", str(file))
        return read(path, **options)

    monkeypatch.setattr(pydicom, "dcmread", denied)
    refused("data-unreadable", lambda: read_all(root), "003.dcm", "Permission denied")
