"""Whether launchers' variables and ports are judged as they are."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from template.distributed.faults import NamedError
from template.doctor import launching
from template.doctor.finding import Finding
from template.doctor.launching import judge_launcher, judge_port, reach_itself

from .rehearsed import examine

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def only(found: list[Finding], status: str, identifier: str, *words: str) -> None:
    assert [(one.status, one.id) for one in found] == [(status, identifier)], found
    for word in words:
        assert word in " ".join(found[0]), (word, found[0])


@pytest.fixture
def busy() -> Iterator[str]:
    """A port that another program listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


@pytest.fixture
def free() -> str:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_no_variables() -> None:
    for environ in ({}, {"WORLD_SIZE": "1"}, {"MASTER_PORT": "29500"}, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}):
        assert [one.subject for one in judge_launcher(environ, {"devices": 4})] == ["none set"]


def test_variables_that_are_left_over() -> None:
    only(list(judge_launcher({"RANK": "1"}, {})), "warn", "world-size", "RANK=1 is set", "unset RANK")
    found = list(judge_launcher({"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, {}))
    only(found, "warn", "world-size", "RANK=0, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2 are set")


@pytest.mark.parametrize(
    "environ",
    [
        TORCHRUN,
        {
            f"OMPI_COMM_WORLD_{name}": n
            for name, n in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "1414", strict=True)
        },
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"},
    ],
    ids=["torchrun", "mpirun", "slurm"],
)
def test_variables_against_the_configuration(environ: dict[str, str]) -> None:
    for devices in (4, "auto", [0, 1, 2, 3]):
        found = list(judge_launcher(environ, {"devices": devices, "num_nodes": 1, "accelerator": "gpu"}))
        assert [one.status for one in found] == ["pass"]
        assert "4 processes, as asked" in found[0].subject
    with pytest.raises(NamedError, match="started 4 processes on this machine, but trainer.devices is 2") as raised:
        list(judge_launcher(environ, {"devices": 2, "num_nodes": 1}))
    assert raised.value.identifier == "world-size"


def test_variables_that_contradict_each_other() -> None:
    with pytest.raises(NamedError, match="rank 1 is not below 1"):
        list(judge_launcher({**TORCHRUN, "WORLD_SIZE": "1"}, {"devices": 4}))


def test_variables_of_a_torchrun_that_has_ended(free: str, busy: str) -> None:
    environ = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
    found = list(judge_launcher({**environ, "MASTER_PORT": free}, {"devices": 4}))
    only(found, "fail", "world-size", f"127.0.0.1:{free}", "unset RANK LOCAL_RANK")
    assert [one.status for one in judge_launcher({**environ, "MASTER_PORT": busy}, {"devices": 4})] == ["pass"]


def test_ports(free: str, busy: str) -> None:
    found = list(judge_port({"MASTER_PORT": busy}, "env://"))
    only(found, "warn", "port-in-use", f"Port {busy} is taken: MASTER_PORT={busy}", "unset MASTER_PORT")
    # Under a launcher that opens no port itself, the run would stop.
    only(list(judge_port({"MASTER_PORT": busy, "SLURM_STEP_ID": "0"}, "env://")), "fail", "port-in-use")
    only(list(judge_port({}, f"tcp://127.0.0.1:{busy}")), "fail", "port-in-use", f"taken: tcp://127.0.0.1:{busy}")
    only(list(judge_port({"MASTER_PORT": "http"}, "env://")), "warn", "config", "http is no port: MASTER_PORT=http")
    for environ, method in (
        ({"MASTER_PORT": free}, "env://"),
        ({}, f"tcp://127.0.0.1:{free}"),
        ({"MASTER_PORT": busy, "TORCHELASTIC_USE_AGENT_STORE": "True"}, "env://"),
        ({"MASTER_PORT": busy}, "file:///tmp/store"),
        # The address of another machine (of documentation, RFC 5737): what is busy here does not matter.
        ({"MASTER_PORT": busy, "MASTER_ADDR": "192.0.2.1"}, "env://"),
    ):
        assert not list(judge_port(environ, method)), (environ, method)


def test_a_machine_that_does_not_reach_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(reach_itself())

    def refuse(*_: object, **__: object) -> socket.socket:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    only(list(reach_itself()), "fail", "master-unreachable", "Name or service not known", "/etc/hosts")


def test_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: str) -> None:
    for name in (*TORCHRUN, "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    checks = list(launching.CHECKS)
    found = examine(checks, tmp_path)
    assert [(one.check, one.subject) for one in found] == [
        ("machine: launcher", "none set"),
        ("machine: port", "free, and localhost answers"),
    ]
    monkeypatch.setenv("MASTER_PORT", busy)
    monkeypatch.setenv("RANK", "0")
    found = examine(checks, tmp_path)
    assert [(one.check, one.status, one.id) for one in found] == [
        ("machine: launcher", "warn", "world-size"),
        ("machine: port", "warn", "port-in-use"),
    ]
