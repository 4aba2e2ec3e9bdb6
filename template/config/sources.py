"""What the configuration says and where it says so: file and line of every key, before anything is made of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ..distributed.faults import NamedError
from ..distributed.told import printable

COMMAND_LINE = "command line"
#: Where to look when nothing better can be said.
ASK = "--help and --print_config show what is accepted."
#: What the description of an object consists of; every other key beside them is misplaced.
SPEC_KEYS = ("class_path", "init_args", "dict_kwargs")
_NO_VALUES = ("help", "print_config", "version")


@dataclass(frozen=True)
class Given:
    """A value, where it was given, and what lies below it.

    Attributes:
        value: A scalar, a ``dict`` of names to :class:`Given`, or a ``list`` of :class:`Given`.
        where: ``file:line``, or ``command line``.
        stale: Empty, or, for an argument of a class that a later file or option has replaced by another, that class's
            name. The argument is passed on where the new class has one of that name, and dropped where not.
        over: Empty, or, for a list of objects in whose place another one was, where that was given.
    """

    value: Any = field(default_factory=dict)
    where: str = COMMAND_LINE
    stale: str = ""
    over: str = ""

    def plain(self) -> Any:
        """The value without the places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def read_given(arguments: Sequence[str]) -> Given:
    """Lay the files and options of a command line over each other, in their order.

    Args:
        arguments: The verb and its options.

    Raises:
        NamedError: ``config``: a file cannot be read, is no YAML, or names a key twice.
    """
    tree = Given()
    for name, text in _options(arguments):
        if name in ("config", "c"):
            above = _read_config(text)
        else:
            *sections, last = name.split(".")
            above = Given({last: parse(text, COMMAND_LINE)})
            for section in reversed(sections):
                above = Given({section: above})
        tree = _laid_over(tree, above)
    return tree


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = list(arguments)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if not name.startswith("--") and name != "-c":
            continue
        name = name.lstrip("-")
        # A key without its value is left to the parser.
        if name.rpartition(".")[2] not in _NO_VALUES and (equals or (following and not following.startswith("--"))):
            yield name, value if equals else following


def _laid_over(below: Given, above: Given) -> Given:
    if isinstance(below.value, list) and isinstance(above.value, dict) and below.value:
        # jsonargparse's `--trainer.callbacks.patience 3` means the last of the list.
        return replace(below, value=[*below.value[:-1], _laid_over(below.value[-1], above)])
    if isinstance(below.value, str) and isinstance(above.value, dict):
        below = replace(below, value={"class_path": below})
    if isinstance(below.value, list) and isinstance(above.value, list) and _holds_objects(below.value):
        return replace(above, over=below.where)
    if not isinstance(below.value, dict):
        return above
    if isinstance(above.value, str) and "class_path" in below.value:
        above = replace(above, value={"class_path": above})
    if not isinstance(above.value, dict):
        return above
    merged, new = dict(below.value), dict(above.value)
    if "class_path" in merged:
        new = _spelled_out(new)
        if "class_path" in new and new["class_path"].value != merged["class_path"].value and "init_args" in merged:
            merged["init_args"] = _stale(merged["init_args"], str(merged["class_path"].value))
    for key, child in new.items():
        if str(key).endswith("+"):
            item = list(child.value) if isinstance(child.value, list) else [child]
            before = merged.get(key[:-1], Given([])).value
            merged[key[:-1]] = replace(child, value=[*(before if isinstance(before, list) else []), *item])
        else:
            merged[key] = _laid_over(merged[key], child) if key in merged else child
    return replace(below, value=merged)


def _holds_objects(items: list[Given]) -> bool:
    return any(isinstance(item.value, dict) and "class_path" in item.value for item in items)


def replaced_lists(given: Given, key: str = "") -> Iterator[str]:
    """Tell of each list of objects, such as callbacks, that a later file or option has put in the place of another."""
    if given.over:
        yield f"{key}: the list of {given.where} in place of that of {given.over}; --{key}+= would add to it"
    if isinstance(given.value, dict):
        for name, child in given.value.items():
            yield from replaced_lists(child, key if name == "init_args" else f"{key}.{name}".lstrip("."))


def _spelled_out(spec: dict[str, Given]) -> dict[str, Given]:
    """``--model.net.width 4`` is short for ``--model.net.init_args.width 4``; in a file it is not."""
    short = {key: child for key, child in spec.items() if key not in SPEC_KEYS and child.where == COMMAND_LINE}
    if not short:
        return spec
    rest = {key: child for key, child in spec.items() if key not in short}
    return {**rest, "init_args": Given({**rest.get("init_args", Given()).value, **short})}


def _stale(given: Given, replaced: str) -> Given:
    if not isinstance(given.value, dict):
        return given
    return replace(given, value={key: replace(child, stale=replaced) for key, child in given.value.items()})


def _read_config(name: str) -> Given:
    path = Path(name)
    if "://" in name or name.lstrip().startswith("{") or "\n" in name:
        # Another file system, which jsonargparse reads by itself; or the configuration itself.
        return Given() if "://" in name else parse(name, COMMAND_LINE)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        found = sorted(str(file) for file in {*path.parent.glob("*.y*ml"), *Path("configs").glob("*.y*ml")})
        close = difflib.get_close_matches(name, found, n=1) or [f for f in found if Path(f).name == path.name]
        fix = f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(found)}." if found else None
        raise refusal(f"The configuration file '{name}' does not exist.", fix=fix or "Correct its path.") from error
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror
        fix = "Give a YAML file, such as configs/phantom.yaml." if path.is_dir() else "Correct its path or its rights."
        raise refusal(f"The configuration file '{name}' cannot be read: {reason}.", fix=fix) from error
    except UnicodeDecodeError as error:
        raise refusal(f"The configuration file '{name}' is no text.", fix="Give a YAML file in UTF-8.") from error
    given = parse(text, name)
    if not isinstance(given.value, dict):
        what = "is empty" if given.value is None else "holds no keys"
        raise refusal(
            f"The configuration file '{name}' {what}.", fix="Write 'key: value' lines, as in configs/phantom.yaml."
        )
    return given


def parse(text: str, source: str) -> Given:
    """Read YAML with the line of everything in it.

    Args:
        text: YAML; on the command line any text, which then is taken as it is.
        source: File name, or :data:`COMMAND_LINE`.

    Raises:
        NamedError: ``config``: a file is no YAML, or names a key twice.
    """
    if source == COMMAND_LINE and text != printable(text):
        raise refusal(
            f"'{printable(text)}' on the command line is no UTF-8.",
            fix="Rename that file or folder, or give it a second name with ln -s. Files in it may have any name.",
        )
    loader = None
    try:
        loader = yaml.SafeLoader(text)  # it looks for characters that YAML does not know
        node = loader.get_single_node()
        return Given(None, source) if node is None else _marked(loader, node, source)
    except yaml.YAMLError as error:
        if source == COMMAND_LINE:
            return Given(text, source)
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        tab = "\\t" in problem or _starts_with_tab(text, mark)
        raise refusal(
            f"{place}: this is no valid YAML: {'a tab' if tab else problem}.",
            fix="Indent with spaces, not with tabs."
            if tab
            else "Look at this line and the one before: indentation, brackets, quotes around text with a colon.",
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def _starts_with_tab(text: str, mark: Any) -> bool:
    lines = text.splitlines()
    return bool(mark) and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]


def _marked(loader: yaml.SafeLoader, node: yaml.Node, source: str) -> Given:
    where = source if source == COMMAND_LINE else f"{source}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        return Given([_marked(loader, item, source) for item in node.value], where)
    if not isinstance(node, yaml.MappingNode):
        return Given(loader.construct_object(node, deep=True), where)
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if key.value in lines and key.tag != "tag:yaml.org,2002:merge":
            raise refusal(
                f"{source}:{key.start_mark.line + 1}: the key '{key.value}' is given twice, first in line "
                f"{lines[key.value]}.",
                fix="Remove one of the two: the second would silently win.",
            )
        lines[str(key.value)] = key.start_mark.line + 1
    loader.flatten_mapping(node)  # what `<<: *anchor` brings in
    children = {}
    for key, value in node.value:
        child = _marked(loader, value, source)
        # A mapping begins on the line below its key, and the key is what a reader looks for.
        place = child.where if source == COMMAND_LINE else f"{source}:{key.start_mark.line + 1}"
        children[loader.construct_object(key, deep=True)] = replace(child, where=place)
    return Given(children, where)


def refusal(what: str, fix: str) -> NamedError:
    """The error of a configuration that is not accepted; its sentence says all, so it has no separate cause."""
    return NamedError("config", what, cause="", fix=fix)
