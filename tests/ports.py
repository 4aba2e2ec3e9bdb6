"""Ports for processes that meet."""

from __future__ import annotations

import secrets
import socket

#: Below the ports that the kernel hands out by itself (from 32768 on Linux): no other process of this machine is given
#: one of them between the moment in which it is found free and that in which it is used.
_FIRST, _LAST = 20000, 31999


def free_port() -> int:
    """A port of this machine that nobody listens on; another one in each test, also of tests that run beside it."""
    while True:
        port = _FIRST + secrets.randbelow(_LAST - _FIRST + 1)  # not `random`, which is seeded alike in each test
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
