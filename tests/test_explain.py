from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from template.__main__ import main as program
from template.distributed.faults import FAULTS
from template.explain import catalogue_page, main
from tests.logs import LOGS, known_texts

ROOT = Path(__file__).parent.parent
#: Exit code, standard output and standard error of the verb on a text with options.
Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Explain:
    """Runs the verb on a text, as standard input."""

    def run(text: str | bytes, *arguments: str) -> tuple[int, str, str]:
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_file_through_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("fine\n[rank1]: IndexError: Target 255 is out of bounds.\n")
    assert program(["explain", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("label-out-of-range: A mask holds a value that no class has\n")
    assert "where  rank 1, line 2" in out
    assert "names  label 255" in out
    assert "IndexError: Target 255" in out


def test_nothing_recognised(explain: Explain) -> None:
    code, out, _ = explain("all is well\n")
    assert code == 1
    assert out == "No known failure is in this text.\n"


def test_an_unknown_error_is_shown(explain: Explain) -> None:
    code, out, _ = explain("Traceback (most recent call last):\n  File 'x'\nKeyError: 'liver'\n")
    assert code == 1
    assert "line   3: KeyError: 'liver'" in out


def test_consequences_alone_point_to_the_error_before_them(explain: Explain) -> None:
    code, out, _ = explain((LOGS / "failed" / "die.txt").read_text(encoding="utf-8"))
    assert code == 0
    assert out.startswith("Consequences")
    assert "rank 1: ValueError: no" in out.rsplit("Errors that are not in the catalogue", 1)[1]


def test_consequences_without_a_cause_send_to_the_other_logs(explain: Explain) -> None:
    _, out, _ = explain("RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:62150.")
    assert "The first cause is not in this text" in out


def test_names_per_rank(explain: Explain) -> None:
    _, out, _ = explain((LOGS / "failed" / "unused.txt").read_text(encoding="utf-8"))
    assert "names  rank 0: index 2, 3\n  names  rank 1: index 2, 3\n" in out
    assert out.index("unused-parameters") < out.index("Consequences") < out.index("launcher-ended")


def test_many_names_are_cut_short_for_people_only(explain: Explain) -> None:
    text = f"Parameter indices which did not receive grad for rank 0: {' '.join(map(str, range(40)))}"
    _, out, _ = explain(text)
    assert "10, 11 and 28 more" in out
    _, out, _ = explain(text, "--json")
    assert json.loads(out)[0]["names"]["index"] == [str(i) for i in range(40)]


def test_json(explain: Explain) -> None:
    code, out, _ = explain("[rank1]: CUDA error: invalid device ordinal\nChildFailedError: \n", "--json")
    first, second = json.loads(out)
    assert code == 0
    assert first == {
        "id": "gpu-count",
        "kind": "cause",
        "title": FAULTS["gpu-count"].title,
        "cause": FAULTS["gpu-count"].cause,
        "fix": FAULTS["gpu-count"].fix,
        "ranks": [1],
        "lines": [1],
        "names": {},
        "places": [{"line": 1, "rank": 1, "names": {}, "text": "CUDA error: invalid device ordinal"}],
    }
    assert (second["id"], second["kind"]) == ("launcher-ended", "consequence")


def test_json_of_nothing(explain: Explain) -> None:
    code, out, _ = explain("fine", "--json")
    assert (code, json.loads(out)) == (1, [])


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "no.log")]) == 2
    err = capsys.readouterr().err
    assert f"'{tmp_path / 'no.log'}' cannot be read: No such file or directory." in err
    assert "[log-unreadable]" in err


def test_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"'{tmp_path}' cannot be read: Is a directory." in capsys.readouterr().err


def test_a_binary_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"PK\x03\x04\0\0\0")
    assert main([str(tmp_path / "last.ckpt")]) == 2
    assert "binary" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_text(explain: Explain, text: str) -> None:
    code, out, err = explain(text)
    assert (code, out) == (1, "")
    assert err == "The text is empty. Give it a log: explain train.log, or COMMAND 2>&1 | explain\n"


def test_the_usage_tells_the_exit_codes(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        explain("", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 a known failure was found, 1 none was, 2 the text cannot be read." in shown


def test_times_are_told_in_hours_minutes_and_seconds(explain: Explain) -> None:
    line = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran "
    _, out, _ = explain(f"{line}for 1802779 milliseconds before timing out.")
    assert "limit 30 min; waited 30 min 3 s" in out
    assert "milliseconds 1" not in out


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings(explain: Explain, encoding: str) -> None:
    text = "naïve: RuntimeError: CUDA error: out of memory"
    code, out, _ = explain(text.encode(encoding))
    assert code == 0
    assert out.startswith("out-of-memory")


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--jsn"])
    assert ended.value.code == 2
    assert "--jsn" in capsys.readouterr().err


def test_each_recorded_text_is_explained(explain: Explain) -> None:
    for identifier, text in known_texts():
        code, out, _ = explain(text)
        assert code == 0
        assert f"{identifier}: {FAULTS[identifier].headline}" in out


def test_torch_is_not_imported(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: CUDA error: out of memory")
    code = (
        "import sys\nfrom template.__main__ import main\n"
        f"code = main(['explain', {str(log)!r}])\n"
        "heavy = {'torch', 'lightning', 'numpy', 'jsonargparse'} & set(sys.modules)\n"
        "raise SystemExit(f'imports {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out-of-memory")


def test_the_page_of_failures_is_that_of_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    page = capsys.readouterr().out
    assert page == catalogue_page()
    file = ROOT / "docs" / "failures.md"
    assert file.read_text(encoding="utf-8") == page, "python -m template explain --list > docs/failures.md"
    assert not [identifier for identifier in FAULTS if f"| `{identifier}`" not in page]


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"FileNotFoundError: [Errno 2] No such file or directory: 'x{i}'\n" for i in range(3000)))
    command = f"'{sys.executable}' -m template explain --json '{log}' | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")


def test_a_terminal_without_the_characters_of_the_log() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "template", "explain"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"},
        input="Connection closed by peer [127.0.0.1]:1 \N{BEACH WITH UMBRELLA}".encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
