"""Failures of starting processes, and of what ends them from outside."""

from __future__ import annotations

from .fault import Fault

LAUNCH = (
    Fault(
        "launcher-argument",
        title="The script does not know the launcher's argument",
        cause="python -m torch.distributed.launch adds --local-rank (before torch 2.0 --local_rank) to the script's"
        " arguments, or a script that demands it is started by torchrun, which does not.",
        fix="Start with torchrun and read os.environ['LOCAL_RANK']; to serve both, let the parser take"
        " '--local-rank', '--local_rank' with default 0.",
        exit_code=2,
        signs=(
            "unrecognized arguments: {argument:launch}",
            "unrecognized arguments: {...} {argument:launch}",
            "the following arguments are required: {argument:launch}",
            "the following arguments are required: {...} {argument:launch}",
        ),
    ),
    Fault(
        "unknown-argument",
        title="The script does not know an argument",
        cause="It is misspelled, of another version, or meant for the launcher and written after the script's name.",
        fix="See --help; arguments of torchrun stand before the script's name.",
        exit_code=2,
        signs=("unrecognized arguments: {argument:argument}",),
    ),
    Fault(
        "not-launched",
        title="The script waits for a launcher's variables",
        cause="It was started as a single process (by hand, by an IDE's run button) and reads RANK, WORLD_SIZE,"
        " LOCAL_RANK, MASTER_ADDR or MASTER_PORT, which torchrun sets.",
        fix="Start it with torchrun --nproc-per-node=N script.py, in an IDE as module torch.distributed.run with those"
        " arguments; for a single process set RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500.",
        signs=(
            "using env:// rendezvous: environment variable {variable:word} expected, but not set",
            "environment variable {variable:word} expected, but not set",
            "KeyError: '{variable:launchvar}'",
        ),
    ),
    Fault(
        "one-process",
        kind="note",
        title="Only one process came up",
        cause="The program was started once, without a launcher (by an IDE's run button, by hand), with devices=1, or"
        " as one SLURM task, and so trains on one device.",
        fix="If more were meant: torchrun --nproc-per-node=N, devices=N, or srun with --ntasks-per-node=N.",
        signs=("Starting with 1 processes", "GLOBAL_RANK: 0, MEMBER: 1/1"),
    ),
    Fault(
        "port-in-use",
        title="The rendezvous port is taken",
        cause="Another training on this machine uses it, or a process of an earlier one still lives.",
        fix="Use another port (--master-port, MASTER_PORT; torchrun --standalone picks a free one), or end the old"
        " process: ss -ltnp shows it.",
        signs=(
            "The server socket has failed to listen on any local network address. port:",
            "The server socket has failed to bind to",
            "EADDRINUSE",
            "[Errno 98] Address already in use",
            "[Errno 48] Address already in use",
            "RuntimeError: Address already in use",
        ),
        names=(
            "local network address. port: {port:int},",
            "has failed to bind to [::]:{port:int} ",
            "has failed to bind to {host:host}:{port:int} ",
        ),
    ),
    Fault(
        "cuda-before-fork",
        title="CUDA was used before the processes were started",
        cause="A call such as .cuda(), torch.cuda.* or .to('cuda') came first, in a notebook often in an earlier cell;"
        " forked processes cannot use CUDA then.",
        fix="Restart the kernel and leave out CUDA calls before the start, or run the script in a terminal with"
        " torchrun; in data-loader workers keep tensors on the CPU.",
        signs=(
            "Lightning can't create new processes if CUDA is already initialized",
            "Cannot re-initialize CUDA in forked subprocess",
        ),
    ),
    Fault(
        "notebook-strategy",
        title="This strategy cannot start processes in a notebook",
        cause="It starts the script again for each process, and a notebook is no script.",
        fix="Run the training as a script in a terminal, or use one device or strategy='ddp_notebook' here.",
        signs=(
            "is not compatible with an interactive environment. Run your code as a script",
            "is not compatible with an interactive environment",
        ),
        names=("(strategy='{strategy:name}')` is not compatible",),
    ),
    Fault(
        "strategy-unknown",
        title="There is no strategy of this name",
        cause="It is misspelled or no longer exists, such as dp (DataParallel).",
        fix="Use ddp: one process per GPU; the batch of a loader is then that of one process.",
        exit_code=2,
        signs=("You selected an invalid strategy name: `strategy={strategy:quoted}`",),
    ),
    Fault(
        "script-not-found",
        title="The launcher cannot find the script",
        cause="The other ranks run the first command-line word again: the working directory was changed, or the"
        " program came from standard input or -c.",
        fix="Start with an absolute path or with -m, and do not change the directory before the training starts.",
        signs=("can't open file {path:path}: [Errno 2] No such file or directory",),
    ),
    Fault(
        "relative-import",
        title="A module of a package was started as a script",
        cause="Its relative imports need the package that it lies in.",
        fix="Start it with python -m package.module from the folder that holds the package.",
        signs=("attempted relative import with no known parent package",),
    ),
    Fault(
        "main-guard",
        title="Processes are started while the script is imported",
        cause="With spawn each process imports the script again, and its top level starts processes again.",
        fix="Put the start under if __name__ == '__main__':.",
        signs=(
            (
                "An attempt has been made to start a new process before the current process has finished its"
                " bootstrapping phase"
            ),
        ),
    ),
    Fault(
        "not-picklable",
        title="Something cannot be sent to a process",
        cause="A lambda, a local function or an open handle is part of what spawn or a data-loader worker must get.",
        fix="Use functions and classes of a module's top level; open files and locks inside the worker.",
        signs=("Can't pickle local object", "Can't pickle <", "TypeError: cannot pickle"),
        names=("pickle local object '{object:local}'", "cannot pickle '{object:name}' object"),
    ),
    Fault(
        "hangup",
        title="The terminal that started the training was closed",
        cause="Its end sends SIGHUP (signal 1) to the launcher, which then ends all ranks; nohup does not help.",
        fix="Start inside tmux or screen, with setsid, or as a batch job.",
        signs=("got signal: 1", "closing signal SIGHUP"),
        names=("Process {pid:int} got signal: 1",),
    ),
    Fault(
        "time-limit",
        title="The scheduler's time limit ended the job",
        cause="The job asked for less time than it needed.",
        fix="Ask for more (--time), or save often and resume from the last checkpoint.",
        signs=(
            "slurmstepd: error: *** JOB {job:int} ON {node:name} CANCELLED AT {...} DUE TO TIME LIMIT",
            "slurmstepd: error: *** STEP {job:name} ON {node:name} CANCELLED AT {...} DUE TO TIME LIMIT",
        ),
    ),
    Fault(
        "machine-memory",
        title="The machine's memory is used up",
        cause="The kernel or the scheduler killed the process that took most: many data-loader workers, a data set held"
        " in memory by each of them, or losses kept with their graphs.",
        fix="Fewer workers, memory-mapped data, more memory for the job; dmesg names the victim.",
        signs=(
            "Detected {count:int} oom_kill event",
            "Detected {count:int} oom-kill event",
            "Out of memory: Killed process",
            "oom-kill:constraint=",
        ),
        names=("Killed process {pid:int}",),
    ),
    Fault(
        "segmentation-fault",
        kind="symptom",
        title="A process crashed in native code",
        cause="A faulty extension, libraries that do not fit each other, or TORCH_DISTRIBUTED_DEBUG=DETAIL on the CPU.",
        fix="Run with PYTHONFAULTHANDLER=1 to see the Python line; unset TORCH_DISTRIBUTED_DEBUG; reinstall what was"
        " compiled for another torch.",
        signs=(
            "Fatal Python error: Segmentation fault",
            "failed (exitcode: -11)",
            "Segmentation fault (core dumped)",
            "Signal 11 (SIGSEGV) received by PID",
        ),
        names=(
            "failed (exitcode: -11) local_rank: {local_rank:int} (pid: {pid:int})",
            "SIGSEGV) received by PID {pid:int}",
        ),
    ),
    Fault(
        "launcher-ended",
        kind="consequence",
        title="The launcher ended the other ranks",
        cause="One process failed; the named one was the first that the launcher saw fail, not always the first cause.",
        fix="Read that rank's own last lines above.",
        signs=(
            "failed (exitcode: {exitcode:signed}) local_rank: {local_rank:int}",
            "ChildFailedError:",
            "closing signal SIGTERM",
            "Signal 15 (SIGTERM) received by PID",
            "got signal: 15",
            "Forcefully terminating all other processes to avoid zombies",
            "ProcessExitedException: process {local_rank:int} terminated with",
            "ProcessRaisedException:",
            "subprocess.CalledProcessError: Command '[{...}torch",
        ),
        names=(
            "first observed failure): [{...} rank : {first_rank:int} (local_rank: {...} exitcode : {exitcode:signed} (",
        ),
    ),
)
