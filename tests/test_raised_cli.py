"""An exception of the user's own code, by the command line, in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import tiny

NET = """\
from template.models.unet import UNet


class Odd(UNet):
    calls = 0

    def forward(self, x):
        Odd.calls += 1
        if Odd.calls == 4:  # two of the look before the first step, and the first step
            raise KeyError("liver")
        return super().forward(x)
"""


def test_it_ends_in_the_user_s_lines_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "odd_net.py").write_text(NET)
    tiny.write()
    assert tiny.run("--model.net=odd_net.Odd") == 1
    *frames, last = capsys.readouterr().err.strip().splitlines()[-3:]
    assert frames == [f'  File "{tmp_path}/odd_net.py", line 10, in forward', '    raise KeyError("liver")']
    file = "runs/tiny/version_0/rank_0/error.txt"
    assert last == (
        f"error: KeyError: 'liver', raised at odd_net.py:10 forward. The whole traceback is in {file}. [exception]"
    )
    text = Path(file).read_text()
    assert text.startswith("KeyError: 'liver'\n\nTraceback (most recent call last):\n")
    assert "lightning/pytorch/loops/fit_loop.py" in text
    sys.modules.pop("odd_net", None)
