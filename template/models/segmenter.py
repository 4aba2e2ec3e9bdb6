"""The LightningModule: a network, a loss over the global batch, exact scores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

import torch
import torch.nn.functional as F
from lightning import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from ..distributed.alarm import alarm_of
from ..distributed.collectives import local_sums
from ..distributed.faults import NamedError
from ..labels import default_regions
from .compiled import Compiled, Mode
from .finite import LossWatch
from .inference import Inference, joined
from .layout import Layout
from .logged import log_training_loss
from .losses import CrossEntropyDice
from .metrics import MeanLoss, SegmentationScores
from .misfit import refused_images
from .optimizers import configured, fused
from .outputs import check_outputs, named_outputs
from .resumed import Settings
from .sizes import cropped, resized, same_size

Batch = dict[str, Any]


class Predictions(TypedDict):
    """What an evaluation step returns: for each group of the batch, labels uint8 [N, *S] in the masks' size."""

    prediction: list[Tensor]


class Segmenter(LightningModule):
    """Trains any network that turns images [N, C, *S] into logits [N, K, *S].

    A network may return one tensor, a mapping whose main output is called ``out`` (torchvision's convention), or a
    list whose first item is the main one; further outputs, of K channels too, are trained with a falling weight.

    Args:
        net: The network. One with a method ``build(in_channels, num_classes)``, such as ``UNet``, is told both.
        num_classes: K; linked to ``data``.
        in_channels: C; linked to ``data``.
        loss: Called with logits [N, K, *S] and labels [N, *S]. Default: :class:`CrossEntropyDice`.
        optimizer: Builds the optimizer from the trainable parameters.
        lr_scheduler: Builds the schedule from the optimizer.
        lr_interval: Whether the schedule advances every ``epoch`` or every optimizer ``step``.
        monitor: Metric that ``ReduceLROnPlateau`` watches.
        aux_weight: The i-th further output counts ``aux_weight ** i`` in the loss. 0.5 is what torchvision's
            reference training and nnU-Net's deep supervision use.
        pad_to: Pad images to a multiple of this many pixels, for networks that ask for it (``UNet`` pads itself).
        channels_last: Keep 2D images and weights in channels-last order, which most convolutions prefer. ``auto``:
            the faster of both orders, measured before the first step, where there is enough to compute.
        compile: Compile the training steps by ``torch.compile``, in its mode ``default`` (or true), ``reduce-overhead``
            (CUDA graphs) or ``max-autotune``. The first step then takes long.
        window: Predict whole images in windows of this size, in pixels. Default: the data's patches, where it trains
            on such; else each image at once.
        overlap: Share of a window that the next one covers again.
        flips: Predict the mean over all flips of the image: 4 times the work in 2D, 8 times in 3D.
    """

    def __init__(
        self,
        net: nn.Module,
        num_classes: int,
        in_channels: int = 1,
        loss: nn.Module | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_interval: Literal["epoch", "step"] = "epoch",
        monitor: str = "val/dice",
        aux_weight: float = 0.5,
        pad_to: int = 1,
        channels_last: bool | Literal["auto"] = "auto",
        compile: bool | Mode = False,  # noqa: A002  # torch's own name for it
        window: list[int] | None = None,
        overlap: float = 0.5,
        flips: bool = False,
    ) -> None:
        super().__init__()
        build = getattr(net, "build", None)
        if callable(build):
            try:
                build(in_channels, num_classes)
            except ValueError as error:
                raise NamedError(
                    "network-output", f"{type(net).__name__} does not fit the data: {error}.", "", ""
                ) from error
        self.net = net
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.loss = CrossEntropyDice() if loss is None else loss
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.lr_interval = lr_interval
        self.monitor = monitor
        self.aux_weight = aux_weight
        self.pad_to = pad_to
        self.layout = Layout(channels_last)
        self.compiled = Compiled(compile)
        self.inference = Inference(tuple(window) if window else None, overlap, flips)
        self._accepts_images = False
        self._settings: Settings | None = None
        self._loss_watch = LossWatch()
        self._score_by(default_regions(["background", *(f"class_{k}" for k in range(1, num_classes))]))

    def setup(self, stage: str) -> None:
        """Take the names of the scored regions from the data, and lay out the weights."""
        trainer: Any = self.trainer
        # Lightning restores a checkpoint before it does this, and would round weights in double precision.
        trainer.precision_plugin.convert_module(self)
        data = getattr(trainer, "datamodule", None)
        regions = getattr(data, "regions", None)
        if regions is not None:
            self._score_by(regions)
        window = self.inference.window or getattr(data, "window", None)
        self.inference = replace(self.inference, window=window, planes=getattr(data, "planes", None))
        self.layout.weights(self.net)

    def settle(self, compute_loss: Callable[[], Tensor]) -> None:
        """Decide, before the first step and on all processes, what a measurement decides: the layout in memory.

        What is compiled is compiled for that layout, and DDP is to see its gradients come in their final order.

        Args:
            compute_loss: Computes the loss of a first batch.
        """
        self.layout.choose(self, self.net, compute_loss)
        self.compiled.start(self.net)

    def on_fit_start(self) -> None:
        """Compile what no probe step has settled, such as with a data loader of the user's own."""
        self.compiled.start(self.net)

    def configure_optimizers(self) -> Any:
        """Build optimizer and schedule once the parameters are where they will be trained."""
        trainable = [p for p in self.parameters() if p.requires_grad]
        if not trainable:
            raise NamedError("config", f"The network {type(self.net).__name__} has nothing to train.", "", "")
        optimizer = configured("model.optimizer", self.optimizer, trainable)
        if (trainer := self._trainer) is not None:
            optimizer = fused(optimizer, clips=bool(trainer.gradient_clip_val) and "mixed" in str(trainer.precision))
        schedule = None if self.lr_scheduler is None else configured("model.lr_scheduler", self.lr_scheduler, optimizer)
        self._settings = Settings(optimizer, schedule)
        if schedule is None:
            return optimizer
        scheduler = {"scheduler": schedule, "interval": self.lr_interval, "monitor": self.monitor}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_start(self) -> None:
        """Let the configuration's settings win over those that a checkpoint brought back, and tell which."""
        if self._settings is None or not self.trainer.ckpt_path:  # whoever changed a setting meant it
            return
        configs = self.trainer.lr_scheduler_configs
        told = self._settings.restore(self.trainer.optimizers[0], configs[0].scheduler if configs else None)
        if told and self.trainer.is_global_zero:
            print("\n".join(told), file=sys.stderr)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take the weights of a checkpoint.

        Raises:
            NamedError: They are those of another network.
        """
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            first, *more = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
            raise NamedError(
                "checkpoint-mismatch",
                f"The checkpoint does not fit the network {type(self.net).__name__}: {first[:200].rstrip('.')}"
                f"{f', and {len(more)} more' if more else ''}.",
            ) from error

    def forward(self, image: Tensor) -> list[Tensor]:
        """Run the network.

        Args:
            image: Float [N, C, *S].

        Returns:
            Logits [N, K, *S] of the main output, then those of further outputs, which may be smaller.

        Raises:
            NamedError: The network does not accept the images, or its output does not fit the classes.
        """
        size = image.shape[2:]
        padding = [side for length in reversed(size) for side in (0, -length % self.pad_to)]
        if any(padding):
            image = F.pad(image, padding, mode="replicate")
        image = self.layout.images(image)
        output = self.net(image) if self._accepts_images else self._first_output(image)
        named = named_outputs(output, self.net)
        # Each time, as a network may return something else in training than in evaluation.
        check_outputs(named, image, self.num_classes, self.net)
        self._accepts_images = True
        outputs = list(named.values())
        if any(padding):
            ratios = [out.shape[2] / image.shape[2] for out in outputs]
            outputs = [
                cropped(out, [round(n * ratio) for n in size]) for out, ratio in zip(outputs, ratios, strict=True)
            ]
        return outputs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Log and return :meth:`training_loss`."""
        loss, output = self._loss_and_output(batch)
        self._loss_watch.look(loss, output, batch, self.global_step)
        log_training_loss(self, loss, len(batch["mask"]), batch_idx)
        return loss

    def training_loss(self, batch: Batch) -> Tensor:
        """Loss of a micro-batch, the same on every process.

        Args:
            batch: ``image`` [N, C, *S] and ``mask`` [N, *S].

        Returns:
            The loss over the global micro-batch, scalar.
        """
        return self._loss_and_output(batch)[0]

    def on_train_end(self) -> None:
        """Look at the last loss."""
        self._loss_watch.settle()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep no weights that a loss has spoilt, and the layout in which they are trained."""
        self._loss_watch.settle()
        checkpoint["channels_last"] = self.layout.channels_last

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on in the layout of the run that wrote the checkpoint."""
        if "channels_last" in checkpoint:
            self.layout.know(checkpoint["channels_last"])
            self.layout.weights(self.net)

    def _loss_and_output(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, mask = self(batch["image"]), batch["mask"].long()
        weights = [self.aux_weight**i for i in range(len(outputs))]
        losses = [w * self.loss(*same_size(out, mask)) for w, out in zip(weights, outputs, strict=True)]
        return torch.stack(losses).sum() / sum(weights), outputs[0]

    def validation_step(self, batch: Sequence[Batch], batch_idx: int) -> Predictions:
        """Score a batch; see :meth:`_evaluate`."""
        return self._evaluate(batch, self.val_scores, self.val_loss)

    def test_step(self, batch: Sequence[Batch], batch_idx: int) -> Predictions:
        """Score a batch; see :meth:`_evaluate`."""
        return self._evaluate(batch, self.test_scores, self.test_loss)

    def predict_step(self, batch: Sequence[Batch], batch_idx: int) -> Predictions:
        """Labels of new images, in the size of the images as they are on disk."""
        return {"prediction": [self._labels(group["image"], group["size"][0]) for group in batch]}

    def on_validation_epoch_end(self) -> None:
        """Log the scores over all processes."""
        self._log_scores("val", self.val_scores, self.val_loss)

    def on_test_epoch_end(self) -> None:
        """Log the scores over all processes."""
        self._log_scores("test", self.test_scores, self.test_loss)

    def _evaluate(self, batch: Sequence[Batch], scores: SegmentationScores, mean_loss: MeanLoss) -> Predictions:
        predictions = []
        for group in batch:
            images, mask = group["image"], group["mask"]
            if self.inference.in_slabs(images[0]):
                pairs = zip(images, mask, strict=True)
                predictions.append(joined([self._score_slabs(*pair, scores, mean_loss) for pair in pairs]))
                continue
            logits = resized(self(images)[0], mask.shape[1:])
            # Processes hold different numbers of batches, so no collective may run here. The loss is that of each
            # sample alone, which no dealing of the samples to batches and processes can change.
            with local_sums():
                for one, truth in zip(logits.split(1), mask.long().split(1), strict=True):
                    mean_loss.update(self.loss(one, truth))
            prediction = logits.argmax(1)
            scores.update(prediction, mask)
            predictions.append(prediction.to(torch.uint8))
        return {"prediction": predictions}

    def _score_slabs(self, image: Tensor, mask: Tensor, scores: SegmentationScores, mean_loss: MeanLoss) -> Tensor:
        """Score an image part by part; its loss is the mean over the parts, weighted by their size."""
        labels, total = torch.empty_like(mask, dtype=torch.uint8), mask.new_zeros((), dtype=torch.float64)
        for start, logits in self.inference.logits(image, mask.shape, self._main_output):
            planes = slice(start, start + logits.shape[1])
            labels[planes], truth = logits.max(0).indices.to(torch.uint8), mask[planes]
            with local_sums():
                total += self.loss(logits[None], truth[None].long()).double() * (truth.numel() / mask.numel())
            scores.update(labels[planes], truth)
        mean_loss.update(total)
        return labels

    def _main_output(self, images: Tensor) -> Tensor:
        logits: Tensor = resized(self(images)[0], images.shape[2:])
        return logits

    def _log_scores(self, stage: str, scores: SegmentationScores, mean_loss: MeanLoss) -> None:
        values = {f"{stage}/loss": mean_loss.compute()}
        values |= {f"{stage}/{name}": value for name, value in scores.compute().items()}
        self.log_dict({name: value.float() for name, value in values.items()})
        scores.reset()
        mean_loss.reset()

    def _score_by(self, regions: Mapping[str, Sequence[int]]) -> None:
        self.val_scores = SegmentationScores(self.num_classes, regions)
        self.test_scores = SegmentationScores(self.num_classes, regions)
        self.val_loss, self.test_loss = MeanLoss(), MeanLoss()

    def _labels(self, images: Tensor, size: Sequence[int]) -> Tensor:
        """Labels uint8 [N, *size]."""
        if not self.inference.in_slabs(images[0]):
            return resized(self(images)[0], size).argmax(1).to(torch.uint8)
        return joined([self.inference.labels(image, size, self._main_output) for image in images])

    def _first_output(self, image: Tensor) -> Any:
        try:
            return self.net(image)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if alarm_of(error) is not None:  # the network's own collectives: it is another rank that failed
                raise
            raise refused_images(self.net, image, self.in_channels, error, __file__) from error
