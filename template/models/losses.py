"""A segmentation loss over the global batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..distributed.collectives import global_sum
from ..distributed.faults import NamedError
from ..labels import IGNORE_INDEX


class CrossEntropyDice(nn.Module):
    """Weighted sum of cross-entropy and soft Dice loss, both over the labelled pixels of the global batch.

    With the probability p_k and the truth t_k (0 or 1) of class k at each labelled pixel, and sums over these
    pixels in the images of all processes::

        cross-entropy = sum(w_k t_k * -log p_k) / sum(w_k t_k)
        Dice          = 1 - mean over k of (2 sum(p_k t_k) + smooth) / (sum(p_k) + sum(t_k) + smooth)

    The first is ``torch.nn.functional.cross_entropy`` with ``class_weights``; the second is the batch Dice of nnU-Net
    (Isensee et al. 2021, doi:10.1038/s41592-020-01008-z; Drozdzal et al. 2016, arXiv:1608.04117). Because the sums
    are taken before they are divided, the gradients that DDP averages make the gradient of the joined batch, also
    when processes hold different numbers of labelled pixels, or none.

    Args:
        cross_entropy: Weight of the cross-entropy.
        dice: Weight of the Dice loss.
        class_weights: w_k, one number a class; 1 for all by default. Cross-entropy alone uses them.
        include_background: Whether class 0 counts in the mean of the Dice loss.
        smooth: Added, in pixels, to numerator and denominator: a class that is neither there nor predicted is
            a perfect 1, and not 0 / 0.

    Raises:
        NamedError: A weight is negative, or ``smooth`` is not positive.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        cross_entropy: float = 1.0,
        dice: float = 1.0,
        class_weights: list[float] | None = None,
        include_background: bool = True,
        smooth: float = 1e-5,
    ) -> None:
        super().__init__()
        if min(cross_entropy, dice, *(class_weights or [])) < 0:
            raise NamedError("config", "CrossEntropyDice: cross_entropy, dice and class_weights must not be negative.")
        if smooth <= 0:
            raise NamedError("config", f"CrossEntropyDice: smooth is {smooth}; it must be above 0.")
        self.cross_entropy = cross_entropy
        self.dice = dice
        self.include_background = include_background
        self.smooth = smooth
        weights = None if class_weights is None else torch.tensor(class_weights)
        # Part of the configuration, not of what is learned: kept out of checkpoints.
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of the global batch; the same number on every process.

        Args:
            logits: Scores of the classes, ``[N, K, *S]``; half precision is computed in float32.
            target: Labels ``0 … K - 1`` or ``IGNORE_INDEX``, integer, ``[N, *S]``. Every process takes part, with as
                many classes; N and S are its own affair.

        Returns:
            The loss, a scalar, float32 or float64. 0, with gradients that are 0, when no pixel is labelled. NaN on
            a GPU, or compiled, where a label is none of these: an error there would make each step wait for it.

        Raises:
            NamedError: Shapes or the number of class weights do not fit; on the CPU, a label that is no class.
        """
        self._check(logits, target)
        strange = no_class(target, logits.shape[1]).any()
        if strange.device.type == "cpu" and not torch.compiler.is_compiling() and strange:
            raise NamedError(
                "mask-values",
                f"The loss got the labels {torch.unique(target).tolist()[:20]} for logits {list(logits.shape)}.",
                cause=f"Logits of {logits.shape[1]} channels are of the classes 0 to {logits.shape[1] - 1}; "
                f"{IGNORE_INDEX} does not count.",
                fix=f"Give logits of a channel for each class, and set labels that do not count to {IGNORE_INDEX}.",
            )
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=1)
        classes = torch.arange(log_p.shape[1], device=log_p.device).view(-1, *[1] * (log_p.ndim - 2))
        truth = target.unsqueeze(1) == classes
        labelled = (target != IGNORE_INDEX).unsqueeze(1)

        # Not `nll_loss`, which has no deterministic form on CUDA.
        p = log_p.exp()
        axes = [0, *range(2, log_p.ndim)]
        nll, overlap, predicted, true = global_sum(
            torch.stack(
                [
                    -log_p.where(truth, 0).sum(axes),
                    p.where(truth, 0).sum(axes),
                    p.where(labelled, 0).sum(axes),
                    truth.sum(axes, dtype=log_p.dtype),
                ]
            )
        )

        weights = torch.ones_like(true) if self.class_weights is None else self.class_weights.to(true)
        weight = (weights * true).sum()
        # Without a labelled pixel this is 0 / 1.
        cross_entropy = (weights * nll).sum() / weight.where(weight > 0, 1)
        scores = (2 * overlap + self.smooth) / (predicted + true + self.smooth)
        dice = 1 - scores[0 if self.include_background else 1 :].mean()
        loss: Tensor = self.cross_entropy * cross_entropy + self.dice * dice
        return loss.masked_fill(strange, torch.nan)

    def _check(self, logits: Tensor, target: Tensor) -> None:
        num_classes = logits.shape[1]
        if logits.shape[:1] + logits.shape[2:] != target.shape:
            raise NamedError(
                "network-output",
                f"The loss got logits {list(logits.shape)} for labels {list(target.shape)}; only the axis of the "
                "classes, the second, may differ.",
                fix="Let the network return logits in the size of the labels.",
            )
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise NamedError(
                "config",
                f"CrossEntropyDice: class_weights has {len(self.class_weights)} numbers, but there are "
                f"{num_classes} classes.",
                fix="Give one weight for each of data.classes, in their order.",
            )
        if num_classes == 1 and not self.include_background:
            raise NamedError("config", "CrossEntropyDice: without the background no class is left for Dice.")


def no_class(target: Tensor, num_classes: int) -> Tensor:
    """Where labels are none of the classes, and not ``IGNORE_INDEX`` either: bool of the same shape."""
    return ((target < 0) | (target >= num_classes)) & (target != IGNORE_INDEX)
