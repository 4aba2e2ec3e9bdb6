"""Checks of the doctor: whether a launcher's variables and the ports of this machine let the processes meet."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlparse

from jsonargparse import Namespace

from ..distributed.environment import check_processes
from ..distributed.world import read_world
from .finding import Finding, check, failure, passed, warning
from .gpus import strategy_knobs
from .rehearsal import Rehearsal

#: What torchrun tells a process of itself, besides the number of all.
_PLACE = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
#: Seconds for a process of this machine or its network to answer.
_ANSWER = 2.0


def judge_launcher(environ: Mapping[str, str], asked: Mapping[str, Any]) -> Iterator[Finding]:
    """Hold a launcher's variables against the configuration.

    Args:
        environ: Environment variables.
        asked: The section ``trainer``.

    Raises:
        NamedError: ``world-size``: they contradict each other or the configuration.
    """
    world = read_world(environ)
    if world.launcher is None:
        left = [name for name in _PLACE if name in environ]
        if left:
            are = "are" if len(left) > 1 else "is"
            yield warning(
                "world-size",
                f"{', '.join(f'{name}={environ[name]}' for name in left)} {are} set, and no launcher is at work.",
                "Left over from another launch, or set by hand. Lightning reads RANK and LOCAL_RANK when it is "
                "imported: with another value than 0 it keeps silent and writes no files.",
                f"unset {' '.join(left)}",
            )
        else:
            yield passed("none set")
        return
    # Whether the GPUs are there is another check's question.
    section: Any = Namespace  # it has no types
    check_processes(world, section(**{"devices": "auto", "num_nodes": 1, **asked, "accelerator": "cpu"}))
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not _answers(host, port):
        names = " ".join(name for name in (*_PLACE, "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name in environ)
        yield failure(
            "world-size",
            f"The variables are those of a torchrun that serves at {host}:{port}, and nothing answers there.",
            "They are left over from a launch that has ended: the run would wait for its other processes.",
            f"unset {names} TORCHELASTIC_USE_AGENT_STORE",
        )
    else:
        yield passed(f"{world.launcher}, {world.size} process{'es' * (world.size > 1)}, as asked")


def judge_port(environ: Mapping[str, str], init_method: str) -> Iterator[Finding]:
    """Look whether the port is free that the user has chosen.

    Args:
        environ: Environment variables.
        init_method: Knob of the strategy.
    """
    url = urlparse(init_method)
    port = environ.get("MASTER_PORT", "")
    if url.scheme == "tcp":
        fault = _of_port(str(url.port), url.hostname)
        if fault:
            yield failure(fault[0], f"{fault[1]}: {init_method}.", fault[2], "Write another one into init_method.")
    elif url.scheme == "env" and port and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # torchrun's own
        fault = _of_port(port, environ.get("MASTER_ADDR"))
        if fault:
            fix = "unset MASTER_PORT, or set it to another one: the program and torchrun --standalone find a free one."
            # Started by hand, the program takes a free one.
            say = failure if environ.keys() & {"OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"} else warning
            yield say(fault[0], f"{fault[1]}: MASTER_PORT={port}.", fault[2], fix)


def _of_port(port: str, host: str | None) -> tuple[str, str, str | None] | None:
    """Identifier, sentence and cause of what is wrong with a port; None: nothing."""
    if not port.isdigit() or not 0 < int(port) < 65536:
        return "config", f"{port} is no port", "A port is a number from 1 to 65535."
    try:
        with socket.socket() as server:
            # As the store does: a port whose last connections are being closed is free.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((host or "", int(port)))
            server.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "port-in-use", f"Port {port} is taken", None
        if error.errno == errno.EACCES:
            return "port-in-use", f"Port {port} may not be opened", "Those below 1024 are root's."
        # Any other: the address is that of another machine, or of none; fit says which.
    return None


def reach_itself() -> Iterator[Finding]:
    """Open a port that the system chooses, and reach it as the processes of one machine would."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("localhost", port), timeout=_ANSWER):
                pass
    except OSError as error:
        yield failure(
            "master-unreachable",
            f"The processes of this machine cannot meet at localhost: {error.strerror or error}.",
            "The name localhost is not 127.0.0.1, or the loopback interface is down or filtered.",
            "Put '127.0.0.1 localhost' into /etc/hosts, and see whether ip link shows lo as UP.",
        )


def _answers(host: str, port: str) -> bool:
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER):
            return True
    except (OSError, ValueError):
        return False


@check("machine: launcher", "world-size")
def launcher_fits(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A launcher's variables fit each other and the configuration, and are not left over."""
    yield from judge_launcher(rehearsal.environ, rehearsal.asked)


@check("machine: port", "port-in-use")
def ports_are_free(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The chosen port is free, and a process can reach another one on this machine."""
    init_method = strategy_knobs(rehearsal.asked).get("init_method") or "env://"
    found = [*judge_port(rehearsal.environ, init_method), *reach_itself()]
    yield from found or [passed("free, and localhost answers")]


CHECKS = (launcher_fits, ports_are_free)
