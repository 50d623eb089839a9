"""Run a job with one zerowiz on each node: node 0 leads, the others follow."""

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
from zerowiz.app.launch.start import Start, deliver_plan, entry_point, make_launch_plan
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.request import config_file
from zerowiz.core.launch.node import NodeRank, slots_of
from zerowiz.core.launch.plan import launch_env
from zerowiz.core.launch.rendezvous import LaunchSpec, job_folder
from zerowiz.core.machine.merge import NodeAnswer, merge_nodes
from zerowiz.core.machine.types import Machine
from zerowiz.core.values import replace
from zerowiz.emit.late_signals import ignore_signals, noted_signals
from zerowiz.emit.supervise import supervise
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.nodes.node import require_address
from zerowiz.ui import outliers
from zerowiz.words import _, listing

# On top of the grace: for node 0 to judge an attempt, to plan the next, and to publish it.
_VERDICT_S = 120.0
# A shell adds the number of the signal.
_SIGNALLED = 128


def lead(
    options: Options,
    node: NodeRank,
    machine: Machine,
    start_on: Callable[[Machine, NodeLaunch], Start],
    policy: RestartPolicy,
    reporter: LaunchReporter,
) -> int:
    """On node 0: read what every node has, decide for the weakest, and start; the job's status.

    Args:
        options: What the person said.
        node: This node.
        machine: What this node has.
        start_on: Plans the job on all nodes together.
        policy: Whether the job is started again, and how often.
        reporter: Hears which nodes are missing, and how the attempts end.
    """
    require_address(node)
    job = Path(job_folder(str(options.output_dir or ""), node.job_key))
    own = introduce(node, _alone(machine))
    rendezvous = gather(job, node, own, _noting_missing(node, reporter))
    machines = [join.machine for join in rendezvous.joins]

    def publish_start(number: int, start: Start) -> None:
        publish(rendezvous, number, _launch_spec(start))

    def run_all() -> int:
        start = start_on(_merge(rendezvous), _node_launch(node, machines))
        status = run_attempts(start, policy, reporter, publish_start)
        ignore_signals()
        return status

    return ending_all(rendezvous, run_all)


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
    rendezvous, attempt = follow(job, node, introduce(node, _alone(machine)))
    number, status = 1, 0
    with noted_signals() as signals:
        while (spec := attempt.spec) is not None:
            status = run_here(spec, node, machine, grace_seconds, number, signals)
            number += 1
            # After a good end the ranks of node 0 may go on alone, without a limit; else node 0
            # waits this long for its own ranks to save.
            deadline_s = inf if status == 0 else 2 * grace_seconds + _VERDICT_S
            try:
                attempt = follow_on(
                    rendezvous, node, number, deadline_s=deadline_s, hurry=lambda: bool(signals)
                )
            except ZerowizError as error:
                # Node 0 is gone, and the status of this node's ranks is known.
                reporter.error(error)
                return status or _SIGNALLED + signals[0]
    ignore_signals()
    # Node 0 may have ended well before a rank of this node failed.
    if attempt.why:
        reporter.event(_("`{hosts}` ends the job: {why}", hosts=node.hosts[0], why=attempt.why))
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
        grace_seconds=grace_seconds,
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


def _merge(rendezvous: Rendezvous) -> Machine:
    """The weakest of all nodes, as often as there are nodes."""
    answers = [NodeAnswer(host=join.host, machine=join.machine) for join in rendezvous.joins]
    fleet = merge_nodes(answers)
    noted = fleet.machine.with_notes(*outliers.notes(fleet))
    return replace(noted, allocation=rendezvous.own.machine.allocation)


def _launch_spec(start: Start) -> LaunchSpec:
    launch_plan, node_launch = start.launch_plan, start.run.node_launch
    if node_launch is None or launch_plan.master_port is None:
        raise UsageError(_("this job has one zerowiz only"))
    delivery = deliver_plan(start.plan, start.facts, start.resume.script_args, start.strategy)
    copy = () if delivery.copy is None else (delivery.copy.path,)
    paths = (config_file(start.plan.options, start.strategy), *copy)
    return LaunchSpec(
        zerowiz_version=__version__,
        entry=entry_point(start.facts, delivery.script_args, start.run),
        script_args=delivery.script_args,
        env=delivery.env,
        sha256_by_path={
            path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths
        },
        strategy=start.strategy.name,
        master_addr=node_launch.master_addr,
        master_port=launch_plan.master_port,
        slots=node_launch.slots,
        hostfile=str(start.run.folder / "hostfile"),
        run_folder=str(start.run.folder),
    )


def _noting_missing(node: NodeRank, reporter: Reporter) -> Callable[[Sequence[str]], None]:
    """Note once which nodes are missing."""
    is_noted = False

    def note_missing(missing: Sequence[str]) -> None:
        nonlocal is_noted
        if not is_noted:
            is_noted = True
            names = listing(missing[:3])
            reporter.note(
                _(
                    "waiting for {missing} of {nodes} nodes ({names})",
                    missing=len(missing),
                    nodes=node.nodes,
                    names=names,
                )
            )

    return note_missing
