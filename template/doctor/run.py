"""What several processes have done in the same few steps: their gradients, metrics, files, checkpoint, time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..distributed.agreement import by_rank
from ..distributed.heartbeat import short
from ..distributed.probe import Unused, advice, describe, probe_batch
from ..distributed.told import listed, ranks
from ..distributed.undo import nothing_happened
from ..runs import CHECKPOINTS, LAST
from .finding import Finding, check, failure, passed, warning
from .listing import ranks_list_alike
from .rehearsal import Rehearsal
from .written import on_several_ranks

_LISTED = 3


@dataclass(frozen=True)
class Seen:
    """What one rank has seen of the steps.

    Attributes:
        cases: Fingerprints of its lists of cases, by split.
        unused: Parameters that got no gradient, over all ranks.
        gradients: Checksums of the first step's gradients after the exchange, by name.
        weights: Checksums of the weights after it.
        metrics: Of the validation.
        files: That the user's code has written: path to line.
        memory: Bytes at most.
        step_seconds: Of an optimizer step.
        exchange_seconds: Of an all-reduce of as many bytes as a step exchanges.
    """

    cases: Mapping[str, Sequence[str]]
    unused: Sequence[Unused]
    gradients: Mapping[str, int]
    weights: Mapping[str, int]
    metrics: Mapping[str, float]
    files: dict[str, str]
    memory: int
    step_seconds: float
    exchange_seconds: float


@dataclass(frozen=True)
class Together:
    """A few steps of several processes, seen from rank 0 when they are done.

    Attributes:
        rehearsal: Of rank 0.
        seen: Of each rank.
        fresh: The network before the first step, on the CPU; None where it cannot be copied.
    """

    rehearsal: Rehearsal
    seen: list[Seen]
    fresh: nn.Module | None = None


@check("data: cases by rank", "cases-differ")
def all_ranks_list_the_same_cases(together: Together) -> Iterator[Finding]:
    """Ranks deal one list of cases among them; with lists of their own, some cases are seen twice and some never."""
    found = list(ranks_list_alike(type(together.rehearsal.data).__name__, [one.cases for one in together.seen]))
    yield from found or [passed(f"the same on {len(together.seen)} ranks")]


@check("model: gradients by rank", "unused-parameters")
def all_ranks_use_the_same_parameters(together: Together) -> Iterator[Finding]:
    """No rank leaves a parameter out that another one trains; what all leave out is found on one process."""
    count = len(together.seen)
    apart = [one for one in together.seen[0].unused if len(one.ranks) < count]
    if apart:
        yield warning(
            "unused-parameters",
            f"Parameters get no gradient on some ranks alone: {describe(apart, count)}.",
            "DDP waits for each gradient on each rank, and has to look for the missing ones in every step.",
            advice(apart, count),
        )
    else:
        yield passed(f"the same on {count} ranks")


@check("model: exchange", "ranks-differ")
def gradients_are_equal_on_all_ranks(together: Together) -> Iterator[Finding]:
    """After the exchange all ranks hold the same gradients, bit for bit, and after the step the same weights."""
    for what, sums in (
        ("gradient of", [one.gradients for one in together.seen]),
        ("value after the first step of", [one.weights for one in together.seen]),
    ):
        names = dict.fromkeys(name for one in sums for name in one)
        different = [name for name in names if len({one.get(name) for one in sums}) > 1]
        if different:
            holders = by_rank("missing" if different[0] not in one else "there" for one in sums)
            apart = f" ({holders})" if any(different[0] not in one for one in sums) else ""
            yield failure(
                "ranks-differ",
                f"The {what} {listed(different, _LISTED)} differs between the ranks{apart}.",
                "Something beside DDP changes it on a rank: a hook, an optimizer of one's own, or a parameter that DDP "
                "was not told of.",
            )
            return
    yield passed(f"{len(together.seen[0].gradients)} gradients equal on {len(together.seen)} ranks")


@check("run: metrics", "metrics-differ")
def metrics_are_equal_on_all_ranks(together: Together) -> Iterator[Finding]:
    """What the validation has logged is one number, and not one for each rank."""
    everywhere = [one.metrics for one in together.seen]
    names = dict.fromkeys(name for one in everywhere for name in one)
    monitored = {one for one in (getattr(c, "monitor", None) for c in _callbacks(together)) if one}
    different = [name for name in names if not _equal([one.get(name, math.nan) for one in everywhere])]
    for name in (one for one in different if one in monitored):
        yield failure(
            "monitor-differs",
            f"The metric '{name}', which checkpoints or the schedule go by, is {_by_rank(name, together)}.",
        )
    # The loss of a step is logged by each rank; whether their mean is the global one is the question of parity.
    others = [name for name in different if name not in monitored and not name.startswith("train/loss")]
    if others:
        more = f" So do {listed(others[1:], _LISTED)}." if others[1:] else ""
        yield warning(
            "monitor-differs",
            f"The metric '{others[0]}' is {_by_rank(others[0], together)}.{more}",
            "Each rank has logged the value of its own share; the log shows rank 0's.",
            "Log it with sync_dist=True, or as a torchmetrics object.",
        )
    if not others and not monitored.intersection(different):
        yield passed(f"{len(names)} metrics equal on {len(everywhere)} ranks")


@check("run: files", "folder-race")
def no_file_is_written_by_several_ranks(together: Together) -> Iterator[Finding]:
    """The user's callbacks and network write on one rank, or into each rank's own folder."""
    several = on_several_ranks([one.files for one in together.seen])
    for path, (where, line) in list(several.items())[:_LISTED]:
        yield failure(
            "folder-race",
            f"'{short(path)}' is written by {ranks(where)}, at {line}.",
            "All ranks run the same code, and the last one to write wins; half-written files are read.",
            "Write it on rank 0 alone (if trainer.is_global_zero:), or into a folder of each rank's own.",
        )
    if not several:
        own = sum(len(one.files) for one in together.seen)
        yield passed(f"none is written by two ranks ({own} by code of your own)")


@check("run: checkpoint", "checkpoint-not-plain")
def the_checkpoint_loads_and_gives_the_same_output(together: Together) -> Iterator[Finding]:
    """Rank 0 has written it, it holds plain types alone, no prefix, and the network gives the same output with it."""
    rehearsal = together.rehearsal
    file = rehearsal.folder / CHECKPOINTS / LAST
    if not file.is_file():
        yield failure("checkpoint-missing", f"The run has left no {LAST}.")
        return
    state: dict[str, Tensor] = torch.load(file, weights_only=True, map_location="cpu")["state_dict"]
    prefixed = [name for name in state if name.startswith("module.")]
    if prefixed:
        yield failure("checkpoint-prefix", f"The checkpoint holds {listed(prefixed, _LISTED)}.")
        return
    module = rehearsal.module
    now = {name: value.cpu() for name, value in module.state_dict().items()}
    different = [name for name, value in now.items() if name not in state or not _same(value, state[name])]
    if different:
        yield failure(
            "checkpoint-mismatch",
            f"The checkpoint holds other values of {listed(different, _LISTED)} than the trained network.",
            "on_save_checkpoint or state_dict of the network changes or leaves out what is saved.",
            "Save every tensor that the network's output depends on.",
        )
        return
    batch = probe_batch(rehearsal.trainer)
    first = _output(batch, module)
    if first is not None and together.fresh is not None:
        trained, fresh = module.net, together.fresh.to(module.device)
        fresh.load_state_dict({name[4:]: value for name, value in state.items() if name.startswith("net.")})
        module.net = fresh
        again = _output(batch, module)
        module.net = trained
        if not _same(first, again):
            changed = listed(list(_changed(fresh, trained)), _LISTED)
            yield failure(
                "checkpoint-mismatch",
                "A network that is made anew gives another output after the checkpoint is loaded"
                f"{f': training has changed {changed}, which it does not hold' if changed else ''}.",
                "Its output depends on something that is neither a parameter nor a buffer that is saved.",
                "Hold it as a tensor, with self.register_buffer(name, tensor) in __init__.",
            )
            return
    yield passed(f"{file.stat().st_size / 1e6:.1f} MB by rank 0, loads as plain data, same output")


@check("run: memory", "out-of-memory")
def memory_at_the_asked_batch(together: Together) -> Iterator[Finding]:
    """Measured on a GPU; on a CPU the growth of the process is an estimate of it."""
    most = max(one.memory for one in together.seen)
    if together.rehearsal.trainer.strategy.root_device.type == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        told = f"{most / 2**30:.2f} GiB of {total / 2**30:.0f} GiB measured on each GPU"
        if most > 0.95 * total:
            yield warning("out-of-memory", f"{told}: a larger image or another worker does not fit.")
        else:
            yield passed(told)
    else:
        yield passed(f"about {max(most, 2**20) / 2**20:.0f} MiB a process (estimate from the CPU)")


#: In the order in which they are shown.
CHECKS = (
    all_ranks_list_the_same_cases,
    all_ranks_use_the_same_parameters,
    gradients_are_equal_on_all_ranks,
    metrics_are_equal_on_all_ranks,
    no_file_is_written_by_several_ranks,
    the_checkpoint_loads_and_gives_the_same_output,
    memory_at_the_asked_batch,
)


def _by_rank(metric: str, together: Together) -> str:
    return by_rank(f"{one.metrics[metric]:.6g}" if metric in one.metrics else "missing" for one in together.seen)


def _callbacks(together: Together) -> list[Any]:
    return list(together.rehearsal.trainer.callbacks)  # type: ignore[attr-defined]


def _output(batch: Any, module: Any) -> Tensor | None:
    if batch is None:
        return None
    training = module.training
    with nothing_happened(module), torch.no_grad():
        module.eval()
        try:
            output: Tensor = module(batch["image"])[0]
            return output.cpu()
        finally:
            module.train(training)


def _changed(fresh: nn.Module, trained: nn.Module) -> Iterator[str]:
    """Plain numbers, words and tensors of layers, and buffers that are not saved, that training has changed."""
    before = dict(fresh.named_modules())
    for path, layer in trained.named_modules():
        known, now = (
            {**vars(one), **{name: one._buffers[name] for name in one._non_persistent_buffers_set}}
            for one in (before.get(path, layer), layer)
        )
        for name, value in now.items():
            if name != "training" and isinstance(value, (bool, int, float, str, Tensor)) and name in known:
                same = _same(value, known[name]) if isinstance(value, Tensor) else value == known[name]
                if not same:
                    yield f"net.{path}.{name}" if path else f"net.{name}"


def _same(one: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def _equal(values: list[float]) -> bool:
    return all(value == values[0] or (math.isnan(value) and math.isnan(values[0])) for value in values)
