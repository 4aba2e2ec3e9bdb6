"""Types and parameters as the parser sees them, and in words."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from jsonargparse import ArgumentParser

from ..distributed.told import text_of
from .sources import Given

_PACKAGE = (__package__ or "").partition(".")[0]
_UNIONS = (typing.Union, types.UnionType)
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    dict: "keys",
}


class Parameters:
    """Arguments of a parser, of a class or of a factory function.

    Args:
        parser: Where they have been added.
    """

    def __init__(self, parser: ArgumentParser) -> None:
        self.hints: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.required: list[str] = []
        for action in parser._actions:
            hint = getattr(action, "_typehint", None)
            if hint is not None and type(action).__name__ == "ActionTypeHint":
                self.hints[action.dest] = hint
                self.defaults[action.dest] = action.default
                if action.required:
                    self.required.append(action.dest)

    @classmethod
    def of(cls, found: Any, skip: int = 0) -> Parameters:
        """Those of a class or function.

        Args:
            found: The class or function.
            skip: Leading positional ones that it gets from elsewhere, as an optimizer its parameters.
        """
        parser = ArgumentParser(exit_on_error=False)
        if inspect.isclass(found):
            parser.add_class_arguments(found, fail_untyped=False, skip={skip} if skip else None)
        else:
            parser.add_function_arguments(found, fail_untyped=False, skip={skip} if skip else None)
        return cls(parser)

    def level(self, prefix: str) -> list[str]:
        """Names directly below a section."""
        below = [dest.removeprefix(prefix) for dest in self.hints if dest.startswith(prefix)]
        return list(dict.fromkeys(dest.partition(".")[0] for dest in below))


def members(hint: Any) -> list[Any]:
    """Alternatives of a type hint, which may be none but itself."""
    if typing.get_origin(hint) in _UNIONS:
        return [member for alternative in typing.get_args(hint) for member in members(alternative)]
    return [hint]


def class_types(hint: Any) -> tuple[type, ...]:
    """Base classes that a ``class_path`` may name where this type is asked for, also inside lists and callables."""
    found: list[type] = []
    for member in members(hint):
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if origin is Callable and arguments:
            found += class_types(arguments[-1])
        elif (
            origin is not None and arguments and isinstance(origin, type) and issubclass(origin, Collection | Iterable)
        ):
            found += class_types(arguments[0])
        elif inspect.isclass(member) and member.__module__ not in ("builtins", "datetime", "pathlib"):
            found.append(member)
    return tuple(dict.fromkeys(found))


def accepts(hint: Any, given: Given) -> bool:
    """Whether the parser takes a value for a type."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    try:
        parser.parse_object({"value": given.plain()})
    except Exception:  # noqa: BLE001  # whatever it raises, it does not take it
        return False
    return True


def expected(hint: Any) -> str:
    """A type in words."""
    words: dict[str, None] = {}
    for member in members(hint):
        # A number that may also be a tensor is written as a number.
        if getattr(member, "__name__", "") != "Tensor" or len(members(hint)) == 1:
            choices = typing.get_args(member) if typing.get_origin(member) is Literal else ()
            words |= dict.fromkeys([repr(choice) for choice in choices] or [_in_words(member)])
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _in_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if bases := class_types(hint):
        several = isinstance(origin, type) and issubclass(origin, Sequence)
        return f"a {'list of ' if several else ''}{public_path(bases[0])} (by class_path)"
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        kinds = {_in_words(argument) for argument in arguments}
        return f"a list of {len(arguments)}: {' and '.join(sorted(kinds))} each"
    if origin in (tuple, list) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return f"a list, each item {_in_words(arguments[0])}" if arguments else "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"keys ({_in_words(arguments[0])}) with values ({_in_words(arguments[1])})"
    return _WORDS.get(hint, re.sub(r"<class '(.+)'>", r"\1", str(hint)).replace("typing.", ""))


def full_path(found: type) -> str:
    """Where a class is defined."""
    return f"{found.__module__}.{found.__qualname__}"


def public_path(found: type) -> str:
    """The shortest path of imported modules that leads to a class: ``torch.nn.Module``; of our own, its name."""
    parts = found.__module__.split(".")
    if parts[0] == _PACKAGE:
        return found.__name__
    for length in range(1, len(parts)):
        module = sys.modules.get(".".join(parts[:length]))
        if getattr(module, found.__name__, None) is found:
            return ".".join([*parts[:length], found.__name__])
    return full_path(found)


def shown(given: Given) -> str:
    """A value as one would write it, cut where it is long."""
    value = given.plain()
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def one_line(message: object, limit: int = 300) -> str:
    """A message or an exception in one line of limited length."""
    # str() of a KeyError is a repr.
    message = message.args[0] if isinstance(message, KeyError) and message.args else message
    text = text_of(message) if isinstance(message, BaseException) else str(message)
    text = " ".join(text.split()) or type(message).__name__
    return text if len(text) <= limit else f"{text[:limit].rsplit(' ', 1)[0]} …"
