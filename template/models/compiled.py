"""Training steps as a compiled program, where that is asked for."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from ..distributed.faults import NamedError
from ..distributed.raised import headline

Mode = Literal["default", "reduce-overhead", "max-autotune"]
#: What makes a program of the graphs that ``torch.compile`` finds; its own default.
BACKEND = "inductor"


class Compiled:
    """Compiles a network in its place: names in checkpoints stay, and it is the same object for everybody.

    Training steps alone run compiled. Evaluation sees images of many sizes, each of which would be compiled anew.

    Args:
        wanted: ``torch.compile``'s mode; true is ``default``.

    Attributes:
        told: What has been done, in one line; empty where nothing was.
    """

    def __init__(self, wanted: bool | Mode) -> None:
        self.mode: Mode | None = ("default" if wanted is True else wanted) or None
        self.told = ""

    def start(self, net: nn.Module) -> None:
        """Let the next training step compile the network; a second call changes nothing.

        To be called when the layers, the order of the weights in memory and their device are final, and before DDP
        wraps the network: within DDP's forward pass the program is then cut where DDP's buckets end, so that gradients
        are sent while others are still computed.

        Args:
            net: The network, which has seen a batch without being compiled.
        """
        if self.mode is None or net._compiled_call_impl is not None:
            return
        eager: Any = net._call_impl
        compiled: Any = torch.compile(eager, mode=self.mode, backend=BACKEND)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not net.training:
                return eager(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:
                said = headline(error).partition(" Set TORCH")[0].rstrip(".")  # how to see more of torch's own code
                what = f"{type(net).__name__} cannot be compiled (model.compile {self.mode}): {said}."
                raise NamedError("not-compiled", what) from error

        # Where nn.Module.compile puts it: hooks of the network itself are compiled as well.
        net._compiled_call_impl = call
        self.told = f"training steps are compiled (torch.compile, mode {self.mode}): the first one takes long"
