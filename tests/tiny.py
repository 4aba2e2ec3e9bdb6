"""A run that takes a second: four phantoms of 32 pixels, a network of a few thousand parameters."""

from __future__ import annotations

from pathlib import Path

import template.cli  # noqa: F401  # the imports of the first run would change the environment during a test
from template.__main__ import main

#: One key a line where tests replace one.
CONFIG = """\
experiment: tiny
seed_everything: 0
data:
  class_path: Phantom
  init_args:
    train_cases: 4
    val_cases: 2
    test_cases: 2
    size: 32
    batch_size: 2
    num_workers: 0
    preprocess:
      - class_path: Window
        init_args: {low: -160, high: 240}
    augment:
      - class_path: RandomWarp
        init_args: {degrees: 10}
model:
  net:
    class_path: UNet
    init_args: {width: 4, depth: 2}
  optimizer:
    class_path: torch.optim.AdamW
    init_args: {lr: 1e-3}
trainer:
  max_epochs: 1
  accelerator: cpu
  devices: 1
  log_every_n_steps: 1
  num_sanity_val_steps: 0
  enable_progress_bar: false
"""


def write(text: str = CONFIG, name: str = "tiny.yaml") -> str:
    """Write a configuration into the working directory."""
    Path(name).write_text(text, encoding="utf-8")
    return name


def run(*arguments: str, verb: str = "fit", config: str = "tiny.yaml") -> int:
    """Run a verb in this process.

    Returns:
        The exit code.
    """
    return main([verb, "--config", config, *arguments])
