from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from template.distributed.faults import FAULTS, NamedError
from template.distributed.recognize import Finding, recognize, recognize_text
from tests.logs import LOGS, healthy_lines, interleaved, known_texts, prefixed, wrapped

#: The failures of the notes that the project started from: identifier, text, names.
NOTES = {
    "device": (
        "module-device",
        (
            "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one "
            "of them on device: cuda:2"
        ),
        {"expected": ["cuda:0"], "found": ["cuda:2"]},
    ),
    "timeout": (
        "collective-timeout",
        (
            "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for "
            "1802779 milliseconds before timing out."
        ),
        {"operation": ["ALLREDUCE"], "limit_milliseconds": ["1800000"], "milliseconds": ["1802779"]},
    ),
    "unused": (
        "unused-parameters",
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
            "error indicates that your module has parameters that were not used in producing loss."
        ),
        {},
    ),
    "unused with indices": (
        "unused-parameters",
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
            "Parameter indices which did not receive grad for rank 0: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n"
            " In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL"
        ),
        {"index": [str(i) for i in range(18)]},
    ),
    "in place": (
        "changed-in-place",
        (
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            "[torch.cuda.FloatTensor [256]] is at version 4; expected version 3 instead."
        ),
        {
            "tensor": ["torch.cuda.FloatTensor"],
            "shape": ["[256]"],
            "version": ["4"],
            "expected_version": ["3"],
        },
    ),
    "hyphen": (
        "launcher-argument",
        "main.py: error: unrecognized arguments: --local-rank=2",
        {"argument": ["--local-rank=2"]},
    ),
    "underscore": (
        "launcher-argument",
        "main.py: error: unrecognized arguments: --local_rank=2",
        {"argument": ["--local_rank=2"]},
    ),
    "folder": (
        "folder-race",
        "FileExistsError: [Errno 17] File exists: 'runs/May22_10-11-12_node7'",
        {"path": ["runs/May22_10-11-12_node7"]},
    ),
    "run button": (
        "one-process",
        "distributed_backend=nccl\nAll distributed processes registered. Starting with 1 processes",
        {},
    ),
    "no launcher": (
        "not-launched",
        (
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, but not set"
        ),
        {"variable": ["RANK"]},
    ),
}


def identifiers(text: str) -> list[str]:
    return [finding.fault.identifier for finding in recognize_text(text)]


def only(text: str) -> Finding:
    (finding,) = recognize_text(text)
    return finding


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text,
        lambda text: "".join(text.split()),
        lambda text: text.replace("\n", " "),
        lambda text: text.replace("\n", ""),
        lambda text: wrapped(text, 60),
        lambda text: "\n".join(textwrap.fill(line, 60) for line in text.split("\n")),
        lambda text: prefixed(text, "[rank1]: "),
        lambda text: prefixed(text, "2026-11-30 05:08:01,123 [default1]:"),
        lambda text: prefixed(text, "(RayTrainWorker pid=4711, ip=10.0.0.7) "),
        lambda text: prefixed(wrapped(text, 60), "[1,3]<stderr>:"),
        lambda text: text.replace(" ", "\u00a0"),
        lambda text: f"\x1b[31m{text}\x1b[0m",
        lambda text: text.replace("\n", "\r\n"),
    ],
    ids=[
        "plain",
        "no spaces",
        "one line",
        "no line breaks",
        "wrapped in words",
        "wrapped",
        "rank",
        "time and rank",
        "Ray",
        "mpirun wrapped",
        "hard spaces",
        "colours",
        "Windows",
    ],
)
def test_each_recorded_text_is_recognised_as_itself_alone(broken: Callable[[str], str]) -> None:
    taken_for = {text: (identifier, identifiers(broken(text))) for identifier, text in known_texts()}
    assert {text: found for text, (identifier, found) in taken_for.items() if found != [identifier]} == {}


@pytest.mark.case(
    "notes/second-cuda",
    "notes/watchdog-timeout",
    "notes/unused",
    "notes/in-place",
    "notes/launch-arguments",
    "notes/tensorboard-race",
    "notes/run-button",
)
@pytest.mark.parametrize(("identifier", "text", "names"), NOTES.values(), ids=NOTES)
@pytest.mark.parametrize("prefixes", [("[rank0]: ", "[rank1]: "), ("", "")], ids=["prefixed", "bare"])
def test_the_failures_of_the_notes_in_a_long_log_of_two_ranks(
    identifier: str, text: str, names: dict[str, list[str]], prefixes: tuple[str, str]
) -> None:
    healthy = healthy_lines(2500)
    failed = [*healthy[:1234], *text.split("\n"), *healthy[1234:]]
    log = interleaved([prefixes[0] + line for line in healthy], [prefixes[1] + line for line in failed])
    finding = only(log)
    assert finding.fault.identifier == identifier
    assert finding.names == names
    assert finding.lines[0] in (2 * 1235, 2 * 1235 + 2)


@pytest.mark.parametrize(("identifier", "text", "names"), NOTES.values(), ids=NOTES)
def test_the_failures_of_the_notes_without_spaces_keep_their_names(
    identifier: str, text: str, names: dict[str, list[str]]
) -> None:
    finding = only("".join(text.split()))
    assert finding.fault.identifier == identifier
    assert finding.names == names


@pytest.mark.parametrize(("identifier", "text", "names"), NOTES.values(), ids=NOTES)
@pytest.mark.parametrize("width", [50, 60, 80])
def test_the_failures_of_the_notes_wrapped_keep_their_names(
    identifier: str, text: str, names: dict[str, list[str]], width: int
) -> None:
    finding = only(wrapped(text, width))
    assert finding.fault.identifier == identifier
    assert finding.names == names


@pytest.mark.parametrize(("identifier", "text", "names"), NOTES.values(), ids=NOTES)
@pytest.mark.parametrize("width", [60, 80])
def test_the_failures_of_the_notes_wrapped_between_lines_of_another_rank(
    identifier: str, text: str, names: dict[str, list[str]], width: int
) -> None:
    lines = wrapped(text, width).split("\n")
    assert identifiers(interleaved(lines, healthy_lines(len(lines)))) == [identifier]


@pytest.mark.parametrize("file", sorted((LOGS / "healthy").glob("*.txt")), ids=lambda file: file.stem)
def test_a_healthy_log_is_not_accused(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert identifiers(text) == []
    assert identifiers("".join(text.split())) == []
    assert identifiers(wrapped(text, 60)) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unused", ["unused-parameters", "launcher-ended"]),
        ("kill", ["rank-gone", "connection-closed", "launcher-ended"]),
        ("die", ["connection-closed", "launcher-ended"]),
        ("mismatch", ["collectives-differ", "connection-closed", "launcher-ended"]),
    ],
)
def test_causes_come_before_their_consequences(name: str, expected: list[str]) -> None:
    text = (LOGS / "failed" / f"{name}.txt").read_text(encoding="utf-8")
    assert identifiers(text) == expected
    # Also where the launcher's lines were printed first.
    kinds = [FAULTS[identifier].kind for identifier in identifiers("\n".join(text.split("\n")[::-1]))]
    assert kinds == [FAULTS[identifier].kind for identifier in expected]


def test_the_first_failed_rank_is_told_by_the_launcher() -> None:
    text = (LOGS / "failed" / "kill.txt").read_text(encoding="utf-8")
    ended = recognize_text(text)[-1]
    assert ended.names["first_rank"] == ["1"]
    assert ended.names["exitcode"] == ["-9"]


def test_a_timeout_comes_after_what_may_have_caused_it() -> None:
    late = dict(known_texts())["collective-timeout"]
    assert identifiers(f"{late}\nIndexError: Target 255 is out of bounds.") == [
        "label-out-of-range",
        "collective-timeout",
    ]


def test_each_rank_keeps_its_own_names() -> None:
    message = "Parameter indices which did not receive grad for rank {rank}: {indices}"
    one = f"RuntimeError: Expected to have finished reduction in the prior iteration\n{message}".format(
        rank=0, indices="2 3"
    )
    other = f"RuntimeError: Expected to have finished reduction in the prior iteration\n{message}".format(
        rank=1, indices="5"
    )
    finding = only(interleaved(prefixed(one, "[rank0]: "), prefixed(other, "[rank1]: ")))
    assert {place.rank: place.names["index"] for place in finding.places} == {0: ("2", "3"), 1: ("5",)}


def test_the_rank_of_a_message_is_more_than_that_of_its_prefix() -> None:
    text = "[default0]:[Rank 12] Watchdog caught collective operation timeout: WorkNCCL("
    assert only(text).ranks == [12]


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", 3),
        ("[rank: 3] ", 3),
        ("[default3]:", 3),
        ("2026-11-30T05:08:01.123456789Z [rank3]: ", 3),
        ("[1,3]<stderr>:", 3),
        ("(train_fn pid=4711) ", None),
        ("worker-3  | ", None),
        ("", None),
    ],
)
def test_prefixes(prefix: str, rank: int | None) -> None:
    assert only(f"{prefix}RuntimeError: CUDA error: out of memory").places[0].rank == rank


def test_labels_of_srun() -> None:
    log = prefixed("\n".join(healthy_lines(20)), "0: ") + "\n1: IndexError: Target 255 is out of bounds."
    finding = only(log)
    assert finding.ranks == [1]
    assert finding.places[0].text == "IndexError: Target 255 is out of bounds."


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("0 1 2 10 11", ["0", "1", "2", "10", "11"]),
        ("7 8 9 1\n0 11", ["7", "8", "9", "10", "11"]),  # broken inside of 10
        ("7 8 9\n10 11", ["7", "8", "9", "10", "11"]),
        ("282", ["282"]),
    ],
)
def test_indices(printed: str, expected: list[str]) -> None:
    text = f"Parameter indices which did not receive grad for rank 0: {printed}\n In addition, you can set"
    assert only(text).names["index"] == expected


@pytest.mark.parametrize(("run", "expected"), [("789101112", ["7", "8", "9", "10", "11", "12"]), ("2837", ["2837"])])
def test_indices_that_lost_their_spaces(run: str, expected: list[str]) -> None:
    text = f"Parameterindiceswhichdidnotreceivegradforrank0:{run}Inaddition,youcanset"
    assert only(text).names["index"] == expected


def test_names_of_parameters() -> None:
    text = (
        "Parameters which did not receive grad for rank 2: lin2.bias, lin2.weight,\nlin1.bias\n"
        "Parameter indices which did not receive grad for rank 2: 4 5 6"
    )
    finding = only(text)
    assert finding.ranks == [2]
    assert finding.names == {"parameter": ["lin2.bias", "lin2.weight", "lin1.bias"], "index": ["4", "5", "6"]}


def test_names_of_a_state_dict() -> None:
    text = (
        'RuntimeError: Error(s) in loading state_dict for UNet:\n\tMissing key(s) in state_dict: "a.weight", "a.bias". '
        '\n\tUnexpected key(s) in state_dict: "b.weight". '
        "\n\tsize mismatch for head.weight: copying a param with shape torch.Size([3, 64, 1, 1]) from checkpoint, the "
        "shape in current model is torch.Size([2, 64, 1, 1])."
    )
    assert only(text).names == {
        "class": ["UNet"],
        "missing": ["a.weight", "a.bias"],
        "unexpected": ["b.weight"],
        "parameter": ["head.weight"],
        "shape": ["[3, 64, 1, 1]"],
        "model_shape": ["[2, 64, 1, 1]"],
    }


def test_a_path_keeps_its_spaces() -> None:
    assert only("FileNotFoundError: [Errno 2] No such file or directory: '/data/17 a.png'").names == {
        "path": ["/data/17 a.png"]
    }


@pytest.mark.parametrize("identifier", FAULTS)
def test_messages_of_this_program(identifier: str) -> None:
    message = str(NamedError(identifier, "The file 'a.png' is not as it should be."))
    for text in (
        f"epoch 3\n\nerror: {message}\nbye",
        f"[rank1]: template.distributed.faults.NamedError: {message}",
        wrapped(f"error: {message}", 60),
        "".join(f"error: {message} and on".split()),
        f"/usr/lib/x.py:12: UserWarning: {message}",
        message,
    ):
        assert identifiers(text)[0] == identifier


def test_an_identifier_alone_is_no_message() -> None:
    assert identifiers("Loading.\n[config] is read\n[download]\nDone. [download] 3 files") == []


def test_an_exception() -> None:
    finding = recognize(IndexError("Target 255 is out of bounds."))
    assert finding is not None
    assert finding.fault.identifier == "label-out-of-range"
    assert finding.names == {"label": ["255"]}
    assert recognize(ValueError("no")) is None


def test_an_exception_is_followed_to_its_cause() -> None:
    try:
        try:
            raise NamedError("mask-values", "The mask 'a.png' holds 255.")
        except NamedError as error:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1") from error
    except RuntimeError as error:
        finding = recognize(error)
    assert finding is not None
    assert finding.fault.identifier == "mask-values"
    assert "a.png" in finding.places[0].text


def test_the_cause_of_an_exception_ranks_before_its_consequence() -> None:
    error = RuntimeError("Connection closed by peer [127.0.0.1]:1")
    error.__context__ = RuntimeError("CUDA error: out of memory")
    finding = recognize(error)
    assert finding is not None
    assert finding.fault.identifier == "out-of-memory"


def calls(text: str) -> int:
    """Function calls, of Python and of C, that a text takes."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        recognize_text(text)
    finally:
        sys.setprofile(before)
    return count


def test_work_grows_with_the_lines_and_not_with_the_catalogue() -> None:
    def log(count: int) -> str:
        lines = healthy_lines(count)
        for identifier, text in known_texts()[::9]:
            lines += [identifier, *text.split("\n")]
        return interleaved([f"[rank0]: {line}" for line in lines], [f"[rank1]: {line}" for line in lines])

    recognize_text(log(10))  # patterns are compiled once
    few, many = calls(log(1250)), calls(log(2500))
    lines = len(log(2500).split("\n")) - len(log(1250).split("\n"))
    assert (many - few) / lines < 40
    assert many < 2.2 * few


@pytest.mark.parametrize("end", ["\n", " "], ids=["lines", "one line"])
def test_work_on_a_message_that_repeats(end: str) -> None:
    text = f"RuntimeError: Error(s) in loading state_dict for UNet: CUDA error: out of memory{end}"
    few, many = calls(text * 300), calls(text * 600)
    assert many < 2.2 * few


def test_a_message_across_the_parts_of_a_long_line() -> None:
    message = "FileExistsError: [Errno 17] File exists: 'runs/May22_10-11-12_node7'"
    for start in range(400, 520, 7):
        finding = only(f"{'ok ' * (start // 3)}{message}{' ok' * 1000}")
        assert finding.names == {"path": ["runs/May22_10-11-12_node7"]}
        assert finding.lines == [1]


def test_a_progress_bar_before_a_message() -> None:
    finding = only("ok\nEpoch 1: 10%\rEpoch 1: 20%\rRuntimeError: CUDA error: out of memory\n")
    assert finding.lines == [2]
    assert finding.places[0].text == "RuntimeError: CUDA error: out of memory"
