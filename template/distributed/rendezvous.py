"""How the processes of a run meet: a store that each of them reaches, and proof that all came, each once."""

from __future__ import annotations

import atexit
import os
import socket
import struct
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import torch.distributed as dist

from .faults import NamedError

if TYPE_CHECKING:
    from .world import World

#: Wait for what answers at once where all is well: a name server, rank 0 when its store is open.
_MOMENT = timedelta(seconds=30)
# Linux, sockios.h: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
_OTHER_PORT = {
    "torchrun": "Give torchrun another --master-port (--standalone picks a free one).",
    "slurm": "Set MASTER_PORT to another one in the batch script, before srun.",
}


def connect(world: World, init_method: str, timeout: timedelta) -> dist.Store:
    """Open the run's store and wait until every process has done so.

    Args:
        world: Place of this process.
        init_method: ``env://``, ``tcp://host:port`` or ``file:///path``.
        timeout: Longest wait for the other processes.

    Raises:
        NamedError: The port is taken, the address is not reached, a file is left over, or processes are missing.
    """
    url = urlparse(init_method)
    if url.scheme == "file":
        store, rank_0_serves = _open_file(Path(url.path), world), False
        where = init_method
    else:
        host, port = (url.hostname or "", url.port or 0) if url.scheme == "tcp" else _address(world)
        # torchrun's agent serves a store itself, at the address that it tells its processes.
        rank_0_serves = url.scheme == "tcp" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if world.nodes == 1 and not _resolves(host):
            # The machine's own name, as torchrun says it, which containers may not know.
            host = "localhost"
        where = f"{host}:{port}"
        if rank_0_serves and world.rank == 0:
            store = _serve(host, port, world, timeout)
        else:
            _wait_until_it_listens(host, port, timeout)
            store = _join(host, port, world)
        _choose_interface(world, host, port)
    store.set_timeout(timeout)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt != "0":  # what an earlier attempt has left in the store
        store = dist.PrefixStore(f"attempt_{attempt}", store)
    if store.add(f"here/{world.rank}", 1) > 1:
        raise _came_twice(world, init_method)
    _meet(store, world, where, _MOMENT if rank_0_serves else timeout, timeout)
    if url.scheme == "file":
        atexit.register(_leave, store, Path(url.path), world.size)
    return store


def _address(world: World) -> tuple[str, int]:
    """Address of rank 0 as the launcher says."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if world.launcher == "slurm":
        from lightning.fabric.plugins.environments import SLURMEnvironment

        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST")
        host = host or (SLURMEnvironment.resolve_root_node_address(nodes) if nodes else None)
        # As Lightning does: each job of a machine has another one.
        port = port or str(15000 + int(os.environ.get("SLURM_JOB_ID", "0")[-4:]))
    if not host or not port or not port.isdigit():
        missing = "MASTER_ADDR" if not host else "MASTER_PORT"
        raise NamedError(
            "not-launched",
            f"{missing} is not set, and this is rank {world.rank} of {world.size} processes that have to meet.",
            cause="torchrun sets it; here the variables were set by hand or are left over.",
            fix="Start with torchrun, or set MASTER_ADDR and MASTER_PORT to an address of rank 0's machine.",
        )
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, port
    return host, int(port)


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def _open_file(path: Path, world: World) -> dist.Store:
    try:
        # A missing folder would only show after a long wait.
        path.touch()
    except OSError as error:
        raise NamedError(
            "folder-not-writable",
            f"The file '{path}' of strategy.init_method cannot be made: {error.strerror}.",
            fix="Name a file in an existing folder that all machines see.",
        ) from error
    return dist.FileStore(str(path), world.size)


def _leave(store: dist.Store, path: Path, size: int) -> None:
    """Let the last one remove the file; torch does so only where no thread holds the store at the end."""
    if path.exists() and store.add("left", 1) == size:
        path.unlink(missing_ok=True)


def _serve(host: str, port: int, world: World, timeout: timedelta) -> dist.Store:
    try:
        return dist.TCPStore(host, port, world.size, True, timeout, wait_for_workers=False)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise _unreachable(host, port, _first_line(error)) from error
        raise NamedError(
            "port-in-use",
            f"Port {port} of {socket.gethostname()}, where the processes of this run are to meet, is taken.",
            fix=f"{_other_port(world)} To see who has it: ss -ltnp 'sport = :{port}'.",
        ) from error


def _join(host: str, port: int, world: World) -> dist.Store:
    """Become a client of the store, or find in a moment that something else has the port.

    In a thread: torch waits without a limit for the answer of what does not speak its language.
    """
    result: list[dist.Store | Exception] = []

    def join() -> None:
        try:
            result.append(dist.TCPStore(host, port, world.size, False, _MOMENT, wait_for_workers=False))
        except RuntimeError as error:
            result.append(error)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    thread.join(_MOMENT.total_seconds())
    found = result[0] if result else TimeoutError(f"no answer in {_MOMENT.total_seconds():.0f} s")
    if isinstance(found, Exception):
        raise NamedError(
            "port-in-use",
            f"What listens at {host}:{port}, where the processes of this run are to meet, is no store of it: "
            f"{_first_line(found)}.",
            fix=_other_port(world),
        ) from found
    return found


def _other_port(world: World) -> str:
    return _OTHER_PORT.get(
        world.launcher or "", "Set MASTER_PORT, or the port of strategy.init_method, to another one."
    )


def _wait_until_it_listens(host: str, port: int, timeout: timedelta) -> None:
    """Wait for a server; a name that nobody knows is not waited for as long."""
    started = time.monotonic()
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            limit = _MOMENT if isinstance(error, socket.gaierror) else timeout
            if time.monotonic() - started > limit.total_seconds():
                raise _unreachable(host, port, str(error)) from error
        time.sleep(0.2)


def _unreachable(host: str, port: int, reason: str) -> NamedError:
    return NamedError(
        "master-unreachable",
        f"{socket.gethostname()} does not reach rank 0 at {host}:{port}: {reason}.",
        cause="The name or address is wrong or unknown here, a firewall is in between, or rank 0 is not up.",
        fix="Give torchrun on every machine --local-addr with an address that the others reach (it tells the machine's "
        f"own name otherwise), with SLURM set MASTER_ADDR; test with: nc -vz {host} {port}.",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _came_twice(world: World, init_method: str) -> NamedError:
    if init_method.startswith("file:"):
        return NamedError(
            "config",
            f"The file of strategy.init_method, {init_method}, is left over from an earlier run.",
            cause="A run that is killed cannot remove it.",
            fix="Remove it, or name a new file for each run.",
        )
    return NamedError(
        "world-size",
        f"A process that calls itself rank {world.rank} of {world.size} is there already.",
        cause="Two machines were started with the same --node-rank, RANK was set by hand, or two runs use one port.",
        fix="Give each machine its own --node-rank, and each run its own port.",
    )


def _meet(store: dist.Store, world: World, where: str, rank_0: timedelta, timeout: timedelta) -> None:
    """Wait for all ranks, first for rank 0."""
    keys = [f"here/{rank}" for rank in range(world.size)]
    for wanted, patience in ((keys[:1], rank_0), (keys, timeout)):
        try:
            store.wait(wanted, patience)
        except dist.DistNetworkError as error:
            raise NamedError("rank-failed", f"Rank 0, at {where}, ended while the processes met.") from error
        except RuntimeError as error:  # a file store has no type of its own for it
            missing = [int(key.removeprefix("here/")) for key in wanted if not store.check([key])]
            raise NamedError(
                "master-unreachable",
                f"Of {world.size} processes that were to meet at {where}, these did not come within "
                f"{patience.total_seconds():.0f} s: {_named(missing, world)}.",
                cause="They were not started, failed earlier, or wait at another address or port.",
                fix="Look at their own output; start every machine with the same number of machines, address and port.",
            ) from error


def _named(ranks: list[int], world: World) -> str:
    machines = sorted({rank // world.local_size for rank in ranks})
    where = f", of machine {', '.join(map(str, machines))}" if world.nodes > 1 else ""
    return f"rank {', '.join(map(str, ranks))}{where}"


def _choose_interface(world: World, host: str, port: int) -> None:
    """Let gloo use the interface that leads to rank 0; it takes that of the machine's own name otherwise."""
    if sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = "lo" if world.nodes == 1 else _interface(host, port)
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _interface(host: str, port: int) -> str | None:
    """Name of the interface from which a host is reached (IPv4), unless it is the loopback."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # sends nothing
        except OSError:
            return None
        here = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == here and name != "lo":
                return name
    return None
