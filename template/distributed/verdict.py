"""Who of all ranks is to blame when a run stands still. Pure rules over heartbeats; imports no torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from .alarm import Alarm
from .faults import FAULTS
from .heartbeat import SETTLED, Beat, short

#: Seconds that a beat may be late before the rank no longer counts among the living.
SILENT = 4.0
#: Seconds that a rank waits for one that has ended or failed until the run counts as stopped.
LEFT = 8.0
#: Seconds after a broken connection in which the guilty rank may still be heard of.
HEARING = 6.0


@dataclass(frozen=True)
class Seen:
    """A rank as another one sees it.

    Attributes:
        beat: Its last beat.
        age: Seconds since it came.
        overdue: Seconds since the next one should have come.
        gone: Its process was seen to be no more.
    """

    beat: Beat
    age: float = 0.0
    overdue: float = 0.0
    gone: bool = False

    @property
    def still(self) -> float:
        """Seconds since the main thread was last known to move."""
        return self.beat.still + self.age

    @property
    def living(self) -> bool:
        """It can still do something about the run."""
        return not self.gone and self.overdue < SILENT and self.beat.state in ("running", "victim")


@dataclass(frozen=True)
class Verdict:
    """What stopped the run.

    Attributes:
        identifier: Key of the catalogue of faults.
        guilty: Ranks that the others waited for.
        what: One sentence.
        cause: Why.
        fix: What to do.
    """

    identifier: str
    guilty: list[int]
    what: str
    cause: str
    fix: str

    def dump(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def load(data: bytes) -> Verdict:
        """Read what :meth:`dump` wrote."""
        return Verdict(**json.loads(data))


def waiting(ranks: Mapping[int, Seen]) -> set[int]:
    """Ranks that stand because they wait for another one.

    They are in a collective, or have entered more of them than another rank: on a GPU, where collectives are only
    queued, the main thread waits in whatever asks for a result.
    """
    return {
        rank
        for rank, seen in ranks.items()
        if seen.living
        and (seen.still >= SETTLED or seen.beat.state == "victim")
        and (seen.beat.call or any(_ahead(seen.beat, other.beat) for other in ranks.values()))
    }


def _ahead(one: Beat, other: Beat) -> bool:
    return any(count > other.counts.get(group, count) for group, count in one.counts.items())


def judge(
    ranks: Mapping[int, Seen],
    timeout: timedelta,
    startup_timeout: timedelta,
    alarm: Alarm | None = None,
) -> Verdict | None:
    """Decide whether the run has stopped, and who stopped it.

    In this order:

    1. A rank *failed* by itself, and others wait for it (``LEFT`` seconds, or an alarm).
    2. The *process* of a rank is gone without a word.
    3. No *beat* has come from a rank for its timeout: its interpreter is stopped, or the machine is gone.
    4. A rank *ended* normally, and others wait for it (as 1).
    5. A rank has been in one place *outside* of any collective for its timeout, while another one waits in a
       collective or nobody moves at all. A rank that moves is never blamed here, however long the others wait for it:
       writing a checkpoint, a longer share of the validation. Their collective's own timeout ends that wait.
    6. *All* ranks have stood in collectives for their timeout: they wait for each other.

    The timeout of a rank is ``startup_timeout`` until its first batch is done. After an alarm (a collective of some
    rank has failed) nobody will go on, so that 5 applies to whoever stands or is busy elsewhere, 6 at once, and 2 to
    ranks that are silent; when the connection broke, only after ``HEARING`` seconds, in which the first four causes
    may still become known.

    Args:
        ranks: All ranks that have been seen.
        timeout: Of training and evaluation.
        startup_timeout: Until the first batch is done.
        alarm: If a rank has reported one.
    """

    def limit(rank: int) -> float:
        return (startup_timeout if ranks[rank].beat.startup else timeout).total_seconds()

    def having(test: Callable[[Seen], bool]) -> list[int]:
        return [rank for rank in sorted(ranks) if test(ranks[rank])]

    waits = waiting(ranks)
    wait_long = alarm is not None or any(ranks[rank].still >= LEFT for rank in waits)
    living = having(lambda seen: seen.living)
    if (failed := having(lambda seen: seen.beat.state == "failed")) and wait_long:
        return _failed(ranks, failed)
    if gone := having(lambda seen: seen.gone and seen.beat.state == "running"):
        return _gone(ranks, gone)
    silent = having(lambda seen: seen.beat.state == "running" and not seen.living and not seen.gone)
    if frozen := [rank for rank in silent if ranks[rank].age >= limit(rank)]:
        return _gone(ranks, frozen)
    if (ended := having(lambda seen: seen.beat.state == "ended")) and wait_long and living:
        return _ended(ranks, ended, waits)
    # After an alarm that others may still explain, only the rules above.
    late = alarm is not None and (alarm.timed_out or alarm.age >= HEARING)
    broken = late and alarm is not None and not alarm.timed_out
    if silent and broken:
        return _gone(ranks, silent)
    idle = [rank for rank in living if ranks[rank].beat.state == "running" and rank not in waits]
    stuck = [rank for rank in idle if ranks[rank].still >= (SETTLED if late else limit(rank))]
    nobody = all(ranks[rank].still >= limit(rank) for rank in living) and not silent
    if stuck and (waits or nobody):
        return _stuck(ranks, stuck, waits)
    if idle and late and not broken:
        return _stuck(ranks, idle, waits)
    if broken and alarm is not None:
        return _verdict("connection-lost", living, f"All ranks are alive, but a collective failed: {alarm.text}")
    return _mismatch(ranks, living) if living and (late or nobody) else None


def _failed(ranks: Mapping[int, Seen], guilty: list[int]) -> Verdict:
    beat = ranks[guilty[0]].beat
    end = "" if beat.reason.endswith((".", "!", "?", "]")) else "."
    file = _beside_stack(beat, "error.txt")
    fix = f"Mend that failure; the whole traceback is in {file}." if file else ""
    return _verdict("rank-failed", guilty, f"Rank {guilty[0]} failed{_during(beat)}: {beat.reason}{end}", fix=fix)


def _gone(ranks: Mapping[int, Seen], guilty: list[int]) -> Verdict:
    one, beat = guilty[0], ranks[guilty[0]].beat
    if ranks[one].gone:
        # Its last beat is up to a second old.
        what = f"{_names(guilty)} on {beat.host} ended without a word, last seen{_during(beat)}."
        file = _beside_stack(beat, "output.log") or "its log"
        fix = (
            f"Look at the end of {file} and at dmesg; if memory ran out, lower data.num_workers or data.batch_size. "
            "A fit goes on from its last checkpoint with --ckpt_path last."
        )
        return _verdict("rank-gone", guilty, what, fix=fix)
    what = f"{_names(guilty)} on {beat.host} gave no sign of life for {ranks[one].age:.0f} s{_during(beat)}."
    cause = "The machine or its network is gone, or code in C holds Python's lock, so that nothing else can run there."
    return _verdict("rank-gone", guilty, what, cause)


def _ended(ranks: Mapping[int, Seen], guilty: list[int], waits: set[int]) -> Verdict:
    others = _waits_text(ranks, waits)
    what = (
        f"{_names(guilty)} left the loop{_during(ranks[guilty[0]].beat)} and ended normally{', while ' * bool(others)}"
    )
    return _verdict("rank-stopped-early", guilty, f"{what}{others}.")


def _stuck(ranks: Mapping[int, Seen], guilty: list[int], waits: set[int]) -> Verdict:
    seen = ranks[guilty[0]]
    beat, others = seen.beat, _waits_text(ranks, waits)
    stays = f"has not moved for {seen.still:.0f} s" if seen.still >= SETTLED else "is busy elsewhere"
    doing = "waits for its data loader" if beat.loader else f"is at {beat.place}"
    code = f" ({beat.code})" if beat.code and not beat.loader else ""
    what = f"{_names(guilty)} {stays}{_during(beat)}: it {doing}{code}{', while ' * bool(others)}{others}."
    if beat.loader:
        return _verdict(
            "hang",
            guilty,
            what,
            "The dataset does not return the next sample: a slow or lost file system, a lock, or code that never ends.",
            "Look at the worker's stack; data.num_workers: 0 runs the same code in the main process; raise "
            "strategy.timeout if it is only slow.",
        )
    return _verdict("hang", guilty, what)


def _mismatch(ranks: Mapping[int, Seen], living: list[int]) -> Verdict:
    def at(rank: int) -> tuple[str, str, tuple[tuple[str, int], ...]]:
        beat = ranks[rank].beat
        return beat.call, beat.place, tuple(sorted(beat.counts.items()))

    places = Counter(at(rank) for rank in living)
    if len(places) == 1:
        what = f"All ranks wait in {_call(ranks[living[0]].beat)}, but what they send does not arrive."
        return _verdict("connection-lost", living, what)
    # The fewest are the odd ones out; where that is a draw, those that have entered fewer collectives.
    odd = min(places, key=lambda place: (places[place], sum(count for _, count in place[2])))
    guilty = [rank for rank in living if at(rank) == odd]
    beat = ranks[guilty[0]].beat
    what = (
        f"The ranks wait for each other: {_names(guilty)} in {_call(beat)}{_during(beat)}, while "
        f"{_waits_text(ranks, set(living) - set(guilty))}."
    )
    return _verdict(
        "hang",
        guilty,
        what,
        f"Collectives are matched by order, and {_names(guilty)} skipped one or called one that the others did not.",
        "Call each collective on all ranks: no `if rank == 0`, and no branch on a rank's own data, around it or around "
        "the part of the network whose gradients it sums.",
    )


def _verdict(identifier: str, guilty: list[int], what: str, cause: str = "", fix: str = "") -> Verdict:
    fault = FAULTS[identifier]
    return Verdict(identifier, guilty, what, cause or fault.cause, fix or fault.fix)


def _names(ranks: Sequence[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    return f"Rank {numbers[0]}" if len(ranks) == 1 else f"Ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _beside_stack(beat: Beat, name: str) -> str:
    """Path of a file in a rank's folder, as far as the folder is known."""
    return short(str(Path(beat.stack_file).with_name(name))) if beat.stack_file else ""


def _during(beat: Beat) -> str:
    return f" in step {beat.step} ({beat.phase})" if beat.step is not None else f" during {beat.phase}"


def _call(beat: Beat) -> str:
    return f"{beat.call or 'a result of the GPU'}, called at {beat.place}"


def _waits_text(ranks: Mapping[int, Seen], waits: set[int]) -> str:
    """``rank 0 waits in all_reduce, called at train.py:12 step``."""
    if not waits:
        return ""
    names, beat = _names(sorted(waits)), ranks[min(waits)].beat
    return f"{names[0].lower()}{names[1:]} {'waits' if len(waits) == 1 else 'wait'} in {_call(beat)}"
