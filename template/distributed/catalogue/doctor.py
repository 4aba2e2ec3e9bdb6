"""What ``doctor`` finds in a few real steps, and no single message of a run would tell. Imports no torch."""

from __future__ import annotations

from .fault import Fault

DOCTOR: tuple[Fault, ...] = (
    Fault(
        "parity",
        title="One process and several do not train the same network",
        cause="Something sees a process's own share of the batch alone: a loss, a layer, a sampler, a transform.",
        fix="Compute it over all processes, or look at each sample alone.",
    ),
    Fault(
        "not-checked",
        title="A check could not be made",
        cause="An earlier failure keeps the run from coming so far.",
        fix="Mend that one, and start the doctor again.",
        kind="consequence",
    ),
    Fault(
        "forked",
        title="A process was forked from the training",
        cause="os.fork copies the process with its sockets, and both copies go on with the same program.",
        fix="Start other programs with subprocess, and work in parallel with data.num_workers.",
    ),
    Fault(
        "processes-left",
        title="Processes outlive the run",
        cause="Code has started them and does not wait for them; they keep memory, ports and GPUs.",
        fix="Join or terminate them in teardown, or start them as daemons.",
    ),
    Fault(
        "output-flood",
        title="More is printed than anybody reads",
        cause="A print stands in code that runs for each batch or pixel, on each rank; it slows down the training and "
        "fills the disk with logs.",
        fix="Remove the print, or log a number with self.log.",
    ),
    Fault(
        "schedule",
        title="The schedule of the learning rate does not fit the run",
        cause="Its length is counted in epochs where it advances in steps, or belongs to another number of samples.",
        fix="Set its length to that of the run, in the unit of model.lr_interval.",
    ),
    Fault(
        "slow-exchange",
        title="The exchange of gradients takes most of a step",
        cause="The network is large for its computing time, or the link is slow.",
        fix="Raise data.batch_size, or send less: strategy.comm_hook bf16.",
    ),
    Fault(
        "class-missing",
        title="A class occurs in no mask",
        cause="The masks lack it, its file value is mapped to another class, or all its cases are in another split.",
        fix="Compare data.classes with the values in the masks, and with what is in each split.",
    ),
    Fault(
        "split-leak",
        title="A case is in two splits",
        cause="A copy of it is in both, or the split was made of pictures and not of patients or scenes.",
        fix="Remove it from one of them: a network that has seen a case in training scores too well on it.",
    ),
    Fault(
        "case-twice",
        title="A case is listed twice",
        cause="Two patterns find the same file, or two files have one name; scores count it twice, and predicted "
        "masks, which have the case's name, overwrite each other.",
        fix="List each case once, and give each a name of its own.",
    ),
    Fault(
        "values-differ",
        title="Cases differ wildly in their values or spacing",
        cause="They are of another unit, scaling, bit depth or export.",
        fix="Export them as the others, or bring all to one range in data.preprocess.",
    ),
    Fault(
        "shares-differ",
        title="The processes do not share out the samples",
        cause="A method of the data set changes the samplers, or what they are given.",
        fix="Leave train_dataloader and val_dataloader as those of SegmentationData.",
    ),
    Fault(
        "cases-differ",
        title="Processes list different cases",
        cause="The list is drawn from random numbers, or from a set or a folder in no fixed order, and each process "
        "makes its own: samples of one's validation are in the other's training.",
        fix="Sort the names, and draw the split from a generator with a fixed seed: numpy.random.default_rng(0).",
    ),
    Fault(
        "prepare-data-state",
        title="prepare_data leaves something in the object",
        cause="prepare_data runs on the first process of each machine alone; the others lack what it sets.",
        fix="Set it in setup, which runs on all processes; prepare_data only writes files.",
    ),
    Fault(
        "own-random-numbers",
        title="Random numbers that the seed does not reach",
        cause="It draws from a generator of its own: loader workers and processes each have a copy, which draws the "
        "same for all of them, or numbers that no run can repeat.",
        fix="Draw from the global generators (torch.rand, numpy.random, random) when it is called: data.augment seeds "
        "them by (seed, epoch, sample).",
    ),
    Fault(
        "random-evaluation",
        title="Evaluation gives another result each time",
        cause="Random numbers are drawn in eval mode too, by dropout or noise that nothing switches off.",
        fix="Draw them in training alone: F.dropout(x, p, training=self.training), or an nn.Dropout layer.",
    ),
    Fault(
        "no-augmentation",
        title="data.augment changes nothing",
        cause="Its strengths or probabilities are 0, or it draws the same numbers in each call.",
        fix="Raise them, or leave data.augment empty.",
    ),
    Fault(
        "slow-data",
        title="Loading takes longer than training",
        cause="Each training process waits for its loader workers in every step.",
        fix="Leave data.num_workers at auto, or raise it.",
    ),
)
