"""Values of the strategy's knobs: read, or refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from template.distributed.faults import NamedError
from template.distributed.knobs import check_device, parse_timeout
from template.distributed.strategy import SafeDDPStrategy


@pytest.mark.case("H9", "notes/init-process-group")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), (" 2 H ", 7200)],
)
def test_a_timeout_is_read(value: float | str, seconds: float) -> None:
    assert parse_timeout(value) == timedelta(seconds=seconds)


@pytest.mark.case("H9")
@pytest.mark.parametrize("value", ["soon", "1:30:00", 0, "-5", "5d", ""])
def test_what_is_no_time_is_refused(value: float | str) -> None:
    with pytest.raises(NamedError, match=r"trainer\.strategy\.init_args\.timeout is ") as caught:
        SafeDDPStrategy(timeout=value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"find_unused_parameters": "yes"}, "find_unused_parameters is 'yes'"),
        ({"find_unused_parameters": True, "static_graph": True}, "find_unused_parameters is true"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb is 0"),
        ({"process_group_backend": "ncll"}, "process_group_backend is 'ncll'"),
        ({"init_method": "tcp://host"}, "init_method is 'tcp://host'"),
        ({"init_method": "file://relative"}, "init_method is 'file://relative'"),
        ({"comm_hook": "int8"}, "comm_hook is 'int8'"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(knobs: dict[str, Any], named: str) -> None:
    with pytest.raises(NamedError) as caught:
        SafeDDPStrategy(**knobs)
    assert caught.value.identifier == "config"
    assert caught.value.what == f"trainer.strategy.init_args.{named}, which cannot be used."
    assert caught.value.fix


@pytest.mark.parametrize("init_method", ["env://", "tcp://10.0.0.1:29500", "file:///shared/meet"])
def test_ways_to_meet_are_taken(init_method: str) -> None:
    assert SafeDDPStrategy(init_method=init_method).init_method == init_method


def test_nccl_on_the_cpu_is_refused() -> None:
    with pytest.raises(NamedError, match=r"init_args\.process_group_backend is 'nccl'"):
        check_device("cpu", "nccl")
    check_device("cpu", "gloo")
    check_device("cuda", "nccl")
