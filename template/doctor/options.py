"""The doctor's own options; all others are those of ``fit``. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

from ..distributed.faults import NamedError
from ..distributed.knobs import parse_timeout


class Options(NamedTuple):
    """What the doctor was asked for.

    Attributes:
        processes: Training processes to start.
        json: File for the findings; None: none.
        all: Open every file, and not a sample.
        link_speed: Gbit/s between the machines or GPUs that training is meant for; None: none given.
        accelerator: Where the processes train: ``cpu`` or ``gpu``.
        timeout: Seconds without a sign of life after which a process counts as hanging.
    """

    processes: int = 2
    json: str | None = None
    all: bool = False
    link_speed: float | None = None
    accelerator: Literal["cpu", "gpu"] = "cpu"
    timeout: float = 120.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise NamedError("config", f"{message[:1].upper()}{message[1:]}.", cause="", fix=f"See {self.prog} --help.")


def parse_options(arguments: Sequence[str], program: str) -> tuple[Options, list[str]]:
    """Read the doctor's options from a command line.

    Args:
        arguments: What follows the verb.
        program: How the verb is started, for help.

    Returns:
        The options, and the arguments that are ``fit``'s.

    Raises:
        NamedError: ``config``: an option has a value that cannot be used.
        SystemExit: After ``--help``.
    """
    parser = _Parser(
        prog=program,
        usage=f"{program} --config FILE [--config FILE …] [--processes N] [options] [--KEY VALUE …]",
        description="Runs a few real steps of a training in several processes on this machine, and prints a table of "
        "what would stop or spoil it. It takes the configuration of fit, and every key of it.",
        epilog="Exit code: 0 without a fail, else 1.",
        allow_abbrev=False,
    )
    default = Options()
    parser.add_argument("--processes", type=int, default=default.processes, metavar="N", help="default: 2")
    parser.add_argument("--json", metavar="FILE", help="write the findings to a file, as a list of objects")
    parser.add_argument("--all", action="store_true", help="open every file of the data, not a sample of them")
    parser.add_argument(
        "--link-speed", type=float, metavar="GBIT", help="Gbit/s between the GPUs to come: adds what the exchange costs"
    )
    parser.add_argument("--accelerator", choices=("cpu", "gpu"), default="cpu", help="where to train; default: cpu")
    parser.add_argument(
        "--timeout",
        default="120",
        metavar="TIME",
        help="without a sign of life it is a hang; seconds or 5m; default: 120",
    )
    given, rest = parser.parse_known_args(list(arguments))
    if given.processes < 1:
        raise NamedError("config", f"--processes is {given.processes}; it must be 1 or more.", cause="", fix="")
    if given.link_speed is not None and not given.link_speed > 0:
        raise NamedError("config", f"--link-speed is {given.link_speed}; it must be above 0.", cause="", fix="")
    try:
        timeout = parse_timeout(given.timeout).total_seconds()
    except NamedError as error:
        what = f"--timeout is '{given.timeout}', which is no time."
        raise NamedError("config", what, cause="", fix="Write it as 90, 90s, 30m or 1h30m.") from error
    values: dict[str, Any] = vars(given) | {"timeout": timeout}
    return Options(**values), rest
