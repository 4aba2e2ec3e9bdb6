"""The catalogue of named failures. Imports no torch.

Every failure that ends a run has one stable identifier here; the strategy, the data sets, the command line and
the documentation all take its cause and its fix from this file.
"""

from __future__ import annotations

from .catalogue import AREAS
from .catalogue.doctor import DOCTOR
from .catalogue.fault import Fault

#: What this program finds by itself; the areas of the catalogue hold what other programs print, and what both do.
_FAULTS = (
    Fault(
        "config",
        "A key, a value or a class of the configuration is not what the program accepts.",
        "Correct it; --help and --print_config show what is accepted.",
        exit_code=2,
    ),
    Fault(
        "data-missing",
        "A file or folder that the configuration names does not exist or is empty.",
        "Correct the path, or put the data there.",
    ),
    Fault(
        "data-unpaired",
        "Images and masks are matched by file stem, and one has no partner.",
        "Add the missing file, remove the lonely one, or set data.mask_suffix.",
    ),
    Fault(
        "data-unreadable",
        "The file is damaged, cut off, or of another format than its name says.",
        "Replace the file, or remove it together with its partner.",
    ),
    Fault(
        "data-size-mismatch",
        "An image and its mask must have the same size in pixels.",
        "Export the mask again at its image's size.",
    ),
    Fault(
        "data-geometry",
        "One of them was flipped, cropped or resampled without the other, or belongs to another image.",
        "Export both from one program, or resample the mask onto its image.",
    ),
    Fault(
        "image-channels",
        "All images of a run need the same number of channels.",
        "Set data.in_channels to what the images have, or convert them.",
    ),
    Fault(
        "batch-form",
        "A loader of one's own gives batches of another form than the program takes.",
        "Give dictionaries with 'image', float [N, C, …], and 'mask', integer labels [N, …].",
    ),
    Fault(
        "data-not-finite",
        "A damaged export or a division by zero leaves such values; one of them turns all weights into NaN.",
        "Export the image again, or remove it together with its mask.",
    ),
    Fault(
        "sizes-differ",
        "A batch is one tensor, so its images must have one size.",
        "Bring all images to one size in data.preprocess, for example with torchvision.transforms.v2.Resize.",
    ),
    Fault(
        "transform",
        "The transform cannot take such an image, for example a crop that is larger than it.",
        "Change its init_args, or bring the images to a size that it can take before.",
    ),
    Fault(
        "mask-values",
        "The mask has values that no class has.",
        "Name every class in data.classes, map values with data.mask_values, or set data.ignore_index.",
    ),
    Fault(
        "network-output",
        "The network's output does not fit the data.",
        "Set the network's own arguments for its channels and classes to fit data.classes and the images.",
    ),
    Fault(
        "not-compiled",
        "torch.compile needs a C++ compiler (g++) on the CPU, and Triton on a GPU; some networks it cannot take.",
        "Install what is missing, or leave model.compile out.",
    ),
    Fault(
        "batch-size",
        "data.batch_size is the global batch; it is shared out to the processes and accumulation steps.",
        "Use a multiple of trainer.devices x trainer.num_nodes x trainer.accumulate_grad_batches.",
        exit_code=2,
    ),
    Fault(
        "too-few-samples",
        "A smaller last global batch is dropped in training, and there is no whole one.",
        "Lower data.batch_size, or add cases.",
    ),
    Fault(
        "no-checkpoint",
        "No run of this experiment holds a whole checkpoint, or the file does not exist.",
        "Train first, or give --ckpt_path a file.",
    ),
    Fault(
        "checkpoint-unreadable",
        "The checkpoint is damaged, or would run code on loading.",
        "Use another checkpoint of the same run, such as best or an earlier epoch.",
    ),
    Fault(
        "checkpoint-not-plain",
        "Only numbers, text, tensors and lists or dicts of them load again without running code.",
        "Store plain types: str(path), float(value), module.state_dict().",
    ),
    Fault(
        "checkpoint-mismatch",
        "The checkpoint belongs to another network.",
        "Use the configuration that the checkpoint was trained with: config.yaml in its run's folder.",
    ),
    Fault(
        "folder-not-writable",
        "The program may not write there, or the disk is full.",
        "Choose another folder with --runs, or make room.",
    ),
    Fault(
        "run-in-use",
        "Two fits in one folder would overwrite each other's checkpoints. It is the same command, started twice, or "
        "ranks of an earlier start that have not ended.",
        "Wait for it or stop it, or give this training an --experiment of its own.",
    ),
    Fault(
        "world-size",
        "The number of processes that the launcher started is not what the configuration asks for.",
        "Let trainer.devices x trainer.num_nodes equal the launcher's number of processes.",
        exit_code=2,
    ),
    Fault(
        "unregistered-module",
        "A network looks for its layers, parameters and metrics in attributes, nn.ModuleList and nn.ModuleDict alone; "
        "others are not moved, trained, saved or averaged over the processes.",
        "Hold them in nn.ModuleList, nn.ModuleDict or nn.ParameterList.",
    ),
    Fault(
        "optimizer-parameters",
        "A layer was replaced, or the network made again, after the optimizer was made.",
        "Make the optimizer in configure_optimizers, from self.parameters().",
    ),
    Fault(
        "download",
        "The network is not reachable, or what it sent is not the expected file.",
        "Put the file there by hand.",
    ),
    Fault(
        "not-installed",
        "It belongs to an extra, so that those who do not need it are not asked to install it.",
        "Install it with pip.",
    ),
    Fault(
        "hang",
        "The code there does not return, or needs longer than strategy.timeout.",
        "Correct what happens at that line; if it is only slow, raise strategy.timeout.",
    ),
    Fault(
        "rank-gone",
        "It was killed from outside (kill -9, the kernel out of memory, the scheduler), it crashed in C code, or some "
        "code called os._exit.",
        "Look at the end of its log and at dmesg; if memory ran out, lower data.num_workers or data.batch_size.",
        kind="symptom",
        signs=(
            "failed (exitcode: -9) local_rank: {local_rank:int} (pid: {pid:int})",
            "Signal 9 (SIGKILL) received by PID {pid:int}",
            "terminated with signal SIGKILL",
        ),
    ),
    Fault(
        "rank-stopped-early",
        "It got fewer batches than the others, or returned before them.",
        "Give every rank the same number of batches, as the samplers of SegmentationData do.",
    ),
    Fault(
        "batches-differ",
        "A sampler or loader of one's own does not share the samples out evenly, and ranks wait for each other in "
        "each step.",
        "Give every rank the same number of batches, as the samplers of SegmentationData do, or set "
        "trainer.limit_train_batches to the smallest number.",
    ),
    Fault(
        "metrics-differ",
        "Logged values are reduced in the order in which they are logged: under other names or in another order, "
        "values of different metrics would be mixed.",
        "Log the same names in the same order on all ranks: no self.log under a condition that a rank alone fulfils, "
        "and no loop over a set.",
    ),
    Fault(
        "monitor-differs",
        "Each rank has logged its own value, and ranks would choose other checkpoints, or stop at other epochs.",
        "Log it with sync_dist=True, or as a torchmetrics object, on all ranks (no rank_zero_only=True).",
    ),
    Fault(
        "ranks-differ",
        "Something has changed it on some ranks alone: an update outside of the optimizer, gradients that are not "
        "averaged, or a schedule that goes by a rank's own values.",
        "Do what changes it on all ranks, from values that are the same on all.",
    ),
    Fault(
        "exception",
        "The code at the line that is named raised it: a network, a data set, a loss or a callback of one's own.",
        "Look at that line; the whole traceback is in error.txt in the rank's folder.",
    ),
    Fault(
        "rank-failed",
        "The other ranks cannot go on without it.",
        "Mend that failure; the whole traceback is in error.txt in the rank's folder.",
    ),
    Fault(
        "connection-lost",
        "A network interface that the machines cannot reach each other by, a firewall, or a fault of the network.",
        "Name the interface with GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, and set NCCL_DEBUG=INFO to see more.",
    ),
    Fault(
        "log-unreadable",
        "explain reads text: a log, a traceback or a paste.",
        "Give it the file of a log, or pipe the text into it.",
        exit_code=2,
    ),
    Fault(
        "oversubscribed",
        "Each training process has its own threads and loader workers, and together they are more than the cores: all "
        "of them wait for one another.",
        "Leave data.num_workers at auto and OMP_NUM_THREADS unset: the program shares the cores out itself.",
    ),
    Fault(
        "precision",
        "The processor or GPU has no instructions for this number format, and computes it in another one.",
        "Set trainer.precision to 32-true; on GPUs without bfloat16 16-mixed is fast.",
    ),
    Fault(
        "gpu-links",
        "GPUs exchange their gradients over the links between them, and the slowest link sets the pace for all.",
        "Name the GPUs that are well connected in trainer.devices.",
    ),
    Fault(
        "fixed-device",
        "The strategy places the network and its batches, on another device in each process.",
        "Remove .cuda() and .to(device) from the network; a tensor made in forward takes x.device.",
    ),
    Fault(
        "buffer-changed",
        "Each process changes its own copy by its own share of the batch, and nothing brings the copies together: the "
        "checkpoint holds that of rank 0.",
        "Average the change over the processes before it is applied (torch.distributed.all_reduce), or leave it out.",
    ),
    Fault(
        "batchnorm-twice",
        "Its running statistics, which evaluation uses, move once for each call, and each call normalises its input "
        "apart from the other's.",
        "Send all inputs through the network in one call: torch.cat before it, and chunk after it.",
    ),
    Fault(
        "few-values",
        "BatchNorm divides by the spread of the values of one channel, which so few values do not tell.",
        "Set sync_batchnorm of the strategy to true, give each process more samples, or use GroupNorm.",
    ),
    Fault(
        "loss-value",
        "A loss is above 0 until every pixel is right: it does not compare the network's output with the masks.",
        "Look at the loss, and at the values of the masks: they are class numbers, not 0 and 255.",
    ),
    Fault(
        "not-learning",
        "The gradient that reaches the weights is zero or points elsewhere, or the learning rate does not fit.",
        "Look for detach(), argmax, sign or round between network and loss, and for a learning rate far from 1e-3.",
    ),
    Fault(
        "export-unsupported",
        "The layer does something that depends on the values in its tensors, or for which the format has no operation.",
        "Write the layer with torch's own operations, without .item(), numpy or a branch on a tensor's values.",
    ),
    Fault(
        "export-differs",
        "A layer does in the exported file something else than in the network: it draws random numbers, keeps a state, "
        "or was traced at a size at which it takes another way.",
        "Look for such a layer; weights.pt and the network's own code give the right result meanwhile.",
    ),
    Fault(
        "no-run",
        "The step needs a run that this command does not have.",
        "Run fit first.",
    ),
)

#: Heading -> faults, as in the documentation.
SECTIONS: dict[str, tuple[Fault, ...]] = {"Found by this program": _FAULTS, "Found by doctor": DOCTOR, **AREAS}
FAULTS: dict[str, Fault] = {fault.identifier: fault for faults in SECTIONS.values() for fault in faults}


class NamedError(Exception):
    """A failure that ends in one message: what, its cause, the fix, and a stable identifier.

    Args:
        identifier: Key of :data:`FAULTS`.
        what: One sentence that says what is wrong, with the name of the file, key, parameter, module or rank.
        cause: Replaces the catalogue's cause where more is known.
        fix: Replaces the catalogue's fix where more is known.

    Raises:
        KeyError: The identifier is not in the catalogue.
    """

    def __init__(self, identifier: str, what: str, cause: str | None = None, fix: str | None = None) -> None:
        fault = FAULTS[identifier]
        self.identifier = identifier
        self.what = what
        self.cause = fault.cause if cause is None else cause
        self.fix = fault.fix if fix is None else fix
        self.exit_code = fault.exit_code
        # All four, so that the error survives pickling on its way out of a data-loader worker.
        super().__init__(identifier, what, self.cause, self.fix)

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.cause, self.fix, f"[{self.identifier}]") if part)
