"""Launch with one zerowiz on each node: lead, follow, and agree on each attempt."""

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

from msgspec import Struct

import zerowiz
from zerowiz.app.launch.start import (
    NodeLaunch,
    Run,
    RunOptions,
    Start,
    deliver_plan,
    entry_point,
    make_launch_plan,
    run_attempts,
)
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.resolved_job import config_file
from zerowiz.core.launch.plan import (
    OPEN_FILE,
    AttemptSpec,
    Join,
    LaunchSpec,
    NodeRank,
    OpenRendezvous,
    attempt_name,
    encode_file,
    job_folder,
    join_name,
    launch_env,
    refuse_unlike,
    slots_of,
)
from zerowiz.core.machine.merge import NodeAnswer, merge_nodes
from zerowiz.core.machine.types import Machine
from zerowiz.core.structs import replace
from zerowiz.emit.files import replace_file
from zerowiz.emit.job import ignore_signals, noted_signals, supervise
from zerowiz.errors import ExitCode, UsageError, ZerowizError
from zerowiz.probe.nodes import (
    has_content,
    read_message,
    require_address,
)
from zerowiz.probe.preflight.read_facts import find_programs

DEADLINE_S = 300.0

# Quick at first, then seldom: hundreds of nodes may poll one folder.
_FIRST_TICK_S, _SLOWER, _LAST_TICK_S = 0.02, 1.3, 1.0
# Until a file that node 0 has written shows on every node, through a network file system too.
_HURRIED_S = 5.0
_MOST_NAMED = 5

SHARED = "put the output folder on a file system that all nodes share: `$output_dir DIR`"


class Rendezvous(Struct, frozen=True, kw_only=True):
    """On node 0: which nodes of one run have joined."""

    folder: Path
    joins: tuple[Join, ...]
    """By rank; of every node once `gather` has ended."""


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
    join: Join,
    on_missing: Callable[[Sequence[str]], None],
    *,
    deadline_s: float = DEADLINE_S,
) -> Rendezvous:
    """On node 0: open a rendezvous, and wait until every other node has joined it.

    Args:
        job: The folder of the job.
        node: This node.
        join: What this node tells of itself.
        on_missing: Called once, with the hosts that have not joined at first.
        deadline_s: How long they may take.

    Raises:
        ZerowizError: Some did not join in time, or they cannot train together; those that did
            join end too.
    """
    rendezvous = Rendezvous(folder=job / join.word, joins=(join,))
    replace_file(job / OPEN_FILE, encode_file(OpenRendezvous(word=join.word)))
    for number, late in enumerate(ticks(deadline_s)):
        known = {join.rank: join for join in rendezvous.joins}
        joins = (
            known.get(rank) or read_message(Join, rendezvous.folder / join_name(rank))
            for rank in range(node.nodes)
        )
        rendezvous = replace(rendezvous, joins=tuple(join for join in joins if join is not None))
        joined = {each.rank for each in rendezvous.joins}
        missing = [host for rank, host in enumerate(node.hosts) if rank not in joined]
        with failing_all(rendezvous):
            opened = read_message(OpenRendezvous, job / OPEN_FILE)
            if opened is None or opened.word != join.word:
                raise ZerowizError(
                    f"another job is using `{job}`",
                    "give each job its own output folder: `$output_dir DIR`",
                )
            if not missing:
                refuse_unlike(rendezvous.joins)
                return rendezvous
            if late:
                names = ", ".join(f"`{host}`" for host in missing[:_MOST_NAMED])
                more = (
                    f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
                )
                raise ZerowizError(
                    f"{names}{more} wrote nothing to `{job}` within {deadline_s:g} s",
                    "start one `zerowiz launch` on every node, all of the same version",
                    SHARED,
                )
            if number == 0:
                on_missing(missing)
    return rendezvous


def publish(
    rendezvous: Rendezvous,
    number: int,
    spec: LaunchSpec | None,
    end: int | None = None,
    why: str = "",
) -> None:
    """On node 0: what every node does in this attempt; attempts count from 1.

    Without a specification there is no further attempt, and every zerowiz returns the status `end`.
    """
    heard = tuple(join.word for join in rendezvous.joins)
    attempt = AttemptSpec(heard=heard, spec=spec, end=end, why=why)
    replace_file(rendezvous.folder / attempt_name(number), encode_file(attempt))


def publish_end(rendezvous: Rendezvous, status: int, why: str = "") -> None:
    """On node 0: no attempt follows, and every zerowiz that can be reached returns this."""
    number = 1
    with suppress(ZerowizError):
        while read_message(AttemptSpec, rendezvous.folder / attempt_name(number)) is not None:
            number += 1
        publish(rendezvous, number, None, status, why)


@contextmanager
def failing_all(rendezvous: Rendezvous) -> Iterator[None]:
    """On node 0: an error ends the other nodes too."""
    try:
        yield
    except BaseException as error:
        publish_end(rendezvous, *_status_of(error))
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


# Follow the leader as the zerowiz of another node: join its rendezvous, do its attempts.


def follow(
    job: Path,
    node: NodeRank,
    join: Join,
    number: int = 1,
    rendezvous: Path | None = None,
    *,
    deadline_s: float = DEADLINE_S,
    hurry: Callable[[], bool] = lambda: False,
) -> tuple[Path, AttemptSpec]:
    """Wait for an attempt of node 0; before the first, join the rendezvous that it opens.

    Args:
        job: The folder of the job.
        node: This node.
        join: What this node tells the leader of itself.
        number: Of the attempt.
        rendezvous: The folder of the one that this node has joined; None before the first attempt.
        deadline_s: How long node 0 may take.
        hurry: Whether little time is left, because a signal asked this process to end.

    Returns:
        The folder of the rendezvous, and the attempt.

    Raises:
        ZerowizError: There was none in time, or its config is not on this node as it was written.
    """
    joined = [] if rendezvous is None else [rendezvous]
    for _tick in ticks(deadline_s, hurry):
        opened = read_message(OpenRendezvous, job / OPEN_FILE) if rendezvous is None else None
        # A node 0 that opens another has written before how the last one ended.
        for folder in joined:
            attempt = _take(folder, join, number)
            if attempt is not None:
                return folder, attempt
        if opened is not None and job / opened.word not in joined:
            joined.append(job / opened.word)
            replace_file(joined[-1] / join_name(join.rank), encode_file(join))
    raise _no_attempt(node.hosts[0], joined, join, number, deadline_s, job)


def _take(folder: Path, join: Join, number: int) -> AttemptSpec | None:
    """The attempt, if it includes this node, and what its ranks read is here."""
    attempt = read_message(AttemptSpec, folder / attempt_name(number))
    if attempt is None or join.word not in attempt.heard:
        return None
    return None if attempt.spec is not None and _missing(attempt.spec) else attempt


def _missing(spec: LaunchSpec) -> str | None:
    """The first file that is not here as the leader wrote it; None for none."""
    files = spec.sha256_by_path.items()
    return next((path for path, sha256 in files if not has_content(Path(path), sha256)), None)


def _no_attempt(
    leader: str, folders: Sequence[Path], join: Join, number: int, deadline_s: float, job: Path
) -> ZerowizError:
    files = (folder / attempt_name(number) for folder in folders)
    for attempt in (read_message(AttemptSpec, file) for file in files):
        spec = None if attempt is None or join.word not in attempt.heard else attempt.spec
        if spec is not None:
            path = _missing(spec) or next(iter(spec.sha256_by_path))
            return ZerowizError(f"`{path}` differs here from what `{leader}` wrote", SHARED)
    what = "started, but sent no instructions" if folders else f"wrote nothing to `{job}`"
    return ZerowizError(
        f"`{leader}` {what} within {deadline_s:g} s",
        "see the output on that node" if folders else SHARED,
    )


# Run a job with one zerowiz on each node: node 0 leads, the others follow.

# On top of the grace: for node 0 to judge an attempt, to plan the next, and to publish it.
_VERDICT_S = 120.0
# A shell adds the number of the signal.
_SIGNALLED = 128


def lead(
    options: Options,
    node: NodeRank,
    machine: Machine,
    start_on: Callable[[Machine, NodeLaunch], Start],
    reporter: LaunchReporter,
) -> int:
    """On node 0: read what every node has, decide for the weakest, and start; the job's status.

    Args:
        options: What the person said.
        node: This node.
        machine: What this node has.
        start_on: Plans the job on all nodes together.
        reporter: Hears which nodes are missing, and how the attempts end.
    """
    require_address(node)
    job = Path(job_folder(str(options.output_dir or ""), node.job_key))
    joined = introduce(node, _alone(machine))
    rendezvous = gather(
        job,
        node,
        joined,
        lambda missing: reporter.note(
            f"waiting for {len(missing)} of {node.nodes} nodes ({', '.join(missing[:3])})"
        ),
    )
    machines = [join.machine for join in rendezvous.joins]
    with failing_all(rendezvous):
        answers = [NodeAnswer(host=join.host, machine=join.machine) for join in rendezvous.joins]
        fleet = merge_nodes(answers)
        noted = fleet.machine.with_notes(*(note.words for note in fleet.notes))
        weakest = replace(noted, allocation=joined.machine.allocation)
        start = start_on(weakest, _node_launch(node, machines))
        status = run_attempts(
            start, reporter, lambda number, start: publish(rendezvous, number, _launch_spec(start))
        )
        ignore_signals()
    publish_end(rendezvous, status)
    return status


def follow_leader(
    options: Options,
    node: NodeRank,
    machine: Machine,
    grace_seconds: int,
    reporter: Reporter,
) -> int:
    """On every other node: start this node's ranks in each attempt of node 0; the exit status."""
    require_address(node)
    # A missing program is an error before this node joins.
    find_programs(os.environ)
    job = Path(job_folder(str(options.output_dir or ""), node.job_key))
    own = introduce(node, _alone(machine))
    rendezvous, attempt = follow(job, node, own)
    number, status = 1, 0
    with noted_signals() as signals:
        while (spec := attempt.spec) is not None:
            status = run_here(spec, node, machine, grace_seconds, number, signals)
            number += 1
            # After a good end the ranks of node 0 may go on alone, without a limit; else node 0
            # waits this long for its own ranks to save.
            deadline_s = inf if status == 0 else 2 * grace_seconds + _VERDICT_S
            try:
                _folder, attempt = follow(
                    job,
                    node,
                    own,
                    number,
                    rendezvous,
                    deadline_s=deadline_s,
                    hurry=lambda: bool(signals),
                )
            except ZerowizError as error:
                # Node 0 is gone, and the status of this node's ranks is known.
                reporter.error(error)
                return status or _SIGNALLED + signals[0]
    ignore_signals()
    # Node 0 may have ended well before a rank of this node failed.
    if attempt.why:
        reporter.event(f"`{node.hosts[0]}` ends the job: {attempt.why}")
    return attempt.end or status


def run_here(
    spec: LaunchSpec,
    node: NodeRank,
    machine: Machine,
    grace_seconds: int,
    number: int,
    signals: Sequence[int],
) -> int:
    """Start this node's ranks of one attempt, and wait for them; their exit status."""
    node_launch = NodeLaunch(
        node=node,
        slots=spec.slots,
        master_addr=spec.master_addr,
        master_port=spec.master_port,
    )
    run = Run(
        folder=Path(spec.run_folder),
        supervised=True,
        how=RunOptions(grace_seconds=grace_seconds),
        node_launch=node_launch,
    )
    programs = find_programs(os.environ)
    command = node_launch.launcher_command(
        run.folder, launch_env(machine, programs, os.environ, spec.env)
    )
    # Node 0 has written the hostfile.
    launch_plan = make_launch_plan(
        replace(command, files=()),
        programs,
        spec.entry,
        spec.script_args,
        (),
        supervised=True,
    )
    ranks = sum(map(len, spec.slots))
    watch = run.watch(number, ranks)
    return supervise(launch_plan.argv, launch_plan.environ(os.environ), watch, signals).status


def launch_alone(node: NodeRank, machine: Machine) -> NodeLaunch:
    """This node's launch as if every node were like it: a dry run waits for no other."""
    return _node_launch(node, [machine] * node.nodes)


def _node_launch(node: NodeRank, machines: Sequence[Machine]) -> NodeLaunch:
    return NodeLaunch(
        node=node,
        slots=tuple(map(slots_of, machines)),
        master_addr=node.master_addr,
        master_port=node.master_port,
    )


def _alone(machine: Machine) -> Machine:
    """This node, without the others of its allocation."""
    return replace(machine, nodes=1)


def _launch_spec(start: Start) -> LaunchSpec:
    launch_plan, node_launch = start.launch_plan, start.run.node_launch
    if node_launch is None or launch_plan.master_port is None:
        raise UsageError("this job has one zerowiz only")
    delivery = deliver_plan(
        start.plan, start.script.with_words(start.resume.script_args), start.strategy
    )
    copy = () if delivery.copy is None else (delivery.copy.path,)
    paths = (config_file(start.plan.options, start.strategy), *copy)
    return LaunchSpec(
        entry=entry_point(start.script.facts, delivery.script_args),
        script_args=delivery.script_args,
        env=delivery.env,
        sha256_by_path={
            path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths
        },
        master_addr=node_launch.master_addr,
        master_port=launch_plan.master_port,
        slots=node_launch.slots,
        run_folder=str(start.run.folder),
    )
