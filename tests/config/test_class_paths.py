from __future__ import annotations

from lightning import Callback
from torch import nn

import template.cli  # noqa: F401  # imports every class that can be named
from template.config.class_paths import offered
from template.data.module import SegmentationData


def test_finished_data_sets_are_offered_and_their_bases_are_not() -> None:
    names = offered((SegmentationData,))
    assert {"COCO", "Cityscapes", "Folder", "OxfordPet", "Phantom", "VOC"} <= set(names)
    assert not {"SegmentationData", "PictureData"} & set(names)
    assert names == sorted(names)


def test_a_list_of_modules_or_callbacks_would_mislead() -> None:
    assert offered((nn.Module,)) == offered((Callback,)) == []
