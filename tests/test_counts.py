"""What makes a step slow, counted: numbers that no load of a machine changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.utils._python_dispatch import TorchDispatchMode

from template.callbacks.on_cpu import OnCpu
from template.callbacks.rank_logs import RankLogs
from template.callbacks.resume import ExactResume
from template.callbacks.sentinel import DivergenceSentinel
from template.data.nifti import LiTS
from template.data.phantom import Phantom
from template.distributed import world
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.models.unet import UNet
from template.quiet import silence_known
from tests.data import volume_sets
from tests.ranks import run_ranks

ROOT = Path(__file__).resolve().parents[1]
#: Steps that are counted; logs are written before and after them.
FIRST, LAST = 4, 9
BATCH_NORMS = 10  # of a UNet of depth 2: two at each of three scales down, two at each of two up


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[f"{func.namespace}.{func._schema.name.partition('::')[2]}"] += 1
        return func(*args, **(kwargs or {}))


class CountSteps(Callback):
    """Counts operations from the start of one training step to the start of another."""

    def __init__(self) -> None:
        self.mode = _Count()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == FIRST:
            self.mode.__enter__()
        elif batch_idx == LAST:
            self.mode.__exit__(None, None, None)

    def of(self, namespace: str) -> dict[str, float]:
        """Operations of a step, by name."""
        steps = LAST - FIRST
        return {name: n / steps for name, n in self.mode.found.items() if name.startswith(namespace)}


def counted(folder: Path, count: CountSteps, rank: int = 0, **settings: Any) -> None:
    silence_known()
    seed_everything(0, workers=True, verbose=False)
    always = [ExactResume(), RankLogs(folder / f"rank_{rank}"), OnCpu(False), DivergenceSentinel(0)]
    trainer = Trainer(
        max_epochs=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        log_every_n_steps=50,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[*always, count],
        default_root_dir=folder,
        **{"accelerator": "cpu", **settings},
    )
    data = Phantom(train_cases=48, val_cases=2, size=32, batch_size=4, num_workers=0)
    # Adam counts its steps in tensors, which it reads on the CPU alone.
    module = Segmenter(UNet(width=4, depth=2), 3, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
    trainer.fit(module, datamodule=data)


class AroundTrainingStep(CountSteps):
    """Counts within ``training_step`` alone: samples are made by loader processes elsewhere, and here in this one."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        step = type(pl_module).training_step.__get__(pl_module)

        def training_step(*args: Any, **kwargs: Any) -> Any:
            with self.around():
                return step(*args, **kwargs)

        if batch_idx == FIRST:
            pl_module.training_step = training_step
        elif batch_idx == LAST:
            del pl_module.training_step

    def around(self) -> Any:
        return self.mode


def test_numbers_that_a_training_step_reads_back(tmp_path: Path) -> None:
    count = AroundTrainingStep()
    counted(tmp_path, count, devices=1)
    # Whether labels are classes, and whether the loss is finite: both are read at once on the CPU alone.
    assert count.of("aten._local_scalar_dense") == {"aten._local_scalar_dense": 2}


class RefuseWaiting(AroundTrainingStep):
    """Fails where the CPU waits for the GPU."""

    @contextmanager
    def around(self) -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        self.mode.found["steps"] += 1


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_waits_for_nothing(tmp_path: Path) -> None:
    refuse = RefuseWaiting()
    counted(tmp_path, refuse, devices=1, accelerator="gpu")
    assert refuse.mode.found["steps"] == LAST - FIRST


def _on_ranks(rank: int, world_size: int, folder: Path) -> dict[str, float]:
    world._store = dist.distributed_c10d._get_default_store()
    count = CountSteps()
    counted(folder, count, rank, devices=world_size, strategy=SafeDDPStrategy())
    return count.of("c10d")


def test_collectives_of_a_training_step(tmp_path: Path) -> None:
    for found in run_ranks(2, _on_ranks, 2, tmp_path):
        # A BatchNorm layer gathers once forward and sums once backward; the loss sums once, its gradient needs
        # nothing; DDP sends its one bucket; Lightning tells all ranks of a SIGTERM of rank 0.
        assert found == {
            "c10d.allgather_": BATCH_NORMS,
            "c10d.allreduce_": BATCH_NORMS + 1 + 1,
            "c10d.broadcast_": 1,
        }


_opened: list[str] = []
_listening = [False]


def _listen(event: str, arguments: Any) -> None:
    if _listening[0] and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


def test_a_volume_is_unpacked_once(tmp_path: Path) -> None:
    folder = volume_sets.lits(tmp_path / "lits")
    data = LiTS(folder=str(folder), batch_size=2, num_workers=0, cache_dir=str(tmp_path / "cache"))
    train = data._dataset(data.cases("train"), [])
    sys.addaudithook(_listen)  # there is no way to take one away
    numbers = []
    for epoch in (0, 1):
        _opened.clear()
        _listening[0] = True
        try:
            for index in range(len(train)):
                train[epoch, index]
        finally:
            _listening[0] = False
        numbers.append(Counter(Path(name).name for name in _opened if ".nii" in name))
    # 5 patients, of which one is for validation and one for the test: an image and a mask each, opened in turn for
    # their headers and for their voxels.
    assert len(numbers[0]) == 2 * 3
    assert not numbers[1]


def test_the_last_collection_of_the_interpreter_has_nothing_to_look_at(tmp_path: Path) -> None:
    program = """
import atexit, gc
atexit.register(lambda: print("left to collect:", len(gc.get_objects()), "frozen:", gc.get_freeze_count() > 20_000))
from template.__main__ import main
raise SystemExit(main(["fit", "--help"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    left = re.search(r"left to collect: (\d+) frozen: True", ended.stdout)
    assert left is not None, ended.stdout[-500:]
    assert int(left[1]) < 100
