"""Whether torch, driver, NCCL and GPUs fit, on facts of machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from template.distributed.faults import NamedError
from template.doctor import gpus, links
from template.doctor.finding import Finding
from template.doctor.gpus import Card, Versions, judge_precision, judge_versions
from template.doctor.links import judge_count, judge_links, read_links, visible_gpus

from .rehearsed import examine

H200 = Card("NVIDIA H200", 9, 0)
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
SERVER = Versions("2.14.1+cu130", "CUDA 13.0", "2.30.7", ARCHS, "580.65.06", 13000, devices=True, cards=(H200,) * 2)
LAPTOP = Versions("2.14.1+cpu", "no CUDA")


def versions(
    facts: Versions, accelerator: str = "auto", backend: str | None = None, processes: int = 2
) -> list[Finding]:
    return list(judge_versions(facts, accelerator, backend, processes))


def only(found: list[Finding], status: str, identifier: str, *words: str) -> None:
    assert [(one.status, one.id) for one in found] == [(status, identifier)], found
    for word in words:
        assert word in " ".join(found[0]), word


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (SERVER, "torch 2.14.1, CUDA 13.0, NCCL 2.30.7, driver 580.65.06"),
        (LAPTOP, "torch 2.14.1, no CUDA"),
        # A host with GPUs that this container is not given, and which nobody asked for.
        (LAPTOP._replace(driver="580.65.06"), "torch 2.14.1, no CUDA"),
        # sm_86 runs what is built for sm_80; a later one what is built as compute_90.
        (SERVER._replace(archs=("sm_80",), cards=(Card("NVIDIA RTX A6000", 8, 6),)), "torch 2.14.1, CUDA 13.0"),
        (SERVER._replace(archs=("compute_90",), cards=(Card("NVIDIA B200", 10, 0),)), "torch 2.14.1, CUDA 13.0"),
        # Hidden on purpose.
        (SERVER._replace(cards=(), visible=""), "torch 2.14.1, CUDA 13.0"),
        (Versions("2.14.1+rocm7.0", "ROCm 7.0", "2.26.6", cards=(Card("AMD MI300X", 9, 4),)), "torch 2.14.1, ROCm 7.0"),
    ],
)
def test_versions_that_fit(facts: Versions, told: str) -> None:
    found = versions(facts)
    assert [one.status for one in found] == ["pass"]
    assert found[0].subject.startswith(told)
    assert len(found[0].subject) <= 60


def test_a_gpu_and_a_torch_without_cuda() -> None:
    machine = LAPTOP._replace(driver="580.65.06", devices=True)
    only(versions(machine), "warn", "no-driver", "torch 2.14.1+cpu is a build without CUDA")
    only(versions(machine, "gpu"), "fail", "no-driver")
    assert versions(machine, "cpu")[0].status == "pass"


def test_a_driver_older_than_what_torch_is_built_for() -> None:
    machine = SERVER._replace(driver="550.54.15", driver_cuda=12040, cards=())
    only(versions(machine, "gpu"), "fail", "no-driver", "driver 550.54.15 serves CUDA 12.4", "needs CUDA 13.0")
    # One of the same major number serves a newer minor one: then it is something else.
    other = machine._replace(built="CUDA 12.8")
    only(versions(other), "warn", "no-driver", "does not answer")


def test_gpus_asked_for_on_a_machine_without() -> None:
    only(versions(LAPTOP, "gpu"), "warn", "gpu-count", "this machine has no GPU to look at")
    only(versions(LAPTOP._replace(driver="580.65.06"), "cuda"), "warn", "gpu-count", "no /dev/nvidia0", "--gpus all")
    assert versions(LAPTOP._replace(apple=True), "gpu")[0].status == "pass"


def test_a_gpu_that_torch_has_no_code_for() -> None:
    machine = SERVER._replace(cards=(H200, Card("Tesla V100", 7, 0)))
    only(versions(machine), "fail", "no-driver", "GPU 1, Tesla V100 (sm_70)", "sm_75, sm_80")
    # sm_86 code is of a later GPU of the same generation.
    only(versions(SERVER._replace(archs=("sm_86",), cards=(Card("A100", 8, 0),))), "fail", "no-driver", "sm_80")


def test_a_backend_that_is_not_there() -> None:
    machine = SERVER._replace(nccl=None)
    only(versions(machine, backend="nccl"), "fail", "no-nccl", "process_group_backend is nccl")
    only(versions(machine), "fail", "no-nccl", "2 processes")
    assert versions(machine, processes=1)[0].status == "pass"
    assert versions(machine, backend="gloo")[0].status == "pass"
    only(versions(LAPTOP, backend="cpu:gloo,cuda:nccl"), "warn", "no-nccl")
    with pytest.raises(NamedError, match="NCCL talks between NVIDIA GPUs"):
        versions(machine, "cpu", "nccl")


def test_number_formats() -> None:
    old = (H200, Card("Tesla T4", 7, 5))
    only(list(judge_precision("bf16-mixed", "auto", old, None)), "warn", "precision", "Tesla T4 has no bfloat16")
    only(list(judge_precision("16-mixed", "cpu", (), None)), "warn", "precision", "bf16-mixed")
    only(list(judge_precision("bf16-mixed", "cpu", (), 0.4)), "warn", "precision", "2.5 times as long")
    for healthy in (
        ("bf16-mixed", "gpu", (H200,), None),
        ("16-mixed", "gpu", old, None),
        ("bf16-mixed", "cpu", old, 2.9),
        ("bf16-mixed", "auto", (), None),
        ("32-true", "cpu", (), None),
    ):
        assert [one.status for one in judge_precision(*healthy)] == ["pass"]


def test_the_processors_bfloat16_is_measured() -> None:
    state = torch.get_rng_state()
    assert 0.01 < gpus.bfloat16_gain() < 100
    assert torch.equal(state, torch.get_rng_state())


def test_what_cuda_takes_for_visible() -> None:
    # "If one of the indices is invalid, only the devices whose index precedes it are visible" (CUDA's guide).
    assert visible_gpus("0,2, 1") == ["0", "2", "1"]
    assert visible_gpus("0,-1,1") == ["0"]
    assert visible_gpus("GPU-8932f937,MIG-1a") == ["GPU-8932f937", "MIG-1a"]
    assert visible_gpus("") == visible_gpus("NoDevFiles") == []


def test_visible_gpus_that_contradict_the_devices() -> None:
    only(list(judge_count(1, "0", "auto", 4)), "fail", "gpu-count", "trainer.devices is 4", "CUDA_VISIBLE_DEVICES=0")
    only(list(judge_count(0, "", "gpu", "auto")), "fail", "gpu-count", "shows 0 GPUs")
    only(list(judge_count(2, "0,1", "cuda", [0, 2])), "fail", "gpu-count")
    only(list(judge_count(2, None, "gpu", 8)), "warn", "gpu-count", "this machine has 2 GPUs")
    for healthy in (
        (4, "0,1,2,3", "gpu", 4),
        (4, None, "auto", "auto"),
        (4, "3,1", "auto", -1),
        (0, "", "auto", 2),  # hidden, to train on the CPU
        (0, "0", "cpu", 4),
        (0, None, "auto", 8),  # a laptop: the GPUs are elsewhere
    ):
        assert not list(judge_count(*healthy)), healthy


#: As nvidia-smi prints it, with its escape codes, on a machine whose GPUs are bridged in pairs.
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tNV4\tSYS\tNODE\t0-15,32-47\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\tNV4\tSYS\t16-31,48-63\t1\t\tN/A\n"
    "GPU2\tNV4\tSYS\t X \tSYS\tNODE\t0-15,32-47\t0\t\tN/A\n"
    "GPU3\tSYS\tNV4\tSYS\t X \tSYS\t16-31,48-63\t1\t\tN/A\n"
    "NIC0\tNODE\tSYS\tNODE\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


def test_links_are_read() -> None:
    assert read_links(TOPOLOGY) == {
        (0, 1): "SYS",
        (0, 2): "NV4",
        (0, 3): "SYS",
        (1, 2): "SYS",
        (1, 3): "NV4",
        (2, 3): "SYS",
    }
    assert read_links("") == {}


def test_better_connected_gpus_are_named() -> None:
    found = list(judge_links(read_links(TOPOLOGY), 4, 2))
    only(found, "warn", "gpu-links", "GPUs 0 and 1", "(SYS)", "trainer.devices to [0, 2]")
    # Those that are well connected; all of them; one; no better ones.
    equal = dict.fromkeys(read_links(TOPOLOGY), "PHB")
    for known, devices in ((read_links(TOPOLOGY), [1, 3]), (read_links(TOPOLOGY), -1), (equal, 2), ({}, 2)):
        assert not list(judge_links(known, 4, devices))
    assert not list(judge_links(read_links(TOPOLOGY), 4, 1))


def test_links_are_those_of_the_visible_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{TOPOLOGY}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert links._measured_links(2, "3,1") == {(0, 1): "NV4"}
    assert links._measured_links(2, "GPU-8932f937,GPU-0aa1b2c3") == {}
    program.unlink()
    assert links._measured_links(4, None) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is found on a machine without GPUs")
def test_the_checks_on_this_machine(tmp_path: Path) -> None:
    checks = [*gpus.CHECKS, *links.CHECKS]
    found = examine(checks, tmp_path, asked={"precision": "bf16-mixed"})
    assert [one.check for one in found] == ["machine: versions", "machine: precision", "machine: GPUs"]
    assert {one.status for one in found} == {"pass"}
    assert all(len(one.subject) <= 60 and len(one.check) <= 22 for one in found)
    nccl = {"class_path": "SafeDDPStrategy", "init_args": {"process_group_backend": "nccl"}}
    found = examine(checks, tmp_path, asked={"accelerator": "cpu", "strategy": nccl})
    assert [(one.check, one.id) for one in found if one.status != "pass"] == [("machine: versions", "config")]
