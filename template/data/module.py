"""The LightningDataModule that every data set shares: loaders, shares of the processes, batch arithmetic."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningDataModule
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..distributed.faults import NamedError
from .broken import Broken, parted
from .classes import check_classes, scored_regions
from .dataset import Case, CaseDataset, collate, collate_by_shape, moved_to
from .loader import PositionedLoader, start_worker
from .on_device import Unaugmented, augmented, gathered
from .own_loader import checked_cases, evaluation_batch, told_of_loader, training_batch
from .plan import BatchPlan, plan_batches
from .sampler import EvaluationBatchSampler, GlobalBatchSampler
from .volume_files import need_nibabel

Split = Literal["train", "val", "test"]
_STAGES: dict[str, tuple[Split, ...]] = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}
#: Lightning's name of a stage -> the method that makes its loader.
_LOADERS = {
    "train": "train_dataloader",
    "sanity_check": "val_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}


class SegmentationData(LightningDataModule):
    """Base of all data sets: a subclass says which cases there are and how one is read.

    Args:
        classes: Class names; the position is the label in the masks.
        in_channels: Channels of the images.
        regions: What is scored: name to the labels it joins. Default: every class but ``background``.
        batch_size: Samples of one optimizer step over all processes and accumulation steps.
        num_workers: Loader processes for each training process; ``auto`` fits them to cores and processes.
        preprocess: Deterministic transforms, for the image in every stage and for the mask in training.
        augment: Random transforms of training, seeded by (seed, epoch, sample).
        augment_on: Where they run: in the loader's processes on the ``cpu``, or on the ``device`` that trains, with the
            same seeds. Worth it where a GPU waits for its samples.
        predict: File or folder that ``predict`` reads; default: the test split.
        seed: Seed of batches and augmentation; default: the run's ``seed_everything``.
    """

    def __init__(
        self,
        *,
        classes: list[str],
        in_channels: int = 1,
        regions: Mapping[str, Sequence[int]] | None = None,
        batch_size: int = 8,
        num_workers: int | Literal["auto"] = "auto",
        preprocess: list[nn.Module] | None = None,
        augment: list[nn.Module] | None = None,
        augment_on: Literal["cpu", "device"] = "cpu",
        predict: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_classes(classes)
        self.classes = list(classes)
        self.in_channels = in_channels
        self.regions = scored_regions(regions, classes)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.preprocess = preprocess or []
        self.augment = augment or []
        self.augment_on = augment_on
        self.predict_path = Path(predict) if predict else None
        self.seed = seed
        self._cases: dict[str, list[Case]] = {}
        #: What ``predict`` could not read, where somebody tells it at the end; None: it ends the program at once.
        self.passed_over: list[Broken] | None = None

    # What a data set says ------------------------------------------------------------------------------------------

    @abstractmethod
    def cases(self, split: Split) -> list[Case]:
        """Cases of a split, the same list in the same order on every process."""

    @abstractmethod
    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """Read a case.

        Returns:
            The image, float32 [C, *S] in raw units, and its mask, uint8 [*S] of labels, or None where it has none.
        """

    def read_plane(self, case: Case, number: int, planes: int) -> Tensor:
        """One slice [C, H, W] of a volume, ``number`` of the ``planes`` that its mask has."""
        image, _ = self.read(case)
        return image[:, number * image.shape[1] // planes]

    def spacing(self, case: Case) -> Sequence[float] | None:
        """Edges of a case's pixels or voxels, in millimetres, where its file tells; ``doctor`` compares them."""
        return None

    def predict_cases(self, path: Path) -> list[Case]:
        """Cases of new images for ``predict``.

        Raises:
            NamedError: This data set reads no files.
        """
        raise NamedError(
            "config",
            f"data.predict is '{path}', but {type(self).__name__} reads no files.",
            cause="Its images come from the program or from one fixed source.",
            fix="Leave data.predict out to predict the test split, or use a data set of files such as Folder.",
        )

    def write(self, case: Case, mask: Tensor, folder: Path) -> Path:
        """Write the predicted mask of a case: a PNG of its labels, or NIfTI for a volume.

        Args:
            case: The case.
            mask: Labels, uint8 [H, W] or [D, H, W], in the size of the case's image.
            folder: Existing folder.

        Returns:
            The file written. A NIfTI file has the array's axes as they are and voxels of 1 mm.

        Raises:
            NamedError: A volume, and nibabel is not installed.
        """
        labels = mask.cpu().numpy()
        if labels.ndim == 2:
            file = folder / f"{case.name}.png"
            Image.fromarray(labels).save(file)
            return file
        nibabel = need_nibabel()
        file = folder / f"{case.name}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(labels, np.eye(4)), file)
        return file

    def display(self, image: Tensor) -> Tensor:
        """Picture of an image for a person.

        Args:
            image: [C, H, W], any unit; the first 3 channels are red, green, blue, else the first is grey.

        Returns:
            uint8 [3, H, W], stretched between the 1st and 99th percentile.
        """
        image = image.detach().cpu().float()
        low, high = torch.quantile(image.flatten()[:: max(1, image.numel() // 100_000)], torch.tensor([0.01, 0.99]))
        scaled = ((image - low) / (high - low).clamp(min=1e-6)).clamp(0, 1).mul(255).to(torch.uint8)
        picture: Tensor = scaled[:3] if len(scaled) >= 3 else scaled[:1].expand(3, -1, -1)
        return picture

    def draw(self, case: Case) -> Case:
        """Choose what of a training case is read in this epoch, from the global generators; the case itself here."""
        return case

    def mask_size(self, case: Case) -> Sequence[int] | None:
        """Size of a case's mask, and of what ``write`` is given, where it is not the image's as it is read."""
        return None

    def channels_of(self, training: bool) -> int:
        """Channels of what :meth:`read` gives in training and in evaluation: ``in_channels`` here."""
        return self.in_channels

    #: Whether evaluation takes cases one by one, as they are too large for batches.
    one_by_one = False

    # What they share -----------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        """Number of classes, the background counted."""
        return len(self.classes)

    def num_samples(self, split: Split) -> int:
        """Number of cases of a split."""
        return len(self._listed(split))

    def plan(self) -> BatchPlan:
        """How the global batch is shared out in this run."""
        trainer = self._trainer()
        return plan_batches(
            self.num_samples("train"), self.batch_size, trainer.world_size, trainer.accumulate_grad_batches
        )

    def setup(self, stage: str) -> None:
        """List the cases of a stage on every process."""
        for split in _STAGES.get(stage, ()):
            self._listed(split)

    def train_dataloader(self) -> PositionedLoader:
        """Loader of this process's share of the global batches."""
        trainer, plan = self._trainer(), self.plan()
        sampler = GlobalBatchSampler(
            self.num_samples("train"),
            plan.batch_size,
            plan.accumulation,
            trainer.global_rank,
            plan.world_size,
            self._seed(),
        )
        dataset = self._dataset(self._listed("train"), self.augment)
        dataset.defers = self.augment_on == "device"
        settings = {"collate_fn": gathered if dataset.defers else collate, **self._loader_settings()}
        return PositionedLoader(dataset, sampler, **settings)

    def probe_batch(self) -> Any | None:
        """This process's first micro-batch of the first epoch, made without a loader.

        Returns:
            A batch as of ``train_dataloader``; None where a subclass has a ``train_dataloader`` of its own, of which
            nobody knows what a look at it would change.

        Raises:
            NamedError: A sample of it cannot be read.
        """
        if self._is_own("train_dataloader"):
            return None
        loader: Any = self.train_dataloader()
        samples = loader.dataset.__getitems__(next(iter(loader.deals)))
        return self.on_before_batch_transfer(loader.collate_fn(samples), 0)

    def val_dataloader(self) -> DataLoader[Any]:
        """Loader of this process's share of the validation cases."""
        return self._evaluation_loader(self._listed("val"))

    def test_dataloader(self) -> DataLoader[Any]:
        """Loader of this process's share of the test cases."""
        return self._evaluation_loader(self._listed("test"))

    def predict_dataloader(self) -> DataLoader[Any]:
        """Loader of this process's share of ``data.predict``, or of the test cases."""
        cases = self.predict_cases(self.predict_path) if self.predict_path else self._listed("test")
        return self._evaluation_loader(cases, passes_over=self.passed_over is not None)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move tensors alone: Lightning would take apart, in each step, the names of the cases."""
        moved = moved_to(batch, device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx) if moved is None else moved

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment what the loader's processes have left as it is, before the precision of the network counts."""
        if isinstance(batch, Unaugmented):
            batch = self._trainer().precision_plugin.convert_input(augmented(batch, self.augment, self._seed()))
        return batch

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Raise, in the training process, what failed in a loader worker; check what a loader of one's own gives."""
        if isinstance(batch, NamedError):
            raise batch
        batch, failed = parted(batch)
        if self.passed_over is not None:
            self.passed_over += failed
        # The stage is None where probe_batch is looked at after the run.
        running = self._trainer().state.stage if any(map(self._is_own, _LOADERS.values())) else None
        if running is None or not self._is_own(_LOADERS[stage := str(running.value)]):
            return batch
        loader = f"{type(self).__name__}.{_LOADERS[stage]}"
        if stage == "train":
            return training_batch(batch, loader)
        return evaluation_batch(batch, loader, predicts=stage == "predict")

    def told_of_batches(self) -> list[str] | None:
        """What the start of a fit says of a training loader of a subclass's own; None where it is this class's."""
        trainer = self._trainer()
        loader = trainer.train_dataloader if self._is_own("train_dataloader") else None
        if loader is None or isinstance(loader, PositionedLoader):  # also one that a subclass got from here
            return None
        return told_of_loader(loader, trainer.num_training_batches, trainer.accumulate_grad_batches, trainer.world_size)

    def _is_own(self, name: str) -> bool:
        """Whether a subclass has replaced a method."""
        return getattr(type(self), name) is not getattr(SegmentationData, name)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the trainer behind when a loader worker gets a copy."""
        return {**self.__dict__, "trainer": None}

    def _listed(self, split: Split) -> list[Case]:
        if split not in self._cases:
            self._cases[split] = checked_cases(self.cases(split), f"{type(self).__name__}.cases('{split}')")
        return self._cases[split]

    def _dataset(self, cases: Sequence[Case], augment: list[nn.Module] | None) -> CaseDataset:
        return CaseDataset(
            cases,
            self.read,
            classes=self.classes,
            in_channels=self.channels_of(training=augment is not None),
            preprocess=self.preprocess,
            augment=augment,
            seed=self._seed(),
            draw=self.draw if self._is_own("draw") else None,  # generators would be seeded for nothing
            mask_size=self.mask_size,
        )

    def _evaluation_loader(self, cases: Sequence[Case], passes_over: bool = False) -> DataLoader[Any]:
        trainer = self._trainer()
        whole = self.batch_size // (trainer.world_size * trainer.accumulate_grad_batches)
        batch_size = 1 if self.one_by_one else max(1, whole)
        sampler = EvaluationBatchSampler(len(cases), batch_size, trainer.global_rank, trainer.world_size)
        dataset = self._dataset(cases, None)
        dataset.passes_over = passes_over
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_by_shape, **self._loader_settings())

    def _loader_settings(self) -> dict[str, Any]:
        trainer = self._trainer()
        workers = self.workers_of(trainer.num_devices, on_cpu=trainer.strategy.root_device.type == "cpu")
        return {
            "num_workers": workers,
            "pin_memory": trainer.strategy.root_device.type == "cuda",
            "persistent_workers": workers > 0,
            "worker_init_fn": start_worker,
            # A loader seeds its workers from this; without it, from torch's global generator, which the
            # network's dropout uses as well.
            "generator": torch.Generator().manual_seed(self._seed()),
        }

    def workers_of(self, processes: int, on_cpu: bool) -> int:
        """Loader processes of each training process.

        Args:
            processes: Training processes on this machine.
            on_cpu: Whether they train on the CPU.
        """
        if isinstance(self.num_workers, int):
            return self.num_workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        share = cores // max(1, processes)
        # A network that trains on the CPU needs the cores itself; a GPU is fed by up to 8 workers.
        return min(4, share // 4) if on_cpu else max(1, min(8, share - 1))

    def _seed(self) -> int:
        # seed_everything leaves the run's seed here (lightning.fabric.utilities.seed).
        return int(os.environ.get("PL_GLOBAL_SEED", "0")) if self.seed is None else self.seed

    def _trainer(self) -> Any:
        if self.trainer is None:
            raise NamedError("no-run", f"{type(self).__name__} makes loaders for a Trainer, and has none yet.")
        return self.trainer
