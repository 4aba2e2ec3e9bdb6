"""Failures of data, checkpoints, logs and configurations."""

from __future__ import annotations

from .fault import Fault

DATA = (
    Fault(
        "batch-sizes-differ",
        title="The samples of a batch differ in size",
        cause="A batch is one tensor, and its samples differ in height, width or number of channels.",
        fix="Bring all images to one size and number of channels in the data set (resize, crop, pad, convert('RGB')),"
        " or give the loader a collate_fn.",
        signs=("stack expects each tensor to be equal size", "Trying to resize storage that is not resizable"),
        names=("but got {shape:shape} at entry {entry:int} and {other_shape:shape} at entry {other_entry:int}",),
    ),
    Fault(
        "shared-memory",
        title="Shared memory is too small for the data-loader workers",
        cause="Workers hand batches over in /dev/shm, which is 64 MB in a container unless asked for otherwise.",
        fix="docker run --ipc=host or --shm-size=8g; in Kubernetes an emptyDir with medium Memory at /dev/shm; or"
        " num_workers=0.",
        signs=(
            "Unexpected bus error encountered in worker. This might be caused by insufficient shared memory",
            "DataLoader worker (pid {pid:int}) is killed by signal: Bus error",
            "DataLoader worker (pid(s) {pid:int}) is killed by signal: Bus error",
            "unable to write to file </torch_{...}>: No space left on device",
            "unable to write to file </torch_",
            "unable to open shared memory object </torch_",
            "unable to allocate shared memory(shm) for file </torch_{...}>: No space left on device",
        ),
    ),
    Fault(
        "open-files",
        title="Too many files are open",
        cause="Workers hand each tensor over as an open file, more than the limit of this shell.",
        fix="ulimit -n 65535, or torch.multiprocessing.set_sharing_strategy('file_system').",
        signs=(
            "[Errno 24] Too many open files",
            "Too many open files. Communication with the workers",
            "received 0 items of ancdata",
        ),
    ),
    Fault(
        "loader-worker-died",
        kind="symptom",
        title="A data-loader worker died",
        cause="It was killed (most often for memory) or crashed in native code while reading.",
        fix="num_workers=0 shows a Python error if there is one; fewer workers need less memory; dmesg tells of kills.",
        signs=(
            "DataLoader worker (pid {pid:int}) is killed by signal: {signal:word}",
            "DataLoader worker (pid {pid:int}) exited unexpectedly",
            "DataLoader worker (pid(s) {pid:pids}) exited unexpectedly",
            "DataLoader worker (pid(s) {pid:pids}) exited unexpectedly with exit code",
        ),
    ),
    Fault(
        "sampler-and-shuffle",
        title="A loader was given a sampler and shuffle",
        cause="A DistributedSampler was added to a DataLoader that has shuffle=True: the sampler is what shuffles.",
        fix="DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=True)) without shuffle=True, and"
        " sampler.set_epoch(epoch) before each epoch; in this program the data module does both.",
        signs=(
            "sampler option is mutually exclusive with shuffle",
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last",
        ),
    ),
    Fault(
        "no-batches",
        title="There is nothing to train on",
        cause="The data set is empty, on this rank or on all, or holds less than one whole batch with drop_last.",
        fix="Check the data's path and pattern, lower the batch size, or turn drop_last off.",
        signs=(
            "`Trainer.fit` stopped: No training batches",
            "across ranks is zero. Please make sure this was your intention",
            "within local rank has zero length",
            "num_samples should be a positive integer value, but got num_samples=0",
        ),
    ),
    Fault(
        "mask-dimensions",
        title="A mask has one dimension too many",
        cause="The mask is a colour picture, or keeps a channel axis; cross-entropy takes class indices [N, H, W].",
        fix="Map the colours to class indices; squeeze the channel axis: mask.squeeze(1).",
        signs=("only batches of spatial targets supported",),
        names=(
            "but got targets of dimension: {dimensions:int}",
            "but got targets of size : : {shape:shape}",
            "but got targets of size: : {shape:shape}",
        ),
    ),
    Fault(
        "mask-size",
        title="Prediction and mask differ in size",
        cause="The network's output is not of the mask's size, or image and mask of a pair do not fit.",
        fix="Resize the logits to the mask's size (interpolate), and check that pairs have one size.",
        signs=(
            "input and target batch or spatial sizes don't match: target {shape:shape}",
            "size mismatch (got input: {input:shape} , target: {shape:shape}",
        ),
    ),
    Fault(
        "dtype-mismatch",
        title="Two tensors differ in their type of number",
        cause="Volumes and masks come as int16, uint8 or float64 from their files; networks take float32, and"
        " cross-entropy int64 masks.",
        fix="image.float(), mask.long(); under 16-bit precision leave the types to autocast.",
        signs=(
            "Input type ({type:words}) and bias type ({other_type:words}) should be the same",
            "Input type ({type:words}) and weight type ({other_type:words}) should be the same",
            "expected scalar type {expected:scalar} but found {found:scalar}",
            "expected target dtype to be {...}, but got {found:scalar}",
            "expected m1 and m2 to have the same dtype, but got",
            "mat1 and mat2 must have the same dtype",
        ),
    ),
    Fault(
        "channels-differ",
        title="The image has another number of channels than the network takes",
        cause="The first layer was built for another number, such as 3 for RGB while CT slices have 1.",
        fix="Build the network with in_channels as the images have, or convert the images.",
        signs=(
            (
                "Given groups={groups:int}, weight of size {weight:shape}, expected input{shape:shape} to have"
                " {expected:int} channels, but got {found:int} channels instead"
            ),
        ),
    ),
    Fault(
        "input-size",
        title="The image's size does not go through the network",
        cause="Each level of an encoder halves the image; a size that is not divisible by 2^levels comes back"
        " different, and cannot be joined.",
        fix="Pad or crop height and width to a multiple of 2^levels (32 for most encoders).",
        signs=(
            (
                "Sizes of tensors must match except in dimension {dimension:int}. Expected size {expected:int} but got"
                " size {found:int}"
            ),
            "Sizes of tensors must match except in dimension {dimension:int}",
            (
                "Wrong input shape height={height:int}, width={width:int}. Expected image height and width divisible by"
                " {divisor:int}"
            ),
        ),
    ),
    Fault(
        "shapes-differ",
        title="Two tensors of an operation do not fit",
        cause="They differ in a dimension where neither is 1.",
        fix="Print both shapes before the line that fails.",
        signs=(
            (
                "The size of tensor a ({size:int}) must match the size of tensor b ({other_size:int}) at non-singleton"
                " dimension {dimension:int}"
            ),
        ),
    ),
)

FILES = (
    Fault(
        "checkpoint-damaged",
        title="A checkpoint is damaged",
        cause="It was cut off (a full disk, a kill while writing, an interrupted copy), or two processes wrote it.",
        fix="Use an earlier checkpoint; write on rank 0 only, to a temporary name that is renamed when complete.",
        signs=(
            "PytorchStreamReader failed",
            "EOFError: Ran out of input",
            "Invalid magic number; corrupt file?",
            "The file might be corrupted",
            "UnpicklingError: invalid load key",
            "WeightsUnpickler error: Unsupported operand",
        ),
        names=("unexpected EOF, expected {missing_bytes:int} more bytes",),
    ),
    Fault(
        "weights-only",
        title="A checkpoint holds more than tensors and plain values",
        cause="Since torch 2.6 loading refuses other objects, such as paths, numpy numbers, classes or whole modules in"
        " the hyper-parameters.",
        fix="If you trust the file: weights_only=False. For new ones save plain types: str(path), float(value),"
        " module.state_dict().",
        signs=("Weights only load failed",),
        names=("Unsupported global: GLOBAL {object:name} was not an allowed global",),
    ),
    Fault(
        "checkpoint-prefix",
        title="The checkpoint's names carry the prefix of a wrapper",
        cause="It was saved from the wrapped network (DataParallel, DistributedDataParallel: 'module.'; torch.compile:"
        " '_orig_mod.').",
        fix="Save model.module.state_dict(); to load this one, strip the prefix:"
        " {k.removeprefix('module.'): v for k, v in state.items()}.",
        signs=(
            (
                "Error(s) in loading state_dict for {class:word}: Missing key(s) in state_dict: {...} Unexpected key(s)"
                ' in state_dict: "{prefix:prefix}.'
            ),
            'Error(s) in loading state_dict for {class:word}: Missing key(s) in state_dict: "{prefix:prefix}.',
        ),
    ),
    Fault(
        "state-dict-mismatch",
        title="The checkpoint belongs to another network",
        cause="Layers, channels or classes differ from the network that was saved, or a prefix was added or lost.",
        fix="Build the network as it was saved (same class and arguments), or load the parts that fit: strict=False"
        " after removing tensors of other sizes.",
        signs=("Error(s) in loading state_dict for",),
        names=(
            "loading state_dict for {class:word}:",
            "Missing key(s) in state_dict: {missing:keys}.",
            "Unexpected key(s) in state_dict: {unexpected:keys}.",
            (
                "size mismatch for {parameter:name}: copying a param with shape torch.Size({shape:shape}) from"
                " checkpoint, the shape in current model is torch.Size({model_shape:shape})"
            ),
        ),
    ),
    Fault(
        "optimizer-mismatch",
        title="The optimizer's state belongs to other parameters",
        cause="Parameters were added, removed or regrouped since it was saved.",
        fix="Load the weights only, and start the optimizer anew.",
        signs=(
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            "loaded state dict has a different number of parameter groups",
        ),
    ),
    Fault(
        "checkpoint-missing",
        title="The checkpoint does not exist",
        cause="The path is wrong, it was never written, or exists only on the machine of rank 0; ranks may disagree on"
        " which one is best when the monitored value is not averaged over them (sync_dist).",
        fix="Check the path; log the monitored value with sync_dist=True, and give all ranks the path of rank 0.",
        signs=(
            "Checkpoint file not found: {path:text}.ckpt",
            "Checkpoint at {path:text} not found. Aborting training",
            "FileNotFoundError: [Errno 2] No such file or directory: {path:ckpt}",
            '(ckpt_path="best")` is set but `ModelCheckpoint` is not configured',
        ),
    ),
    Fault(
        "file-missing",
        title="A file or folder does not exist",
        cause="The path is wrong for this machine or working directory, or only the machine of rank 0 has it.",
        fix="Use an absolute path that all machines see; make files on every machine, or on rank 0 before a barrier.",
        signs=("FileNotFoundError: [Errno 2] No such file or directory: {path:path}",),
    ),
    Fault(
        "folder-race",
        title="Two processes create the same folder or file",
        cause="Every rank runs the same line, such as a TensorBoard writer or makedirs in one log folder.",
        fix="Let rank 0 alone create it, give each rank its own folder (rank_0, rank_1), or makedirs(exist_ok=True).",
        signs=("[Errno 17] File exists: {path:path}", "[Errno 17] File exists"),
    ),
    Fault(
        "run-folder-used",
        title="The run's folder holds an earlier run",
        cause="A second run, or a second rank, writes its configuration where one is already.",
        fix="Use a new folder or version, or save_config_kwargs={'overwrite': True}.",
        signs=("SaveConfigCallback expected {path:text} to NOT exist",),
    ),
    Fault(
        "disk-full",
        title="The disk is full",
        cause="The file system, the quota or a limit on file sizes is used up.",
        fix="Make room, keep fewer checkpoints (save_top_k), or write elsewhere.",
        signs=(
            "[Errno 28] No space left on device",
            "No space left on device",
            "Disk quota exceeded",
            "PytorchStreamWriter failed writing file",
        ),
        names=("No space left on device: {path:path}",),
    ),
    Fault(
        "permission",
        title="A file or folder may not be written or read",
        cause="It belongs to another user or lies on a read-only file system.",
        fix="Write elsewhere, or change its owner or mode.",
        signs=("[Errno 13] Permission denied", "[Errno 30] Read-only file system"),
        names=("Permission denied: {path:path}", "Read-only file system: {path:path}"),
    ),
    Fault(
        "monitor-missing",
        title="The monitored metric was not logged",
        cause="Its name differs from the logged one, or it is logged at another time (validation is switched off).",
        fix="Monitor one of the names that the message lists.",
        signs=(
            "`ModelCheckpoint(monitor={metric:quoted})` could not find the monitored key",
            "Early stopping conditioned on metric `{metric:metric}` which is not available",
            "ReduceLROnPlateau conditioned on metric {metric:metric} which is not available. Available",
        ),
    ),
    Fault(
        "no-optimizer",
        title="The module says nothing of its optimizer",
        cause="configure_optimizers is missing, or was lost on the way to a spawned process.",
        fix="Define configure_optimizers in the module itself.",
        signs=("No `configure_optimizers()` method defined",),
    ),
    Fault(
        "devices-mismatch",
        title="The launcher started another number of processes than devices asks for",
        cause="torchrun's --nproc-per-node or SLURM's --ntasks-per-node and Trainer(devices, num_nodes) differ.",
        fix="Let devices x num_nodes equal the number of processes.",
        exit_code=2,
        signs=(
            "You set `devices={devices:int}` and `num_nodes={nodes:int}` in Lightning, but the product",
            "You set `devices={devices:int}` in Lightning, but the number of tasks per node configured in SLURM",
            "You set `num_nodes={nodes:int}` in Lightning, but the number of nodes configured in SLURM",
            "You set `--ntasks={tasks:int}` in your SLURM bash script, but this variable is not supported",
        ),
        names=("does not match the world size ({world_size:int})", "--ntasks-per-node={tasks_per_node:int}` does not"),
    ),
    Fault(
        "config-key",
        title="The configuration holds a key that nothing takes",
        cause="It is misspelled, at the wrong level, or of another class or version.",
        fix="See --help and --print_config for the keys that are accepted.",
        exit_code=2,
        signs=(
            "error: Subcommand '{subcommand:word}' does not accept option '{key:name}'",
            "does not accept option '{key:name}'",
            "Option '{key:name}' is not accepted",
            "Validation failed: Key '{key:name}' is not expected",
        ),
    ),
    Fault(
        "config-value",
        title="A value of the configuration is of the wrong kind",
        cause="Its type, its spelling or the class that it names is not what the key takes.",
        fix="See --help for the key's type; a class is named by its full path, a timeout as h:m:s.",
        exit_code=2,
        signs=(
            'Parser key "{key:name}":',
            "Does not validate against any of the Union subtypes",
            'Expected a string with form "h:m:s"',
        ),
    ),
)
