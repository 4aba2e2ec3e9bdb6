"""The DDP strategy: its knobs, its process group, its probe step, and evaluation that counts every sample once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from . import sync_batchnorm
from .agreement import LoggedNames
from .collectives import use_group
from .devices import Gpu, avoid_detail, check_own_gpu
from .diagnose import diagnose, missing_error
from .faults import NamedError
from .knobs import DEFAULT_TIMEOUT, FULL_KEY, CommHook, check_device, check_knobs, parse_timeout
from .probe import advice, describe, find_unused, let_settle, probe_batch, probe_loss, sample_names, unused_error
from .registration import check_registered
from .trainable import Trainable
from .undo import nothing_happened
from .world import STARTUP_TIMEOUT, current_store

# torch 2.14 deprecates `broadcast_buffers` in favour of the other name.
_NEW_NAME = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFERS = "forward_sync_buffers" if _NEW_NAME else "broadcast_buffers"
# Public since torch 2.14 under the first name.
_set_timeout: Any = getattr(dist.distributed_c10d, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout


#: From the timeout, at which the watchdog names the rank, to the end by the collective itself.
BACKSTOP = timedelta(seconds=10)

#: Lightning's names for DDP, which all lead here: processes are started by one launcher.
LIGHTNING_NAMES: dict[str, dict[str, Any]] = {
    f"{name}{suffix}": knobs
    for name in ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
    for suffix, knobs in (
        ("", {}),
        ("_find_unused_parameters_true", {"find_unused_parameters": True}),
        ("_find_unused_parameters_false", {"find_unused_parameters": False}),
    )
}


class SafeDDPStrategy(DDPStrategy):
    """Data-parallel training in which the number of processes does not change the result.

    Args:
        find_unused_parameters: Whether DDP looks, in every step, for parameters that got no gradient, which costs a
            walk over the graph each time. ``auto``: only if a probe step at the start finds some, and tells which
            (with ``static_graph``, DDP finds them in its first step, so that the search stays off).
            ``false``: such parameters are refused, by name.
        sync_batchnorm: While training, compute the statistics of BatchNorm layers over all processes. Without it,
            running statistics are averaged over the processes before each validation and each checkpoint.
        timeout: Longest wait of a collective once training runs: seconds, or text such as ``30m``. Start-up may take
            ten minutes where this is less.
        broadcast_buffers: Copy rank 0's buffers to all ranks before each forward pass. With synchronised BatchNorm
            they are equal anyway.
        static_graph: Promise DDP that each step uses the same parameters.
        gradient_as_bucket_view: Let gradients live in DDP's buckets, which saves a copy of all of them.
        bucket_cap_mb: Size of a bucket of gradients, in MiB. 25 is DDP's own default.
        process_group_backend: ``gloo`` or ``nccl``; default: by device.
        init_method: Where processes meet: ``env://`` (as the launcher says), ``tcp://host:port`` or
            ``file:///path`` of a new file that all machines see.
        comm_hook: Send gradients compressed: ``fp16``, ``bf16``, or ``powersgd`` (low rank). Changes the result.

    Raises:
        NamedError: A knob has a value that cannot be used, or two do not go together.
    """

    def __init__(
        self,
        *,
        find_unused_parameters: bool | Literal["auto"] = "auto",
        sync_batchnorm: bool = True,
        timeout: float | str = DEFAULT_TIMEOUT,
        broadcast_buffers: bool = False,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = True,
        bucket_cap_mb: float = 25,
        process_group_backend: str | None = None,
        init_method: str = "env://",
        comm_hook: CommHook = "none",
    ) -> None:
        check_knobs(find_unused_parameters, static_graph, bucket_cap_mb, process_group_backend, init_method, comm_hook)
        self.training_timeout = parse_timeout(timeout)
        ddp: dict[str, Any] = {
            "find_unused_parameters": find_unused_parameters is True,
            "static_graph": static_graph,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "bucket_cap_mb": bucket_cap_mb,
            _BUFFERS: broadcast_buffers,
        }
        super().__init__(
            timeout=max(self.training_timeout, STARTUP_TIMEOUT) + BACKSTOP,
            process_group_backend=process_group_backend,
            **ddp,
        )
        self.find_unused_parameters = find_unused_parameters
        self.sync_batchnorm = sync_batchnorm
        self.init_method = init_method
        self.comm_hook = comm_hook
        self._groups: list[Any] = []
        self._trainable: Trainable | None = None
        self._probed = False
        self.logged = LoggedNames()
        self._samples: tuple[str, str] = ("", "")

    # Processes -----------------------------------------------------------------------------------------------------

    @override
    def _configure_launcher(self) -> None:
        # With processes that a launcher started, or with one alone, there is nothing to launch; Lightning's launcher
        # would refuse to run one process in a notebook.
        environment = self.cluster_environment
        if environment is not None and not environment.creates_processes_externally and self.num_processes > 1:
            super()._configure_launcher()

    @override
    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()
        check_device(self.root_device.type, self._process_group_backend)
        avoid_detail(self.root_device)
        self._process_group_backend = self._get_process_group_backend()
        # One process needs no address to meet at.
        store = current_store() or (dist.HashStore() if self.world_size == 1 else None)
        if store is None:
            super().setup_distributed()
        elif not dist.is_initialized():
            if self.root_device.type == "cuda" and "nccl" in self._process_group_backend:
                check_own_gpu(store, self.global_rank, self.world_size, Gpu.of(self.root_device))
            dist.init_process_group(
                self._process_group_backend,
                store=store,
                rank=self.global_rank,
                world_size=self.world_size,
                timeout=self._timeout,
                device_id=self.root_device if self.root_device.type == "cuda" else None,
            )
        own: Any = dist.new_group(timeout=self._timeout) if self.world_size > 1 else None
        use_group(own)
        self._groups = [dist.group.WORLD, own] if own is not None else []

    @override
    def teardown(self) -> None:
        use_group(None)
        super().teardown()

    # The model -----------------------------------------------------------------------------------------------------

    @override
    def setup(self, trainer: Trainer) -> None:
        # The Trainer overwrites this with its own `sync_batchnorm` once the strategy is built, so it is set here.
        # Whoever asks the Trainer for it gets it as well.
        wanted = self.sync_batchnorm or self._layer_sync is not None
        self._layer_sync = sync_batchnorm.BatchNormSync() if wanted else None
        super().setup(trainer)

    @override
    def configure_ddp(self) -> None:
        module = self._module()
        check_registered(module)  # before the first step on a GPU fails on it
        self._wrap(probe_batch(module.trainer))
        self._tighten_timeout()

    def _wrap(self, batch: Any) -> None:
        module = self._module()
        if batch is not None:
            self._look_for_unused(module, batch)
            if not self._probed:
                let_settle(module, batch)
        super().configure_ddp()
        self._trainable = Trainable(module)
        self._probed = batch is not None
        if batch is not None:
            self._settle_buckets(batch)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._samples = self._samples[1], sample_names(batch)
        self.logged.begin()
        if self._trainable is None or not self._trainable.changed():
            return
        # DDP averages the gradients of those parameters alone that were trainable when it wrapped the module, and
        # waits for all of these. Here, and not in the step, which may be within the old wrapper's `no_sync`.
        module: Any = self._module()
        for line in self._trainable.told(self.optimizers, module.trainer.current_epoch, module.trainer.global_step):
            rank_zero_info(line)
        self.model = module  # lets go of the old wrapper, whose hooks would make each gradient ready twice
        self._wrap(batch if hasattr(module, "training_loss") else None)

    @override
    def _register_ddp_hooks(self) -> None:
        # Lightning registers hooks on GPUs alone; gloo takes them as well.
        assert isinstance(self.model, DistributedDataParallel)
        if self.comm_hook == "powersgd":
            # Compression from the first step on that the approximation allows (it needs averaged gradients before).
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.comm_hook != "none":
            self.model.register_comm_hook(None, getattr(default_hooks, f"{self.comm_hook}_compress_hook"))

    def _look_for_unused(self, module: LightningModule, batch: Any) -> None:
        unused = find_unused(module, lambda: probe_loss(module.trainer, batch))
        knob, static = self.find_unused_parameters, self._ddp_kwargs["static_graph"]
        if unused and knob is False:
            raise unused_error(unused, self.world_size)
        if knob == "auto":
            self._ddp_kwargs["find_unused_parameters"] = bool(unused) and not static
        if unused and knob == "auto":
            way = (
                "static_graph lets DDP find them in its first step, and expects the same in each later one"
                if static
                else "find_unused_parameters: auto turned the search on, which costs a walk over the graph in each step"
            )
            rank_zero_info(
                f"Trainable parameters got no gradient: {describe(unused, self.world_size)}. {way}. "
                f"{advice(unused, self.world_size)} [unused-parameters]"
            )
        if not unused and knob is True:
            rank_zero_info(
                f"{FULL_KEY}.find_unused_parameters is true, but all parameters got a gradient in the first step: the "
                "search costs time in every step for nothing. Set it to auto."
            )

    def _settle_buckets(self, batch: Any) -> None:
        """Let DDP put its buckets in their final order, which it does after its first backward pass.

        A resumed run would otherwise sum its first step in another order than the run that was never stopped.
        """
        assert self.model is not None
        with self._named_errors(), nothing_happened(self._module()):
            with self.precision_plugin.train_step_context():
                loss: Any = self._forward_redirection(self.model, self._module(), "training_loss", batch)
            if loss.requires_grad:
                loss.backward()

    def _tighten_timeout(self) -> None:
        """Start-up is over on all ranks: from now on the knob counts."""
        if self._groups and self.training_timeout < STARTUP_TIMEOUT:
            self.barrier()
            for group in self._groups:
                # The watchdog speaks at the timeout; NCCL's own end, which says little, comes after it.
                _set_timeout(self.training_timeout + BACKSTOP, group)

    # Steps ---------------------------------------------------------------------------------------------------------

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._named_errors():
            output = super().training_step(*args, **kwargs)
        if output is None and self.world_size > 1 and self._module().automatic_optimization:
            raise NamedError(
                "step-skipped",
                f"training_step returned None on rank {self.global_rank} in step {self._module().global_step}"
                f"{f', at the samples {self._samples[1]}' if self._samples[1] else ''}.",
            )
        return output

    @override
    def backward(self, *args: Any, **kwargs: Any) -> Tensor:
        with self._named_errors():
            loss = super().backward(*args, **kwargs)
        allowed = self._ddp_kwargs["find_unused_parameters"] or self._ddp_kwargs["static_graph"]
        if self._trainable and self._module().automatic_optimization and not allowed:
            # DDP would complain a step later, but Lightning's own collective at the step's end comes first: this rank
            # would wait in it for the others, which wait for this rank's gradients.
            missing, step = self._trainable.without_gradient(), self._module().global_step
            if missing:
                raise missing_error(missing, self.global_rank, step, self._samples[1], self._probed)
        return loss

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        # Not through DDP's forward, whose collectives would hang where ranks hold different numbers of batches.
        module = self._module()
        with self.precision_plugin.val_step_context():
            return module.validation_step(*args, **kwargs)

    @override
    def reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        self.logged.check(self._module().trainer)
        return super().reduce(tensor, group, reduce_op)

    @override
    def on_validation_start(self) -> None:
        self.logged.begin()
        self._average_statistics()

    @override
    def on_validation_end(self) -> None:
        self.logged.begin()

    @override
    def on_test_start(self) -> None:
        self.logged.begin()

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        self._average_statistics()
        return super().lightning_module_state_dict()

    def _average_statistics(self) -> None:
        """Without synchronised BatchNorm each rank has statistics of its own share; scores and files need the same."""
        if self.world_size > 1 and isinstance(self.model, DistributedDataParallel):
            sync_batchnorm.average_statistics(self._module())

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn DDP's errors into sentences, before Lightning's `on_exception` replaces them and their numbers."""
        try:
            yield
        except RuntimeError as error:
            named = diagnose(error, self._module(), self.global_rank, self._samples[0])
            if named is None:
                raise
            raise named from error

    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module


for _name, _knobs in (
    ("safe_ddp", {}),
    ("safe_ddp_find_unused_parameters_true", {"find_unused_parameters": True}),
    ("safe_ddp_find_unused_parameters_false", {"find_unused_parameters": False}),
    ("safe_ddp_static_graph", {"static_graph": True}),
    ("safe_ddp_no_sync_batchnorm", {"sync_batchnorm": False}),
    ("safe_ddp_fp16", {"comm_hook": "fp16"}),
    ("safe_ddp_bf16", {"comm_hook": "bf16"}),
    ("safe_ddp_powersgd", {"comm_hook": "powersgd"}),
):
    StrategyRegistry.register(
        _name, SafeDDPStrategy, f"SafeDDPStrategy with {_knobs or 'its defaults'}", True, **_knobs
    )
