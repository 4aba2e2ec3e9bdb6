"""What an object of the configuration said when it was made: a class or function, its reason, its line."""

from __future__ import annotations

import inspect
import re
import traceback
from pathlib import Path

from ..distributed.faults import FAULTS, NamedError
from ..distributed.placed import known_failure
from ..distributed.told import text_of
from .sources import ASK, refusal
from .value_types import one_line, public_path


def unbuildable(error: BaseException) -> NamedError:
    """What an object of the configuration said when it was made.

    Args:
        error: What the parser raised. Where it tries several alternatives it keeps the first one's exception and the
            text of all.
    """
    for line in reversed(text_of(error).splitlines()):
        match = re.fullmatch(r"[\s-]*(.*) \[([a-z-]+)\]", line)
        if match and match[2] in FAULTS and not isinstance(error, NamedError):
            return NamedError(match[2], match[1], cause="", fix="")
    while error.__cause__ is not None and not isinstance(error, NamedError) and _of_parser(error):
        error = error.__cause__
    if isinstance(error, NamedError):
        generic = (error.identifier, error.cause) == ("config", FAULTS["config"].cause)
        return refusal(error.what, ASK) if generic else error
    made, place = _made(error)
    known = None if _of_network(error) else known_failure(error, f"{made} cannot be made")
    if known is not None:
        return known
    said = one_line(error).rstrip(" .,…")
    if isinstance(error, (ValueError, TypeError)):
        what = said if said.startswith(f"{made}:") else f"{made} refuses its arguments: {said}"
    else:
        what = f"{made} cannot be made: {type(error).__name__}: {said}"
    fix = f"Correct its init_args; {ASK}"
    if _of_network(error):
        fix = (
            "Pretrained weights cannot be downloaded: switch them off in its init_args (weights_backbone: null, "
            "encoder_weights: null, pretrained: false), or run once where there is a network."
        )
    return refusal(f"{what}{place}.", fix)


def _of_parser(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "jsonargparse" in frames[-1].filename


def _made(error: BaseException) -> tuple[str, str]:
    """Class or function that was being made, and the last line of the user's own code."""
    made, place = "An object", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "default_class_instantiator":  # of jsonargparse
            found = frame.f_locals["class_type"]
            made, place = public_path(found) if inspect.isclass(found) else found.__name__, ""
        elif (file := Path(frame.f_code.co_filename)).is_relative_to(Path.cwd()):
            place = f" ({file.relative_to(Path.cwd())}:{line})"
    return made, place


def _of_network(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came from, says that there is no network; libraries have their own."""
    while error is not None:
        if isinstance(error, ConnectionError) or type(error).__name__ in ("URLError", "ConnectError", "ProxyError"):
            return True
        error = error.__cause__ or error.__context__
    return False
