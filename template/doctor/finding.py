"""One line of the doctor's table, and how a check makes it. Imports no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeVar

from ..distributed.faults import FAULTS, NamedError
from ..distributed.raised import named, said
from ..distributed.recognize import recognize
from ..distributed.worker_death import worker_death

Status = Literal["pass", "warn", "fail"]
_T = TypeVar("_T")


class Finding(NamedTuple):
    """What a check has found.

    Attributes:
        id: Identifier in the catalogue of failures; of a pass, what the check looks for.
        check: Group and name of the check, such as ``data: files``.
        status: ``pass``, ``warn`` (the run works, but not as it seems to be meant), or ``fail``.
        subject: One sentence with the name of the file, parameter, module, rank or key.
        cause: Why; empty for a pass.
        fix: What to change; empty for a pass.
    """

    id: str
    check: str
    status: Status
    subject: str
    cause: str = ""
    fix: str = ""


def passed(subject: str) -> Finding:
    """Nothing was found; the subject says what was looked at, with its numbers."""
    return Finding("", "", "pass", subject)


def warning(identifier: str, subject: str, cause: str | None = None, fix: str | None = None) -> Finding:
    """The run works, but not as it seems to be meant.

    Args:
        identifier: In the catalogue.
        subject: One sentence, with a name.
        cause: Replaces the catalogue's.
        fix: Replaces the catalogue's.
    """
    return _found("warn", identifier, subject, cause, fix)


def failure(identifier: str, subject: str, cause: str | None = None, fix: str | None = None) -> Finding:
    """The run would stop, or give a wrong result; arguments as of :func:`warning`."""
    return _found("fail", identifier, subject, cause, fix)


def of_error(error: BaseException, status: Status = "fail") -> Finding:
    """An exception as a finding: a named failure with its own parts, any other by its text and the user's line."""
    if not isinstance(error, NamedError):
        known = recognize(error) if worker_death(error) is None else None
        if known is not None:
            fault = known.fault
            return Finding(fault.identifier, "", status, f"{said(error).rstrip('.')}.", fault.cause, fault.fix)
        error = named(error)
    return Finding(error.identifier, "", status, error.what, error.cause, error.fix)


def check(name: str, identifier: str) -> Callable[[Callable[[_T], Iterator[Finding]]], Callable[[_T], list[Finding]]]:
    """Make a check of a generator of findings.

    Whatever it raises becomes a finding too, an ``exit()`` in the user's code included: the other checks go on.

    Args:
        name: Group and name, such as ``data: files``.
        identifier: What it looks for, in the catalogue.
    """

    def decorate(look: Callable[[_T], Iterator[Finding]]) -> Callable[[_T], list[Finding]]:
        @functools.wraps(look)
        def run(subject: _T) -> list[Finding]:
            found: list[Finding] = []
            try:
                found.extend(look(subject))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                found.append(of_error(error))
            return [one._replace(check=name, id=one.id or identifier) for one in found]

        run.name, run.identifier = name, identifier  # type: ignore[attr-defined]  # shown while it runs
        return run

    return decorate


def _found(status: Status, identifier: str, subject: str, cause: str | None, fix: str | None) -> Finding:
    fault = FAULTS[identifier]
    return Finding(
        identifier, "", status, subject, fault.cause if cause is None else cause, fault.fix if fix is None else fix
    )
