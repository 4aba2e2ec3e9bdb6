from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from template.data.name_lists import read_names, refuse_shared
from template.distributed.faults import NamedError


def test_one_name_a_line_however_the_file_is_written(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes("\ufeffb 图\r\n\r\n  a \r\ne".encode() + unicodedata.normalize("NFD", "é").encode())
    assert read_names(file, "data.x") == ["b 图", "a", "eé"]
    file.write_text("cat_1 1 1 1\n", encoding="utf-8")
    assert read_names(file, "data.x", lambda line: line.split()[0]) == ["cat_1"]


@pytest.mark.parametrize(
    ("content", "identifier", "what"),
    [
        (None, "data-missing", "data.x: the list '{file}' does not exist."),
        (b"\n \n", "data-missing", "data.x: the list '{file}' is empty."),
        (b"a\n\xff\xfe", "data-unreadable", "data.x: the list '{file}' is no text in UTF-8 (byte 2)."),
        (b"a\nb\n\na\n", "data-unpaired", "data.x: '{file}' lists 'a' twice, in the lines 1 and 4."),
    ],
)
def test_bad_lists_are_named(tmp_path: Path, content: bytes | None, identifier: str, what: str) -> None:
    file = tmp_path / "list.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NamedError) as caught:
        read_names(file, "data.x")
    assert (caught.value.identifier, caught.value.what) == (identifier, what.format(file=file))


def test_a_folder_and_a_loop_in_place_of_a_list_are_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    for path, word in ((tmp_path, "Is a directory"), (loop, "Too many levels of symbolic links")):
        with pytest.raises(NamedError, match=word) as caught:
            read_names(path, "data.x")
        assert caught.value.identifier == "data-unreadable"


def test_a_name_of_two_lists_is_named(tmp_path: Path) -> None:
    files = {"train": tmp_path / "train.txt", "val": tmp_path / "val.txt"}
    refuse_shared({"train": ["a"], "val": ["b"]}, files)
    with pytest.raises(NamedError, match=r"'b' is in '.*train\.txt' and in '.*val\.txt'"):
        refuse_shared({"train": ["a", "b"], "val": ["b"]}, files)
