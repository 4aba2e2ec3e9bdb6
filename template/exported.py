"""A network as a program of its own: torch.export and ONNX, each held against the network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from .distributed.faults import NamedError
from .distributed.raised import headline
from .models.outputs import named_outputs

#: Largest difference of two logits that rounding explains, times the largest logit where that is above 1.
TOLERANCE = 1e-4
_PROBE = 128  # pixels of a side, at which a network's stride is measured: four values at a stride of 32
_SMALLEST = 16  # pixels of a side: what pads by reflection needs some


class Sizes(NamedTuple):
    """Sizes of images that an exported network takes, along each spatial axis.

    Attributes:
        multiple_of: Of how many pixels; None: only ``fixed``.
        smallest: In pixels; smaller ones have not been checked.
        fixed: The one size that it takes, where none but this could be exported.
    """

    multiple_of: int | None
    smallest: int
    fixed: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.multiple_of is None:
            return f"of {' × '.join(map(str, self.fixed or ()))} pixels alone"
        if self.multiple_of == 1:
            return f"with sides of {self.smallest} pixels or more"
        return f"with sides of a multiple of {self.multiple_of} pixels, {self.smallest} or more"


class LogitsOnly(nn.Module):
    """A network with its main output alone, in the size of its images.

    Args:
        net: Any network that the segmenter takes.
        image: Of the kind that it will be given, [N, C, *S].
    """

    def __init__(self, net: nn.Module, image: Tensor) -> None:
        super().__init__()
        self.net = net
        self.mode = "bilinear" if image.ndim == 4 else "trilinear"
        self.coarse = False
        with torch.no_grad():
            self.coarse = self(image).shape[2:] != image.shape[2:]

    def forward(self, image: Tensor) -> Tensor:
        """Logits [N, K, *S] of images [N, C, *S]."""
        logits = next(iter(named_outputs(self.net(image), self.net).values()))
        return F.interpolate(logits, image.shape[2:], mode=self.mode) if self.coarse else logits


def stride_of(net: nn.Module, image: Tensor, multiple: int) -> int:
    """How many pixels lie between two places of the coarsest of a network's layers, as a power of two.

    Args:
        net: In evaluation mode.
        image: [1, C, *S].
        multiple: Of how many pixels a side has to be.
    """
    try:
        large = padded(image, _PROBE if image.ndim == 4 else _PROBE // 2, multiple)
        outputs = [(output, large) for _, output in _calls(net, large)]
    except Exception:  # noqa: BLE001 - a network of one size alone
        outputs = [(output, image) for _, output in _calls(net, image)]
    ratios = [1.0]
    for output, given in outputs:
        for part, whole in zip(output.shape[2:], given.shape[2:], strict=False) if output.ndim == image.ndim else ():
            # One place alone is a mean over the whole image, which fits any size.
            ratios += [whole / part] if part > 1 else []
    return 1 << math.ceil(math.log2(max(ratios)) - 0.05)


def padded(image: Tensor, smallest: int, multiple: int) -> Tensor:
    """Repeat the far edges of an image [N, C, *S] up to a multiple of some pixels."""
    lacking = [max(smallest, -(-length // multiple) * multiple) - length for length in image.shape[2:]]
    return F.pad(image, [side for count in reversed(lacking) for side in (0, count)], mode="replicate")


def exported(net: nn.Module, image: Tensor, multiple: int) -> tuple[ExportedProgram, Sizes]:
    """Export a network for any number of images of as many sizes as it can.

    Args:
        net: In evaluation mode, float32, on the CPU; images [N, C, *S] to logits [N, K, *S].
        image: A real one, [1, C, *S].
        multiple: Sizes that are tried first; then twice that, then the image's own size alone.

    Returns:
        The program, and the sizes that it takes.

    Raises:
        NamedError: ``export-unsupported``, with the layer; ``export-differs``.
    """
    reason: Exception | None = None
    for step in (multiple, 2 * multiple, None):
        sizes = Sizes(step, step * max(2, -(-_SMALLEST // step))) if step else Sizes(None, 0, tuple(image.shape[2:]))
        try:
            program = _program(net, (_example(image, sizes),), [_axes(image, sizes)])
            difference(program.module(), net, tried(image, sizes), "the exported program")
        except Exception as error:  # noqa: BLE001 - whatever torch meets on its way through the network
            reason = error
        else:
            return program, sizes
    assert reason is not None
    if isinstance(reason, NamedError):
        raise reason
    raise _unsupported(net, image, reason, "torch.export", _traced) from reason


def to_onnx(net: nn.Module, program: ExportedProgram, image: Tensor, file: Path) -> None:
    """Write a program as ONNX.

    Raises:
        NamedError: ``export-unsupported``, with the layer.
    """
    try:
        made = _onnx(program)
    except Exception as error:
        raise _unsupported(net, image, error, "ONNX", lambda part, given: _onnx(_traced(part, given))) from error
    made.save(str(file))


def tried(image: Tensor, sizes: Sizes) -> list[Tensor]:
    """Images that an exported network is checked on: the real one, three smaller ones, and one of another shape."""
    step, least = sizes.multiple_of, sizes.smallest
    if step is None:
        return [image, torch.cat([image] * 3)]
    real = padded(image, least, step)
    corner: tuple[Any, ...] = (..., *(slice(least + step) for _ in image.shape[2:]))
    small = padded(real[corner], least + step, step)
    return [real, torch.cat([small] * 3), small.narrow(2, 0, least)]


def difference(run: Callable[[Tensor], Tensor], net: nn.Module, images: Sequence[Tensor], what: str) -> float:
    """Largest difference of the logits of an exported network from those of the network.

    Raises:
        NamedError: ``export-differs``: it is more than rounding explains.
    """
    largest = 0.0
    for image in images:
        with torch.no_grad():
            expected, found = net(image), run(image)
        apart = float((found - expected).abs().max()) if found.shape == expected.shape else math.inf
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if not apart <= allowed:  # nor NaN
            raise NamedError(
                "export-differs",
                f"For images {list(image.shape)} {what} gives logits that are {apart:.2g} away from the network's; "
                f"rounding explains {allowed:.2g}.",
            )
        largest = max(largest, apart)
    return largest


def _example(image: Tensor, sizes: Sizes) -> Tensor:
    """What a network is traced with: two images, and sides of different lengths, so that none is taken for fixed."""
    if sizes.multiple_of is not None:
        image = padded(image, sizes.smallest, sizes.multiple_of)
        for axis in range(3, image.ndim):
            longer = [0] * 2 * (image.ndim - 2)
            longer[2 * (image.ndim - 1 - axis) + 1] = sizes.multiple_of * (axis - 2)
            image = F.pad(image, longer, mode="replicate")
    return torch.cat([image, image])


def _axes(image: Tensor, sizes: Sizes) -> dict[int, Any]:
    axes: dict[int, Any] = {0: Dim("batch", min=1)}
    for axis in range(2, image.ndim) if sizes.multiple_of else ():
        side = Dim(f"side_{axis - 2}", min=2)
        axes[axis] = side if sizes.multiple_of == 1 else sizes.multiple_of * side
    return axes


def _program(net: nn.Module, given: tuple[Any, ...], axes: Any) -> ExportedProgram:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(net, given, dynamic_shapes=axes, strict=False)


def _traced(net: nn.Module, given: tuple[Any, ...]) -> ExportedProgram:
    return _program(net, given, None)


def _onnx(program: ExportedProgram) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(program, dynamo=True, input_names=["image"], output_names=["logits"], verbose=False)


def _unsupported(
    net: nn.Module, image: Tensor, error: Exception, what: str, attempt: Callable[[nn.Module, tuple[Any, ...]], Any]
) -> NamedError:
    """Find the smallest part of a network that cannot be exported by itself."""
    given = {layer: inputs for (layer, inputs), _ in _calls(net, image)}
    layer: nn.Module | None = net
    culprit: nn.Module = net
    while layer is not None:
        culprit, inside, layer = layer, list(_inside(layer, given)), None
        for part in inside:
            try:
                attempt(part, given[part])
            except Exception as fault:  # noqa: BLE001 - this is the part, or holds it
                layer, error = part, fault
                break
    names = {part: name.removeprefix("net").lstrip(".") for name, part in net.named_modules()}
    where = f"'{names[culprit]}', {type(culprit).__name__}," if names[culprit] else "of the network"
    first: BaseException = error
    while first.__cause__ is not None:  # exporters say in the first of a chain what they miss
        first = first.__cause__
    reason = " ".join(headline(first).split())[:300].rstrip(".")
    return NamedError("export-unsupported", f"The layer {where} cannot be exported to {what}: {reason}.")


def _inside(layer: nn.Module, given: Collection[nn.Module]) -> Iterator[nn.Module]:
    """The layers in a layer of which is known what they were given; in place of others, those in them."""
    for part in layer.children():
        yield from [part] if part in given else _inside(part, given)


def _calls(net: nn.Module, image: Tensor) -> list[tuple[tuple[nn.Module, tuple[Any, ...]], Tensor]]:
    """The layers that were given tensors and returned one, with both."""
    calls: list[tuple[tuple[nn.Module, tuple[Any, ...]], Tensor]] = []

    def look(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if given and all(isinstance(one, Tensor) for one in (*given, output)):
            calls.append(((module, given), output))

    hooks = [module.register_forward_hook(look) for module in net.modules()]
    try:
        with torch.no_grad():
            net(image)
    finally:
        for hook in hooks:
            hook.remove()
    return calls
