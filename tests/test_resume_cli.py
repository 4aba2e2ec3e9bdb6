"""Damaged, foreign and unwritable checkpoints, and finished runs, by the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import restarts, tiny

OVERLAY = str(restarts.ROOT / "configs" / "preemptible.yaml")
RUN = Path("runs/tiny/version_0")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write()


def test_the_same_command_again_begins_goes_on_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run("--config", OVERLAY) == 0
    before = restarts.table(RUN), restarts.events(RUN), (RUN / "checkpoints/last.ckpt").read_bytes()
    capsys.readouterr()
    assert tiny.run("--config", OVERLAY) == 0
    assert "nothing to do: 1 of 1 epochs are done; raise trainer.max_epochs" in capsys.readouterr().out
    assert (restarts.table(RUN), restarts.events(RUN), (RUN / "checkpoints/last.ckpt").read_bytes()) == before
    assert tiny.run("--config", OVERLAY, "--trainer.max_epochs=2") == 0
    assert f"goes on  with epoch 2, after step 2, of {RUN}/checkpoints/last.ckpt" in capsys.readouterr().out
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
    table = restarts.table(RUN)
    assert before[0].items() <= table.items()
    assert [step for name, step in sorted(table) if name == "train/loss_step"] == [0, 1, 2, 3]
    assert {len(values) for values in restarts.events(RUN).values()} == {1}


@pytest.mark.case("G3")
def test_a_damaged_last_checkpoint_is_told_and_the_best_taken(capfd: pytest.CaptureFixture[str]) -> None:
    assert tiny.run() == 0
    last = RUN / "checkpoints" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    capfd.readouterr()
    assert tiny.run("--config", OVERLAY, "--trainer.max_epochs=2") == 0
    error = capfd.readouterr().err
    assert f"'{last}' is damaged, the checksum of its entry" in error
    assert f"going on from '{RUN}/checkpoints/best-000-" in error
    assert torch.load(last, weights_only=True)["global_step"] == 4


@pytest.mark.case("G3")
def test_a_checkpoint_of_another_network_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert tiny.run() == 0
    assert tiny.run("--config", OVERLAY, "--model.net.init_args.width=5") == 1
    assert "The checkpoint does not fit the network UNet: " in capfd.readouterr().err
    assert (RUN / "rank_0" / "error.txt").exists()


@pytest.mark.slow
@pytest.mark.case("G3", "G4")
def test_a_disk_that_fills_up_ends_all_ranks_with_its_name(tmp_path: Path, disk: Path) -> None:
    arguments = restarts.command(tmp_path, f"--runs={disk}/runs")
    codes = restarts.wait(restarts.start(2, arguments, tmp_path))
    assert codes == [1, 1]
    one, two = ((tmp_path / f"output_{rank}.txt").read_text() for rank in (0, 1))
    two += "".join(path.read_text() for path in disk.rglob("rank_1/output.log"))
    assert "[disk-full]" in one
    assert "checkpoints" in one
    assert "Rank 0 failed" in two
    assert "disk-full" in two


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with less room than two checkpoints need."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=180k", "none", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    yield folder
    subprocess.run(["umount", "-l", folder], capture_output=True, check=False)
