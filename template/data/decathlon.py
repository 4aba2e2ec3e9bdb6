"""The layout of the Medical Segmentation Decathlon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import override

from ..distributed.faults import NamedError
from .dataset_json import NAME, class_of_values, names_of_values, number_of_channels, read_dataset_json, unreadable
from .decoded import Volume
from .splits import grouped
from .volume_files import stem
from .volumes import VolumeData


class Decathlon(VolumeData):
    r"""A task of the Medical Segmentation Decathlon (Antonelli et al., arXiv:2106.05735), as it is unpacked.

    ::

        Task09_Spleen/dataset.json
        Task09_Spleen/imagesTr/spleen_2.nii.gz
        Task09_Spleen/labelsTr/spleen_2.nii.gz
        Task09_Spleen/imagesTs/spleen_1.nii.gz

    Classes, channels and pairs are those of ``dataset.json``: ``labels`` says which value is which class, ``modality``
    which channels there are (in a file of several they are the fourth axis), ``training`` lists the pairs, with paths
    such as ``./imagesTr/spleen_2.nii.gz``. The ``._*`` that macOS left in the archives are passed over. ``imagesTs``
    has no public masks: it is there to be predicted; validation and test are cut out of the training cases.

    Args:
        root: Folder with ``dataset.json`` in it.
        classes: Class names; the position is the label. Default: those of ``dataset.json``, by their values.
        mask_values: File value to class index, beside ``classes``. Default: that of ``dataset.json``.
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
        patient: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.root = Path(root).expanduser()
        content = read_dataset_json(self.root)
        values = names_of_values(self.root, content["labels"])
        super().__init__(
            classes=classes or list(values.values()),
            channels=number_of_channels(self.root, content, "modality"),
            mask_values=mask_values or (class_of_values(values) if classes is None else None),
            **kwargs,
        )
        self.patient = patient
        self._content = content

    def volumes(self) -> list[Volume]:
        """Pairs of ``training``, in the order of their names.

        Raises:
            NamedError: ``data-missing``, ``data-unreadable`` or ``data-unpaired``, with the file.
        """
        found: dict[str, Volume] = {}
        for image, mask in self._pairs():
            name = stem(image)
            if name in found:
                raise NamedError(
                    "data-unpaired",
                    f"'{self.root / NAME}' lists '{name}' twice: '{found[name].images[0]}' and '{image}'.",
                    fix="Remove one of them from its 'training'.",
                )
            found[name] = Volume(name, (str(image),), str(mask))
        if not found:
            raise NamedError("data-missing", f"'{self.root / NAME}' lists no case in 'training'.")
        patients = grouped(sorted(found), self.patient, "data.patient")
        return [found[name]._replace(patient=patients[name]) for name in sorted(found)]

    @override
    def folders_of_masks(self) -> list[Path]:
        return [self.root / "labelsTr"]

    def _pairs(self) -> Iterator[tuple[Path, Path]]:
        listed = self._content.get("training")
        if not isinstance(listed, list):
            raise unreadable(self.root / NAME, "it has no list 'training'")
        for number, pair in enumerate(listed):
            image, mask = (pair.get("image"), pair.get("label")) if isinstance(pair, dict) else (None, None)
            if not (isinstance(image, str) and image and isinstance(mask, str) and mask):
                raise unreadable(self.root / NAME, f"its 'training' has no image and label at place {number}")
            file = self.root / image
            if not file.name.startswith("._"):
                yield file, self.root / mask
