from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from template.callbacks import phases
from template.callbacks.phases import PhaseDisplay, clock
from template.callbacks.progress import LineProgress, NotebookProgress, TerminalProgress, progress_bar

from .conftest import Stripes, segmenter, trainer


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and shows what would be on its screen."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        lines, row = [""], 0
        for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.getvalue()):
            if piece == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif piece.startswith("\x1b"):
                if piece == "\x1b[2K":
                    lines[row] = ""
                elif piece.endswith("A"):
                    row -= int(piece[2:-1])
            elif piece != "\r":
                lines[row] += piece
        return [line.rstrip() for line in lines if line.strip()]


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[Terminal]:
    stream = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stdout", stream)
        yield stream


def fit(*callbacks: Any, epochs: int = 2, data: Stripes | None = None, **kwargs: Any) -> None:
    settings = {"enable_progress_bar": True, "max_epochs": epochs, **kwargs}
    trainer(*callbacks, **settings).fit(segmenter(), datamodule=data or Stripes())


class TestChoice:
    def test_a_terminal_gets_a_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal(monkeypatch):
            assert type(progress_bar()) is TerminalProgress

    @pytest.mark.parametrize(("isatty", "term"), [(False, "xterm"), (True, "dumb")])
    def test_a_file_and_a_terminal_without_a_cursor_get_lines(
        self, monkeypatch: pytest.MonkeyPatch, isatty: bool, term: str
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: isatty, raising=False)
        monkeypatch.setenv("TERM", term)
        assert type(progress_bar()) is LineProgress

    def test_a_notebook_gets_a_bar_and_an_ipython_shell_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shell = SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        assert type(progress_bar()) is NotebookProgress
        del shell.kernel
        assert type(progress_bar()) is LineProgress


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (75, "1:15"), (3599, "59:59"), (3661, "1:01:01")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


class TestLines:
    def test_one_line_an_epoch_and_one_at_the_end(self, capsys: pytest.CaptureFixture[str]) -> None:
        fit(LineProgress())
        *epochs, last = capsys.readouterr().out.splitlines()
        number = r"\d\.\d{4}"
        line = rf"epoch %d/2  loss {number}  val loss {number}  val Dice 0.8571  lr 1.00e-06  \d+\.\d s"
        # Labelled are 3 columns, predicted 4: Dice 2·3 / (3 + 4).
        assert len(epochs) == 2
        assert re.fullmatch(line % 1 + r"  left 0:\d\d", epochs[0])
        assert re.fullmatch(line % 2, epochs[1])
        assert re.fullmatch(r"fit: 2 epochs in 0:\d\d", last)

    def test_shows_the_mean_loss_of_the_epoch(self, capsys: pytest.CaptureFixture[str]) -> None:
        losses: list[float] = []

        class Spy(Callback):
            def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
                losses.append(float(outputs["loss"]) * 2)  # Lightning divides by the accumulation

        model, data = segmenter(), Stripes(train=9, batch_size=4)
        for group in (0, 4):  # make the two micro-batches of a step differ
            data.read = _darker(data.read, group)  # type: ignore[method-assign]
        trainer(LineProgress(), Spy(), max_epochs=1, enable_progress_bar=True, accumulate_grad_batches=2).fit(
            model, datamodule=data
        )
        shown = float(re.findall(r"  loss (\S+)", capsys.readouterr().out)[0])
        assert len(set(losses)) > 1
        assert shown == pytest.approx(sum(losses) / len(losses), abs=1e-4)

    def test_leaves_out_what_an_epoch_without_validation_does_not_have(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fit(LineProgress(), epochs=2, check_val_every_n_epoch=2)
        first, second, _ = capsys.readouterr().out.splitlines()
        assert "val" not in first
        assert "val Dice 0.8571" in second

    def test_a_long_epoch_gives_signs_of_life(self, capsys: pytest.CaptureFixture[str]) -> None:
        display = LineProgress()
        display.interval = 0.0  # instead of a minute
        fit(display, epochs=1)
        out = capsys.readouterr().out
        assert re.search(r"^epoch 1/1  1/2  left 0:00  loss \d\.\d{3}$", out, re.MULTILINE)
        assert re.search(r"^epoch 1/1 validate  1/2  loss \d\.\d{3}$", out, re.MULTILINE)

    def test_a_short_epoch_gives_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        fit(LineProgress(), epochs=1)
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_the_other_verbs_say_how_long_they_took(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = trainer(LineProgress(), enable_progress_bar=True)
        run.validate(segmenter(), datamodule=Stripes(), verbose=False)
        run.test(segmenter(), datamodule=Stripes(test=1), verbose=False)
        run.predict(segmenter(), datamodule=Stripes(), return_predictions=False)
        lines = capsys.readouterr().out.splitlines()
        assert [re.sub(r"0:\d\d", "TIME", line) for line in lines] == [
            "validate: 2 batches in TIME",
            "test: 1 batch in TIME",
            "predict: 2 batches in TIME",
        ]

    def test_the_sanity_check_leaves_no_trace(self, capsys: pytest.CaptureFixture[str]) -> None:
        fit(LineProgress(), epochs=1, num_sanity_val_steps=-1, limit_val_batches=2)
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_a_fit_bounded_by_steps_tells_the_time_left(self, capsys: pytest.CaptureFixture[str]) -> None:
        fit(LineProgress(), epochs=-1, max_steps=4)
        first, second, _ = capsys.readouterr().out.splitlines()
        assert first.startswith("epoch 1  loss")
        assert "left" in first
        assert "left" not in second

    def test_an_endless_fit_does_not(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Stop(Callback):
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                trainer.should_stop = trainer.current_epoch == 1

        fit(LineProgress(), Stop(), epochs=-1)
        assert "left" not in capsys.readouterr().out

    def test_other_ranks_say_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        class OtherRank(LineProgress):
            def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
                super().setup(SimpleNamespace(is_global_zero=False), pl_module, stage)  # type: ignore[arg-type]
                self._trainer = trainer

        fit(OtherRank())
        assert capsys.readouterr().out == ""


def _darker(read: Any, group: int) -> Any:
    def darker(case: Any) -> Any:
        image, mask = read(case)
        return (image * 0.5 if case.source >= group + 2 else image), mask

    return darker


class TestBars:
    def test_a_terminal_is_left_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal(monkeypatch) as stream:
            fit(progress_bar())
            assert sys.stdout is stream
            assert [re.sub(r"\d:\d\d", "TIME", line) for line in stream.screen()] == ["fit: 2 epochs in TIME"]
        shown = stream.getvalue()
        assert re.search(r"epoch 1/2 .*2/2  left 0:00  loss \d\.\d{3}", shown)
        assert re.search(r"epoch 2/2 validate .*2/2  loss \d\.\d{3}  val loss \d\.\d{3}  val Dice 0\.857", shown)

    def test_the_cursor_is_not_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        visible: list[bool] = []

        class Look(Callback):
            def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
                visible.append(stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l"))

        with terminal(monkeypatch) as stream:
            fit(progress_bar(), Look())
        assert visible == [True] * 4

    def test_prints_and_log_messages_pass_above_the_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logger = logging.getLogger("some.library")

        class Talk(Callback):
            def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
                print("printed")
                logger.warning("logged")

        with terminal(monkeypatch) as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            handler = logging.StreamHandler()
            logger.addHandler(handler)
            logger.propagate = False
            try:
                fit(progress_bar(), Talk(), epochs=1)
                assert handler.stream is stream
            finally:
                logger.removeHandler(handler)
            assert stream.screen()[:-1] == ["printed", "logged"] * 2

    def test_messages_that_go_to_a_file_still_go_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = io.StringIO()

        class Warn(Callback):
            def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
                print("warned", file=sys.stderr)

        with terminal(monkeypatch) as stream:
            monkeypatch.setattr(sys, "stderr", file)
            fit(progress_bar(), Warn(), epochs=1)
        assert file.getvalue().count("warned\n") == 2
        assert "warned" not in stream.getvalue()

    def test_a_failure_finds_a_clean_screen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Fail(Callback):
            def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
                raise RuntimeError("boom")

        with terminal(monkeypatch) as stream:
            with pytest.raises(RuntimeError, match="boom"):
                fit(progress_bar(), Fail())
            assert sys.stdout is stream
            assert stream.screen() == []

    def test_stays_on_one_line_of_a_narrow_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal(monkeypatch, columns=40) as stream:
            fit(progress_bar(), epochs=1)
            bars = [line for line in re.split(r"[\r\n]", stream.getvalue()) if "epoch" in line]
        assert bars
        assert all(len(re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line)) <= 40 for line in bars)

    def test_a_notebook_shows_one_bar_and_removes_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        fit(NotebookProgress())
        out = capsys.readouterr().out
        assert re.search(r"epoch 1/2: .*\| 2/2, left 0:00  loss \d\.\d{3}", out)
        assert re.search(r"epoch 2/2 validate: .*\| 2/2, loss \d\.\d{3}  val loss \d\.\d{3}  val Dice 0\.857", out)
        assert re.search(r"\r +\rfit: 2 epochs in 0:\d\d\n$", out)
        assert out.count("\n") == 1

    def test_a_fit_is_followed_by_a_test_without_its_losses(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = trainer(NotebookProgress(), max_epochs=1, enable_progress_bar=True)
        run.fit(segmenter(), datamodule=Stripes())
        capsys.readouterr()
        run.test(segmenter(), datamodule=Stripes(), verbose=False)
        assert "loss" not in capsys.readouterr().out


class Shown(PhaseDisplay):
    """Counts how often it reads values, which on a GPU is how often it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[str] = []

    def _open(self) -> None:
        self.states.append(f"{self._title()} {self._count()}")

    def _draw(self) -> None:
        self.states.append(f"{self._title()} {self._count()}")

    def _shut(self) -> None:
        self.states.append("shut")


class TestPhases:
    def test_draws_by_the_clock_and_not_by_the_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Every reading of the clock is 1 ms later: 40 fast steps fit into one interval of 0.2 s.
        ticks = iter(range(10**6))
        monkeypatch.setattr(phases, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 1000))
        display = Shown()
        fit(display, epochs=1, data=Stripes(train=80), limit_val_batches=0)
        assert display.states == ["epoch 1/1 0/40", "epoch 1/1 40/40", "shut"]

    def test_returns_to_the_epoch_after_a_validation_inside_it(self) -> None:
        display = Shown()
        display.interval = 0.0
        fit(display, epochs=1, data=Stripes(train=8, val=2), val_check_interval=2)
        assert display.states == [
            "epoch 1/1 0/4",
            "epoch 1/1 1/4",
            "epoch 1/1 2/4",
            "epoch 1/1 validate 0/1",
            "epoch 1/1 validate 1/1",
            "epoch 1/1 validate 1/1",
            "epoch 1/1 0/4",
            "epoch 1/1 3/4",
            "epoch 1/1 4/4",
            "epoch 1/1 validate 0/1",
            "epoch 1/1 validate 1/1",
            "epoch 1/1 validate 1/1",
            "shut",
        ]

    def test_can_be_turned_off_and_on(self) -> None:
        display = Shown()
        display.disable()
        fit(display, epochs=1)
        assert display.states == []
        display.enable()
        fit(display, epochs=1)
        assert display.states[-1] == "shut"

    def test_the_loss_shown_is_that_of_the_step_whatever_the_accumulation(self) -> None:
        seen: list[tuple[str, float]] = []

        class Values(Shown):
            interval = 0.0

            def _draw(self) -> None:
                if self._phase == "train":
                    seen.append((self._values(), float(self.trainer.callback_metrics["train/loss_step"])))

        fit(Values(), epochs=1, data=Stripes(train=8, batch_size=4), accumulate_grad_batches=2)
        assert len(seen) == 4
        assert all(text == f"loss {loss:.3f}" for text, loss in seen)
