"""Run a job with one zerowiz on each node: node 0 decides, the others do as it says."""

import hashlib
import os
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from zerowiz import __version__
from zerowiz.app.launch.attempts import RestartPolicy, run_attempts
from zerowiz.app.launch.launchers import NodeLaunch, Run
from zerowiz.app.launch.multi_node.follower import follow, follow_on
from zerowiz.app.launch.multi_node.leader import (
    Rendezvous,
    ending_all,
    gather,
    introduce,
    publish,
)
from zerowiz.app.launch.start import Start, make_launch_plan
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.request import config_file
from zerowiz.core.launch.node import NodeRank, slots_of
from zerowiz.core.launch.plan import launch_env
from zerowiz.core.launch.rendezvous import LaunchSpec, job_folder
from zerowiz.core.machine.merge import NodeAnswer, merge_nodes
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import deliver
from zerowiz.core.values import replace
from zerowiz.emit.late_signals import ignore_signals, noted_signals
from zerowiz.emit.supervise import supervise
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.nodes.node import require_address
from zerowiz.ui import outliers

# Beside the grace: for node 0 to judge an attempt, to plan the next, and to say so.
_VERDICT_S = 120.0
# What a shell says of a signal.
_SIGNALLED = 128


def lead(
    options: Options,
    place: NodeRank,
    machine: Machine,
    start_on: Callable[[Machine, NodeLaunch], Start],
    policy: RestartPolicy,
    reporter: LaunchReporter,
) -> int:
    """On node 0: hear what every node has, decide for the weakest, and start; the job's status.

    Args:
        options: What the person said.
        place: Of this copy.
        machine: This node.
        start_on: Plans the job on all nodes together.
        policy: How often it is started.
        reporter: Hears who is waited for, and how the attempts end.
    """
    require_address(place)
    job = Path(job_folder(str(options.output_dir or ""), place.job_key))
    own = introduce(place, _alone(machine))
    rendezvous = gather(job, place, own, _tell_missing(place, reporter))
    machines = [join.machine for join in rendezvous.joins]

    def publish_start(number: int, start: Start) -> None:
        publish(rendezvous, number, _agreement(start))

    def run_all() -> int:
        start = start_on(_merge(rendezvous), _copy(place, machines))
        status = run_attempts(start, policy, reporter, publish_start)
        ignore_signals()
        return status

    return ending_all(rendezvous, run_all)


def follow_leader(
    options: Options,
    place: NodeRank,
    machine: Machine,
    grace_seconds: int,
    reporter: Reporter,
) -> int:
    """On every other node: start this node's ranks as node 0 says; the status of node 0."""
    require_address(place)
    # What is missing here shows before node 0 counts on this node.
    find_programs(os.environ)
    job = Path(job_folder(str(options.output_dir or ""), place.job_key))
    rendezvous, attempt = follow(job, place, introduce(place, _alone(machine)))
    number, status = 1, 0
    with noted_signals() as told:
        while (agreed := attempt.spec) is not None:
            status = _run_here(agreed, place, machine, grace_seconds, number, told)
            number += 1
            # Ranks of node 0 may go on alone after a good end, for as long as they like; else node
            # 0 waits as long for what its own ranks still have to save.
            deadline_s = inf if status == 0 else 2 * grace_seconds + _VERDICT_S
            try:
                attempt = follow_on(
                    rendezvous, place, number, deadline_s=deadline_s, hurry=lambda: bool(told)
                )
            except ZerowizError as error:
                # Node 0 is gone; how this node's ranks ended is known.
                reporter.error(error)
                return status or _SIGNALLED + told[0]
    ignore_signals()
    # Node 0 may have ended well before a rank of this node failed.
    if attempt.why:
        reporter.event(f"`{place.hosts[0]}` ends the job: {attempt.why}")
    return attempt.end or status


def _run_here(
    agreed: LaunchSpec,
    place: NodeRank,
    machine: Machine,
    grace_seconds: int,
    number: int,
    told: Sequence[int],
) -> int:
    copy = NodeLaunch(
        place=place,
        slots=agreed.slots,
        master_addr=agreed.master_addr,
        master_port=agreed.master_port,
    )
    run = Run(
        folder=Path(agreed.run_folder), supervised=True, grace_seconds=grace_seconds, copy=copy
    )
    programs = find_programs(os.environ)
    reach = copy.reach(run.folder, launch_env(machine, programs, os.environ, agreed.env))
    # Node 0 has written the hostfile.
    launch_plan = make_launch_plan(
        replace(reach, files=()),
        programs,
        (agreed.script, *agreed.script_args),
        (),
        supervised=True,
    )
    ranks = sum(map(len, agreed.slots))
    watch = run.watch(number, ranks)
    return supervise(launch_plan.argv, launch_plan.environ(os.environ), watch, told).status


def copy_alone(place: NodeRank, machine: Machine) -> NodeLaunch:
    """This copy as if every node were like its own: for a dry run, which waits for nobody."""
    return _copy(place, [machine] * place.nodes)


def _copy(place: NodeRank, machines: Sequence[Machine]) -> NodeLaunch:
    return NodeLaunch(
        place=place,
        slots=tuple(map(slots_of, machines)),
        master_addr=place.master_addr,
        master_port=place.master_port,
    )


def _alone(machine: Machine) -> Machine:
    """What this node has, whatever a scheduler says of others."""
    return replace(machine, nodes=1)


def _merge(rendezvous: Rendezvous) -> Machine:
    """The weakest of all nodes, as often as there are nodes."""
    answers = [NodeAnswer(host=join.host, machine=join.machine) for join in rendezvous.joins]
    fleet = merge_nodes(answers)
    noted = fleet.machine.with_notes(*outliers.notes(fleet))
    return replace(noted, allocation=rendezvous.own.machine.allocation)


def _agreement(start: Start) -> LaunchSpec:
    launch_plan, copy = start.launch_plan, start.run.copy
    if copy is None or launch_plan.master_port is None:
        raise UsageError("this is no job of several copies")
    path = config_file(start.plan.options, start.strategy)
    delivery = deliver(start.facts, start.resume.script_args, path)
    return LaunchSpec(
        zerowiz_version=__version__,
        script=start.facts.path,
        script_args=delivery.script_args,
        env=delivery.env,
        config_path=path,
        config_sha256=hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        strategy=start.strategy.name,
        master_addr=copy.master_addr,
        master_port=launch_plan.master_port,
        slots=copy.slots,
        hostfile=str(start.run.folder / "hostfile"),
        run_folder=str(start.run.folder),
    )


def _tell_missing(place: NodeRank, reporter: Reporter) -> Callable[[Sequence[str]], None]:
    """Say once who is waited for."""
    has_told = False

    def tell(missing: Sequence[str]) -> None:
        nonlocal has_told
        if not has_told:
            has_told = True
            names = ", ".join(missing[:3])
            reporter.note(f"waiting for {len(missing)} of {place.nodes} nodes ({names})")

    return tell
