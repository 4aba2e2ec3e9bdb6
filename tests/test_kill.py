"""A run that is killed anywhere and started again with the same command is the run that was never killed.

``TEST_KILLS`` sets how often each number of processes is killed; 50 takes a while.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from template.runs import damage
from tests import restarts
from tests.test_launchers import environment, free_port

KILLS = int(os.environ.get("TEST_KILLS", "8"))
#: Kills of one run, before it is left to end.
OF_A_RUN = 4
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=3"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, float]]:
    """Folder of a run that nobody kills, and its duration in seconds; one for each number of processes."""
    done: dict[int, tuple[Path, float]] = {}

    def run(world_size: int) -> tuple[Path, float]:
        if world_size not in done:
            folder, started = tmp_path_factory.mktemp(f"undisturbed_{world_size}"), time.monotonic()
            codes = restarts.wait(restarts.start(world_size, restarts.command(folder), folder), 300)
            assert codes == [0] * world_size, (folder / "output_0.txt").read_text()
            done[world_size] = folder, time.monotonic() - started
        return done[world_size]

    return run


def check_same(folder: Path, other: Path, ranks: int) -> None:
    """Weights, states, files and history of a run's end; each step once, none missing."""
    one, two = restarts.ended(folder), restarts.ended(other)
    assert one["global_step"] == restarts.STEPS
    for key in one:
        assert restarts.equal(one[key], two[key]), key
    run, reference = restarts.newest(folder), restarts.newest(other)
    for read in (restarts.table, restarts.events):
        values = read(run)
        assert values == read(reference)
        assert {len(entries) for entries in values.values()} == {1}
        assert [step for name, step in sorted(values) if name == "train/loss_step"] == list(range(restarts.STEPS))
    for rank in range(ranks):
        values = restarts.events(run / f"rank_{rank}")  # its values are times
        assert {len(entries) for entries in values.values()} == {1}
        assert sorted(values) == sorted(restarts.events(reference / f"rank_{rank}"))
        assert [step for name, step in sorted(values) if name == "rank/step_ms"] == list(range(1, restarts.STEPS + 1))


def moment(chance: random.Random, number: int, folder: Path, ranks: int, seconds: float) -> tuple[str, float]:
    """A place at which a run kills itself, further on than its checkpoint, or a time at which it is killed."""
    last = folder / "checkpoints" / "last.ckpt"
    step = torch.load(last, weights_only=True)["global_step"] if last.exists() else 0
    rank, soon = chance.randrange(ranks), chance.randint(step + 1, min(step + 6, restarts.STEPS))
    checkpoint = chance.randint(1, 2 if step < 9 else 1)  # from step 12 on there is one more, at the end
    places = {
        "time": "",
        "step": f"step:{soon}:{rank}",
        "validation": f"validation:{(soon - 1) // 5}:{rank}",
        "writing": f"writing:{checkpoint}:0",
        "epoch": f"epoch:{(soon - 1) // 5}:{rank}",
        "backward": f"backward:{soon - 1}:{rank}",
        "written": f"written:{checkpoint}:0",
        "validated": f"validated:{(soon - 1) // 5}:{rank}",
    }
    place = list(places)[number % len(places)]
    return places[place], chance.uniform(0, 0.9 * seconds) if place == "time" else 0


@pytest.mark.case("G3", "G7")
@pytest.mark.parametrize("first", range(0, KILLS, OF_A_RUN))
@pytest.mark.parametrize("ranks", [2, 4])
def test_killed_anywhere_and_started_again(
    ranks: int, first: int, tmp_path: Path, undisturbed: Callable[[int], tuple[Path, float]]
) -> None:
    reference, seconds = undisturbed(ranks)
    chance, kept, leaders = random.Random(100 * ranks + first), [], []
    for number in range(first, min(first + OF_A_RUN, KILLS)):
        last = restarts.newest(tmp_path) if (tmp_path / "runs").exists() else tmp_path
        finished = last / "checkpoints" / "last.ckpt"
        if finished.exists() and torch.load(finished, weights_only=True)["global_step"] == restarts.STEPS:
            place, after = "", chance.uniform(0, 0.9 * seconds)  # a finished run is started again, and killed
        else:
            place, after = moment(chance, number, last, ranks, seconds)
        processes = restarts.start(ranks, restarts.command(tmp_path), tmp_path, place)
        leaders.append(processes[0].pid or 0)
        if after:
            time.sleep(after)
            restarts.kill(processes)
        codes = restarts.wait(processes, 250)
        assert after or codes == [-signal.SIGKILL] * ranks, (place, codes, (tmp_path / "output_0.txt").read_text())
        kept.append(place or f"after {after:.1f} s")
        assert not [file for file in tmp_path.rglob("*.ckpt") if damage(file)], kept
    codes = restarts.wait(restarts.start(ranks, restarts.command(tmp_path), tmp_path), 250)
    assert codes == [0] * ranks, (kept, (tmp_path / "output_0.txt").read_text())
    print(f"{len(kept)} kills of {ranks} processes:", *kept)
    check_same(tmp_path, reference, ranks)
    assert not list(tmp_path.rglob("*.part"))
    for leader in leaders:
        with pytest.raises(ProcessLookupError):
            os.killpg(leader, 0)
    # Shared memory is named after the process that made it.
    assert not {int(file.name.split("_")[1]) for file in Path("/dev/shm").glob("torch_*")} & set(leaders)


def test_torchrun_starts_again_what_has_died(tmp_path: Path, undisturbed: Callable[[int], tuple[Path, float]]) -> None:
    reference, _ = undisturbed(2)
    command = [*TORCHRUN, f"--master-port={free_port()}", "-m", "template", *restarts.command(tmp_path)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(**{restarts.DIE_AFTER: "4:9"}),
        timeout=600,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("goes on  with epoch") == 2
    check_same(tmp_path, reference, 2)


@pytest.mark.parametrize("where", ["training", "validation"])
@pytest.mark.parametrize("devices", [1, 2])
def test_sigterm_saves_and_the_next_start_goes_on(
    devices: int, where: str, tmp_path: Path, undisturbed: Callable[[int], tuple[Path, float]]
) -> None:
    reference, _ = undisturbed(devices)
    place = {"training": "wait_step:7:0", "validation": "wait_validation:1:0"}[where]
    command = [sys.executable, "-m", "template", *restarts.command(tmp_path, f"--trainer.devices={devices}")]
    more = {restarts.KILL_AT: place, "PYTHONPATH": str(restarts.ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        deadline = time.monotonic() + 200
        while not (tmp_path / "there").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        asked = time.monotonic()
        process.terminate()
        output, _ = process.communicate(timeout=60)
        seconds = time.monotonic() - asked
    assert process.returncode == 143, output
    step = 10 if where == "validation" else 7
    assert torch.load(restarts.newest(tmp_path) / "checkpoints/last.ckpt", weights_only=True)["global_step"] >= step
    # Told in training, ranks go on to the next order, or to the validation before it.
    stopped = r"Stopped by SIGTERM (in the validation )?after step \d+; '\S+/last\.ckpt' holds it\. Resume with --"
    assert re.search(stopped, output)
    print(f"{where}, {devices} processes: ended {seconds:.1f} s after the signal")
    codes = restarts.wait(restarts.start(devices, restarts.command(tmp_path), tmp_path), 300)
    assert codes == [0] * devices
    check_same(tmp_path, reference, devices)
