from __future__ import annotations

import json
from pathlib import Path

import torch

from template.doctor.written import Written, on_several_ranks
from template.labels import IGNORE_INDEX

assert IGNORE_INDEX == 255


def test_files_opened_for_writing_are_known_by_their_line(tmp_path: Path) -> None:
    written = Written()
    (tmp_path / "read.txt").write_text("there")
    with written.watch():
        (tmp_path / "a.txt").write_text("a")
        with (tmp_path / "b.bin").open("ab") as file:
            file.write(b"b")
        torch.save({"w": torch.zeros(1)}, tmp_path / "c.pt")
        torch.save([], str(tmp_path / "d.pt"))
        (tmp_path / "read.txt").read_text()
        with (tmp_path / "e.json").open("w") as out:
            json.dump({}, out)
    (tmp_path / "late.txt").write_text("after")
    assert sorted(Path(path).name for path in written.files) == ["a.txt", "b.bin", "c.pt", "d.pt", "e.json"]
    assert all("test_written.py:" in line and line.endswith(" test_files_opened_for_writing_are_known_by_their_line")
               for line in written.files.values())  # fmt: skip
    assert torch.load(tmp_path / "c.pt")["w"].tolist() == [0.0]


def test_a_file_of_two_ranks_is_one_too_many() -> None:
    files = [{"/runs/a": "net.py:3 f", "/runs/b": "net.py:9 g"}, {"/runs/b": "net.py:9 g"}, {"/runs/c": "net.py:1 h"}]
    assert on_several_ranks(files) == {"/runs/b": ([0, 1], "net.py:9 g")}
