"""Lightning's parser, with one sentence for an error, help for a person and short class names in what it writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn

from jsonargparse import Namespace, _typehints
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from .class_paths import own_classes
from .errors import Refused
from .help_format import ShortHelp
from .value_types import class_types, full_path

_PACKAGE = (__package__ or "").partition(".")[0]


class ConfigParser(LightningArgumentParser):
    """Parser of one verb, and of the arguments of each class in a configuration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": ShortHelp, **kwargs})

    @override
    def dump(self, cfg: Namespace, *args: Any, **kwargs: Any) -> str:
        try:
            text = super().dump(cfg, *args, **kwargs)
        except ValueError:
            # A member of an enumeration as the default of a text, as Lightning's Timer has one.
            text = super().dump(_plain(cfg), *args, **kwargs)
        # So that a copy of the package under another name accepts what is written.
        own = rf"(class_path['\"]?: ?['\"]?){re.escape(_PACKAGE)}\.(?:\w+\.)*(\w+)"
        return re.sub(own, r"\1\2", text)

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # of one class; the parser around it tries other alternatives
            super().error(message, ex)
        raise Refused(message) from ex


def _plain(value: Any) -> Any:
    """A configuration with text in the place of members of enumerations of text."""
    if isinstance(value, Namespace):
        plain = {name: _plain(child) for name, child in vars(value).items()}
        return Namespace(**plain)  # type: ignore[no-untyped-call]
    if isinstance(value, dict):
        return {name: _plain(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_plain(child) for child in value]
    return value.value if isinstance(value, Enum) and isinstance(value, str) else value


@contextmanager
def own_names_first() -> Iterator[None]:
    """Let a short name mean this program's class where another library has one of that name, as MONAI has a ``UNet``.

    jsonargparse looks a short name up among all classes that happen to be imported, refuses two of a name, and has no
    setting for it.
    """
    among_all = _typehints.resolve_class_path_by_name

    def resolve(hint: Any, name: str) -> str:
        hints = hint if isinstance(hint, tuple) else (hint,)
        own = own_classes(tuple(base for hint in hints for base in class_types(hint)))
        return full_path(own[name]) if name in own else among_all(hint, name)

    _typehints.resolve_class_path_by_name = resolve  # type: ignore[assignment]  # called with type hints as well
    try:
        yield
    finally:
        _typehints.resolve_class_path_by_name = among_all
