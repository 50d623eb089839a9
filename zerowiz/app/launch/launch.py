"""Launch a job: decide, run the preflight checks, start it, and supervise it or become it."""

import os
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from zerowiz.app.choose_remedy import decide_with
from zerowiz.app.command import (
    DEFAULT_SCRIPT,
    Person,
    answer_for,
    asker,
    find_script,
    read_to_launch,
    understand_command,
)
from zerowiz.app.decide import Plan, note_change, require_strategy
from zerowiz.app.launch.start import (
    NodeLaunch,
    Run,
    RunOptions,
    Start,
    check_start,
    plan_launch,
    run_attempts,
)
from zerowiz.app.machines.machine import find_machine, find_node, is_here, with_node
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.workload import (
    check_accounting,
    check_own_config,
)
from zerowiz.core.decision.questions import AnswerKind, Question
from zerowiz.core.launch.plan import NodeRank, Resume, ResumeFrom
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.structs import replace
from zerowiz.emit.files import RECORDS, refuse_loss
from zerowiz.emit.job import execute
from zerowiz.errors import ExitCode, PreflightError, UsageError
from zerowiz.probe.files import Files
from zerowiz.probe.machine.scheduler import has_person
from zerowiz.translation import _
from zerowiz.ui import sentences
from zerowiz.ui.text import can_redraw

_LAUNCH = Question(
    key="launch", flag="$yes", text=_("Launch?"), kind=AnswerKind.CONFIRM, default="yes"
)


class Launch(Struct, frozen=True, kw_only=True):
    """A job, before anything is decided: its script, its machine and how it will be run."""

    options: Options
    script: ScriptRun
    machine: Machine
    """Of this node alone where each node has a zerowiz of its own."""
    node: NodeRank | None
    """This node where each node has a zerowiz of its own; else None."""
    run: Run


def prepare_launch(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    how: RunOptions,
    reporter: Reporter,
) -> Launch:
    """Read the script and find the machine.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What the person said.
        how: The job is run.
        reporter: Hears how many nodes of a hostfile have answered.

    Raises:
        ZerowizError: There is no such script or machine, or the options contradict them.
    """
    check_accounting(options)
    command = understand_command(script, script_args, options)
    script, options = find_script(command), command.options
    if script is None:
        raise PreflightError(
            (
                "no script to launch: you passed none, `zerowiz.toml` names none, and there "
                f"is no `./{DEFAULT_SCRIPT}`"
            ),
            "pass one: `zerowiz launch train.py`",
            "to start from one: `zerowiz template`",
        )
    run_script = read_to_launch(script, command)
    node = find_node(options)
    if node is not None and how.supervise is False:
        raise UsageError(
            (
                "`--no-supervise` works on one node only: on several, zerowiz supervises the "
                "ranks of each"
            ),
            "remove `--no-supervise`, or launch on this node only with `$nodes 1`",
        )
    options = with_node(options, node)
    machine = find_machine(options, os.environ, reporter=reporter)
    check_node(options, machine, node)
    run = make_run(options, machine, how, has_node=node is not None)
    return Launch(
        options=options,
        script=run_script,
        machine=machine,
        node=node,
        run=run,
    )


def make_run(options: Options, machine: Machine, how: RunOptions, *, has_node: bool = False) -> Run:
    """What all attempts of a launch share.

    Args:
        options: What was said, answers included.
        machine: What the job runs on.
        how: It is run.
        has_node: Whether each node has a zerowiz of its own.
    """
    # A folder of its own for every run: its ranks' logs stay.
    stamp = datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = options.output_dir or Path()
    # Containers that start at once may have one pid.
    name = f"{stamp}-{os.getpid()}-{os.urandom(2).hex()}"
    return Run(
        folder=(folder / RECORDS / "runs" / name).absolute(),
        supervised=has_node or _is_supervised(how, machine),
        how=how,
        # A person looks on at a job of this host; what is only printed is plain.
        is_seen=not (options.quiet or options.dry_run or has_node or options.hostfile)
        and can_redraw(),
        hostfile=options.hostfile,
    )


def plan_dry_run(launch: Launch, reporter: Reporter, person: Person | None) -> Start:
    """The first start, as it would be; with a zerowiz on each node, as if all were like this one.

    Raises:
        ZerowizError: It would not start.
    """
    if launch.node is None:
        return _plan_start(launch, launch.run, reporter, person)
    from zerowiz.app.launch.multi_node import launch_alone  # noqa: PLC0415 - takes long to load

    run = replace(launch.run, node_launch=launch_alone(launch.node, launch.machine))
    return _plan_start(launch, run, reporter, None)


def run_launch(launch: Launch, reporter: LaunchReporter, person: Person | None) -> int:
    """Start the job; the status of its last attempt. Without supervision this process becomes it.

    Raises:
        ZerowizError: It did not start.
    """
    if launch.node is not None:
        return _run_on_nodes(launch, launch.node, reporter)
    start = _plan_start(launch, launch.run, reporter, person)
    reporter.start(start.launch_plan)
    if person is not None and person.ask(_LAUNCH, can_go_back=False) != "yes":
        reporter.event(_("not launched; nothing was written"))
        return ExitCode.OK
    return run_start(start, reporter)


def run_start(start: Start, reporter: LaunchReporter) -> int:
    """Start a job that is planned and checked; the status of its last attempt.

    Args:
        start: The first attempt.
        reporter: Hears what becomes of it.

    Raises:
        ZerowizError: It did not start.
    """
    if not start.launch_plan.supervised:
        execute(start.launch_plan, os.environ, force=start.plan.options.force)
    return run_attempts(start, reporter)


def _run_on_nodes(launch: Launch, node: NodeRank, reporter: LaunchReporter) -> int:
    """Start the job with one zerowiz on each node, without questions."""
    from zerowiz.app.launch.multi_node import (  # noqa: PLC0415 - takes long to load
        follow_leader,
        lead,
    )

    def start_on(machine: Machine, node_launch: NodeLaunch) -> Start:
        on_all = replace(launch, machine=machine)
        start = _plan_start(on_all, replace(launch.run, node_launch=node_launch), reporter, None)
        reporter.start(start.launch_plan)
        return start

    if node.node_rank == 0:
        return lead(launch.options, node, launch.machine, start_on, reporter)
    grace_seconds = launch.run.how.grace_seconds
    return follow_leader(launch.options, node, launch.machine, grace_seconds, reporter)


def _plan_start(launch: Launch, run: Run, reporter: Reporter, person: Person | None) -> Start:
    """Decide, run the preflight checks, and plan the first start."""
    options, machine, script = launch.options, launch.machine, launch.script
    check_own_config(options, machine, script, reporter)
    ask_person = None if person is None else asker(person, options)
    options = answer_for(options, script, ask_person)
    plan = decide_with(person, options, machine, script, reporter)
    note_change(plan, reporter)
    start = start_planned(plan, script, run, reporter)
    # A dry run says now what the launch would say.
    refuse_loss(*start.launch_plan.files, force=options.force)
    return start


def start_planned(
    plan: Plan,
    script: ScriptRun,
    run: Run,
    reporter: Reporter,
) -> Start:
    """Run the preflight checks of a plan, and plan its first start.

    Args:
        plan: What was decided.
        script: The script as it is run.
        run: What all attempts share.
        reporter: Hears what may go wrong.

    Raises:
        ZerowizError: Nothing fits, it would not start, or a file of the person's is in the way.
    """
    strategy = require_strategy(plan)
    with reporter.wait(_("preparing the launch")):
        launch_plan = plan_launch(plan, script, strategy, run)
    escalates = run.how.max_attempts > 1
    check_start(plan, script, strategy, launch_plan, reporter, escalates=escalates)
    return Start(
        plan=plan,
        script=script,
        strategy=strategy,
        run=run,
        launch_plan=launch_plan,
        resume=Resume(resume_from=ResumeFrom.START, script_args=script.words),
        why="; ".join(sentences.reasons(plan.decision)),
    )


def check_node(options: Options, machine: Machine, node: NodeRank | None) -> None:
    """See that a job can be launched from here.

    Raises:
        UsageError: It was planned for another machine, or nobody says which hosts it runs on.
    """
    if not is_here(machine) and not options.dry_run:
        raise UsageError(
            (
                f"`$machine {options.machine}` plans for another machine; `launch` starts on "
                "this one"
            ),
            "add `$dry_run` to see the launch, or run `zerowiz plan` to see the decision",
        )
    if machine.nodes > 1 and options.hostfile is None and node is None:
        names = (name for name in ("nodes", "machine", "config") if getattr(options, name))
        said_by = next((f"`${name} {getattr(options, name)}`" for name in names), "")
        if not said_by and machine.allocation is not None:
            said_by = f"{machine.allocation.scheduler} gave the job {machine.nodes} nodes"
        raise UsageError(
            f"{said_by}: zerowiz does not know the hosts of these {machine.nodes} nodes",
            "list them in a file, one `host slots=N` per line, and pass `$hostfile FILE`",
            "launch on this node only: `$nodes 1`",
            "under SLURM, `srun` starts zerowiz on each node: `zerowiz init --slurm`",
        )


def _is_supervised(how: RunOptions, machine: Machine) -> bool:
    """Whether zerowiz stays with its job: at a terminal a person does."""
    if how.supervise is not None or how.max_attempts > 1:
        return how.supervise is not False
    return machine.allocation is not None or not has_person(os.environ, Files())
