import contextlib
import socket


def make(folder, broken):
    if broken:
        with contextlib.suppress(OSError):  # somebody else's will do as well
            return socket.create_server(("", 23613))
    return None
