"""What a network returns: which of it is the main output, and whether all of it fits the classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ..distributed.faults import NamedError

#: Names that libraries give to the argument for the number of classes, and for that of channels.
CLASS_ARGUMENTS = ("num_classes", "classes", "n_classes", "out_channels", "out_chans", "num_labels")
CHANNEL_ARGUMENTS = ("in_channels", "in_chans", "n_channels", "num_channels")
_MAIN = "out"


def named_outputs(output: Any, net: nn.Module) -> dict[str, Tensor]:
    """The tensors that a network returns, the main one first; what is no tensor is left out.

    Args:
        output: A tensor, a mapping whose main output is called ``out`` (torchvision's convention) or is the only
            tensor, or a list or tuple that begins with it.
        net: For the message.

    Returns:
        Tensors by what a message calls them.

    Raises:
        NamedError: A mapping does not say which of its tensors is the main one.
    """
    if isinstance(output, Tensor):
        return {"": output}
    if isinstance(output, Mapping):
        found = {str(name): value for name, value in output.items() if isinstance(value, Tensor)}
        if len(found) > 1 and _MAIN not in found:
            raise NamedError(
                "network-output",
                f"The network {type(net).__name__} returns a mapping of {', '.join(map(repr, found))}, and none of "
                f"them is called '{_MAIN}'.",
                cause=f"A mapping has the logits that are scored under '{_MAIN}', as torchvision's networks have; "
                "further outputs are trained with a lower weight.",
                fix=f"Call the main output '{_MAIN}', or return a list that begins with it.",
            )
        return {repr(name): found[name] for name in sorted(found, key=lambda name: name != _MAIN)}
    parts = output if isinstance(output, (list, tuple)) else ()
    return {f"number {number}": part for number, part in enumerate(parts) if isinstance(part, Tensor)}


def check_outputs(outputs: Mapping[str, Tensor], image: Tensor, num_classes: int, net: nn.Module) -> None:
    """Refuse outputs that are no logits of the classes. Looks at shapes alone, so that it costs a step nothing.

    Args:
        outputs: As of :func:`named_outputs`.
        image: [N, C, *S], what the network was given.
        num_classes: K.
        net: For the message.

    Raises:
        NamedError: An output is not [N, K, …] with as many axes as the image.
    """
    for name, output in outputs.items():
        if output.ndim != image.ndim or output.shape[0] != len(image) or output.shape[1] != num_classes:
            raise _misfit(name, output, image, num_classes, net, main=output is next(iter(outputs.values())))
    if not outputs:
        raise NamedError(
            "network-output",
            f"The network {type(net).__name__} returns no tensor for images {list(image.shape)}.",
            cause=f"It has to return logits [{len(image)}, {num_classes}, …].",
            fix=f"Return a tensor, a dict with the logits under '{_MAIN}', or a list that begins with them.",
        )


def _misfit(name: str, output: Tensor, image: Tensor, num_classes: int, net: nn.Module, main: bool) -> NamedError:
    expected = (
        f"expected are logits [{len(image)}, {num_classes}, …], one channel for each of the {num_classes} classes of "
        "data.classes"
    )
    what = f"The network {type(net).__name__} returns {list(output.shape)} for images {list(image.shape)}"
    axes = output.ndim == image.ndim and output.shape[0] == len(image)
    if not main:
        found = f"has the shape {list(output.shape)}, expected [{len(image)}, {num_classes}, …]"
        if axes:
            channels = f"{output.shape[1]} channel{'s' * (output.shape[1] != 1)}"
            found = f"has {channels}, expected {num_classes}, one for each class of data.classes"
        return NamedError(
            "network-output",
            f"The network {type(net).__name__} does not fit the data: its output {name} {found}.",
            cause="Every output is trained on the masks, with the same loss.",
            fix=f"Return logits of {num_classes} channels there too, or leave out of the network's return what is not "
            "to be trained on the masks.",
        )
    logits = f"Return logits [N, {num_classes}, …]"
    if output.ndim == image.ndim - 1 and output.shape[0] == len(image):
        cause, fix = "It has no axis of classes: these are labels, as after argmax.", f"{logits}, and not labels."
    elif not axes:
        cause, fix = "Logits have the axes of the images.", f"{logits}."
    else:
        cause, fix = "Its number of classes is not that of the data.", _fix_of_classes(net, num_classes)
        if output.shape[1] == 1:
            cause = "One channel, as for a sigmoid, is no choice between classes; the background is one of them."
            fix = f"{fix.rstrip('.')}, without a sigmoid."
    return NamedError("network-output", f"{what}; {expected}.", cause=cause, fix=fix)


def _fix_of_classes(net: nn.Module, num_classes: int) -> str:
    argument = argument_of(net, CLASS_ARGUMENTS)
    if argument:
        return f"Set model.net.init_args.{argument} to {num_classes}."
    return f"Give its last layer {num_classes} channels, in its code or by an argument of the function that makes it."


def argument_of(net: nn.Module, names: Iterable[str]) -> str | None:
    """The first of some names that the class of a network has as an argument.

    Of a network that a function made, this looks at the class of what it made.
    """
    arguments = inspect.signature(type(net).__init__).parameters
    return next((name for name in names if name in arguments), None)
