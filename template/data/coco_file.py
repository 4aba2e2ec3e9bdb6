"""Reading a file of annotations in COCO's format (cocodataset.org/#format-data), checked as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..distributed.faults import NamedError

_PARTS = ("images", "annotations", "categories")


class Annotation(NamedTuple):
    """One object: its category's id, whether it is a crowd, and its polygons or run lengths."""

    category: int | str
    crowd: bool
    segmentation: Any


class CocoImage(NamedTuple):
    """An image: its file as it is named, height and width in pixels, and its objects in the file's order."""

    file_name: str
    size: tuple[int, int]
    annotations: list[Annotation]


class CocoFile(NamedTuple):
    """What a file says: category id to name, in the order of the ids, and its images in the order of their files."""

    categories: dict[Any, str]
    images: list[CocoImage]


def read_coco(path: Path) -> CocoFile:
    """Read a file of annotations.

    Raises:
        NamedError: ``data-missing``, ``data-unreadable``, ``data-unpaired`` (an id or a file twice, an annotation of
            no image or of no category), ``data-size-mismatch`` or ``mask-values``, with the file and the id.
    """
    content = _content(path)
    categories = {
        key: str(category["name"]) for key, category in _by_id(path, "categories", content, ("id", "name")).items()
    }
    _refuse_twice(path, "categories are called", list(categories.values()))
    images: dict[Any, CocoImage] = {}
    for key, image in _by_id(path, "images", content, ("id", "file_name", "height", "width")).items():
        size = image["height"], image["width"]
        if not all(isinstance(side, int) and side > 0 for side in size):
            raise _refusal("data-unreadable", path, f"gives image {key!r} the size {size[0]!r} × {size[1]!r}")
        images[key] = CocoImage(str(image["file_name"]), size, [])
    if not images:
        raise _refusal("data-missing", path, "lists no image")
    _refuse_twice(path, "images have the file", [image.file_name for image in images.values()])
    for key, annotation in _by_id(path, "annotations", content, ("id", "image_id", "category_id")).items():
        image, category = _known(images, annotation["image_id"]), annotation["category_id"]
        if image is None:
            raise _refusal(
                "data-unpaired", path, f"has annotation {key!r} of image {annotation['image_id']!r}, which it lacks"
            )
        if _known(categories, category) is None:
            raise _refusal("mask-values", path, f"has annotation {key!r} of category {category!r}, which it lacks")
        segmentation = annotation.get("segmentation")
        _check_segmentation(path, key, segmentation, image.size)
        image.annotations.append(Annotation(category, bool(annotation.get("iscrowd", 0)), segmentation))
    # Ids may be numbers or, in some exports, words.
    in_order = dict(sorted(categories.items(), key=lambda item: (isinstance(item[0], str), item[0])))
    return CocoFile(in_order, sorted(images.values(), key=lambda image: image.file_name))


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise _refusal("data-missing", path, "does not exist") from error
    except OSError as error:
        raise NamedError(
            "data-unreadable",
            f"data.annotations: '{path}' cannot be read: {error.strerror}.",
            cause="",
            fix="Correct the file, its link or its rights.",
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: json's and UTF-8's
        raise _refusal("data-unreadable", path, f"is no whole JSON file: {error}") from error
    lacking = [part for part in _PARTS if not isinstance(content, dict) or not isinstance(content.get(part), list)]
    if lacking:
        raise NamedError(
            "data-unreadable",
            f"data.annotations: '{path}' has no list '{lacking[0]}'.",
            cause="A file of instances has images, annotations and categories; results and captions have not.",
            fix="Give a file such as instances_train2017.json.",
        )
    whole: dict[str, Any] = content
    return whole


def _by_id(path: Path, part: str, content: Mapping[str, Any], keys: Sequence[str]) -> dict[Any, dict[str, Any]]:
    """Entries of a list by their ids."""
    entries: dict[Any, dict[str, Any]] = {}
    for number, entry in enumerate(content[part]):
        for key in keys:
            if not isinstance(entry, dict) or key not in entry:
                raise _refusal("data-unreadable", path, f"has no '{key}' in {part}[{number}]")
        name = entry["id"]
        if not isinstance(name, int | str):
            raise _refusal("data-unreadable", path, f"has the id {name!r} in {part}[{number}]")
        if name in entries:
            raise _refusal("data-unpaired", path, f"has the id {name!r} twice in {part}")
        entries[name] = entry
    return entries


def _check_segmentation(path: Path, key: Any, segmentation: Any, size: tuple[int, int]) -> None:
    what = None
    if not segmentation:
        raise NamedError(
            "data-unreadable",
            f"data.annotations: '{path}' has annotation {key!r} without a segmentation.",
            cause="It was exported with boxes alone.",
            fix="Export polygons or masks, or remove the annotation.",
        )
    if isinstance(segmentation, list):
        if not all(
            isinstance(polygon, list) and len(polygon) % 2 == 0 and _numbers(polygon) for polygon in segmentation
        ):
            what = "whose polygons are no lists of x, y, x, y …"
    elif not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        what = "whose segmentation is neither polygons nor run lengths"
    elif segmentation["size"] != list(size):
        raise NamedError(
            "data-size-mismatch",
            f"data.annotations: '{path}' has annotation {key!r} of {segmentation['size']} pixels in an image of "
            f"{list(size)}.",
            cause="",
        )
    elif isinstance(segmentation["counts"], list):
        counts = segmentation["counts"]
        if not all(isinstance(count, int) and count >= 0 for count in counts) or sum(counts) != size[0] * size[1]:
            what = f"whose run lengths do not add up to {size[0]} × {size[1]} pixels"
    elif not isinstance(segmentation["counts"], str):
        what = "whose run lengths are neither numbers nor text"
    if what:
        raise _refusal("data-unreadable", path, f"has annotation {key!r}, {what}")


def _numbers(polygon: list[Any]) -> bool:
    return all(isinstance(value, int | float) and abs(value) < 1e6 for value in polygon)


def _known(entries: Mapping[Any, Any], name: Any) -> Any:
    return entries.get(name) if isinstance(name, int | str) else None


def _refuse_twice(path: Path, what: str, names: Sequence[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise _refusal("data-unpaired", path, f"is ambiguous, two {what} '{name}'")
        seen.add(name)


def _refusal(identifier: str, path: Path, what: str) -> NamedError:
    cause = "" if identifier == "data-missing" else "The file was cut off, or an export went wrong."
    return NamedError(identifier, f"data.annotations: '{path}' {what}.", cause, "Export the annotations again.")
