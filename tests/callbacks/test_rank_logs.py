"""What a rank prints and measures lands in its own folder."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

from template.callbacks import rank_logs
from template.callbacks.rank_logs import RankLogs, kept_output, write_error


def test_rank_0_prints_to_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kept_output(tmp_path, 0):
        print("to stdout")
        print("to stderr", file=sys.stderr)
        sys.stdout.write("10 %\r20 %\r30 %\n")  # a bar that is redrawn leaves its last form
    shown = capsys.readouterr()
    assert shown.out == "to stdout\n10 %\r20 %\r30 %\n"
    assert shown.err == "to stderr\n"
    assert (tmp_path / "output.log").read_text() == "to stdout\nto stderr\n30 %\n"


def test_colours_and_bars_stay_out_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kept_output(tmp_path, 0):
        sys.stdout.write("\r\x1b[2Kepoch 1 ━━━\r\x1b[2K\x1b[1;32mdone\x1b[0m\n")
    assert (tmp_path / "output.log").read_text() == "done\n"


def test_log_messages_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("a.library")
    logger.addHandler(handler)
    with kept_output(tmp_path, 0):
        logger.warning("said by a library")
    assert handler.stream is sys.stderr
    logger.removeHandler(handler)
    assert (tmp_path / "output.log").read_text() == "said by a library\n"


def test_other_ranks_print_to_their_log_alone(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom template.callbacks.rank_logs import kept_output\n"
        "print('before')\nwith kept_output(Path(sys.argv[1]), 1):\n"
        "    print('python')\n    os.system('echo of a child; echo warning >&2')\nprint('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "before\nafter\n"
    assert sorted((tmp_path / "output.log").read_text().splitlines()) == ["of a child", "python", "warning"]


def test_the_error_file_holds_message_and_traceback(tmp_path: Path) -> None:
    try:
        raise ValueError("boom") from KeyError("cause")
    except ValueError as error:
        write_error(tmp_path / "rank_3", error)
    text = (tmp_path / "rank_3" / "error.txt").read_text()
    assert text.startswith("ValueError: boom\n\n")
    assert "KeyError: 'cause'" in text
    assert "test_rank_logs.py" in text


class OneWeight(LightningModule):
    """Loss 3 w: the gradient is 3."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return 3 * self.w.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.case("notes/tensorboard-race")
def test_events_hold_times_gradient_norm_and_memory(tmp_path: Path) -> None:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=4,
        log_every_n_steps=2,
        callbacks=[RankLogs(tmp_path)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(OneWeight(), DataLoader(torch.zeros(8, 1)))
    events = EventAccumulator(str(tmp_path)).Reload()
    names = {"rank/step_ms", "rank/data_wait_ms", "rank/gradient_norm", "rank/memory_mib"}
    assert set(events.Tags()["scalars"]) == names
    assert [event.value for event in events.Scalars("rank/gradient_norm")] == [3, 3]
    assert [event.step for event in events.Scalars("rank/step_ms")] == [2, 4]
    assert all(event.value > 0 for name in names for event in events.Scalars(name))


class Saves(Callback):
    """Writes a checkpoint at the second step, and counts how often events were written out before and after."""

    def __init__(self, folder: Path, written: list[int]) -> None:
        self.folder, self.written = folder, written
        self.counts: tuple[int, int] | None = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_step == 2:
            before = len(self.written)
            trainer.save_checkpoint(self.folder / "two.ckpt")
            self.counts = before, len(self.written)


def test_a_checkpoint_brings_the_events_before_it_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer's thread is behind by an event or so, so that how much is on disk would be a matter of luck."""
    monkeypatch.setattr(rank_logs, "SECONDS_TO_WRITE", 1e9)
    written: list[int] = []
    flush = SummaryWriter.flush
    monkeypatch.setattr(SummaryWriter, "flush", lambda self: (written.append(1), flush(self)))
    saves = Saves(tmp_path, written)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_steps=4, log_every_n_steps=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[RankLogs(tmp_path), saves],
    )  # fmt: skip
    trainer.fit(OneWeight(), DataLoader(torch.zeros(8, 1)))
    assert saves.counts == (0, 1)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("rank/step_ms")] == [1, 2, 3, 4]
