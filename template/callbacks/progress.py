"""Progress: one bar in a terminal or a notebook, one line an epoch in a file.

Lightning's own bars read the loss at every step, and leave lines behind: a second bar for the validation, a bar that
every warning breaks (tqdm) or that is drawn twice at the end (rich).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from .phases import PhaseDisplay

if importlib.util.find_spec("ipywidgets") is not None:
    from tqdm.auto import tqdm
else:  # tqdm.auto would warn that it falls back to text
    from tqdm import tqdm


def progress_bar() -> ProgressBar:
    """The display that suits where standard output goes: terminal, notebook, or anything else."""
    if _in_notebook():
        return NotebookProgress()
    return TerminalProgress() if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else LineProgress()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class TerminalProgress(PhaseDisplay):
    """A bar that stays below whatever is printed, and goes when it is done."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._logged: list[tuple[Any, Any]] = []

    def _open(self) -> None:
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)),
                console=Console(),
                # Rich's own thread may hold its lock while a loader worker is forked, which then hangs if it prints.
                auto_refresh=False,
                redirect_stderr=sys.stderr.isatty(),
                transient=True,
                expand=True,
            )
            self._progress.add_task("", state="")
            streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
            terminals = [stream for stream in streams if stream is not None and stream.isatty()]
            self._progress.start()
            # Rich hides the cursor while the bar is shown; a process that is killed could not bring it back.
            self._progress.console.show_cursor(True)
            self._redirect_logging(terminals)
        task = self._progress.task_ids[0]
        self._progress.reset(task, total=self._total, description=self._title(), state=self._state())
        self._progress.refresh()

    def _draw(self) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done, state=self._state(), refresh=True)

    def _shut(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        for handler, stream in self._logged:
            handler.setStream(stream)
        self._logged.clear()

    def _redirect_logging(self, terminals: Sequence[object]) -> None:
        """Let log messages pass above the bar: handlers still hold the streams that Rich has replaced."""
        loggers = [logging.getLogger(name) for name in ("", *logging.root.manager.loggerDict)]
        for handler in {handler for logger in loggers for handler in logger.handlers}:
            if isinstance(handler, logging.StreamHandler) and handler.stream in terminals:
                self._logged.append((handler, handler.setStream(sys.stdout)))

    def _state(self) -> str:
        return "  ".join(part for part in (self._count(), self._left(), self._values()) if part)


class NotebookProgress(PhaseDisplay):
    """A bar in a notebook's cell: a widget where ipywidgets is installed, else a line of text."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None

    def _open(self) -> None:
        if self._bar is None:
            text = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"
            self._bar = tqdm(file=sys.stdout, dynamic_ncols=True, leave=False, bar_format=text)
        self._bar.reset(self._total)
        self._bar.set_description(self._title(), refresh=False)
        self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            return
        self._bar.n = self._done
        self._bar.set_postfix_str("  ".join(part for part in (self._left(), self._values()) if part), refresh=False)
        self._bar.refresh()

    def _shut(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class LineProgress(PhaseDisplay):
    """One line an epoch, and one a minute inside longer ones: for log files and consoles without a cursor."""

    interval = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._finished: str | None = None
        self._validated = False
        self._epoch_start = 0.0
        self._rate: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clocks: an epoch that is resumed inside does not call :meth:`on_train_epoch_start`."""
        super().on_train_start(trainer, pl_module)
        self._start_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line of the epoch before: only now are its mean loss and its time known."""
        self._write_epoch(trainer)
        self._start_epoch(trainer)
        super().on_train_epoch_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember that the epoch was validated."""
        super().on_validation_end(trainer, pl_module)
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the epoch that ended."""
        self._phase = "train"
        self._finished = self._title()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last epoch's line."""
        self._write_epoch(trainer)
        super().on_train_end(trainer, pl_module)

    def _start_epoch(self, trainer: Trainer) -> None:
        self._finished, self._validated, self._epoch_start = None, False, time.monotonic()
        groups = trainer.optimizers[0].param_groups if trainer.optimizers else []
        self._rate = float(groups[0]["lr"]) if groups else None

    def _write_epoch(self, trainer: Trainer) -> None:
        if self._finished is None or not self._enabled:
            return
        metrics = trainer.callback_metrics
        parts = [self._finished]
        if "train/loss" in metrics:
            parts.append(f"loss {float(metrics['train/loss']):.4f}")
        if self._validated:
            parts += [f"{name} {value:.4f}" for name, value in self._scores.items()]
        if self._rate is not None:
            parts.append(f"lr {self._rate:.2e}")
        parts += [f"{time.monotonic() - self._epoch_start:.1f} s", self._left()]
        print("  ".join(part for part in parts if part), flush=True)

    def _open(self) -> None:
        pass

    def _draw(self) -> None:
        if time.monotonic() - self._phase_start >= self.interval:
            parts = (self._title(), self._count(), self._left(), self._values())
            print("  ".join(part for part in parts if part), flush=True)

    def _shut(self) -> None:
        pass
