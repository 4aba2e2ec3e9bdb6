"""Processes meet once, at one place, or say who is missing and why."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from template.distributed import rendezvous
from template.distributed.faults import NamedError
from template.distributed.world import World
from tests.ports import free_port
from tests.ranks import run_ranks

SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=60)
LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME")


@contextmanager
def listener() -> Iterator[int]:
    """Something that takes connections and never answers."""
    with socket.socket() as silent:
        silent.bind(("", 0))
        silent.listen()
        yield int(silent.getsockname()[1])


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:  # set, so that what the code sets is undone
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def refusal(world: World, init_method: str = "env://", timeout: timedelta = SECOND) -> NamedError:
    with pytest.raises(NamedError) as caught:
        rendezvous.connect(world, init_method, timeout)
    return caught.value


def meet(rank: int, launcher: str, init_method: str, environ: dict[str, str]) -> tuple[bytes, str | None]:
    for name in LAUNCHED:
        os.environ.pop(name, None)
    os.environ.update(environ)
    store = rendezvous.connect(World(rank, 2, rank, 2, launcher), init_method, LONG)
    if rank == 0:
        store.set("decided", "by rank 0")
    seen = store.get("decided"), os.environ.get("GLOO_SOCKET_IFNAME")
    dist.barrier()  # rank 0 has the store
    return seen


@pytest.mark.case("notes/init-process-group")
@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize("scheme", ["env", "tcp", "file"])
def test_two_processes_meet(launcher: str, scheme: str, tmp_path: Path) -> None:
    port = free_port()
    url = {"env": "env://", "tcp": f"tcp://localhost:{port}", "file": f"file://{tmp_path}/meeting"}[scheme]
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if scheme == "env" else {}
    interface = None if scheme == "file" else "lo"
    assert run_ranks(2, meet, launcher, url, environ) == [(b"by rank 0", interface)] * 2


def test_a_name_of_this_machine_that_it_does_not_know_does_not_matter() -> None:
    environ = {"MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": str(free_port())}
    assert [decided for decided, _ in run_ranks(2, meet, "torchrun", "env://", environ)] == [b"by rank 0"] * 2


@pytest.mark.parametrize(
    ("nodes", "job", "address"),
    [
        ("node[07-09,12]", "123456", ("node07", 18456)),
        ("gpu-a1,gpu-b2", "7", ("gpu-a1", 15007)),
        ("alone", "9999", ("alone", 24999)),
    ],
)
def test_slurm_meets_at_the_first_node(
    nodes: str, job: str, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    assert rendezvous._address(World(0, 2, 0, 1, "slurm")) == address


def test_a_missing_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(World(1, 2, 1, 2, "torchrun"))
    assert (error.identifier, error.what.partition(" ")[0]) == ("not-launched", "MASTER_ADDR")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert refusal(World(1, 2, 1, 2, "torchrun")).what.startswith("MASTER_PORT is not set")


@pytest.mark.case("E5")
@pytest.mark.parametrize(("launcher", "fix"), [("slurm", "Set MASTER_PORT"), ("torchrun", "--master-port")])
def test_a_busy_port_is_named(launcher: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MOMENT", SECOND)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with listener() as port:
        monkeypatch.setenv("MASTER_PORT", str(port))
        # Rank 0 cannot listen; the other one finds somebody else there, and does not wait for ever.
        for rank, told in ((0, f"Port {port} of "), (1, f"What listens at 127.0.0.1:{port}")):
            error = refusal(World(rank, 2, rank, 2, launcher), timeout=LONG)
            assert error.identifier == "port-in-use"
            assert error.what.startswith(told)
            assert fix in error.fix


def test_an_address_that_is_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MOMENT", timedelta(0))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    for host, reason in (("127.0.0.1", "refused"), ("no-such-host.invalid", "[Errno")):
        monkeypatch.setenv("MASTER_ADDR", host)
        error = refusal(World(1, 2, 0, 1, "torchrun"))
        assert error.identifier == "master-unreachable"
        assert f"does not reach rank 0 at {host}:" in error.what
        assert reason in error.what
        assert "--local-addr" in error.fix


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    error = refusal(World(0, 6, 0, 2, "torchrun"), f"file://{tmp_path}/meeting")
    assert error.identifier == "master-unreachable"
    assert error.what.endswith("these did not come within 1 s: rank 1, 2, 3, 4, 5, of machine 0, 1, 2.")


def test_rank_0_is_missed_first_where_it_serves_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MOMENT", SECOND)
    other = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    error = refusal(World(1, 2, 1, 2, "slurm"), f"tcp://127.0.0.1:{other.port}", LONG)
    assert error.what.endswith("within 1 s: rank 0.")


def meet_one_that_goes(rank: int, port: int) -> None:
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        store.add("here/0", 1)
        store.wait(["here/1"])
        return
    with pytest.raises(NamedError, match=f"Rank 0, at 127.0.0.1:{port}, ended while") as caught:
        rendezvous.connect(World(1, 3, 1, 3, "slurm"), f"tcp://127.0.0.1:{port}", LONG)
    assert caught.value.identifier == "rank-failed"


def test_rank_0_that_goes_while_others_come_is_named() -> None:
    run_ranks(2, meet_one_that_goes, free_port())


def test_a_file_that_an_earlier_run_left_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting"
    run_ranks(2, meet, "slurm", url, {})  # ends as if killed, without the cleaning up of a program's end
    for rank in range(2):
        error = refusal(World(rank, 2, rank, 2, "slurm"), url)
        assert error.identifier == "config"
        assert f"{url}, is left over from an earlier run" in error.what


def test_the_last_one_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    store = dist.FileStore(str(path), 2)
    rendezvous._leave(store, path, 2)
    assert path.exists()
    rendezvous._leave(store, path, 2)
    assert not path.exists()


def test_two_processes_of_one_rank_are_named() -> None:
    other = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other.add("here/1", 1)
    error = refusal(World(1, 2, 1, 2, "torchrun"), f"tcp://127.0.0.1:{other.port}", LONG)
    assert error.identifier == "world-size"
    assert error.what.startswith("A process that calls itself rank 1 of 2 is there already")
    assert "--node-rank" in error.fix


def test_a_restart_by_the_launcher_starts_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/meeting"
    refusal(World(0, 2, 0, 2, "torchrun"), url)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert "these did not come" in refusal(World(0, 2, 0, 2, "torchrun"), url).what


def test_a_file_in_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = refusal(World(0, 2, 0, 2, "torchrun"), f"file://{tmp_path}/missing/meeting")
    assert error.identifier == "folder-not-writable"
    assert "missing/meeting' of strategy.init_method cannot be made: No such file" in error.what
