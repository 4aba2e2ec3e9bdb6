"""The DDP strategy: its knobs, its process group, and evaluation that counts every sample once."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.layer_sync import LayerSync
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from . import sync_batchnorm
from .collectives import use_group
from .faults import NamedError
from .world import current_store

# torch 2.14 deprecates `broadcast_buffers` in favour of the other name.
_NEW_NAME = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFERS = "forward_sync_buffers" if _NEW_NAME else "broadcast_buffers"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_timeout(value: float | str) -> timedelta:
    """Read a timeout.

    Args:
        value: Seconds, or text such as ``90s``, ``30m`` or ``1h30m``.

    Raises:
        NamedError: It is not a positive time.
    """
    text = str(value).strip().lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0 or re.sub(r"(\d+(?:\.\d+)?)\s*([smh]?)", "", text).strip():
        raise NamedError(
            "config",
            f"strategy.timeout is '{value}', which is not a time.",
            cause="A number means seconds.",
            fix="Write it as 90, 90s, 30m or 1h30m.",
        )
    return timedelta(seconds=seconds)


class SafeDDPStrategy(DDPStrategy):
    """Data-parallel training in which the number of processes does not change the result.

    Args:
        find_unused_parameters: Let DDP look, in every step, for parameters that got no gradient. Costs a walk over the
            graph in each step; needed only where a part of the network is unused on purpose.
        sync_batchnorm: While training, compute the statistics of BatchNorm layers over all processes.
        timeout: Longest wait of a collective: seconds, or text such as ``30m``.
        broadcast_buffers: Copy rank 0's buffers to all ranks before each forward pass. With synchronised BatchNorm
            they are equal anyway.
        static_graph: Promise DDP that each step uses the same parameters.
        gradient_as_bucket_view: Let gradients live in DDP's buckets, which saves a copy of all of them.
        bucket_cap_mb: Size of a bucket of gradients, in MiB. 25 is DDP's own default.
        process_group_backend: ``gloo`` or ``nccl``; default: by device.
    """

    def __init__(
        self,
        *,
        find_unused_parameters: bool = False,
        sync_batchnorm: bool = True,
        timeout: float | str = "30m",
        broadcast_buffers: bool = False,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = True,
        bucket_cap_mb: float = 25,
        process_group_backend: str | None = None,
    ) -> None:
        ddp: dict[str, Any] = {
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "bucket_cap_mb": bucket_cap_mb,
            _BUFFERS: broadcast_buffers,
        }
        super().__init__(
            timeout=parse_timeout(timeout),
            process_group_backend=process_group_backend,
            **ddp,
        )
        self.sync_batchnorm = sync_batchnorm

    @override
    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        store = current_store()
        if store is None:
            super().setup_distributed()
        elif not dist.is_initialized():
            assert self._timeout is not None
            dist.init_process_group(
                self._process_group_backend,
                store=store,
                rank=self.global_rank,
                world_size=self.world_size,
                timeout=self._timeout,
                device_id=self.root_device if self.root_device.type == "cuda" else None,
            )
        group: Any = dist.new_group(timeout=self._timeout) if self.world_size > 1 else None
        use_group(group)

    @override
    def setup(self, trainer: Trainer) -> None:
        # The Trainer overwrites this with its own `sync_batchnorm` once the strategy is built, so it is set here.
        self._layer_sync = _BatchNormSync() if self.sync_batchnorm else None
        super().setup(trainer)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        # Not through DDP's forward, whose collectives would hang where ranks hold different numbers of batches.
        module = self._module()
        with self.precision_plugin.val_step_context():
            return module.validation_step(*args, **kwargs)

    @override
    def teardown(self) -> None:
        use_group(None)
        super().teardown()

    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module


class _BatchNormSync(LayerSync):
    """Synchronised BatchNorm, on CPU as well as GPU, undone to the very class each layer had."""

    @override
    def apply(self, model: Module) -> Module:
        return sync_batchnorm.convert(model)

    @override
    def revert(self, model: Module) -> Module:
        return sync_batchnorm.revert(model)
