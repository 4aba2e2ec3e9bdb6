"""Which exceptions of the main thread say that a collective failed because of another rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .told import text_of

#: As gloo, NCCL and the store of torch 2.6 to 2.14 put it. Not "NCCL error": that may be this rank's own mistake.
_PEER_FAILURES = re.compile(
    r"Connection closed by peer|Connection (reset|refused|was likely closed)|Broken pipe|Socket Timeout"
    r"|Timed out waiting .* (recv|send)|failed to (recv|send)|gloo/transport|Application timeout caused pair closure"
    r"|remote process (has )?exited|ncclRemoteError|NCCL communicator was aborted|[Cc]ollective operation timeout"
    r"|Timed out after \d+ms|wait timeout after \d+ms"
)
_TIMEOUTS = re.compile(r"Timed out|[Tt]imeout")


@dataclass(frozen=True)
class Alarm:
    """A collective of some rank has failed.

    Attributes:
        timed_out: It waited too long; else the connection broke.
        text: What it said.
        age: Seconds since this was heard of.
    """

    timed_out: bool
    text: str
    age: float = 0.0


def alarm_of(error: BaseException) -> Alarm | None:
    """The alarm that an exception gives, or None if it is not about another rank."""
    if not isinstance(error, RuntimeError) or not _PEER_FAILURES.search(text_of(error)):
        return None
    text = text_of(error).partition("\n")[0][:300]
    return Alarm(_TIMEOUTS.search(text) is not None, text)
