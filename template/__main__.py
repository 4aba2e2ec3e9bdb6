"""The program: ``python -m <package> VERB …``. Imports nothing heavy until a verb needs it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    # Started as a file, as an IDE's run button does: start again as the package that the file lies in.
    import runpy

    # In place of the package's own folder, whose modules would hide those of the same names elsewhere.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module(Path(__file__).resolve().parent.name, run_name="__main__", alter_sys=True)
    raise SystemExit

from .distributed.devices import check_devices
from .distributed.faults import NamedError
from .distributed.launch import (
    launch,
    leave_message,
    peek_trainer,
    processes_asked,
    strip_launcher_arguments,
    told_by_first,
)
from .distributed.process import end_with_launcher, leave_at_once, print_any_letter, share_threads
from .distributed.raised import own_frames
from .distributed.stop import Stopped
from .distributed.world import World, read_world

_PACKAGE = __package__.partition(".")[0]
_VERBS = {
    "fit": "train a network",
    "validate": "score a checkpoint on the validation cases",
    "test": "score a checkpoint on the test cases",
    "predict": "write masks and overlay pictures of new images (--data.predict PATH --out DIR)",
    "export": "write the network of a checkpoint for use without this program, torch.export and ONNX (--out DIR)",
    "doctor": "find what would stop a training in several processes, on this machine (doctor --config FILE)",
    "explain": "find the known failures in a log, and what to do about them (explain [FILE] [--json])",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb.

    Args:
        arguments: Command-line arguments; default: those of the process.

    Returns:
        Exit code: 0 success, 1 a named failure, 2 wrong usage or configuration, 143 after SIGTERM.
    """
    print_any_letter()
    try:
        given = strip_launcher_arguments(sys.argv[1:] if arguments is None else arguments)
    except NamedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not given or given[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if given else 2
    if given[0] == "--version":
        print(_version())
        return 0
    if given[0] not in _VERBS:
        print(f"error: {_no_verb(given)}", file=sys.stderr)
        return 2
    if given[0] == "explain":
        from .explain import main as explain

        return explain(given[1:], f"python -m {_PACKAGE} explain")
    leave_at_once()
    # A network in a file of the user's own is found in the working directory, however the program was started.
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.insert(0, str(Path.cwd()))
    world = None
    try:
        if given[0] == "doctor":
            from .doctor.command import main as doctor

            return doctor(given[1:], f"python -m {_PACKAGE} doctor", __file__)
        world = read_world()
        if world.launcher == "torchrun":  # or our own, which is torchrun's
            end_with_launcher()
        share_threads(world)
        # Warnings of torch's C++ code about sockets and stacks tell nothing that our own messages do not.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        return _run(world, given)
    except Stopped as stopped:
        return stopped.exit_code
    except NamedError as error:
        message = f"{own_frames(error)}error: {error}" if error.identifier == "exception" else f"error: {error}"
        # All processes find the same fault in what was asked for: one of a machine, which has the same files, says it.
        of_all = world is not None and error.identifier in ("config", "world-size", "batch-size")
        if world is None or not (of_all and told_by_first(world, message)):
            print(f"\n{message}", file=sys.stderr, flush=True)
        if world is not None:
            leave_message(world, message)
        return error.exit_code


def _run(world: World, arguments: Sequence[str]) -> int:
    """Run a verb here, or, started by hand with several devices, in a process for each of them."""
    if arguments[0] == "export":
        from .export import ExportCLI

        ExportCLI(arguments[1:])
        return 0
    # By the file, not with -m: it is found from any working directory, installed or not.
    command = [__file__, *arguments]
    only_asks = {"-h", "--help", "--print_config"} & {argument.partition("=")[0] for argument in arguments}
    if world.launcher is None and not only_asks:
        # Before lightning is imported, which takes seconds that the processes to come will spend again.
        trainer = peek_trainer(arguments)
        processes = processes_asked(trainer)
        if processes > 1:
            check_devices(trainer)
            return launch(processes, command)
    from .cli import LaunchNeeded, SegmentationCLI

    try:
        SegmentationCLI(arguments)
    except LaunchNeeded as request:
        return launch(request.processes, command)
    return 0


def _help() -> str:
    verbs = "\n".join(f"  {verb:<10} {what}" for verb, what in _VERBS.items())
    return (
        f"usage: python -m {_PACKAGE} VERB [--config FILE] [--KEY VALUE …]\n\n"
        f"Image segmentation: the same result with any number of processes.\n\n{verbs}\n\n"
        f"  python -m {_PACKAGE} fit --config configs/phantom.yaml\n"
        f"  python -m {_PACKAGE} fit --config configs/liver.yaml --config configs/ddp.yaml --trainer.devices 2\n\n"
        "VERB --help lists all keys of a verb; --print_config prints them with their values; --version."
    )


def _no_verb(given: Sequence[str]) -> str:
    """What to say where the first word is no verb."""
    program, word = f"python -m {_PACKAGE}", given[0]
    later = next((verb for verb in given if verb in _VERBS), None)
    if later is not None:
        rest = [argument for argument in given if argument != later]
        return f"The verb comes first: {program} {later} {' '.join(rest)}"
    if word.startswith("-") or word.endswith((".yaml", ".yml")):
        options = " ".join(given if word.startswith("-") else ["--config", *given])
        return f"The verb is missing; there are {', '.join(_VERBS)}: {program} fit {options}"
    close = difflib.get_close_matches(word, _VERBS, n=1) or [v for v, what in _VERBS.items() if word in what.split()]
    fix = f"Did you mean '{close[0]}'?" if close else f"See {program} --help."
    return f"'{word}' is no verb; there are {', '.join(_VERBS)}. {fix}"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{_PACKAGE} {version(_PACKAGE)}"
    except PackageNotFoundError:
        return f"{_PACKAGE} (not installed)"


if __name__ == "__main__":
    raise SystemExit(main())
