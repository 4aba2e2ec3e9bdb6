from __future__ import annotations

import os
from pathlib import Path

from template.doctor.events import Event, Listener, Teller
from template.doctor.finding import Finding, check, passed


def test_what_is_told_is_heard_once_and_in_order(tmp_path: Path) -> None:
    file = tmp_path / "events"
    listener = Listener(file)
    assert listener.news() == []
    teller = Teller(file)
    finding = Finding("hang", "run: steps", "fail", "über 'a\udcfc.png'", "c", "f")
    teller.begin("data: files")
    teller.find([finding])
    teller.measure("seconds", 0.25)
    heard = listener.news()
    assert heard[0] == Event("begin", "data: files")
    assert heard[1].kind == "finding"
    assert Finding(**heard[1].value) == finding  # halves of letters, of file names in another encoding, too
    assert heard[2] == Event("measured", ["seconds", 0.25])
    teller.end()
    assert listener.news() == [Event("end", None)]
    assert listener.news() == []


def test_a_line_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_text('["begin", "a"]\n["begin", "b', encoding="utf-8")
    listener = Listener(file)
    assert listener.news() == [Event("begin", "a")]
    with file.open("a") as more:
        more.write('"]\n')
    assert listener.news() == [Event("begin", "b")]


def test_a_broken_line_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "events").write_text('["begin", "a"]\n["fin\n["end", null]\n', encoding="utf-8")
    assert [event.kind for event in Listener(tmp_path / "events").news()] == ["begin", "end"]


def test_checks_are_announced_and_their_findings_told(tmp_path: Path) -> None:
    @check("cost: step", "hang")
    def looks(number: int) -> object:
        yield passed(f"{number} steps")

    Teller(tmp_path / "events").run([looks], 3)
    assert [event.kind for event in Listener(tmp_path / "events").news()] == ["begin", "finding"]


def test_a_forked_copy_tells_so_and_ends(tmp_path: Path) -> None:
    teller = Teller(tmp_path / "events")
    child = os.fork()
    if child == 0:
        teller.begin("the doctor's own next step")
        os._exit(9)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (heard,) = Listener(tmp_path / "events").news()
    assert heard.value["id"] == "forked"
