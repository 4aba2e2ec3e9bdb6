"""What a rank tells the others about itself once a second, and where in the code its main thread is."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import socket
import sys
import sysconfig
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

#: Seconds in one place after which a main thread counts as standing.
SETTLED = 3.0

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
#: Code that looks again and again whether something has come: which of its lines a look finds it at means nothing.
_POLLING = ("/multiprocessing/", "/selectors.py", "/threading.py", "/queue.py")
_LAUNCHING = ("/torch/distributed/elastic/", "/torch/distributed/launcher/", "/torch/distributed/run.py")
#: Frames that may lie between a collective's Python function and the C++ call that waits.
_THIN = ("/torch/_ops.py", "/torch/autograd/function.py")


@dataclass(frozen=True)
class Beat:
    """State of one rank.

    Attributes:
        number: Counts the beats: a heart has stopped when it no longer changes.
        pid: Process.
        born: When the kernel started it, in clock ticks, so that a new process with its number is not taken for it.
        machine: Equal for processes that can see each other's process ids.
        host: Name of the machine.
        state: ``running``; ``ended`` normally; ``failed`` for a reason of its own; ``victim`` of another rank.
        reason: Why it failed.
        step: Optimizer step, or batch of an evaluation; None before the first.
        phase: Such as ``training step``.
        startup: Its first batch is not done yet.
        still: Seconds since its main thread was last seen to move.
        place: ``file:line function`` of the innermost frame that is no library's; the user's and models' before those
            of this package's machinery.
        code: The source line there.
        call: The collective that it is in; empty outside of one.
        loader: It is in its data loader.
        counts: Collectives entered so far, by process group. They are matched by order, so who has entered fewer is
            waited for.
        stack_file: Where its stack lies if it could not tell it by itself.
        phase_file: Where its last phase lies (:mod:`.phase_file`), on its machine.
        hosts: The store ends with it.
    """

    number: int
    pid: int
    born: str
    machine: str
    host: str
    state: str = "running"
    reason: str = ""
    step: int | None = None
    phase: str = "start-up"
    startup: bool = True
    still: float = 0.0
    place: str = ""
    code: str = ""
    call: str = ""
    loader: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    stack_file: str = ""
    phase_file: str = ""
    hosts: bool = False

    def dump(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def load(data: bytes) -> Beat:
        """Read what :meth:`dump` wrote."""
        return Beat(**json.loads(data))

    def process_gone(self) -> bool:
        """Whether the process no longer runs; False where that cannot be seen from here."""
        return self.machine == machine() and birth(self.pid) != self.born


@cache
def machine() -> str:
    """Names the kernel and the namespace in which process ids are counted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return socket.gethostname()


def birth(pid: int) -> str:
    """Start of a process in clock ticks (proc(5), field 22); empty once it has ended, also while nobody reaps it."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass
        return "running"
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class Where:
    """Where a thread is: as in :class:`Beat`, and its position, a number that changes when it moves."""

    place: str
    code: str
    call: str
    loader: bool
    position: int


def where(frame: FrameType) -> Where:
    """Look at the stack of a thread.

    Args:
        frame: Its innermost frame.
    """
    frames: list[tuple[CodeType, int, int]] = []
    walk: FrameType | None = frame
    while walk is not None:
        frames.append((walk.f_code, walk.f_lineno, walk.f_lasti))
        walk = walk.f_back
    kinds = [_kind(code.co_filename) for code, _, _ in frames]
    # A script that calls the trainer says less than what the trainer calls.
    running = kinds[: next((i for i, (code, _, _) in enumerate(frames) if _runs(code)), len(frames))]
    places = (("user", running), ("callback", running), ("user", kinds), ("callback", kinds), ("plumbing", kinds))
    at = next((within.index(kind) for kind, within in places if kind in within), 0)
    code, line, _ = frames[at]
    return Where(
        f"{short(code.co_filename)}:{line} {code.co_name}",
        source(code.co_filename, line),
        _collective([(kind, code.co_name) for kind, (code, _, _) in zip(kinds, frames, strict=True)]),
        "loader" in kinds,
        hash(tuple((code, last) for kind, (code, _, last) in zip(kinds, frames, strict=True) if kind != "polling")),
    )


def _collective(frames: list[tuple[str, str]]) -> str:
    """Name of the collective that the innermost frames belong to, or nothing."""
    call = ""
    for kind, name in frames:
        if name == "_engine_run_backward":
            return call or "backward"  # DDP's C++ code sums gradients within it
        if kind == "plumbing" and name in ("agree", "open_store"):
            return call or name
        if kind == "ddp":
            return call or name
        if kind == "collective":
            call = call if name == "wrapper" else name
        elif call or kind not in ("thin", "polling"):
            break
    return call


def _runs(code: CodeType) -> bool:
    """Whether a function is the one in which Lightning's trainer runs its loops."""
    return code.co_name == "_run" and code.co_filename.replace(os.sep, "/").endswith("/trainer/trainer.py")


@cache
def _kind(file: str) -> str:
    path = file.replace(os.sep, "/")
    if Path(file).is_relative_to(_PACKAGE):
        within = Path(file).relative_to(_PACKAGE).parts
        if within[0] == "callbacks":
            return "callback"
        return "plumbing" if within[0] in ("distributed", "doctor", "cli.py", "__main__.py") else "user"
    if "/torch/distributed/" in path and not any(part in path for part in _LAUNCHING):
        return "collective"
    if path.endswith("/torch/nn/parallel/distributed.py"):
        return "ddp"
    if path.endswith("/torch/utils/data/dataloader.py"):
        return "loader"
    if file.startswith(_LIBRARIES) or file.startswith("<") or "-packages/" in path:
        return "polling" if any(p in path for p in _POLLING) else "thin" if path.endswith(_THIN) else "library"
    return "user"


def is_library(file: str) -> bool:
    """Whether a source file is neither the user's nor this project's."""
    return _kind(file) not in ("user", "callback")


def is_packages(file: str) -> bool:
    """Whether a source file is one of this package's own."""
    return Path(file).is_relative_to(_PACKAGE)


def source(file: str, line: int) -> str:
    """A line of source code, without its indentation."""
    return linecache.getline(file, line).strip()[:80]


def short(file: str) -> str:
    """A path as seen from the working directory, or its last three parts."""
    path = Path(file)
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(Path(*path.parts[-3:]))


def collectives_entered() -> dict[str, int]:
    """Collectives that this process has entered, by process group; empty where this torch does not count them.

    Gloo and NCCL count them anyway, to find ranks that are out of step; reading the count costs the training nothing.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    counts: dict[str, int] = {}
    with contextlib.suppress(AttributeError, RuntimeError):
        for group, name in list(c10d._world.pg_names.items()):  # type: ignore[union-attr]
            counts[name] = group._get_sequence_number_for_group()
    return counts
