"""Lightning's parser, with one sentence for an error, help for a person and short class names in what it writes."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from .config_errors import Refused
from .help_format import ShortHelp

_PACKAGE = (__package__ or "").partition(".")[0]


class ConfigParser(LightningArgumentParser):
    """Parser of one verb, and of the arguments of each class in a configuration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": ShortHelp, **kwargs})

    @override
    def dump(self, *args: Any, **kwargs: Any) -> str:
        # So that a copy of the package under another name accepts what is written.
        own = rf"(class_path['\"]?: ?['\"]?){re.escape(_PACKAGE)}\.(?:\w+\.)*(\w+)"
        return re.sub(own, r"\1\2", super().dump(*args, **kwargs))

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # of one class; the parser around it tries other alternatives
            super().error(message, ex)
        raise Refused(message) from ex
