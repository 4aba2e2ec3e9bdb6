"""What is told of exceptions with unusual texts."""

from __future__ import annotations

from pathlib import Path

from template.callbacks.rank_logs import write_error
from template.distributed.raised import headline
from template.distributed.told import LONGEST, printable, shortened, text_of


class BrokenError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_exception_whose_text_cannot_be_made_keeps_its_type(tmp_path: Path) -> None:
    assert text_of(BrokenError()) == "(no text: its __str__ raises ValueError)"
    assert headline(BrokenError()).startswith("BrokenError: (no text")
    write_error(tmp_path, BrokenError())
    assert (tmp_path / "error.txt").read_text(encoding="utf-8").startswith("BrokenError: (no text")


def test_a_long_text_is_shortened_where_it_is_printed_and_whole_in_the_file(tmp_path: Path) -> None:
    error = RuntimeError("x" * 300_000 + " END")
    told = headline(error)
    assert len(told) < LONGEST + 60
    assert "300018 characters" in told  # with the type before it
    assert shortened("x" * LONGEST) == "x" * LONGEST
    write_error(tmp_path, error)
    assert " END" in (tmp_path / "error.txt").read_text(encoding="utf-8")


def test_a_file_name_that_is_no_utf_8_is_written_with_its_byte(tmp_path: Path) -> None:
    name = b"Gr\xfc\xdfe.png".decode("utf-8", "surrogateescape")
    assert printable(name) == r"Gr\udcfc\udcdfe.png"
    write_error(tmp_path, RuntimeError(f"{name} is damaged"))
    assert r"Gr\udcfc\udcdfe.png is damaged" in (tmp_path / "error.txt").read_text(encoding="utf-8")
