from __future__ import annotations

import pytest

from template.distributed.faults import NamedError
from template.doctor.options import Options, parse_options


def test_own_options_are_taken_and_those_of_fit_left() -> None:
    arguments = "--config a.yaml --processes 4 --json out.json --all --trainer.devices 8 --link-speed 25 --timeout 2m"
    options, rest = parse_options(arguments.split(), "doctor")
    assert options == Options(4, "out.json", True, 25.0, "cpu", 120.0)
    assert rest == ["--config", "a.yaml", "--trainer.devices", "8"]
    assert parse_options([], "doctor") == (Options(), [])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--processes 0", "--processes is 0"),
        ("--processes two", "--processes: invalid int value: 'two'"),
        ("--link-speed -1", "--link-speed is -1"),
        ("--accelerator tpu", "--accelerator: invalid choice: 'tpu'"),
        ("--timeout soon", "--timeout is 'soon'"),
    ],
)
def test_what_cannot_be_used_is_named(arguments: str, named: str) -> None:
    with pytest.raises(NamedError) as raised:
        parse_options(arguments.split(), "doctor")
    assert named in raised.value.what
    assert raised.value.exit_code == 2
