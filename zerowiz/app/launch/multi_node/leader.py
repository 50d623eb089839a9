"""Lead a job with one zerowiz on each node: gather them, publish each attempt, and the end."""

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
from zerowiz.words import _, listing

DEADLINE_S = 300.0

# Quick at first, then seldom: hundreds of nodes may poll one folder.
_FIRST_TICK_S, _SLOWER, _LAST_TICK_S = 0.02, 1.3, 1.0
# Until a file that node 0 has written shows on every node, through a network file system too.
_HURRIED_S = 5.0
_MOST_NAMED = 5

SHARED = _("put the output folder on a file system that all nodes share: `$output_dir DIR`")


class Rendezvous(Struct, frozen=True, kw_only=True):
    """What the nodes of one run know of each other, once they have joined."""

    folder: Path
    own: Join
    joins: tuple[Join, ...] = ()
    """On node 0: of every node, by its rank."""


def introduce(node: NodeRank, machine: Machine) -> Join:
    """What this node tells the leader of itself."""
    return Join(
        rank=node.node_rank,
        host=node.hosts[node.node_rank],
        word=secrets.token_hex(8),
        zerowiz_version=zerowiz.__version__,
        machine=machine,
    )


def gather(
    job: Path,
    node: NodeRank,
    own: Join,
    on_missing: Callable[[Sequence[str]], None],
    *,
    deadline_s: float = DEADLINE_S,
) -> Rendezvous:
    """On node 0: open a rendezvous, and wait until every other node has joined it.

    Args:
        job: The folder of the job.
        node: This node.
        own: What this node tells of itself.
        on_missing: Called again and again with the hosts that have not joined yet.
        deadline_s: How long they may take.

    Raises:
        ZerowizError: Some did not join in time, or they cannot train together; those that did
            join end too.
    """
    rendezvous = Rendezvous(folder=job / own.word, own=own, joins=(own,))
    replace_file(job / OPEN_FILE, encode_file(OpenRendezvous(word=own.word)))
    for late in ticks(deadline_s):
        rendezvous = _read_joins(rendezvous, node)
        missing = _find_missing(rendezvous, node)
        with _failing_all(rendezvous):
            _refuse_other_rendezvous(job, own)
            if not missing:
                refuse_unlike(rendezvous.joins)
                return rendezvous
            if late:
                raise _not_joined(missing, job, deadline_s)
            on_missing(missing)
    return rendezvous


def _read_joins(rendezvous: Rendezvous, node: NodeRank) -> Rendezvous:
    """With the nodes that have joined since."""
    known = {join.rank: join for join in rendezvous.joins}
    joins = (known.get(r) or read_join(rendezvous.folder, r) for r in range(node.nodes))
    return replace(rendezvous, joins=tuple(join for join in joins if join is not None))


def _find_missing(rendezvous: Rendezvous, node: NodeRank) -> list[str]:
    known = {join.rank for join in rendezvous.joins}
    return [host for rank, host in enumerate(node.hosts) if rank not in known]


def _refuse_other_rendezvous(job: Path, own: Join) -> None:
    opened = read_open_rendezvous(job)
    if opened is None or opened.word != own.word:
        raise ZerowizError(
            _("another job is using `{job}`", job=job),
            _("give each job its own output folder: `$output_dir DIR`"),
        )


def publish(rendezvous: Rendezvous, number: int, spec: LaunchSpec) -> None:
    """On node 0: what every node does in this attempt; attempts count from 1."""
    _write(rendezvous, number, AttemptSpec(heard=_words(rendezvous), spec=spec))


def publish_end(rendezvous: Rendezvous, status: int, why: str = "") -> None:
    """On node 0: there is no further attempt, and every zerowiz returns this status."""
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
    """The exit status of this process, and why."""
    match error:
        case ZerowizError():
            return error.exit_code, error.message
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "interrupted"
        case _:
            return ExitCode.FAILED, type(error).__name__


def ticks(deadline_s: float, hurry: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Poll, ever more slowly; True at the last time."""
    until, tick_s = time.monotonic() + deadline_s, _FIRST_TICK_S
    while time.monotonic() < until:
        yield False
        if hurry():
            until, hurry = min(until, time.monotonic() + _HURRIED_S), lambda: False
        time.sleep(max(0.0, min(tick_s, until - time.monotonic())))
        tick_s = min(tick_s * _SLOWER, _LAST_TICK_S)
    yield True


def _not_joined(missing: Sequence[str], job: Path, deadline_s: float) -> ZerowizError:
    names = listing(f"`{host}`" for host in missing[:_MOST_NAMED])
    more = (
        _(" and {missing} more", missing=len(missing) - _MOST_NAMED)
        if len(missing) > _MOST_NAMED
        else ""
    )
    return ZerowizError(
        _(
            "{names}{more} wrote nothing to `{job}` within {deadline_s:g} s",
            names=names,
            more=more,
            job=job,
            deadline_s=deadline_s,
        ),
        _("start one `zerowiz launch` on every node, all of the same version"),
        SHARED,
    )
