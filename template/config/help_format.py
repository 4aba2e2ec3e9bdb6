"""``VERB --help`` for a person: types in words, no markup, no lists of the hundreds of modules that torch has."""

from __future__ import annotations

import re
from argparse import Action
from typing import Any

from jsonargparse import DefaultHelpFormatter
from typing_extensions import override

from .class_paths import offered
from .value_types import class_types, expected

_MARKUP = (
    (r"\s*Defaults? ?(?:to)?:? ``[^`]*``\.", ""),  # said again at the end
    (r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1"),
    (r"``([^`]*)``", r"\1"),
    (r"default: True\b", "default: true"),
    (r"default: False\b", "default: false"),
)


class ShortHelp(DefaultHelpFormatter):
    """Help with one short paragraph for each key."""

    @override
    def start_section(self, heading: str | None) -> None:
        super().start_section(_plain(heading or ""))

    @override
    def _format_action(self, action: Action) -> str:
        # `--model.net.help UNet` exists for each key that takes a class; the description says so once.
        return "" if action.dest.endswith(".help") else super()._format_action(action)

    @override
    def _get_help_string(self, action: Action) -> str:
        own = offered(class_types(getattr(action, "_typehint", None)))
        names = f", own: {', '.join(own)}" if own else ""
        return _plain(re.sub(r", known subclasses: [^()]*(?=\)$)", names, super()._get_help_string(action)))

    @override
    def _get_type_str(self, action: Action) -> str | None:
        hint: Any = getattr(action, "_typehint", None)
        return super()._get_type_str(action) if hint is None else expected(hint)


def _plain(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    return text
