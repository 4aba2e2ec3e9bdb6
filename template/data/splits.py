"""Which cases are for training, validation and test: by fractions or in folds, never through a group.

Everything here depends on the names, their groups and one seed alone: it is the same on every process, machine and
version of every library, in whatever order the names come.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from ..distributed.faults import NamedError
from .names import split_names

Split = Literal["train", "val", "test"]
Parts = dict[Split, list[str]]

#: Names under which people keep the files of a split.
SPELLINGS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
PLACE = "{split}"


def place_of(template: str, split: Split) -> Path | None:
    """Find the file or folder of a split.

    Args:
        template: Path with ``{split}`` where the split's name stands, such as ``data/images/{split}``.
        split: Which one.

    Returns:
        The first that exists of :data:`SPELLINGS`, ``~`` resolved; None where none does.
    """
    paths = (Path(template.replace(PLACE, name)).expanduser() for name in SPELLINGS[split])
    return next((path for path in paths if path.exists() or path.is_symlink()), None)


def grouped(names: Iterable[str], pattern: str | None, key: str = "data.group") -> dict[str, str]:
    r"""Find the group of each name.

    Args:
        names: Unique names.
        pattern: Regular expression that a name begins with; its first parentheses, or all of it where it has none, are
            the group: ``^(.*)_\d+$`` for Carvana's ``car_01`` … ``car_16``. None: each name is a group of its own.
        key: Of the configuration, for messages.

    Returns:
        Name to group.

    Raises:
        NamedError: ``config``: no regular expression, or a name in which it finds no group.
    """
    if pattern is None:
        return {name: name for name in names}
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise NamedError("config", f"{key} '{pattern}' is no regular expression: {error}.") from error
    groups = {}
    for name in names:
        found = expression.match(name)
        group = found.group(1 if expression.groups else 0) if found else None
        if not group:
            raise NamedError(
                "config",
                f"{key} '{pattern}' {'finds an empty group in' if found else 'does not match'} '{name}'.",
                cause="Each name needs a group, so that no group is in two splits.",
                fix="Let it match every name; | joins several patterns.",
            )
        groups[name] = group
    return groups


def split_groups(groups: Mapping[str, str], seed: int, val_fraction: float, test_fraction: float) -> Parts:
    """Split names so that all of a group are in one split.

    Args:
        groups: Name to group.
        seed: Another seed gives another split.
        val_fraction: Part of the groups for validation, at least one unless 0.
        test_fraction: Part of the groups for the test, at least one unless 0.

    Returns:
        Sorted names of each split; where each name is its own group, those of ``split_names``.
    """
    parts = split_names(sorted(set(groups.values())), seed, val_fraction, test_fraction)
    split_of = {group: split for split, members in parts.items() for group in members}
    names: Parts = {"train": [], "val": [], "test": []}
    for name in sorted(groups):
        names[split_of[groups[name]]].append(name)
    return names


def fold_groups(groups: Mapping[str, str], seed: int, folds: int) -> list[list[str]]:
    """Deal names out to folds so that all of a group are in one fold.

    The largest group comes first, and each goes to the fold that has the fewest names, as in scikit-learn's
    ``GroupKFold``; among groups of one size the order is that of a hash of seed and group.

    Args:
        groups: Name to group.
        seed: Another seed gives other folds.
        folds: Number of folds.

    Returns:
        Sorted names of each fold.
    """
    sizes = Counter(groups.values())

    def order(group: str) -> tuple[int, bytes]:
        digest = hashlib.sha256(f"{seed}/{group}".encode("utf-8", "surrogateescape")).digest()
        return -sizes[group], digest

    filled = [0] * folds
    fold_of = {}
    for group in sorted(sizes, key=order):
        fold_of[group] = filled.index(min(filled))
        filled[fold_of[group]] += sizes[group]
    return [sorted(name for name in groups if fold_of[groups[name]] == fold) for fold in range(folds)]


class Splitter:
    """How the cases of a data set are shared out, as its configuration says.

    Args:
        val_fraction: Part of the groups that is held out for validation.
        test_fraction: Part of the groups that is held out for the test.
        seed: Seed of the split.
        folds: Number of folds for cross-validation: of what the test leaves, one is for validation, the others are for
            training, and ``val_fraction`` is not used. Default: one split by fractions.
        fold: Which fold is for validation, from 0.

    Raises:
        NamedError: ``config``: arguments that make no split.
    """

    def __init__(
        self, val_fraction: float, test_fraction: float, seed: int = 0, folds: int | None = None, fold: int = 0
    ) -> None:
        if not (0 <= val_fraction <= 1 and 0 <= test_fraction <= 1 and val_fraction + test_fraction <= 1):
            raise NamedError(
                "config",
                f"data.val_fraction {val_fraction} and data.test_fraction {test_fraction} do not make a split.",
                cause="Each is 0 to 1, and both together at most 1.",
            )
        if folds is not None and folds < 2:
            raise NamedError("config", f"data.folds is {folds}; cross-validation needs 2 or more.")
        if not 0 <= fold < (folds or 1):
            known = f"0 to {folds - 1}" if folds else "0, since data.folds is not set"
            raise NamedError("config", f"data.fold is {fold}; it can be {known}.")
        self.val_fraction, self.test_fraction, self.seed, self.folds, self.fold = (
            val_fraction, test_fraction, seed, folds, fold,
        )  # fmt: skip

    def split(self, groups: Mapping[str, str]) -> Parts:
        """Share names out to training, validation and test.

        Args:
            groups: Name to group; all of a group are in one split.

        Returns:
            Sorted names of each split.

        Raises:
            NamedError: ``too-few-samples``: fewer groups than folds.
        """
        if self.folds is None:
            return split_groups(groups, self.seed, self.val_fraction, self.test_fraction)
        parts = split_groups(groups, self.seed, 0.0, self.test_fraction)
        left = {name: groups[name] for name in parts["train"]}
        number = len(set(left.values()))
        if number < self.folds:
            raise NamedError(
                "too-few-samples",
                f"data.folds is {self.folds}, and beside the test there are {number} cases or groups.",
                fix="Lower data.folds.",
            )
        dealt = fold_groups(left, self.seed, self.folds)
        val = dealt.pop(self.fold)
        return {"train": sorted(name for fold in dealt for name in fold), "val": val, "test": parts["test"]}

    def share(self, split: Split, given: Callable[[Split], Mapping[str, str] | None]) -> list[str] | None:
        """Names of a split of a data set that comes with splits; validation is cut out of training where it lacks it.

        Args:
            split: Which one.
            given: Name to group of a split that the data set comes with; None where it lacks it.

        Returns:
            Sorted names; None where the data set lacks training or the test.

        Raises:
            NamedError: ``config``: folds of a data set that has a validation of its own; as :meth:`split`.
        """
        own = given(split)
        if split == "test":
            return None if own is None else sorted(own)
        val, train = (own, given("train")) if split == "val" else (given("val"), own)
        if val is not None:
            if self.folds is not None:
                raise NamedError(
                    "config",
                    "data.folds is set, and the data set comes with a validation split.",
                    fix="Leave data.folds out, or leave the validation split out.",
                )
            return None if own is None else sorted(own)
        if train is None:
            return None
        held = Splitter(self.val_fraction, 0.0, self.seed, self.folds, self.fold)
        return held.split(train)[split]
