"""Failure reports about the configuration that go beyond single mistakes (those are in tests/config)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from template.__main__ import main
from tests import tiny

RUN = Path("runs/tiny/version_0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with one valid configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    tiny.write()
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The configuration that arguments lead to."""
    with pytest.raises(SystemExit):
        main(["fit", "--config", "tiny.yaml", *arguments, "--print_config"])
    found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return found


NUMBERS = """\
from torch import nn
class Numbers(nn.Module):
    def __init__(self, rate: float, either: float | str, maybe: float | None, options: dict, several: list[float]): ...
"""


@pytest.mark.case("H1")
def test_scientific_notation_is_a_number_wherever_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "net_numbers.py").write_text(NUMBERS, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "net_numbers", raising=False)
    given = "{rate: 1e-3, either: 1e-3, maybe: 1E-3, options: {a: 1e-3, b: [2e5], c: {d: 1e-3}}, several: [1e-3, 3]}"
    tiny.write(f"model:\n  net:\n    class_path: net_numbers.Numbers\n    init_args: {given}\n", "over.yaml")
    expected = {
        "rate": 0.001,
        "either": 0.001,
        "maybe": 0.001,
        "options": {"a": 0.001, "b": [200000.0], "c": {"d": 0.001}},
        "several": [0.001, 3.0],
    }
    assert printed(capsys, "--config", "over.yaml")["model"]["net"]["init_args"] == expected
    by_option = ["--model.net.either", "2e-3", "--model.net.options.a", "2e-3"]
    found = printed(capsys, "--config", "over.yaml", *by_option)["model"]["net"]["init_args"]
    assert (found["either"], found["options"]["a"]) == (0.002, 0.002)


@pytest.mark.case("H5")
def test_the_number_of_classes_is_said_once_and_the_saved_configuration_leads_to_the_same_network() -> None:
    assert tiny.run() == 0
    saved = yaml.safe_load((RUN / "config.yaml").read_text(encoding="utf-8"))
    assert "num_classes" not in saved["model"]
    assert tiny.run(config=str(RUN / "config.yaml")) == 0
    for number in (0, 1):
        checkpoint = torch.load(f"runs/tiny/version_{number}/checkpoints/last.ckpt", weights_only=True)
        head = checkpoint["state_dict"]["net.heads.0.weight"]
        assert head.shape[0] == 3  # background, liver, tumour


@pytest.mark.case("H8")
def test_arguments_that_the_new_class_has_are_kept_and_the_others_dropped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = printed(capsys, "--model.optimizer", "torch.optim.SGD")["model"]["optimizer"]
    assert found["class_path"] == "torch.optim.SGD"
    assert found["init_args"]["lr"] == 0.001
    assert "betas" not in found["init_args"]


@pytest.mark.case("H9")
def test_several_files_with_a_strategy_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write("trainer: {strategy: {class_path: SafeDDPStrategy, init_args: {timeout: 60}}}\n", "one.yaml")
    tiny.write("trainer: {strategy: {init_args: {bucket_cap_mb: 5}}}\n", "two.yaml")
    knobs = printed(capsys, "--config", "one.yaml", "--config", "two.yaml")["trainer"]["strategy"]["init_args"]
    assert (knobs["timeout"], knobs["bucket_cap_mb"]) == (60, 5)
    knobs = printed(capsys, "--config", "one.yaml", "--trainer.strategy.timeout", "1h30m")["trainer"]["strategy"]
    assert knobs["init_args"]["timeout"] == "1h30m"


@pytest.mark.case("H9")
@pytest.mark.parametrize("above", ["{sync_batchnorm: false}", "{init_args: {sync_batchnorm: false}}"])
def test_knobs_without_a_class_are_those_of_this_program_s_strategy(
    above: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(f"trainer: {{strategy: {above}}}\n", "knobs.yaml")
    strategy = printed(capsys, "--config", "knobs.yaml", "--trainer.strategy.timeout", "90s")["trainer"]["strategy"]
    assert strategy["class_path"] == "SafeDDPStrategy"
    assert (strategy["init_args"]["sync_batchnorm"], strategy["init_args"]["timeout"]) == (False, "90s")
    assert printed(capsys)["trainer"]["strategy"] == "auto"


@pytest.mark.case("H9")
def test_a_list_that_takes_the_place_of_another_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write("trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss}}]}\n", "one.yaml")
    tiny.write("trainer:\n  callbacks:\n    - {class_path: DeviceStatsMonitor}\n", "two.yaml")
    # The run ends before training, at a batch that cannot be shared out.
    files = ["fit", "--config", "tiny.yaml", "--config", "one.yaml", "--config", "two.yaml"]
    arguments = ["--data.preprocess+=Standardize", "--data.batch_size", "3", "--trainer.accumulate_grad_batches", "2"]
    assert main([*files, *arguments]) == 2
    error = capsys.readouterr().err
    told = (
        "trainer.callbacks: the list of two.yaml:2 in place of that of one.yaml:1; --trainer.callbacks+= would add to"
    )
    assert told in error
    assert "data.preprocess:" not in error


def test_a_default_that_cannot_be_written_is_no_matter() -> None:
    timer = ["--trainer.callbacks", "Timer", "--trainer.callbacks.duration", "00:01:00:00"]
    assert tiny.run(*timer) == 0
    saved = yaml.safe_load((RUN / "config.yaml").read_text(encoding="utf-8"))
    assert saved["trainer"]["callbacks"][0]["init_args"]["interval"] == "step"
    assert tiny.run(config=str(RUN / "config.yaml")) == 0
