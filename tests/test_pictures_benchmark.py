from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pictures

PEERS = {
    "torchvision": pictures.by_torchvision,
    "albumentations": pictures.by_albumentations,
    "monai": pictures.by_monai,
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.filterwarnings("ignore")  # of libraries that look for others
def test_peers_make_what_ours_makes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}")
    monkeypatch.setattr(pictures, "PICTURES", 1)
    for variable in ("LD_LIBRARY_PATH", "CUBLAS_WORKSPACE_CONFIG"):  # OpenCV and MONAI change them on import
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    ((image, mask),) = pictures.pictures(tmp_path)
    assert 400_000 < Path(image).stat().st_size < 500_000  # as large as a photograph's: PNG can do little with noise
    torch.manual_seed(0)
    made: Any = PEERS[name]()(image, mask)
    assert made["image"].shape == (3, 256, 256)
    assert made["image"].dtype == torch.float32
    assert -0.5 < made["image"].min() < made["image"].max() < 1.6
    assert made["mask"].shape in {(256, 256), (1, 256, 256)}
    assert set(made["mask"].unique().tolist()) <= {0, 1, 2}
    pictures.ours(tmp_path)()
