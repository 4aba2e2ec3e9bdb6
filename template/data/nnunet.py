"""The raw data sets of nnU-Net, version 2 and 1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from ..distributed.faults import NamedError
from ..distributed.told import listed
from .dataset import Case
from .dataset_json import (
    NAME,
    class_of_values,
    names_of_values,
    number_of_channels,
    read_dataset_json,
    read_json,
    unreadable,
)
from .decoded import Volume
from .module import Split
from .splits import grouped
from .volume_files import SUFFIXES, list_volumes, stem
from .volumes import VolumeData

_CHANNEL = re.compile(r"(.+)_(\d{4})")
_IGNORE = "ignore"


class NnUNet(VolumeData):
    r"""A raw data set of nnU-Net (Isensee et al., arXiv:1904.08128), version 2 (``DatasetNNN_Name``) or 1.

    ::

        Dataset003_Liver/dataset.json
        Dataset003_Liver/imagesTr/liver_0_0000.nii.gz    one file a channel: _0000, _0001 …
        Dataset003_Liver/labelsTr/liver_0.nii.gz
        Dataset003_Liver/imagesTs/liver_9_0000.nii.gz    to be predicted

    Classes and channels are those of ``dataset.json``: ``channel_names`` (``modality`` in version 1), and ``labels``,
    name to value (value to name in version 1). The label ``ignore`` does not count. With regions (a name to several
    values) a class is learned for each value, called ``label_1`` and so on, and the regions are what is scored;
    nnU-Net itself learns them as overlapping outputs. ``file_ending`` is ``.nii.gz`` or ``.nii``. Where ``labelsTs``
    exists, its cases are the test; else validation and test are cut out of the training cases.

    Args:
        root: Folder with ``dataset.json`` in it.
        classes: Class names; the position is the label. Default: those of ``dataset.json``, by their values.
        mask_values: File value to class index, beside ``classes``. Default: that of ``dataset.json``.
        regions: What is scored. Default: the regions of ``dataset.json``, else every class but the background.
        splits_file: nnU-Net's ``splits_final.json``, of which ``fold`` takes its place, from 0.
        patient: Regular expression on the names; its first parentheses are the patient, whose volumes are all in one
            split. Default: each volume is a patient.
        **kwargs: As of :class:`VolumeData`; ``channels`` come from ``dataset.json``.
    """

    def __init__(
        self,
        root: str,
        *,
        classes: list[str] | None = None,
        mask_values: dict[int, int] | None = None,
        regions: dict[str, list[int]] | None = None,
        splits_file: str | None = None,
        fold: int = 0,
        folds: int | None = None,
        patient: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.root = Path(root).expanduser()
        content = read_dataset_json(self.root)
        ending = content.get("file_ending", ".nii.gz")
        if ending not in SUFFIXES:
            raise NamedError(
                "config",
                f"'{self.root / NAME}' has the file_ending {ending!r}; {' and '.join(SUFFIXES)} are read.",
                cause="Other volumes need another library, and pictures are two-dimensional.",
                fix="Convert volumes to NIfTI and correct file_ending; read pictures with configs/folder.yaml.",
            )
        self.ending = str(ending)
        values, meaning, own_regions = _labels(self.root, content["labels"])
        if classes is not None:
            meaning, own_regions = mask_values or {n: n for n in range(len(classes))}, None
        if splits_file is not None and folds is not None:
            raise NamedError(
                "config", "data.splits_file and data.folds are both set.", cause="Both say what a fold is.",
                fix="Leave one of them out.",
            )  # fmt: skip
        super().__init__(
            classes=classes or values,
            channels=number_of_channels(self.root, content, "channel_names", "modality"),
            mask_values=mask_values or meaning,
            regions=regions or own_regions,
            folds=folds,
            fold=0 if splits_file else fold,
            **kwargs,
        )
        self.splits_file, self.fold = splits_file, fold
        self.patient = patient
        self._content = content

    def volumes(self) -> list[Volume]:
        """Training cases, then those of ``labelsTs``, each in the order of their names.

        Raises:
            NamedError: ``data-missing``, ``data-unreadable`` or ``data-unpaired``, with the files.
        """
        training = self._listed_cases() or self._cases_of("imagesTr", "labelsTr")
        told = self._content.get("numTraining", len(training))
        if told != len(training):
            raise NamedError(
                "data-missing",
                f"'{self.root / NAME}' has numTraining {told}, and 'imagesTr' holds {len(training)} cases.",
                cause="Some were not copied or unpacked, or have been added.",
                fix=f"Copy them again, or correct numTraining in {NAME}.",
            )
        held_out = self._cases_of("imagesTs", "labelsTs") if (self.root / "labelsTs").is_dir() else {}
        twice = sorted(training.keys() & held_out.keys())
        if twice:
            raise NamedError("data-unpaired", f"'{twice[0]}' is in imagesTr and in imagesTs of '{self.root}'.")
        self._held_out = set(held_out)
        volumes = {**training, **held_out}
        patients = grouped(volumes, self.patient, "data.patient")
        return [volume._replace(patient=patients[name]) for name, volume in volumes.items()]

    @override
    def split_of_volumes(self, volumes: Sequence[Volume], split: Split) -> list[Volume]:
        training = [volume for volume in volumes if volume.name not in self._held_out]
        if self._held_out and split == "test":
            return [volume for volume in volumes if volume.name in self._held_out]
        if self.splits_file is not None:
            return self._of_fold(training, split)
        if not self._held_out:
            return super().split_of_volumes(training, split)
        groups = {volume.name: volume.patient for volume in training}
        chosen = self.splitter.share(
            "val" if split == "val" else "train", lambda own: groups if own == "train" else None
        )
        return [volume for volume in training if volume.name in (chosen or ())]

    @override
    def predict_cases(self, path: Path) -> list[Case]:
        """New cases: all channels of a file, or of those of a folder or pattern.

        Raises:
            NamedError: ``data-missing``, ``data-unreadable`` or ``data-unpaired``, with the files.
        """
        files = list_volumes(path, "data.predict")
        if files == [path]:  # one file stands for its case
            match = _CHANNEL.fullmatch(stem(path))
            files = sorted(path.parent.glob(f"{_literal(match[1])}_????{self.ending}")) if match else files
        return self.new_cases(self._channels_of(files or [path], str(path)))

    @override
    def folders_of_masks(self) -> list[Path]:
        return [self.root / "labelsTr", self.root / "labelsTs"]

    def _cases_of(self, images: str, masks: str) -> dict[str, Volume]:
        folder = self.root / images
        found = {}
        for volume in self._channels_of(list_volumes(folder, f"data.root: {images}"), str(folder)):
            mask = self.root / masks / f"{volume.name}{self.ending}"
            found[volume.name] = volume._replace(mask=str(mask))
        labelled = list_volumes(self.root / masks, f"data.root: {masks}")
        missing = [one.mask or "" for one in found.values() if Path(one.mask or "") not in labelled]
        lonely = [str(file) for file in labelled if stem(file) not in found]
        if missing or lonely:
            what = (
                f"{folder} has {len(missing)} cases without a mask" if missing else f"{len(lonely)} masks lack an image"
            )
            raise NamedError("data-unpaired", f"{what}: {listed(missing or lonely, 3)}.")
        return found

    def _channels_of(self, files: Sequence[Path], place: str) -> list[Volume]:
        """Cases of files ``case_0000.nii.gz``, ``case_0001.nii.gz`` …, sorted."""
        channels: dict[str, dict[int, str]] = {}
        for file in files:
            match = _CHANNEL.fullmatch(stem(file))
            if match is None or not file.name.endswith(self.ending):
                raise NamedError(
                    "data-unpaired",
                    f"'{file}' is not called CASE_0000{self.ending}.",
                    cause="In nnU-Net's layout four digits at the end say the channel.",
                    fix=f"Rename it, correct file_ending in {NAME}, or take it away.",
                )
            of_case = channels.setdefault(match[1], {})
            if int(match[2]) in of_case:
                raise NamedError("data-unpaired", f"Channel {match[2]} of '{match[1]}' is in two files of '{place}'.")
            of_case[int(match[2])] = str(file)
        for name, of_case in channels.items():
            lacking = [n for n in range(self.channels) if n not in of_case]
            if lacking or len(of_case) != self.channels:
                told = f"lacks the channel {lacking[0]:04d}" if lacking else f"has {len(of_case)} channels"
                raise NamedError(
                    "image-channels",
                    f"'{name}' in '{place}' {told}; '{self.root / NAME}' names {self.channels}.",
                    fix=f"Put the file there, or correct channel_names in {NAME}.",
                )
        return [Volume(name, tuple(file for _, file in sorted(channels[name].items()))) for name in sorted(channels)]

    def _listed_cases(self) -> dict[str, Volume]:
        """Cases that ``dataset`` of ``dataset.json`` lists by their files, wherever these are; usually none."""
        cases = self._content.get("dataset")
        found: dict[str, Volume] = {}
        for name, case in sorted(cases.items()) if isinstance(cases, dict) else ():
            images, mask = (case.get("images"), case.get("label")) if isinstance(case, dict) else (None, None)
            if not isinstance(images, list) or not images or not isinstance(mask, str):
                raise unreadable(self.root / NAME, f"its 'dataset' has no images and label of '{name}'")
            found[name] = Volume(name, tuple(str(self.root / str(file)) for file in images), str(self.root / mask))
        return found

    def _of_fold(self, volumes: Sequence[Volume], split: Split) -> list[Volume]:
        file = Path(str(self.splits_file)).expanduser()
        folds = read_json(file, "data.splits_file")
        if not isinstance(folds, list) or not all(
            isinstance(one, dict) and isinstance(one.get("train"), list) and isinstance(one.get("val"), list)
            for one in folds
        ):
            raise unreadable(file, "it is no list of folds, each with lists 'train' and 'val'")
        if not 0 <= self.fold < len(folds):
            raise NamedError("config", f"data.fold is {self.fold}; '{file}' has the folds 0 to {len(folds) - 1}.")
        parts = {part: [str(name) for name in folds[self.fold][part]] for part in ("train", "val")}
        twice = [name for name in parts["val"] if name in parts["train"]]
        if twice:
            raise NamedError(
                "data-unpaired", f"'{file}' has '{twice[0]}' in 'train' and in 'val' of fold {self.fold}.",
                cause="What a network was trained on says nothing about how it does with others.",
                fix="Leave it in one of them.",
            )  # fmt: skip
        names = parts.get(split, [])
        unknown = [name for name in names if name not in {volume.name for volume in volumes}]
        if unknown:
            raise NamedError("data-missing", f"'{file}' lists cases that '{self.root}' lacks: {listed(unknown, 3)}.")
        return [volume for volume in volumes if volume.name in names]


def _labels(root: Path, labels: Mapping[str, Any]) -> tuple[list[str], dict[int, int], dict[str, list[int]] | None]:
    """Class names, class index of each file value, and regions where there are such."""
    labels = dict(labels)
    ignored = labels.pop(_IGNORE, None)
    if not any(isinstance(value, list) for value in labels.values()):
        values = names_of_values(root, labels)
        ignored = next((value for value, name in values.items() if name == _IGNORE), ignored)
        values = {value: name for value, name in values.items() if value != ignored}
        return list(values.values()), class_of_values(values, ignored), None
    joined = {name: value if isinstance(value, list) else [value] for name, value in labels.items()}
    if not all(isinstance(value, int) for of_region in joined.values() for value in of_region):
        raise unreadable(root / NAME, f"its labels {labels} are no numbers")
    found = sorted({value for of_region in joined.values() for value in of_region})
    background = next((name for name, of_region in joined.items() if of_region == [0]), "background")
    values = names_of_values(root, {value: f"label_{value}" if value else background for value in {0, *found}})
    meaning = class_of_values(values, ignored)
    regions = {
        name: [meaning[value] for value in of_region] for name, of_region in joined.items() if 0 not in of_region
    }
    return list(values.values()), meaning, regions


def _literal(name: str) -> str:
    """A name in a pattern, whatever signs it holds."""
    return re.sub(r"([*?\[])", r"[\1]", name)
