"""What every test has: fixed seeds, and a check that nothing is left behind for the next one."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Lightning sets it at its import, whichever test that falls into: torch then asks for GPUs without starting CUDA.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# The program sets it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# A shell ignores Ctrl-C for what it starts in the background, and the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = Path(__file__).parent.parent
#: Set by pytest, by Lightning's ``seed_everything``, by torch's compiler and by a run on the CPU; restored, but no
#: fault of the test.
_FREE_TO_CHANGE = {
    "PYTEST_CURRENT_TEST",
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "TORCHINDUCTOR_CACHE_DIR",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "LD_LIBRARY_PATH",  # by the import of OpenCV, which other libraries import where it is installed
}
#: Where Lightning, and this project, write when they are not told where.
_DEFAULT_OUTPUTS = ("runs", "lightning_logs", "checkpoints")
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Same random numbers in every test, whichever ran before it."""
    random.seed(0)
    if "torch" in sys.modules:  # tests of the house do without, and start at once
        import numpy as np
        import torch

        np.random.seed(0)
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def told() -> None:
    """What Lightning tells is heard in every test; a rehearsal of ``doctor`` that runs in this process silences it."""
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves something of the process changed, and put it right for the next one."""
    checks = [check() for check in (_environment, _directory, _signals, _process_group, _children, _outputs)]
    yield
    left = [what for check in checks for what in check()]
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


# Each of these looks at the state before the test and returns a function that names, and undoes, what changed.
_Check = Callable[[], list[str]]


def _environment() -> _Check:
    before = dict(os.environ)

    def after() -> list[str]:
        names = before.keys() | os.environ.keys()
        changed = {name for name in names if before.get(name) != os.environ.get(name)}
        os.environ.clear()
        os.environ.update(before)
        return [f"environment variable {name}" for name in sorted(changed - _FREE_TO_CHANGE)]

    return after


def _directory() -> _Check:
    before = Path.cwd()

    def after() -> list[str]:
        if Path.cwd() == before:
            return []
        os.chdir(before)
        return ["another working directory"]

    return after


def _signals() -> _Check:
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def after() -> list[str]:
        changed = [number for number, handler in before.items() if signal.getsignal(number) != handler]
        for number in changed:
            if before[number] is not None:  # None: set by something else than Python, and cannot be set by it
                signal.signal(number, before[number])
        return [f"a handler of {signal.Signals(number).name}" for number in changed]

    return after


def _process_group() -> _Check:
    def after() -> list[str]:
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return []
        dist.destroy_process_group()
        return ["a process group"]

    return after


def _children() -> _Check:
    before = _running_children()

    def after() -> list[str]:
        left = _running_children() - before
        if left:  # loader workers end when their iterator is collected, and take a moment
            gc.collect()
            deadline = time.monotonic() + 3
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = _running_children() - before
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return [f"process {pid}" for pid in sorted(left)]

    return after


def _running_children() -> set[int]:
    """Children of this process that are no zombies; empty where there is no /proc."""
    ranks = sys.modules.get("tests.ranks")
    known = ranks.server_processes() if ranks else set()
    children = {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
    return {pid for pid in children - known if _state(pid) not in ("Z", "")}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _outputs() -> _Check:
    before = [name for name in _DEFAULT_OUTPUTS if (_ROOT / name).exists()]

    def after() -> list[str]:
        return [
            f"{name}/ in the repository" for name in _DEFAULT_OUTPUTS if (_ROOT / name).exists() and name not in before
        ]

    return after
