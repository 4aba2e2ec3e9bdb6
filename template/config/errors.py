"""Why a configuration is refused, in one sentence that names the key, its place and what to write instead.

The parser's own message nests every alternative that it tried. Here the configuration is walked from the top, each
value shown to the parser alone, down to the smallest one that it does not accept.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.strategies import StrategyRegistry

from ..distributed.faults import NamedError
from ..distributed.strategy import SafeDDPStrategy
from .class_paths import find_class, nearest
from .sources import ASK, COMMAND_LINE, SPEC_KEYS, Given, refusal, replaced_lists
from .value_types import Parameters, accepts, class_types, expected, members, one_line, shown


class Refused(Exception):  # noqa: N818  # becomes a NamedError once its reason is found
    """The parser does not accept the configuration; its message is the argument."""


class Checker:
    """Looks for the first thing in a configuration that is refused.

    Args:
        parameters: What the verb's parser accepts.
        linked: Keys that are filled in from elsewhere, and from where.
    """

    def __init__(self, parameters: Parameters, linked: Mapping[str, str]) -> None:
        self.parameters = parameters
        self.linked = linked

    def explain(self, given: Given, message: str) -> NamedError:
        """Say what is wrong with a configuration that the parser has refused.

        Args:
            given: The configuration.
            message: The parser's own message.
        """
        if match := re.search(r"argument (?:-\w/)?(\S+): expected one argument", message):
            return refusal(f"{COMMAND_LINE}: {match[1]} needs a value, and none is given.", f"Write {match[1]} VALUE.")
        try:
            self.check_values(given)
            self.check_required(given)
        except NamedError as error:
            return error
        if match := re.search(r"[Uu]nrecognized arguments: (.*)", message):
            return refusal(
                f"{COMMAND_LINE}: '{match[1]}' is no key with its value.", "Write --KEY VALUE, with two dashes."
            )
        return refusal(f"The configuration is refused: {one_line(message)}", ASK)

    def check_linked(self, given: Given) -> None:
        """Refuse a value for a key that is filled in from elsewhere: the parser would replace it without a word.

        Raises:
            NamedError: ``config``.
        """
        for key, source in self.linked.items():
            found: Any = given
            for part in key.split("."):
                found = found.value.get(part) if found is not None and isinstance(found.value, dict) else None
            if found is not None:
                raise refusal(
                    f"{found.where}: {key} is {shown(found)}, but this number is said once, in the data, and comes "
                    f"from {source}.",
                    fix=f"Remove {key}.",
                )

    def check_nulls(self, given: Given) -> None:
        """Refuse null where the parameter has a type that knows no null: the parser lets it pass.

        Raises:
            NamedError: ``config``.
        """
        for dest, hint, child in self._arguments(given):
            self._nulls(hint, child, dest, self.parameters.defaults[dest])

    def check_required(self, given: Given) -> None:
        """Refuse a configuration without data or without a network.

        Raises:
            NamedError: ``config``.
        """
        model = given.value.get("model", Given())
        missing = [key for key, there in (("data", given.value), ("model.net", model.value)) if not _has(there, key)]
        if missing:
            are = "are" if len(missing) > 1 else "is"
            raise refusal(
                f"The configuration is incomplete: {' and '.join(missing)} {are} missing.",
                fix="Give a complete file, such as --config configs/phantom.yaml; further files are laid over it.",
            )

    def check_values(self, given: Given, prefix: str = "") -> None:
        """Refuse the first key that is unknown and the first value that is not accepted.

        Raises:
            NamedError: ``config``.
        """
        for key, child in given.value.items():
            dest = f"{prefix}{key}"
            if dest in self.parameters.hints:
                self._value(self.parameters.hints[dest], child, dest, self.parameters.defaults[dest])
            elif any(known.startswith(f"{dest}.") for known in self.parameters.hints):
                if isinstance(child.value, dict):
                    self.check_values(child, f"{dest}.")
                elif not isinstance(child.value, str):  # text is the name of a file with the section
                    names = ", ".join(self.parameters.level(f"{dest}.")[:4])
                    raise refusal(
                        f"{child.where}: {dest} is {shown(child)}; it must be a section of keys with values.",
                        f"Its keys are {names} …",
                    )
            else:
                raise self._unknown(dest, child, prefix, given)

    def replaced(self, given: Given) -> list[str]:
        """Tell which classes and lists a later file or option has replaced, and what became of a class's arguments."""
        told = list(replaced_lists(given))
        for dest, hint, child in self._arguments(given):
            arguments = child.value.get("init_args") if isinstance(child.value, dict) else None
            if arguments is None or not isinstance(arguments.value, dict):
                continue
            stale = {name: argument.stale for name, argument in arguments.value.items() if argument.stale}
            if stale:
                default = self.parameters.defaults[dest]
                found, parameters = self._accepted(hint, class_types(hint), child, dest, default)
                kept = [name for name in stale if name in parameters.hints]
                dropped = [name for name in stale if name not in parameters.hints]
                parts = [
                    f"{what} {', '.join(names)}" for what, names in (("kept", kept), ("dropped", dropped)) if names
                ]
                before = next(iter(stale.values())).rpartition(".")[2]
                told.append(f"{dest}: {getattr(found, '__name__', found)} in place of {before}, {', '.join(parts)}")
        return told

    def _value(self, hint: Any, given: Given, key: str, default: Any = None) -> None:
        """Refuse a value if the parser does, by its smallest part."""
        if accepts(hint, given):
            return
        bases = class_types(hint)
        if isinstance(given.value, list) and any(class_types(m) and not inspect.isclass(m) for m in members(hint)):
            for number, item in enumerate(given.value):
                if not accepts(hint, replace(given, value=[item])):
                    self._value(hint, item, f"{key}[{number}]")
        elif bases and isinstance(given.value, dict):
            self._object(hint, bases, given, key, default)
        elif bases and isinstance(given.value, str) and all(class_types(m) or m is type(None) for m in members(hint)):
            self._object(hint, bases, replace(given, value={"class_path": given}), key, default)
        else:
            raise refusal(f"{given.where}: {key} is {shown(given)}; it must be {expected(hint)}.", _default(default))

    def _object(self, hint: Any, bases: tuple[type, ...], given: Given, key: str, default: Any) -> None:
        spec = given.value
        found, parameters = self._described(hint, bases, given, key, default)
        name = getattr(found, "__name__", str(found))
        stray = [k for k in spec if k not in SPEC_KEYS] if "class_path" in spec else []
        if stray:
            raise refusal(
                f"{spec[stray[0]].where}: '{stray[0]}' stands beside class_path in {key}.",
                fix=f"Put the arguments of {name} below init_args.",
            )
        arguments = spec.get("init_args", Given()) if "class_path" in spec else given
        if not isinstance(arguments.value, dict):
            raise refusal(
                f"{arguments.where}: init_args of {key} is {shown(arguments)}; it must be keys and values.",
                fix=f"{name} has {', '.join(parameters.hints)}.",
            )
        for argument, child in arguments.value.items():
            if argument in parameters.hints:
                self._value(parameters.hints[argument], child, f"{key}.{argument}", parameters.defaults[argument])
            elif not child.stale:
                close = nearest(str(argument), parameters.hints)
                known = f"Its arguments are {', '.join(list(parameters.hints)[:14]) or 'none'}"
                if inspect.isfunction(found) and inspect.getfullargspec(found).varkw:
                    known += "; those that it hands on by **kwargs go below dict_kwargs"
                raise refusal(
                    f"{child.where}: {name} has no argument '{argument}' ({key}.{argument}).",
                    fix=f"Did you mean '{close}'?" if close else f"{known}.",
                )
        for argument in parameters.required:
            if argument not in arguments.value:
                raise refusal(
                    f"{given.where}: {name} needs the argument '{argument}', and {key}.{argument} is not given.",
                    fix=f"Add {argument}: … ({expected(parameters.hints[argument])}) below init_args, or "
                    f"--{key}.{argument} … to the command line.",
                )

    def _described(
        self, hint: Any, bases: tuple[type, ...], given: Given, key: str, default: Any
    ) -> tuple[Any, Parameters]:
        """Class or function that an object's description names, and its arguments."""
        named = given.value.get("class_path")
        if named is None:
            if not isinstance(default, Mapping | Namespace) or "class_path" not in default:
                raise refusal(
                    f"{given.where}: {key} does not say which class; class_path is missing.",
                    fix=f"Add class_path: …, or --{key} …, with the name of a {bases[0].__name__}.",
                )
            named = Given(default["class_path"], given.where)
        found = find_class(named.value, bases, key, named.where)
        called = any(typing.get_origin(m) is typing.get_origin(typing.Callable[..., Any]) for m in members(hint))
        return found, Parameters.of(found, skip=1 if called else 0)

    def _accepted(
        self, hint: Any, bases: tuple[type, ...], given: Given, key: str, default: Any
    ) -> tuple[Any, Parameters]:
        """As :meth:`_described`, of what the parser has accepted already."""
        try:
            return self._described(hint, bases, given, key, default)
        except NamedError:
            # A name that is no class, such as `auto` laid over the description of a strategy.
            return given.value["class_path"].value, Parameters(ArgumentParser())

    def _arguments(self, given: Given, prefix: str = "") -> Iterator[tuple[str, Any, Given]]:
        if isinstance(given.value, dict):
            for key, child in given.value.items():
                dest = f"{prefix}{key}"
                if dest in self.parameters.hints:
                    yield dest, self.parameters.hints[dest], child
                else:
                    yield from self._arguments(child, f"{dest}.")

    def _nulls(self, hint: Any, given: Given, key: str, default: Any) -> None:
        if given.value is None:
            if default is not None and type(None) not in members(hint) and Any not in members(hint):
                raise refusal(
                    f"{given.where}: {key} is null; it must be {expected(hint)}.",
                    f"{_default(default)} Remove the key.",
                )
        elif isinstance(given.value, list):
            for number, item in enumerate(given.value):
                self._nulls(hint, item, f"{key}[{number}]", None)
        elif isinstance(given.value, dict) and _has_null(given) and (bases := class_types(hint)):
            _, parameters = self._accepted(hint, bases, given, key, default)
            arguments = given.value.get("init_args", Given()) if "class_path" in given.value else given
            for argument, child in arguments.value.items():
                if argument in parameters.hints:
                    self._nulls(parameters.hints[argument], child, f"{key}.{argument}", parameters.defaults[argument])

    def _unknown(self, dest: str, given: Given, prefix: str, above: Given) -> NamedError:
        last = dest.rpartition(".")[2]
        level = self.parameters.level(prefix)
        close = nearest(last, level)
        fix = f"Did you mean '{prefix}{close}'?" if close else ""
        if not fix and (same := self._elsewhere(last, above if not prefix else Given())):
            fix = f"Did you mean '{same}'?"
        if not fix:
            fix = f"Known here are {', '.join(level)}." if len(level) < 15 else ASK
        return refusal(f"{given.where}: the key '{dest}' is unknown.", fix)

    def _elsewhere(self, name: str, given: Given) -> str | None:
        """A key of this very name in another section, or among the arguments of an object."""
        for dest, hint in self.parameters.hints.items():
            if dest.rpartition(".")[2] == name:
                return dest
            found: Any = given
            for part in dest.split("."):
                found = found.value.get(part) if found is not None and isinstance(found.value, dict) else None
            if found is not None and isinstance(found.value, dict) and (bases := class_types(hint)):
                _, parameters = self._described(hint, bases, found, dest, self.parameters.defaults[dest])
                if name in parameters.hints:
                    return f"{dest}.{name}"
        return None


def refuse_strategy(strategy: Any) -> None:
    """Refuse the name of a strategy that is not registered, and knobs that cannot be used, before processes start.

    Args:
        strategy: The value of ``trainer.strategy``: a name, or a class path with its arguments.

    Raises:
        NamedError: ``config``.
    """
    if hasattr(strategy, "get") and str(strategy.get("class_path")).rpartition(".")[2] == SafeDDPStrategy.__name__:
        # Made here to be refused as it would be later, once in each process.
        SafeDDPStrategy(**dict(strategy.get("init_args") or {}))
    if strategy in ("dp", "ddp2"):
        raise refusal(
            f"trainer.strategy is '{strategy}', which Lightning no longer has.",
            "Leave it out and set trainer.devices: DDP starts a process for each device, and data.batch_size stays "
            "the total, as in DataParallel (30 on two devices is 15 each). Its checkpoints ('module.…') load.",
        )
    names = StrategyRegistry.available_strategies()
    if isinstance(strategy, str) and strategy not in ("auto", *names):
        close = nearest(strategy, names)
        raise refusal(
            f"trainer.strategy is '{strategy}', and no strategy has this name.",
            f"Did you mean '{close}'?" if close else "Leave it out, or name SafeDDPStrategy as configs/ddp.yaml does.",
        )


def refuse_unlogged(asked: Mapping[str, str], regions: Iterable[str]) -> None:
    """Refuse metrics that the segmenter does not log.

    Args:
        asked: Key of the configuration to the metric's name.
        regions: Names of the scored regions.

    Raises:
        NamedError: ``config``.
    """
    scores = [f"val/{kind}{region}" for kind in ("dice", "iou") for region in ("", *(f"_{name}" for name in regions))]
    known = ["train/loss", "val/loss", *scores]
    for key, name in asked.items():
        if name not in known:
            raise refusal(f"{key} is '{name}', which nothing logs.", f"There are {', '.join(known)}.")


def _default(default: Any) -> str:
    if default is None or isinstance(default, Mapping | Namespace):
        return ASK
    return f"The default is {shown(Given(default, COMMAND_LINE))}."


def _has(section: Any, key: str) -> bool:
    found = section.get(key.rpartition(".")[2]) if isinstance(section, dict) else None
    return found is not None and found.value is not None


def _has_null(given: Given) -> bool:
    if isinstance(given.value, dict):
        return any(_has_null(child) for child in given.value.values())
    return any(map(_has_null, given.value)) if isinstance(given.value, list) else given.value is None
