"""Handing a command to torchrun's launcher, and what is read of a configuration before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from template.__main__ import main
from template.distributed.launch import peek_trainer, processes_asked, strip_launcher_arguments


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ({"devices": 3}, 3),
        ({"devices": "2"}, 2),
        ({"devices": "0,1,"}, 2),
        ({"devices": [0, 2, 3]}, 3),
        ({"devices": "auto", "accelerator": "cpu"}, 1),
        ({"devices": -1, "accelerator": "cpu"}, 1),
        ({"accelerator": "cpu"}, 1),
    ],
)
def test_processes_are_counted_from_devices(trainer: dict[str, object], processes: int) -> None:
    assert processes_asked(trainer) == processes


def test_later_files_and_options_win(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("trainer: {devices: 1, accelerator: cpu}\ndata: {}\n")
    (tmp_path / "b.yaml").write_text("trainer: {devices: 2}\n")
    files = ["fit", "--config", str(tmp_path / "a.yaml"), f"--config={tmp_path / 'b.yaml'}"]
    assert peek_trainer(files) == {"devices": 2, "accelerator": "cpu"}
    assert peek_trainer([*files, "--trainer.devices", "4"])["devices"] == 4
    assert peek_trainer([*files, "--trainer.devices=[0, 1]"])["devices"] == [0, 1]


def test_what_cannot_be_read_is_left_to_the_parser(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("trainer: {devices: ]\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    for name in ("broken.yaml", "list.yaml", "missing.yaml"):
        assert peek_trainer(["fit", "--config", str(tmp_path / name)]) == {}


@pytest.mark.case("E1", "notes/launch-arguments")
@pytest.mark.parametrize("name", ["--local-rank", "--local_rank", "--rank"])
def test_arguments_of_old_launchers_are_dropped(name: str) -> None:
    for arguments in ([f"{name}=2", "fit", "--a"], [name, "2", "fit", "--a"], ["fit", name, "2", "--a"]):
        assert strip_launcher_arguments(arguments, {"RANK": "2"}) == ["fit", "--a"]
    assert strip_launcher_arguments(["fit", f"{name}=0"], {}) == ["fit"]


@pytest.mark.case("E1", "notes/launch-arguments")
def test_a_rank_given_by_hand_is_no_launch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["fit", "--rank", "1", "--config", "x.yaml"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: --rank=1 is given, but no launcher has started this process")
    assert "--trainer.devices N" in error
    assert error.endswith("[not-launched]\n")


RANK_CODE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from template.distributed.launch import leave_message
from template.distributed.world import read_world
world = read_world()
Path(f"rank_{{world.rank}}").write_text(f"{{world.size}} {{os.environ['OMP_NUM_THREADS']}}")
print(f"rank {{world.rank}} speaks", flush=True)
{then}
"""


LAUNCH_CODE = "import sys; from template.distributed.launch import launch; sys.exit(launch(2, ['rank.py']))"
ROOT = str(Path(__file__).parents[2])


def _launch(folder: Path, then: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the launcher takes over signal handlers and environment variables."""
    (folder / "rank.py").write_text(RANK_CODE.format(root=ROOT, then=then))
    environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LAUNCH_CODE]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_ranks_start_and_only_rank_0_has_the_terminal(tmp_path: Path) -> None:
    done = _launch(tmp_path, "")
    assert done.returncode == 0
    assert [(tmp_path / f"rank_{rank}").read_text() for rank in (0, 1)] == ["2 1", "2 1"]
    assert done.stdout == "rank 0 speaks\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("then", "code", "last"),
    [
        (
            "if world.rank: leave_message(world, 'error: rank 1 has a bad file.'); sys.exit(2)",
            2,
            "error: rank 1 has a bad file.",
        ),
        (
            "if world.rank: leave_message(world, 'runs/a/rank_1', 'folder.txt'); os.kill(os.getpid(), 9)",
            1,
            (
                "error: Rank 1 was ended by SIGKILL. It was killed from outside: kill -9, the kernel out of memory, or "
                "the scheduler. See the end of runs/a/rank_1/output.log and dmesg; if memory ran out, lower "
                "data.num_workers or data.batch_size. A fit goes on from its last checkpoint with --ckpt_path last. "
                "[rank-gone]"
            ),
        ),
        ("if world.rank: raise ValueError('boom')", 1, "ValueError: boom"),
    ],
)
def test_the_first_failure_is_shown_last_and_gives_the_exit_code(
    tmp_path: Path, then: str, code: int, last: str
) -> None:
    done = _launch(tmp_path, f"{then}\ntime.sleep(60)")
    assert done.returncode == code
    assert done.stderr.strip().splitlines()[-1] == last


@pytest.mark.slow
def test_what_rank_0_has_said_is_not_said_again(tmp_path: Path) -> None:
    then = "leave_message(world, 'error: the same on all.'); sys.exit(2 if world.rank else time.sleep(60))"
    done = _launch(tmp_path, then)
    assert done.returncode == 2
    assert done.stderr == ""


@pytest.mark.slow
def test_a_rank_s_failure_that_rank_0_has_told_of_is_not_told_again(tmp_path: Path) -> None:
    then = """
text = ("error: Rank 1 failed in step 3: ValueError: boom. [rank-failed]", "error: ValueError: boom. [exception]")
leave_message(world, text[world.rank])
sys.exit(1 if world.rank else time.sleep(60))
"""
    assert _launch(tmp_path, then).stderr == ""


@pytest.mark.slow
def test_the_signal_that_ended_a_rank_is_told_after_what_rank_0_has_seen(tmp_path: Path) -> None:
    then = """
if world.rank:
    time.sleep(1)
    os.kill(os.getpid(), 9)
leave_message(world, "error: Rank 1 on here ended without a word. [rank-gone]")
time.sleep(60)
"""
    assert _launch(tmp_path, then).stderr == "Rank 1 was ended by SIGKILL.\n"


LEAVES = """
from template.distributed.launch import beside_error
from template.distributed.phase_file import PHASE_FILE, PhaseFile
leave_message(world, f"runs/a/rank_{world.rank}", "folder.txt")
phase = PhaseFile(beside_error(world, PHASE_FILE))
phase.note("training step", 4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_ends_itself_is_told_with_its_step(rank: int, tmp_path: Path) -> None:
    done = _launch(tmp_path, f"{LEAVES}\nos._exit(3) if world.rank == {rank} else time.sleep(60)")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: Rank {rank} ended itself with exit code 3 in step 4 (training step), without a Python exception. "
    )
    assert f"runs/a/rank_{rank}/output.log" in done.stderr
    assert done.stderr.endswith("[rank-gone]\n")


@pytest.mark.slow
def test_a_signal_is_told_with_the_step(tmp_path: Path) -> None:
    done = _launch(tmp_path, f"{LEAVES}\nos.kill(os.getpid(), 11) if world.rank else time.sleep(60)")
    assert done.returncode == 1
    assert done.stderr.startswith("error: Rank 1 was ended by SIGSEGV in step 4 (training step). ")


@pytest.mark.slow
def test_an_end_with_code_0_is_told_once_the_others_miss_the_rank(tmp_path: Path) -> None:
    then = """
if world.rank:
    os._exit(0)
time.sleep(2)
leave_message(world, "error: Rank 1 on here ended without a word, last seen in step 4. [rank-gone]")
sys.exit(1)
"""
    done = _launch(tmp_path, LEAVES + then)
    assert done.returncode == 1
    what = "Rank 1 ended itself with exit code 0 in step 4 (training step), without a Python exception.\n"
    assert done.stderr == what


@pytest.mark.slow
def test_that_rank_0_is_gone_is_not_said_after_its_reason(tmp_path: Path) -> None:
    then = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while world.rank and not Path("said").exists():
    time.sleep(0.01)
leave_message(world, "error: Rank 0 ended. [rank-failed]" if world.rank else "error: No room. [folder-not-writable]")
Path("said").touch()
time.sleep(0 if world.rank else 1)
sys.exit(1)
"""
    done = _launch(tmp_path, then)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
@pytest.mark.case("E2")
def test_what_the_first_process_says_is_left_to_it(tmp_path: Path) -> None:
    then = """
from template.distributed.launch import told_by_first
time.sleep(0.5 if world.rank == 0 else 0)
told = []
for text in ("the same", f"rank {world.rank}'s own"):
    told.append(told_by_first(world, text, patience=5))
    leave_message(world, text)
    time.sleep(1)
Path(f"told_{world.rank}").write_text(str(told))
"""
    assert _launch(tmp_path, then).returncode == 0
    assert [(tmp_path / f"told_{rank}").read_text() for rank in (0, 1)] == ["[False, False]", "[True, False]"]
