"""Checks of the doctor on the files of a data set, each of which is opened once (:mod:`.survey`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from ..data.module import Split
from ..distributed.told import listed
from ..labels import IGNORE_INDEX
from .finding import Finding, check, failure, passed, warning
from .rehearsal import Rehearsal
from .survey import SPLITS, Look, Survey, survey

#: Findings of one kind that are told one by one.
SINGLY = 3
#: An image is of another scale where both its largest value and its spread are so many times those of the others.
#: 8-bit against 0 to 1 is 255, 16-bit against 8-bit 257; photographs at night and in snow, and slices of air and of the
#: abdomen, stay far below.
SCALE, SPREAD = 100.0, 20.0
#: Slices are 0.5 to 5 mm apart in the scans of one study (LiTS); metres, or pixels in place of millimetres, are more.
SPACING = 8.0


@check("data: files", "data-unreadable")
def every_case_can_be_read(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Each case is read, finite, of the right channels, and its mask of the image's size and of the classes."""
    seen = survey(rehearsal)
    faults = [seen.unlisted[split] for split in _used(rehearsal) if split in seen.unlisted]
    yield from faults
    kinds: dict[str, list[Look]] = {}
    for look in seen.looks:
        if look.error is not None:
            kinds.setdefault(look.error.id, []).append(look)
    for looks in kinds.values():
        yield from _few([look.error for look in looks if look.error is not None], [look.name for look in looks])
    maskless = [look for split in _used(rehearsal) for look in seen.of(split) if look.labels is None]
    yield from _few(
        [
            failure(
                "data-unpaired",
                f"'{look.name}' of {look.split} has no mask.",
                cause="read gives None in place of its mask; training and validation need one.",
                fix="Add the mask, or leave the case out of cases().",
            )
            for look in maskless
        ],
        [look.name for look in maskless],
    )
    if not faults and not kinds and not maskless:
        yield passed(f"{seen.extent} can be read{'' if seen.whole else '; --all opens all'}")


@check("data: classes", "class-missing")
def every_class_occurs(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Each class is in a mask of train, and in one of validation."""
    seen, classes = survey(rehearsal), rehearsal.data.classes
    if (nothing := _nothing(seen)) is not None:
        yield nothing
        return
    found = {split: _labels(seen.of(split)) for split in SPLITS}
    masks = {split: sum(look.labels is not None for look in seen.of(split)) for split in SPLITS}
    clean = True
    for finding in _ignored(seen, classes):
        clean = False
        yield finding
    lacking: dict[Split, list[str]] = {}
    for split in ("train", "val"):
        expected = range(len(classes)) if split == "train" else sorted(set(found["train"]) - {IGNORE_INDEX})
        lacking[split] = [classes[label] for label in expected if label not in found[split]]
    two_tone = clean and _two_tone(seen, found["train"])
    if two_tone:
        yield failure(
            "mask-values",
            f"All of {seen.opened('train')} hold 0 and {IGNORE_INDEX} alone: nothing but '{classes[0]}' is learnt.",
            cause=f"{IGNORE_INDEX} in a mask means: does not count. Black and white masks have 255 for their class.",
            fix="Give the label 1 in read: (mask == 255), or with Folder data.mask_values: {0: 0, 255: 1}.",
        )
    for split, missing in lacking.items():
        silent = two_tone or not masks[split] or not seen.telling(split) or set(found[split]) == {IGNORE_INDEX}
        if silent or not missing:
            continue
        clean = False
        yield warning(
            "class-missing",
            f"{_counted(missing, len(classes))} in none of {seen.opened(split)}; there are "
            f"{_counts(seen.of(split), classes)}.",
            cause=None if split == "train" else "The split leaves out rare classes; their scores cannot be counted.",
            fix=None if split == "train" else "Choose the validation cases so that each class is in one of them.",
        )
    if clean and not two_tone:
        number = len(set(found["train"]) - {IGNORE_INDEX})
        extent = "the" if seen.whole else f"{sum(masks.values()):,} opened"
        yield passed(
            f"{number} of {len(classes)} classes in {extent} masks of {', '.join(s for s in masks if masks[s])}"
        )


@check("data: splits", "split-leak")
def no_case_is_in_two_splits(rehearsal: Rehearsal) -> Iterator[Finding]:
    """No image of train is in validation or test, whatever it is called."""
    seen = survey(rehearsal)
    if (nothing := _nothing(seen)) is not None:
        yield nothing
        return
    train = seen.of("train")
    # Empty tiles are all alike, and teach nothing about one another.
    known = {look.digest: look for look in reversed(train) if not look.constant}
    names = {look.name: look for look in train}
    same = [(known[look.digest], look) for look in _held_out(seen) if look.digest in known and not look.constant]
    yield from _few(
        [
            failure(
                "split-leak",
                f"'{first.name}' of train and '{second.name}' of {second.split} are one and the same image.",
            )
            for first, second in same
        ],
        [second.name for _, second in same],
    )
    clean = not same
    for split in SPLITS:
        times = Counter(case.name for case in rehearsal.data._cases.get(split, ()))
        twice = [name for name, count in times.items() if count > 1]
        if twice:
            clean = False
            more = f", and so are {listed([repr(name) for name in twice[1:]], SINGLY)}" if twice[1:] else ""
            yield warning("case-twice", f"'{twice[0]}' is listed {times[twice[0]]} times in {split}{more}.")
    for split in ("val", "test"):
        named = [look for look in seen.of(split) if look.name in names and look.digest != names[look.name].digest]
        # Numbers that begin anew in each folder are no names.
        if named and len(named) < min(len(seen.of(split)), len(train)):
            clean = False
            yield warning(
                "split-leak",
                f"{len(named)} names are in train and in {split}, with different images: "
                f"{listed([repr(look.name) for look in named], SINGLY)}.",
                cause="They may be of one patient or scene; and messages cannot tell them apart.",
                fix="Give each case a name of its own, and all cases of a patient or scene to one split.",
            )
    if clean:
        counts = ", ".join(f"{len(seen.of(split)):,} {split}" for split in SPLITS if seen.of(split))
        yield passed(f"no image in two splits: {counts}{'' if seen.whole else ' opened'}")


@check("data: values", "values-differ")
def values_are_alike(rehearsal: Rehearsal) -> Iterator[Finding]:
    """No image is of another scale than the others, none is constant, and all pixels have about one size."""
    seen = survey(rehearsal)
    if (nothing := _nothing(seen)) is not None:
        yield nothing
        return
    looks = [look for look in seen.looks if look.error is None]
    varied = [look for look in looks if not look.constant]
    constant = [look for look in looks if look.constant]
    odd = _odd(varied) if len(varied) > SINGLY else []
    if constant:
        yield warning(
            "values-differ",
            f"{len(constant)} of {len(looks)} images have one value in all pixels: "
            f"{listed([repr(look.name) for look in constant], SINGLY)}.",
            cause="They are empty, or their export failed.",
            fix="Look at them; remove those that are empty, with their masks.",
        )
    usual = f"{median(look.low for look in varied):.4g} to {median(look.high for look in varied):.4g}" if varied else ""
    yield from _few(
        [
            warning("values-differ", f"'{look.name}' has values {look.low:.4g} to {look.high:.4g}, others {usual}.")
            for look in odd
        ],
        [look.name for look in odd],
    )
    far = list(_far_spacings(looks))
    yield from _few([finding for finding, _ in far], [name for _, name in far])
    if not constant and not odd and not far:
        low, high = min(look.low for look in looks), max(look.high for look in looks)
        yield passed(f"values from {low:.4g} to {high:.4g}; no image stands out")


def _used(rehearsal: Rehearsal) -> list[Split]:
    """Splits that a fit reads through the data set's cases, and not through a loader of the user's own."""
    of_fit: tuple[Split, ...] = ("train", "val")
    return [split for split in of_fit if not rehearsal.data._is_own(f"{split}_dataloader")]


def _nothing(seen: Survey) -> Finding | None:
    """What is said where there is no case to look at."""
    if not seen.looks:
        return passed("no cases are listed: loaders of your own")
    if all(look.error is not None for look in seen.looks):
        return warning("not-checked", "No case can be read, so none was looked at.")
    return None


def _few(findings: Sequence[Finding], names: Sequence[str]) -> Iterator[Finding]:
    """The first findings of a kind, and one for all that follow."""
    yield from findings[:SINGLY]
    if rest := findings[SINGLY:]:
        named = listed([repr(name) for name in names[SINGLY:]])
        yield rest[0]._replace(subject=f"The same in {len(rest):,} more case{'s' * (len(rest) > 1)}: {named}.")


def _held_out(seen: Survey) -> list[Look]:
    return [*seen.of("val"), *seen.of("test")]


def _labels(looks: Sequence[Look]) -> Counter[int]:
    """Number of masks that each label is in."""
    return Counter(label for look in looks for label in look.labels or ())


def _counted(names: Sequence[str], total: int) -> str:
    if len(names) == 1:
        return f"The class '{names[0]}' is"
    return f"{len(names)} of {total} classes ({listed([repr(name) for name in names])}) are"


def _counts(looks: Sequence[Look], classes: Sequence[str]) -> str:
    """``'background' in 8, 'liver' in 4``: number of masks of each class that occurs."""
    found = _labels(looks)
    known = [f"'{classes[label]}' in {found[label]}" for label in sorted(found) if label != IGNORE_INDEX]
    return listed(
        [*known, *([f"{IGNORE_INDEX}, which does not count, in {found[IGNORE_INDEX]}"] if found[IGNORE_INDEX] else [])]
    )


def _ignored(seen: Survey, classes: Sequence[str]) -> Iterator[Finding]:
    """Masks of which no pixel counts."""
    for split in ("train", "val"):
        empty = [look for look in seen.of(split) if look.labels is not None and set(look.labels) == {IGNORE_INDEX}]
        if not empty:
            continue
        every = len(empty) == len(seen.of(split)) and seen.telling(split)
        tell: Callable[..., Finding] = failure if every else warning
        yield tell(
            "class-missing",
            f"{'All' if every else len(empty)} of {seen.opened(split)} hold {IGNORE_INDEX} alone, which does not "
            f"count: {listed([repr(look.name) for look in empty], SINGLY)}.",
            cause="They are not labelled, or their values are mapped to nothing that counts.",
            fix="Label them, or leave them out.",
        )


def _two_tone(seen: Survey, found: Counter[int]) -> bool:
    return set(found) == {0, IGNORE_INDEX} and seen.telling("train")


def _odd(looks: Sequence[Look]) -> list[Look]:
    """Images of another scale than most, or with no value in their range."""
    low, high = median(look.low for look in looks), median(look.high for look in looks)
    usual, width = median(map(_largest, looks)), median(look.std for look in looks)
    odd = []
    for look in looks:
        apart = max(look.low - high, low - look.high) > high - low
        larger = _largest(look) > SCALE * usual and look.std > SPREAD * width
        smaller = SCALE * _largest(look) < usual and SPREAD * look.std < width
        if apart or larger or smaller:
            odd.append(look)
    return odd


def _largest(look: Look) -> float:
    return max(abs(look.low), abs(look.high))


def _far_spacings(looks: Sequence[Look]) -> Iterator[tuple[Finding, str]]:
    """Cases of which an edge of the voxels is far from the usual one."""
    known = [look for look in looks if look.spacing]
    if len(known) <= SINGLY:
        return
    axes = Counter(len(look.spacing) for look in known).most_common(1)[0][0]
    alike = [look for look in known if len(look.spacing) == axes]
    usual = [median(look.spacing[axis] for look in alike) for axis in range(axes)]
    for look in alike:
        if any(not usual[i] / SPACING <= edge <= usual[i] * SPACING for i, edge in enumerate(look.spacing)):
            own, others = (" × ".join(f"{edge:.3g}" for edge in edges) for edges in (look.spacing, usual))
            yield (
                warning(
                    "values-differ",
                    f"'{look.name}' has voxels of {own} mm, others of {others} mm.",
                    fix="Correct the header of the file, or leave the case out.",
                ),
                look.name,
            )


CHECKS: tuple[Callable[[Rehearsal], list[Finding]], ...] = (
    every_case_can_be_read,
    every_class_occurs,
    no_case_is_in_two_splits,
    values_are_alike,
)
