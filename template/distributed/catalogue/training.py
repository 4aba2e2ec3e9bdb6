"""Failures of a training step: gradients, normalisation, devices, memory."""

from __future__ import annotations

from .fault import Fault

TRAINING = (
    Fault(
        "static-graph-changed",
        title="A step used other parameters than the first one",
        cause="static_graph promises DDP that each step uses the same parameters, and a step used others.",
        fix="Set static_graph to false, or let every step use the same parameters.",
        signs=(
            (
                "Expected to have finished reduction in the prior iteration before starting a new one. This error"
                " indicates that your training graph has changed in this iteration"
            ),
        ),
        names=(
            "Parameter indices which did not receive grad for rank {rank:int}: {index:ints}",
            "Parameters which did not receive grad for rank {rank:int}: {parameter:names}",
        ),
    ),
    Fault(
        "unused-parameters",
        title="Trainable parameters got no gradient",
        cause="A layer is built but its output does not reach the loss (a spare head, a branch not taken on this rank,"
        " a layer frozen after DDP wrapped the network), and DDP waits for its gradient.",
        fix="Remove the layer, use its output in the loss or freeze it before DDP wraps the network; only where it is"
        " unused on purpose let DDP look for it: find_unused_parameters=True, in this program"
        " strategy.find_unused_parameters: auto. Index i is the i-th of"
        " [n for n, p in model.named_parameters() if p.requires_grad].",
        signs=(
            "Expected to have finished reduction in the prior iteration",
            "your LightningModule has parameters that were not used in producing the loss",
            "Parameter indices which did not receive grad for rank",
            "Parameters which did not receive grad for rank",
        ),
        names=(
            "Parameters which did not receive grad for rank {rank:int}: {parameter:names}",
            "Parameter indices which did not receive grad for rank {rank:int}: {index:ints}",
        ),
    ),
    Fault(
        "ready-twice",
        title="A parameter got its gradient twice in one step",
        cause="Reentrant gradient checkpointing together with find_unused_parameters, a layer that is checkpointed or"
        " used twice outside DDP's forward, or a network wrapped in DDP twice.",
        fix="Call torch.utils.checkpoint with use_reentrant=False, turn find_unused_parameters off, and wrap once.",
        signs=("Expected to mark a variable ready only once",),
        names=("Parameter at index {index:int} with name {parameter:name} has been marked as ready twice",),
    ),
    Fault(
        "changed-in-place",
        title="A tensor that backward needs was changed in place",
        cause="An operation in place (x += …, ReLU(inplace=True)), or, in a step with two forward passes, DDP's"
        " broadcast of buffers: a version number that is one too high on a 1-D tensor of a BatchNorm's size says so.",
        fix="Write x = x + …; with two forward passes in a step set broadcast_buffers=False (forward_sync_buffers in"
        " newer releases) or put both passes into one forward; torch.autograd.set_detect_anomaly(True) names the line.",
        signs=(
            "one of the variables needed for gradient computation has been modified by an inplace operation",
            "modified by an inplace operation: [",
        ),
        names=(
            "by an inplace operation: [{tensor:name} {shape:shape}]",
            "which is output {output:int} of {operation:name}, is at version",
            "is at version {version:int}; expected version {expected_version:int} instead",
        ),
    ),
    Fault(
        "backward-twice",
        title="backward ran twice over one graph",
        cause="The loss of this step still hangs on the graph of an earlier one, or backward is called twice.",
        fix="Detach what is carried from step to step (state.detach()), and call backward once.",
        signs=("Trying to backward through the graph a second time",),
    ),
    Fault(
        "loss-without-graph",
        title="The loss depends on no trainable parameter",
        cause="Everything it was computed from is frozen, detached or computed under no_grad, or the optimizer's"
        " parameters are not those of the network.",
        fix="Compute the loss from the network's output with gradients on; check requires_grad of its parameters.",
        signs=(
            "element 0 of tensors does not require grad and does not have a grad_fn",
            "element 0 of variables does not require grad and does not have a grad_fn",
        ),
    ),
    Fault(
        "nothing-to-train",
        title="DDP around a network without a trainable parameter",
        cause="All parameters are frozen, or the network has none.",
        fix="Unfreeze what shall be trained before DDP wraps it; evaluate a frozen network without DDP.",
        signs=("DistributedDataParallel is not needed when a module doesn't have any parameter",),
    ),
    Fault(
        "step-skipped",
        title="One rank skipped a training step",
        cause="training_step returned None on this rank, while the others wait for its gradients.",
        fix="Let all ranks skip the same steps, or return a loss of zero that hangs on all parameters.",
        signs=(
            "Skipping the `training_step` by returning None in distributed training is not supported",
            "returning None in distributed training is not supported",
        ),
    ),
    Fault(
        "models-differ",
        title="The ranks built different networks",
        cause="The network depends on something that differs between ranks: its data, its random numbers, its"
        " configuration, or a layer made on first use.",
        fix="Build the network from the same arguments on every rank.",
        signs=(
            "DDP expects same model across all ranks",
            "appears not to match sizes of the same param in process 0",
            "appears not to match strides of the same param in process 0",
        ),
        names=(
            (
                "but Rank {rank:int} has {parameters:int} params, while rank {other_rank:int} has inconsistent"
                " {other_parameters:int} params"
            ),
            "params[{index:int}] in this process with sizes {shape:shape} appears not to match",
        ),
    ),
    Fault(
        "loss-not-finite",
        title="The loss is NaN",
        cause="A mean over no labelled pixel, a division by zero, the logarithm of zero, a learning rate that is too"
        " high, or values in the data that are not finite; one rank's NaN reaches all ranks in one step.",
        fix="Let the loss be zero where nothing is labelled; look for the first sample with a loss that is not finite;"
        " in 16-bit use bf16, or scale and clip gradients.",
        signs=("loss=nan", "loss: nan", "loss': nan", 'loss": nan', "loss = nan"),
    ),
    Fault(
        "gradient-not-finite",
        title="A gradient is NaN",
        cause="The named operation has no finite derivative there, such as sqrt, log or a norm at zero.",
        fix="Keep its input away from that point: sqrt(x + eps), clamp, or torch.where on the input.",
        signs=("returned nan values in its",),
        names=("Function '{operation:name}' returned nan values in its {output:int}th output",),
    ),
    Fault(
        "sync-batchnorm-device",
        title="SyncBatchNorm on the CPU",
        cause="torch's SyncBatchNorm computes only on a GPU, and a layer or its input is on the CPU.",
        fix="Convert BatchNorm to SyncBatchNorm on GPUs only; move the input to the network's device.",
        signs=("SyncBatchNorm layers only work with GPU modules", "SyncBatchNorm expected input tensor to be on GPU"),
    ),
    Fault(
        "batchnorm-one-value",
        title="BatchNorm over a single value",
        cause="The batch on this rank has one sample and the map at that layer one pixel: there is no variance.",
        fix="Use larger batches or inputs, drop_last in the loader, SyncBatchNorm over the ranks, or GroupNorm.",
        signs=("Expected more than 1 value per channel when training",),
        names=("got input size torch.Size({shape:shape})",),
    ),
    Fault(
        "not-deterministic",
        title="An operation has no deterministic form",
        cause="use_deterministic_algorithms is on, and the named operation has no deterministic kernel there.",
        fix="Trainer(deterministic='warn'), or another operation: 'nearest' instead of a linear interpolation.",
        signs=("does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'",),
        names=("Error: {operation:name} does not have a deterministic implementation",),
    ),
)

DEVICES = (
    Fault(
        "module-device",
        title="Part of the network is on another device",
        cause="A device is written into the code (.cuda(), .to('cuda:2')), or the network was moved again after it was"
        " wrapped: DataParallel wants all of it on the first of its devices.",
        fix="Call .to(device) once, before wrapping, and nowhere else; register tensors with register_buffer and"
        " layers in ModuleList, so that they move along. Better: DistributedDataParallel, one process per GPU.",
        signs=("module must have its parameters and buffers on device",),
        names=(
            "on device {expected:device} (device_ids[0])",
            "but found one of them on device: {found:device}",
        ),
    ),
    Fault(
        "ddp-device",
        title="DDP was told another device than the network's",
        cause="The network was not moved, or only in part, to this rank's device before it was wrapped.",
        fix="torch.cuda.set_device(local_rank) and model.to(local_rank) first, then device_ids=[local_rank]; on the CPU"
        " leave device_ids out.",
        signs=(
            "DistributedDataParallel device_ids and output_device arguments only work with",
            "DistributedDataParallel's input module must be on the same type of devices",
        ),
        names=(
            "but got device_ids [{device_id:int}]",
            "type='{found:device}'",
            "parameters locate in {found:text}.",
        ),
    ),
    Fault(
        "tensors-on-devices",
        title="Tensors of one operation are on different devices",
        cause="Data, target, loss weights or a layer in a plain list stayed on another device.",
        fix="Move the batch to the network's device; register tensors with register_buffer, and layers in ModuleList.",
        signs=(
            "Expected all tensors to be on the same device",
            "Input type (torch.cuda.{type:word}) and {tensor:word} type (torch.{other_type:word}) should be the same",
            "Input type (torch.{type:word}) and {tensor:word} type (torch.cuda.{other_type:word}) should be the same",
            "Expected object of device type cuda but got device type cpu",
            "Tensor for argument #{argument:int} '{tensor:word}' is on CPU, but expected",
        ),
        names=(
            "but found at least two devices, {device:device} and {other_device:device}",
            "but got {tensor:word} is on {device:device}, different from other tensors on {other_device:device}",
        ),
    ),
    Fault(
        "duplicate-gpu",
        title="Two ranks use one GPU",
        cause="A device is written into the code, CUDA_VISIBLE_DEVICES differs, or there are more processes than GPUs.",
        fix="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first CUDA call, no more processes than"
        " GPUs, and the same CUDA_VISIBLE_DEVICES for all of them.",
        signs=("Duplicate GPU detected",),
        names=("rank {first_rank:int} and rank {second_rank:int} both on CUDA device {device:hex}",),
    ),
    Fault(
        "gpu-count",
        title="A GPU was asked for that is not visible",
        cause="More devices are asked for than there are, or CUDA_VISIBLE_DEVICES or the scheduler (--gpus-per-task)"
        " shows this process fewer.",
        fix="Ask for what nvidia-smi shows; with SLURM use --gpus-per-node instead of --gpus-per-task.",
        signs=(
            "You requested gpu: {requested:list} But your machine only has: {available:list}",
            "You requested GPUs: {requested:list} But your machine only has: {available:list}",
            "You requested to find {requested:int} devices but",
            "CUDA error: invalid device ordinal",
            "No CUDA GPUs are available",
        ),
    ),
    Fault(
        "no-driver",
        title="CUDA does not work on this machine",
        cause="There is no NVIDIA driver, it is older than this build of torch needs, or the build has no kernels for"
        " this GPU or none at all.",
        fix="Check nvidia-smi; install the build of torch that fits the driver and GPU, or train on the CPU.",
        signs=(
            "Found no NVIDIA driver on your system",
            "The NVIDIA driver on your system is too old",
            "Torch not compiled with CUDA enabled",
            "no kernel image is available for execution on the device",
            "CUDA driver version is insufficient for CUDA runtime version",
        ),
    ),
    Fault(
        "out-of-memory",
        title="Memory is used up",
        cause="Batch, image or network are too large for the device, something keeps graphs alive (losses in a list"
        " without .detach()), or another process uses the same GPU.",
        fix="Smaller batches with accumulation, smaller crops, 16-bit precision; keep float(loss), not loss; look at"
        " nvidia-smi for others.",
        signs=(
            "CUDA out of memory. Tried to allocate",
            "CUDA error: out of memory",
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
        ),
        names=(
            "Tried to allocate {size:size}.",
            "Tried to allocate {size:size} (GPU {gpu:int};",
            "GPU {gpu:int} has a total capacity of {capacity:size} of which {free:size} is free",
            "you tried to allocate {bytes:int} bytes",
        ),
    ),
    Fault(
        "label-out-of-range",
        title="A mask holds a value that no class has",
        cause="Cross-entropy of K classes takes 0 to K-1 and its ignore_index; masks often hold 0 and 255, or colours.",
        fix="Map the values to class indices, or set ignore_index; look at mask.unique() of each file.",
        signs=(
            "Target {label:int} is out of bounds",
            "Assertion `t >= 0 && t < n_classes` failed",
            "Assertion `cur_target >= 0 && cur_target < n_classes` failed",
            "Class values must be smaller than num_classes",
        ),
    ),
    Fault(
        "device-assert",
        kind="symptom",
        title="A check inside a GPU kernel failed",
        cause="Most often a class index or an embedding index is out of range; the line in the traceback is a later"
        " one, since kernels run asynchronously.",
        fix="Run the step on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to get the true line and value.",
        signs=("CUDA error: device-side assert triggered", "device-side assert triggered"),
    ),
    Fault(
        "illegal-memory-access",
        kind="symptom",
        title="A GPU kernel wrote or read outside its memory",
        cause="A faulty kernel or extension, an index out of range, or tensors of another GPU than the current one.",
        fix="torch.cuda.set_device(local_rank) first; CUDA_LAUNCH_BLOCKING=1 gives the true line.",
        signs=("CUDA error: an illegal memory access was encountered", "an illegal memory access was encountered"),
    ),
    Fault(
        "cudnn",
        kind="symptom",
        title="cuDNN failed",
        cause="Mostly memory that is used up, sometimes a driver or a library that does not fit this build of torch.",
        fix="Use smaller batches; if that changes nothing, let only the cuDNN that comes with torch be found.",
        signs=("cuDNN error: CUDNN_STATUS_{status:word}", "CUDA error: CUBLAS_STATUS_{status:word}"),
    ),
)
