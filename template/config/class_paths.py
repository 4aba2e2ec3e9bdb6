"""Finding what a ``class_path`` means, and saying why it means nothing."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
import traceback
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..distributed.faults import NamedError
from .sources import refusal
from .value_types import full_path, members, one_line, public_path

_PACKAGE = (__package__ or "").partition(".")[0]
#: Optional dependencies: top-level module to the extra of pyproject.toml that brings it.
_EXTRAS = {"monai": "medical", "nibabel": "medical", "segmentation_models_pytorch": "encoders", "timm": "encoders"}
#: Of modules this program has losses and transforms as well, and of callbacks its own parts.
_MIXED = {"torch.nn.Module", "lightning.Callback"}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None."""
    by_lower = {other.lower(): other for other in names}
    # difflib's own 0.6 takes 'images' for 'dims', but 'dpp' needs it to become 'ddp'.
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7 if len(name) > 4 else 0.6)
    return by_lower[close[0]] if close else None


def find_class(class_path: Any, bases: tuple[type, ...], key: str, where: str) -> Any:
    """Find a class or a factory function by the name that a configuration gives it.

    Args:
        class_path: Full path, or the bare name of an imported class.
        bases: What it has to be, or to return.
        key: The configuration's key, for messages.
        where: File and line, for messages.

    Raises:
        NamedError: ``config``: it cannot be found, or is something else.
    """
    wanted = " or ".join(map(public_path, bases))
    if not isinstance(class_path, str):
        raise refusal(f"{where}: {key} names no class; class_path is {class_path!r}.", _example(bases))
    found = _by_path(class_path, bases, key, where) if "." in class_path else _by_name(class_path, bases, key, where)
    if inspect.isclass(found):
        if not issubclass(found, bases):
            raise refusal(f"{where}: {key}: '{class_path}' is no {wanted}.", _example(bases))
    elif callable(found):
        returned = _returned(found)
        if returned is None:
            raise refusal(
                f"{where}: {key}: the function '{class_path}' does not say what it returns.",
                f"Annotate it: def {class_path.rpartition('.')[2]}(…) -> {public_path(bases[0])}:",
            )
        if not any(inspect.isclass(member) and issubclass(member, bases) for member in members(returned)):
            raise refusal(f"{where}: {key}: the function '{class_path}' returns no {wanted}.", _example(bases))
    else:
        raise refusal(f"{where}: {key}: '{class_path}' is a {type(found).__name__}, no {wanted}.", _example(bases))
    return found


def _by_name(name: str, bases: tuple[type, ...], key: str, where: str) -> type:
    if name in (own := own_classes(bases)):
        return own[name]
    candidates = list(_subclasses(bases))
    same = [found for found in candidates if found.__name__ == name]
    if len(same) == 1:
        return same[0]
    if same:
        paths = " or ".join(map(full_path, same))
        raise refusal(f"{where}: {key}: '{name}' is the name of several classes.", f"Give the full path: {paths}.")
    kinds = " or ".join(map(public_path, bases))
    # The program's own names first: torch alone has hundreds of modules.
    close = nearest(name, own) or nearest(name, [found.__name__ for found in candidates])
    fix = f"Did you mean '{close}'?" if close else _example(bases)
    raise refusal(f"{where}: {key}: no {kinds} has the name '{name}'.", fix)


def _by_path(class_path: str, bases: tuple[type, ...], key: str, where: str) -> Any:
    found: Any = None
    walked = ""
    for part in class_path.split("."):
        path = f"{walked}.{part}" if walked else part
        module = _imported(path, class_path, key, where) if walked == "" or inspect.ismodule(found) else None
        if module is not None:
            found = module
        elif walked and hasattr(found, part):
            found = getattr(found, part)
        else:
            raise _missing(found, walked, part, class_path, bases, key, where)
        walked = path
    return found


def _imported(path: str, class_path: str, key: str, where: str) -> types.ModuleType | None:
    """Import a module; None where there is none of that name."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        # A module that is not there itself, or a part of its path: but not one that it imports in turn.
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            return None
        raise _not_importable(path, error, class_path, key, where) from error
    except Exception as error:
        raise _not_importable(path, error, class_path, key, where) from error


def _not_importable(path: str, error: Exception, class_path: str, key: str, where: str) -> NamedError:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}: {error.msg}"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        place = f"{frames[-1].filename}:{frames[-1].lineno}: {one_line(error)}" if len(frames) > 1 else one_line(error)
    return refusal(
        f"{where}: {key}: '{class_path}' cannot be used, since importing '{path}' fails: {type(error).__name__}, "
        f"{place}.",
        fix=_install(error.name or "") if isinstance(error, ModuleNotFoundError) else "Correct that line.",
    )


def _missing(
    parent: Any, walked: str, part: str, class_path: str, bases: tuple[type, ...], key: str, where: str
) -> NamedError:
    if walked:
        names = [name for name in dir(parent) if not name.startswith("_")]
        if inspect.ismodule(parent) and hasattr(parent, "__path__"):
            names += [module.name for module in pkgutil.iter_modules(parent.__path__)]
        # A class before a module of the same letters: torch.optim has Adam and adam.
        alike = [name for name in names if name[0].isupper() == part[:1].isupper()]
        close, what = nearest(part, alike) or nearest(part, names), f"'{walked}' has no '{part}'"
        correct = class_path.replace(f"{walked}.{part}", f"{walked}.{close}", 1)
    else:
        close = None if part in _EXTRAS else nearest(part, _top_level_modules())
        what, correct = f"there is no module '{part}'", class_path.replace(part, str(close), 1)
    fix = f"Did you mean '{correct}'?" if close else _example(bases) if walked else _install(part)
    return refusal(f"{where}: {key}: '{class_path}' is not found: {what}.", fix)


def _install(module: str) -> str:
    if module in _EXTRAS:
        return f"Install it: pip install -e '.[{_EXTRAS[module]}]' in the project's folder."
    return f"Install the library, or put {module}.py into the folder that you start from, '{Path.cwd()}'."


def _top_level_modules() -> Iterator[str]:
    yield from (module.name for module in pkgutil.iter_modules())
    yield from sys.stdlib_module_names


def _subclasses(bases: Iterable[type]) -> Iterator[type]:
    """Public classes below the bases, and the bases, each once."""
    seen: dict[str, type] = {}
    waiting = list(bases)
    while waiting:
        found = waiting.pop()
        path = full_path(found)
        if path not in seen:
            seen[path] = found
            waiting += type.__subclasses__(found)
    return (found for path, found in seen.items() if "._" not in path and "<locals>" not in path)


def _returned(function: Any) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return inspect.signature(function).return_annotation if callable(function) else None


def own_classes(bases: tuple[type, ...]) -> dict[str, type]:
    """This program's own classes below the bases, by their short names."""
    own = (found for found in _subclasses(bases) if found.__module__.startswith(f"{_PACKAGE}."))
    return {found.__name__: found for found in own if found not in bases}


def offered(bases: tuple[type, ...]) -> list[str]:
    """Short names of this program's own classes below the bases to choose from; none where a list would mislead."""
    if _MIXED & set(map(public_path, bases)):
        return []
    return sorted(name for name, found in own_classes(bases).items() if not _is_unfinished(found))


def _is_unfinished(found: type) -> bool:
    """Whether a class leaves methods to its subclasses, also without Python's metaclass for that."""
    return any(getattr(getattr(found, name, None), "__isabstractmethod__", False) for name in dir(found))


def _example(bases: tuple[type, ...]) -> str:
    own = offered(bases)
    names = f"the name of one of this program's own ({', '.join(own)}) or " if own else ""
    return f"Give {names}a full path such as package.module.Class."
