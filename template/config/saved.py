"""``config.yaml`` of a run: what ran, in a form that any verb and any copy of the package accepts."""

from __future__ import annotations

from pathlib import Path

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from typing_extensions import override

#: Keys of one verb alone, which another verb would refuse.
_VERB_KEYS = ("config", "ckpt_path", "weights_only", "verbose", "return_predictions", "out")


class SaveConfig(SaveConfigCallback):
    """Writes the configuration with the short names of the package's own classes, on rank 0."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.already_saved or not trainer.is_global_zero:
            return
        self.already_saved = True
        # By position: nulls are kept by `skip_none` before jsonargparse 4.49 and by `skip_unset` since.
        text = self.parser.dump(self.config, "yaml", False)
        config = {key: value for key, value in yaml.safe_load(text).items() if key not in _VERB_KEYS}
        file = Path(trainer.default_root_dir) / self.config_filename
        content = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        if file.exists() and file.read_text(encoding="utf-8") != content:
            # A resumed run under other settings: what ran before stays readable.
            file.rename(_free_name(file))
        file.write_text(content, encoding="utf-8")


def _free_name(file: Path) -> Path:
    """First free name ``<stem>_<n><suffix>`` beside a file."""
    number = 0
    while (free := file.with_name(f"{file.stem}_{number}{file.suffix}")).exists():
        number += 1
    return free
