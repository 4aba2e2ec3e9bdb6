"""TensorBoard event files, taken back to where a run resumes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]

#: Around the bytes of a record (tensorflow/core/lib/io/record_writer.h): their number and its checksum, their checksum.
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")


def rewind(folder: Path, keep: Callable[[str, int, bool], bool]) -> None:
    """Drop events, and what a killed program has left half-written; a file without such is not touched.

    A ``SessionLog.START`` with a ``purge_step`` would do, had the killed run not logged metrics of one step at
    several moments: a checkpoint may lie between them.

    Args:
        folder: Holds the event files.
        keep: Whether the value of a tag at a step stays; told whether it is a number, and not a picture or the like.
    """
    for leftover in folder.glob(".events.out.tfevents*.part"):
        leftover.unlink(missing_ok=True)
    for file in sorted(folder.glob("events.out.tfevents*")):
        content = file.read_bytes()
        kept = b"".join(record for record in _records(content) if _stays(record, keep))
        if len(kept) < len(content):
            part = file.with_name(f".{file.name}.part")
            part.write_bytes(kept)
            part.replace(file)


def _records(content: bytes) -> Iterator[bytes]:
    """Whole records, with what is around them."""
    start = 0
    while start + _HEAD.size <= len(content):
        end = start + _HEAD.size + _HEAD.unpack_from(content, start)[0] + _FOOT.size
        if end > len(content):
            return
        yield content[start:end]
        start = end


def _stays(record: bytes, keep: Callable[[str, int, bool], bool]) -> bool:
    event = Event.FromString(record[_HEAD.size : -_FOOT.size])
    values = event.summary.value
    return all(keep(value.tag, event.step, value.WhichOneof("value") == "simple_value") for value in values)
