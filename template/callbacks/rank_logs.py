"""Each rank's own folder: what it printed, how long its steps took, why it failed."""

from __future__ import annotations

import io
import logging
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter

from ..distributed.faults import NamedError
from ..distributed.told import ERROR_FILE, printable, text_of
from .events import rewind
from .history import SECONDS_TO_WRITE

LOG_FILE = "output.log"
#: Colours and cursor movements of a terminal: control sequences of ECMA-48.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[@-~]")


class _Copy(io.TextIOBase):
    """Text stream that passes everything on and writes whole lines to a log; redrawn lines once, in their last form."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream = stream
        self._log = log
        self._line = ""

    def write(self, text: str) -> int:
        self._stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._log.write(_CONTROLS.sub("", line).rstrip("\r").rpartition("\r")[2] + "\n")
        if lines:
            self._log.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def __getattr__(self, name: str) -> Any:
        # Whatever else a terminal or a notebook's stream can do.
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


@contextmanager
def kept_output(folder: Path, rank: int) -> Iterator[None]:
    """Write what this rank prints to its own log: rank 0 beside the terminal, all others instead of it.

    Args:
        folder: The rank's folder; made here, by this rank alone.
        rank: Rank of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG_FILE).open("a", encoding="utf-8", errors="backslashreplace", buffering=1) as log:
        if rank == 0:
            out, err = sys.stdout, sys.stderr
            with redirect_stdout(_Copy(out, log)), redirect_stderr(_Copy(err, log)), _logged_to(err):
                yield
            return
        # By descriptor, so that what C++ prints goes there too.
        streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
        before = [os.dup(stream.fileno()) for stream in streams]
        for stream in streams:
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
        try:
            yield
        finally:
            for stream, descriptor in zip(streams, before, strict=True):
                stream.flush()
                os.dup2(descriptor, stream.fileno())
                os.close(descriptor)


@contextmanager
def _logged_to(terminal: TextIO) -> Iterator[None]:
    """Let log handlers that hold the terminal's stream, as Lightning's do since its import, follow ``sys.stderr``."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    holding = [h for h in handlers if isinstance(h, logging.StreamHandler) and h.stream is terminal]
    for handler in holding:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in holding:
            handler.setStream(terminal)


def write_error(folder: Path, error: BaseException) -> Path:
    """Write an exception with its traceback to ``error.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(traceback.format_exception(error))
    heading = str(error) if isinstance(error, NamedError) else f"{type(error).__name__}: {text_of(error)}"
    file = folder / ERROR_FILE
    file.write_text(printable(f"{heading}\n\n{text}"), encoding="utf-8")
    return file


class RankLogs(Callback):
    """TensorBoard events of each rank: step time and wait for data (ms), gradient norm, memory (MiB).

    Args:
        folder: The rank's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None
        self._ended = self._started = 0.0
        self._norm = self._flushed = 0.0
        self._logged = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the rank's event file, after a resume without what came after the checkpoint."""
        step = self._logged = trainer.global_step
        folders = [self.folder]
        if trainer.is_global_zero:  # of ranks that this run no longer has
            numbers = ((re.fullmatch(r"rank_(\d+)", path.name), path) for path in self.folder.parent.glob("rank_*"))
            folders += [path for match, path in numbers if match and int(match[1]) >= trainer.world_size]
        for folder in folders:
            rewind(folder, lambda _tag, logged, _number: logged <= step)
        self._writer = SummaryWriter(str(self.folder))
        self._ended = time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take the time at which the batch was there."""
        self._started = time.perf_counter()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Take the gradient norm, after DDP's average: it is the same on every rank, or something is wrong."""
        if self._due(trainer, trainer.global_step + 1):
            grads = [p.grad for p in pl_module.parameters() if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in grads]))
            self._norm = norm.item()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log every ``trainer.log_every_n_steps``."""
        now, step = time.perf_counter(), trainer.global_step
        if self._writer is not None and self._due(trainer, step):
            self._logged = step
            values = {
                "rank/step_ms": (now - self._started) * 1e3,
                "rank/data_wait_ms": (self._started - self._ended) * 1e3,
                "rank/gradient_norm": self._norm,
                "rank/memory_mib": _memory_mib(),
            }
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            if now - self._flushed > SECONDS_TO_WRITE:
                self._flush()
        self._ended = now

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write out what is logged: a kill after a checkpoint leaves no gap then."""
        self._flush()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the rank's event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            self._flushed = time.perf_counter()

    def _due(self, trainer: Trainer, step: int) -> bool:
        every: int = getattr(trainer, "log_every_n_steps", 0)  # set by Lightning's logger connector
        # Inside an accumulation window the step is still that of the window before.
        return every > 0 and step % every == 0 and step > self._logged


def _memory_mib() -> float:
    """Highest memory so far: of the GPU where there is one, else of the process (Linux counts it in KiB)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
