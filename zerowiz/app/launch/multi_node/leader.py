"""Lead the copies of zerowiz on several nodes: call them, say what they do, end them."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from msgspec import Struct

import zerowiz
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.launch.rendezvous import (
    OPEN_FILE,
    AttemptSpec,
    Join,
    LaunchSpec,
    OpenRendezvous,
    attempt_name,
    encode_file,
    refuse_unlike,
)
from zerowiz.core.machine.types import Machine
from zerowiz.core.values import replace
from zerowiz.emit.files import replace_file
from zerowiz.errors import ExitCode, ZerowizError
from zerowiz.probe.nodes.rendezvous import read_attempt, read_join, read_open_rendezvous

DEADLINE_S = 300.0

# Quick at first, then sparing: hundreds of nodes may look at one folder.
_FIRST_TICK_S, _SLOWER, _LAST_TICK_S = 0.02, 1.3, 1.0
# For what node 0 has written by then to be seen, also through a network file system.
_HURRIED_S = 5.0
_MOST_NAMED = 5

SHARED = "is the output folder on a file system that all nodes share? `$output_dir` names another"


class Rendezvous(Struct, frozen=True, kw_only=True):
    """The copies of one run, once they have found each other."""

    folder: Path
    own: Join
    joins: tuple[Join, ...] = ()
    """On node 0: of every node, by its rank."""


def introduce(place: NodeRank, machine: Machine) -> Join:
    """What this copy says of itself."""
    return Join(
        rank=place.node_rank,
        host=place.hosts[place.node_rank],
        word=secrets.token_hex(8),
        zerowiz_version=zerowiz.__version__,
        machine=machine,
    )


def gather(
    job: Path,
    place: NodeRank,
    own: Join,
    told: Callable[[Sequence[str]], None],
    *,
    deadline_s: float = DEADLINE_S,
) -> Rendezvous:
    """On node 0: call the others, and wait until every one has answered.

    Args:
        job: The folder of the job.
        place: Of this copy.
        own: What this copy says of itself.
        told: Called again and again with the hosts that are still missing.
        deadline_s: How long they may take.

    Raises:
        ZerowizError: Some did not answer in time, or they cannot train together; those that did
            answer are told so.
    """
    rendezvous = Rendezvous(folder=job / own.word, own=own, joins=(own,))
    replace_file(job / OPEN_FILE, encode_file(OpenRendezvous(word=own.word)))
    for late in ticks(deadline_s):
        rendezvous = _hear(rendezvous, place)
        missing = _find_missing(rendezvous, place)
        with _failing_all(rendezvous):
            _refuse_other_call(job, own)
            if not missing:
                refuse_unlike(rendezvous.joins)
                return rendezvous
            if late:
                raise _not_come(missing, job, deadline_s)
            told(missing)
    return rendezvous


def _hear(rendezvous: Rendezvous, place: NodeRank) -> Rendezvous:
    """With those who have answered since."""
    known = {join.rank: join for join in rendezvous.joins}
    heard = (known.get(r) or read_join(rendezvous.folder, r) for r in range(place.nodes))
    return replace(rendezvous, joins=tuple(join for join in heard if join is not None))


def _find_missing(rendezvous: Rendezvous, place: NodeRank) -> list[str]:
    known = {join.rank for join in rendezvous.joins}
    return [host for rank, host in enumerate(place.hosts) if rank not in known]


def _refuse_other_call(job: Path, own: Join) -> None:
    call = read_open_rendezvous(job)
    if call is None or call.word != own.word:
        raise ZerowizError(
            f"another job has taken over `{job}`",
            "give each job an output folder of its own: `$output_dir`",
        )


def publish(rendezvous: Rendezvous, number: int, spec: LaunchSpec) -> None:
    """On node 0: what every copy does in this attempt; they count from 1."""
    _write(rendezvous, number, AttemptSpec(heard=_words(rendezvous), spec=spec))


def publish_end(rendezvous: Rendezvous, status: int, why: str = "") -> None:
    """On node 0: there is no further attempt, and every copy returns this status."""
    number = next(n for n in count(1) if read_attempt(rendezvous.folder, n) is None)
    _write(rendezvous, number, AttemptSpec(heard=_words(rendezvous), end=status, why=why))


def _words(rendezvous: Rendezvous) -> tuple[str, ...]:
    return tuple(join.word for join in rendezvous.joins)


def _write(rendezvous: Rendezvous, number: int, attempt: AttemptSpec) -> None:
    replace_file(rendezvous.folder / attempt_name(number), encode_file(attempt))


def ending_all(rendezvous: Rendezvous, work: Callable[[], int]) -> int:
    """On node 0: do the work; however it ends, the other nodes end with its status.

    Args:
        rendezvous: Of all nodes.
        work: Gives a status.
    """
    with _failing_all(rendezvous):
        status = work()
    with suppress(ZerowizError):
        publish_end(rendezvous, status)
    return status


@contextmanager
def _failing_all(rendezvous: Rendezvous) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        status, why = _status_of(error)
        with suppress(ZerowizError):
            publish_end(rendezvous, status, why)
        raise


def _status_of(error: BaseException) -> tuple[int, str]:
    """The status that this copy will end with, and why."""
    match error:
        case ZerowizError():
            return error.exit_code, error.message
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "interrupted"
        case _:
            return ExitCode.FAILED, type(error).__name__


def ticks(deadline_s: float, hurry: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Look now and again; whether it is for the last time."""
    until, tick_s = time.monotonic() + deadline_s, _FIRST_TICK_S
    while time.monotonic() < until:
        yield False
        if hurry():
            until, hurry = min(until, time.monotonic() + _HURRIED_S), lambda: False
        time.sleep(max(0.0, min(tick_s, until - time.monotonic())))
        tick_s = min(tick_s * _SLOWER, _LAST_TICK_S)
    yield True


def _not_come(missing: Sequence[str], job: Path, deadline_s: float) -> ZerowizError:
    names = ", ".join(f"`{host}`" for host in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return ZerowizError(
        f"no word from {names}{more} in `{job}` within {deadline_s:g} s",
        "does the job start one `zerowiz launch` on every node, all of one version?",
        SHARED,
    )
