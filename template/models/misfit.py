"""Why a network does not take the images."""

from __future__ import annotations

import re

import torch.distributed as dist
from torch import Tensor, nn

from ..distributed.collectives import world_size
from ..distributed.faults import NamedError
from ..distributed.placed import known_failure
from ..distributed.raised import raised_at
from ..distributed.told import shortened, text_of
from .outputs import CHANNEL_ARGUMENTS, argument_of


def refused_images(net: nn.Module, image: Tensor, in_channels: int, error: Exception, caller: str) -> NamedError:
    """What to change where a network's first forward pass fails.

    Args:
        net: The network.
        image: Float [N, C, *S], what it was given.
        in_channels: What it was told.
        error: What it raised.
        caller: File that called it.
    """
    reason = " ".join(shortened(text_of(error)).split()[:60]).rstrip(".") or type(error).__name__
    place = raised_at(error, but=caller)
    rank = f" on rank {dist.get_rank()}" if world_size() > 1 else ""
    # torch's own words, the same since 1.0
    expected = re.search(r"to have (\d+) channels, but got (\d+) channels", reason)
    failing = f"The network {type(net).__name__} fails on its first batch of images {list(image.shape)}{rank}"
    cause = "It may ask for another number of channels or axes, or for sizes that are a multiple of some number."
    fix = "Set its init_args to fit the images, or model.pad_to for the sizes."
    if image.shape[1] != in_channels:
        cause = f"data.preprocess makes {image.shape[1]} channels out of the {in_channels} of data.in_channels."
        fix = "Remove the transform, or use a network that is not told data.in_channels."
    elif not image.is_floating_point():
        cause = f"The images are {str(image.dtype).removeprefix('torch.')}; networks take float32."
        fix = "Give image.float() in the data set's read, or convert it last in data.preprocess."
    elif expected and expected[2] == str(image.shape[1]):
        cause = f"It is built for {expected[1]} channels, and the images have {expected[2]}."
        argument = argument_of(net, CHANNEL_ARGUMENTS)
        ways = [f"set model.net.init_args.{argument} to {expected[2]}"] if argument else []
        if expected[2] == "1":
            ways.append("make colour of grey: torchvision.transforms.v2.RGB, last in data.preprocess")
        fix = ", or ".join(ways) or f"take a network of {expected[2]} channels"
        fix = f"{fix[0].upper()}{fix[1:]}."
    elif "divisible" in reason:
        cause, fix = "Its encoder halves the image several times.", "Set model.pad_to: 32, or the number it names."
    elif "Expected more than 1 value per channel" in reason:
        cause, fix = (
            "BatchNorm of one pixel has no variance.",
            "Use larger images, or two or more in data.batch_size.",
        )
    elif known := known_failure(error, failing, caller):
        return known
    return NamedError(
        "network-output",
        f"{failing}: {type(error).__name__}: {reason}{f', at {place}' if place else ''}.",
        cause=cause,
        fix=fix,
    )
