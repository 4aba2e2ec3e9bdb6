"""U-Net in 2D and 3D."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..distributed.faults import NamedError

Normalization = Literal["batch", "instance", "group", "none"]
Upsampling = Literal["transposed", "interpolate"]

_CONV: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]] = {
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
_BATCH_NORM: dict[int, type[nn.Module]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_INSTANCE_NORM: dict[int, type[nn.Module]] = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
_DROPOUT: dict[int, type[nn.Module]] = {2: nn.Dropout2d, 3: nn.Dropout3d}

#: Most groups of a group normalisation; the number used is the largest power of two up to this that divides.
_MAX_GROUPS = 8


class UNet(nn.Module):
    """U-Net for images and volumes.

    Two convolutions of 3 pixels an axis at every scale, each with normalisation and ReLU; a stride of 2 leads
    down, and skip connections lead across (Ronneberger et al. 2015, arXiv:1505.04597; Çiçek et al. 2016,
    arXiv:1606.06650). As in nnU-Net (Isensee et al. 2021, doi:10.1038/s41592-020-01008-z), convolutions are padded,
    and the way down is a strided convolution: unlike max pooling it costs no operation of its own.

    Images of any size are accepted: they are padded at their far ends by repeating the edge, and the logits are
    cropped back.

    Args:
        in_channels: Channels of the images. ``None``: told later, to :meth:`build`.
        num_classes: Classes, the background included. ``None``: told later, to :meth:`build`.
        dims: 2 for images, 3 for volumes.
        width: Channels at full resolution; doubled at every scale. 16 makes a network of 1.9 million
            parameters in 2D at depth 4, 32 one of 5.7 million.
        depth: How many times the resolution is halved.
        max_width: Most channels at any scale.
        normalization: ``batch``, ``instance``, ``group`` (up to 8 groups) or ``none``.
        upsampling: ``transposed`` convolution, or ``interpolate``: linear, without checkerboard patterns, but
            with a backward pass that is not deterministic on CUDA.
        dropout: Probability with which a channel is dropped after each scale. Drawn from the generator of each
            process, so that runs with another number of processes drop other channels.
        deep_supervision: In training, also give logits at the lower resolutions of the way up.

    Raises:
        NamedError: A number is out of its range.
    """

    def __init__(
        self,
        in_channels: int | None = None,
        num_classes: int | None = None,
        *,
        dims: Literal[2, 3] = 2,
        width: int = 32,
        depth: int = 4,
        max_width: int = 320,
        normalization: Normalization = "batch",
        upsampling: Upsampling = "transposed",
        dropout: float = 0.0,
        deep_supervision: bool = False,
    ) -> None:
        super().__init__()
        counts = {"in_channels": in_channels, "num_classes": num_classes}
        counts |= {"width": width, "depth": depth, "max_width": max_width}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise NamedError("config", f"UNet: {name} is {count}; it must be at least 1.")
        if dims not in _CONV:
            raise NamedError("config", f"UNet: dims is {dims}; it must be 2 or 3.")
        if not 0 <= dropout < 1:
            raise NamedError("config", f"UNet: dropout is {dropout}; it must be at least 0 and below 1.")
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.dims = dims
        self.widths = [min(width * 2**level, max_width) for level in range(depth + 1)]
        self.normalization = normalization
        self.upsampling = upsampling
        self.dropout = dropout
        self.deep_supervision = deep_supervision

        self.encoder = nn.ModuleList()  # by level: 0 is full resolution
        self.upsample = nn.ModuleList()  # by level: from level + 1 to level
        self.decoder = nn.ModuleList()
        self.heads = nn.ModuleList()  # heads[0] makes the output, the others the auxiliary ones
        if in_channels is not None and num_classes is not None:
            self.build(in_channels, num_classes)

    def build(self, in_channels: int, num_classes: int) -> None:
        """Make the layers, with the numbers that the constructor was not told.

        Channels and classes are said once, in the data; whoever holds both calls this before the parameters are
        used. Calling it again with the same numbers changes nothing.

        Args:
            in_channels: Channels of the images.
            num_classes: Classes, the background included.

        Raises:
            ValueError: A number contradicts the constructor's.
        """
        told = {"in_channels": (self.in_channels, in_channels), "num_classes": (self.num_classes, num_classes)}
        for name, (known, value) in told.items():
            if known is not None and known != value:
                raise ValueError(f"{name} is {known}, but the data has {value}; leave {name} out or correct it")
        if self.heads:
            return
        self.in_channels, self.num_classes = in_channels, num_classes

        self.encoder.append(self._block(in_channels, self.widths[0]))
        for fine, coarse in itertools.pairwise(self.widths):
            self.encoder.append(self._block(fine, coarse, stride=2))
            self.upsample.append(self._upsample(coarse, fine))
            self.decoder.append(self._block(2 * fine, fine))
        supervised = len(self.decoder) if self.deep_supervision else 1
        for channels in self.widths[:supervised]:
            self.heads.append(_CONV[self.dims](channels, num_classes, kernel_size=1))

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        """Logits of every class at every pixel.

        Args:
            x: Images, float, ``[N, C, H, W]`` or ``[N, C, D, H, W]``, of any size.

        Returns:
            Logits ``[N, K, *S]``. In training with deep supervision a dictionary in the convention of
            torchvision's segmentation models: ``out``, and ``aux1``, ``aux2`` … at a resolution halved 1, 2 … times
            (sizes rounded up).

        Raises:
            RuntimeError: The network has not been built.
            ValueError: The image has another number of axes.
        """
        if not self.heads:
            raise RuntimeError("UNet: in_channels and num_classes are not known yet; call build() first.")
        if x.ndim != self.dims + 2:
            raise ValueError(f"UNet: the input has {x.ndim} axes; with dims={self.dims} it must have {self.dims + 2}.")
        size = x.shape[2:]
        x = self._pad(x)
        skips: list[Tensor] = []
        for stage in self.encoder:
            x = stage(x)
            skips.append(x)
        skips.pop()

        outputs: list[Tensor] = []
        levels = zip(reversed(self.upsample), reversed(self.decoder), reversed(skips), strict=True)
        for upsample, stage, skip in levels:
            x = stage(torch.cat([upsample(x), skip], dim=1))
            outputs.append(x)
        outputs.reverse()
        if not (self.training and self.deep_supervision):
            return self._crop(self.heads[0](outputs[0]), size)
        names = ["out", *(f"aux{level}" for level in range(1, len(self.heads)))]
        return {
            name: self._crop(head(features), [-(-length // 2**level) for length in size])
            for level, (name, head, features) in enumerate(zip(names, self.heads, outputs, strict=True))
        }

    def _pad(self, x: Tensor) -> Tensor:
        """Pad to a size that can be halved ``depth`` times, with more than one pixel left at the end.

        One pixel at the coarsest scale would leave instance normalisation, and batch normalisation of a single
        image, with nothing to take a variance of.
        """
        multiple = 2 ** len(self.decoder)
        padding = [-length % multiple for length in x.shape[2:]]
        if all(length <= multiple for length in x.shape[2:]):
            padding[-1] += multiple
        return F.pad(x, [side for end in reversed(padding) for side in (0, end)], mode="replicate")

    def _crop(self, x: Tensor, size: Sequence[int]) -> Tensor:
        for axis, length in enumerate(size, start=2):
            x = x.narrow(axis, 0, length)
        return x

    def _block(self, in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
        layers = [
            *self._convolution(in_channels, out_channels, stride),
            *self._convolution(out_channels, out_channels, stride=1),
        ]
        if self.dropout:
            layers.append(_DROPOUT[self.dims](self.dropout))
        return nn.Sequential(*layers)

    def _convolution(self, in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
        # A normalisation subtracts whatever a bias adds: the bias would be a parameter moved by rounding alone.
        bias = self.normalization == "none"
        convolution = _CONV[self.dims](in_channels, out_channels, 3, stride=stride, padding=1, bias=bias)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        layers: list[nn.Module] = [convolution]
        if self.normalization == "batch":
            layers.append(_BATCH_NORM[self.dims](out_channels))
        elif self.normalization == "instance":
            layers.append(_INSTANCE_NORM[self.dims](out_channels, affine=True))
        elif self.normalization == "group":
            layers.append(nn.GroupNorm(math.gcd(_MAX_GROUPS, out_channels), out_channels))
        return [*layers, nn.ReLU(inplace=True)]

    def _upsample(self, in_channels: int, out_channels: int) -> nn.Module:
        if self.upsampling == "transposed":
            return _TRANSPOSED[self.dims](in_channels, out_channels, kernel_size=2, stride=2, bias=False)
        # A pointwise convolution and an interpolation commute: done in this order it costs a quarter (3D: an eighth).
        return nn.Sequential(
            _CONV[self.dims](in_channels, out_channels, kernel_size=1, bias=False),
            nn.Upsample(scale_factor=2, mode="bilinear" if self.dims == 2 else "trilinear", align_corners=False),
        )
