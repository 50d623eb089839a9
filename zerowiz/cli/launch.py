"""`zerowiz launch`: plan, write the config, become the DeepSpeed job."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import typer

from zerowiz.app.ask.prompts import asker
from zerowiz.app.decide.decision import decide_with, require_strategy
from zerowiz.app.decide.plan_files import losses_shown
from zerowiz.app.launch.attempts import RestartPolicy, run_attempts
from zerowiz.app.launch.doctor import check_start
from zerowiz.app.launch.launchers import NodeLaunch, Run
from zerowiz.app.launch.start import Start, plan_launch
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.machines.node import find_place, with_place
from zerowiz.app.options import Options
from zerowiz.app.resolve.guards import check_accounting, check_own_config, check_words
from zerowiz.app.resolve.script import DEFAULT_SCRIPT, answer_for, find_script, read_reachable
from zerowiz.cli.options import takes_options
from zerowiz.cli.plan import write_json
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.remedies import Remedy
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.launch.plan import Launcher, LaunchPlan
from zerowiz.core.launch.supervision import why_supervised
from zerowiz.core.machine.types import Machine
from zerowiz.core.outcome.resume import Resume, ResumeFrom
from zerowiz.core.script import ScriptFacts
from zerowiz.core.strategies import FLOWCHART_STRATEGIES
from zerowiz.core.values import replace
from zerowiz.emit.files import RECORDS, refuse_loss
from zerowiz.emit.run import execute
from zerowiz.errors import InterruptedByUserError, PreflightError, UsageError
from zerowiz.probe.machine.environment_kind import read_launch_environment
from zerowiz.probe.recording.files import HostFiles
from zerowiz.ui import sentences, show
from zerowiz.ui.ask import can_ask, confirm
from zerowiz.ui.planned import files as show_files


def _run_option(*names: str, text: str, least: int | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names, help=text, rich_help_panel="Run", min=least)  # type: ignore[no-any-return]


def _require_script(script: str | None, options: Options) -> tuple[str, Options]:
    found = find_script(script, options)
    if found is None:
        raise PreflightError(
            f"no script to launch: none was named, `init` recorded none, no `./{DEFAULT_SCRIPT}`",
            "name it: `zerowiz launch train.py`",
        )
    return found


def _check_options(options: Options, *, supervise: bool | None, escalate: bool) -> None:
    if escalate and supervise is False:
        raise UsageError(
            "`--escalate` and `--no-supervise`: who becomes the job cannot restart it",
            "drop one of them",
        )
    if escalate and options.config is not None:
        raise UsageError(
            f"`--escalate` writes the next config itself, and `--config {options.config}` is yours",
            "drop one of them",
        )
    if options.as_json and not options.dry_run:
        raise UsageError(
            "`launch --json` needs `--dry-run`: stdout belongs to the training",
            "`zerowiz plan --json` prints the plan alone",
        )


def _check_place(options: Options, machine: Machine, place: NodeRank | None) -> None:
    if not is_here(machine) and not options.dry_run:
        raise UsageError(
            f"`--machine {options.machine}` plans for another machine; `launch` starts on this one",
            "`--dry-run` shows the plan, and `zerowiz plan` the decision",
        )
    if machine.nodes > 1 and options.hostfile is None and place is None:
        told = f"`--nodes {machine.nodes}`"
        if options.nodes is None and machine.allocation is not None:
            told = f"{machine.allocation.scheduler} gives the job {machine.nodes} nodes"
        raise UsageError(
            f"{told}: which hosts?",
            "name them: `--hostfile hosts`, one `host slots=N` a line",
            "`--nodes 1` launches on this node alone",
        )


def _do(start: Start, policy: RestartPolicy, *, asking: bool) -> NoReturn:
    """Become the job, or watch over it."""
    options = start.plan.options
    if asking and not confirm("Launch?"):
        raise InterruptedByUserError("not launched; nothing was written")
    with losses_shown(shown=not options.quiet):
        if not start.launch_plan.supervised:
            execute(start.launch_plan, os.environ, force=options.force)
        raise typer.Exit(run_attempts(start, policy))


def show_start(start: Start, stream: TextIO) -> None:
    """What is about to run."""
    _note(start.launch_plan, stream)
    stream.write("\n")
    show.launch(start.launch_plan, stream)


def _note(launch_plan: LaunchPlan, stream: TextIO) -> None:
    for note in launch_plan.notes:
        show.note(note, stream)


def _refuse_to_leave(place: NodeRank | None, *, supervise: bool | None) -> None:
    if place is not None and supervise is False:
        raise UsageError(
            "`--no-supervise`: with a zerowiz on each node, each stays with its ranks",
            "drop it, or `--nodes 1` launches on this node alone",
        )


def _run_folder(options: Options) -> Path:
    """A folder of its own for every run: its ranks' logs stay."""
    stamp = datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = options.output_dir or Path()
    # Containers that start at once may have one pid.
    name = f"{stamp}-{os.getpid()}-{os.urandom(2).hex()}"
    return (folder / RECORDS / "runs" / name).absolute()


def _is_supervised(asked: bool | None, machine: Machine, *, escalate: bool) -> bool:
    """Whether zerowiz stays with its job: at a terminal a person does."""
    if asked is not None or escalate:
        return asked is not False
    scheduler = None if machine.allocation is None else machine.allocation.scheduler
    return why_supervised(read_launch_environment(os.environ, HostFiles()), scheduler) is not None


def _walk(decision: Decision, _cures: Sequence[Remedy], stream: TextIO) -> None:
    show.walk(decision, stream)


@takes_options
def launch(
    options: Options,
    script: Annotated[
        str | None, typer.Argument(help="Training script; default: what init recorded, train.py")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, untouched")
    ] = None,
    supervise: Annotated[
        bool | None,
        _run_option(
            "--supervise/--no-supervise",
            text="Stay with the job, or become it; by itself it stays, but not at a terminal",
        ),
    ] = None,
    escalate: Annotated[
        bool, _run_option("--escalate", text="After an out-of-memory, go on one rung up")
    ] = False,
    max_attempts: Annotated[
        int, _run_option("--max-attempts", text="Starts in all, with --escalate", least=1)
    ] = len(FLOWCHART_STRATEGIES),
    launcher: Annotated[
        Launcher, _run_option("--launcher", text="What of DeepSpeed reaches the --hostfile")
    ] = Launcher.PDSH,
    grace_seconds: Annotated[
        int,
        _run_option(
            "--grace-seconds", text="For ranks to save and end, once they are asked to", least=0
        ),
    ] = 30,
) -> None:
    """Plan, write the config, and run the script under deepspeed"""
    _check_options(options, supervise=supervise, escalate=escalate)
    check_accounting(options)
    script_args = tuple(args or ())
    path, options = _require_script(script, options)
    facts = read_reachable(path, script_args, options)
    check_words(facts, script_args)
    place = find_place(options)
    _refuse_to_leave(place, supervise=supervise)
    options = with_place(options, place)
    machine = find_machine(options, os.environ)
    _check_place(options, machine, place)
    run = Run(
        folder=_run_folder(options),
        supervised=place is not None or _is_supervised(supervise, machine, escalate=escalate),
        grace_seconds=grace_seconds,
        hostfile=options.hostfile,
        launcher=launcher,
    )
    policy = RestartPolicy(escalate=escalate, max_attempts=max_attempts)

    def start_on(
        machine: Machine, copy: NodeLaunch | None = None, *, asking: bool = False
    ) -> Start:
        return _plan_start(options, machine, facts, script_args, replace(run, copy=copy), asking)

    if place is None:
        asking = can_ask(os.environ, yes=options.yes or options.as_json)
        start = start_on(machine, asking=asking)
        _show_or_start(start, policy, asking=asking)
        return
    from zerowiz.app.launch.multi_node.run import copy_alone, heed, lead  # noqa: PLC0415 - takes long to load

    if options.dry_run:
        _show_or_start(start_on(machine, copy_alone(place, machine)), policy, asking=False)
    elif place.node_rank == 0:
        lead(options, place, machine, start_on, policy)
    else:
        heed(options, place, machine, grace_seconds)


def _plan_start(
    options: Options,
    machine: Machine,
    facts: ScriptFacts,
    script_args: tuple[str, ...],
    run: Run,
    asking: bool,
) -> Start:
    """Decide, see that nothing stands in the way, and plan the first start."""
    check_own_config(options, machine, facts, script_args)
    options = answer_for(options, facts, script_args, asker(options) if asking else None)
    plan = decide_with(asking, options, machine, facts, script_args, _walk)
    if plan.strategy is None and options.as_json:
        write_json(plan)
    strategy = require_strategy(plan)
    launch_plan = plan_launch(plan, facts, script_args, strategy, run)
    if is_here(machine):
        port = None if run.copy is None else run.copy.place.port_here
        check_start(plan, facts, strategy, script_args, launch_plan, master_port=port)
    with losses_shown(shown=not options.quiet):
        # A dry run says now what the launch would say.
        refuse_loss(*launch_plan.files, force=options.force)
    start = Start(
        plan=plan,
        facts=facts,
        script_args=script_args,
        strategy=strategy,
        run=run,
        launch_plan=launch_plan,
        resume=Resume(resume_from=ResumeFrom.START, script_args=script_args),
        why="; ".join(map(sentences.reason, plan.decision.reasons)),
    )
    if not (options.quiet or options.dry_run):
        show_start(start, sys.stderr)
    return start


def _show_or_start(start: Start, policy: RestartPolicy, *, asking: bool) -> None:
    """Show what a launch would do, or do it."""
    plan, launch_plan = start.plan, start.launch_plan
    if not plan.options.dry_run:
        _do(start, policy, asking=asking)
    if not plan.options.quiet:
        _note(launch_plan, sys.stderr)
    if plan.options.as_json:
        write_json(plan, launch_plan.argv, launch_plan.env)
    else:
        show_files(launch_plan.files, sys.stdout)
        show.launch(replace(launch_plan, files=()), sys.stdout)


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    settings = {"allow_interspersed_args": False}
    app.command(name="launch", cls=PlainCommand, context_settings=settings)(launch)
