from __future__ import annotations

import pytest

from template.callbacks.speed import precision_advice


@pytest.mark.parametrize(
    ("device", "precision", "bf16", "said"),
    [
        ("cpu", "32-true", True, ["this processor has bfloat16: --trainer.precision bf16-mixed"]),
        ("cpu", "bf16-mixed", False, ["this processor has no bfloat16"]),
        ("cpu", "bf16-mixed", True, []),
        ("cpu", "32-true", False, []),
        ("cpu", "64-true", True, []),  # chosen for its exactness
        ("cuda", "32-true", True, []),
    ],
)
def test_the_precision_that_suits_the_processor(device: str, precision: str, bf16: bool, said: list[str]) -> None:
    notes = precision_advice(device, precision, bf16)
    assert [note.startswith(start) for note, start in zip(notes, said, strict=True)] == [True] * len(said)
