"""Run a person's own script for some optimizer steps, and compare it with its plan."""

import os
import signal
import tempfile
from pathlib import Path

from zerowiz.app.launch.attempts import RestartPolicy
from zerowiz.app.launch.launch import RunOptions, plan_dry_run, prepare_launch
from zerowiz.app.launch.start import Start
from zerowiz.app.measure.plan import check_alone
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter
from zerowiz.core.launch.plan import Launcher
from zerowiz.core.measure.own_script import ScriptRun
from zerowiz.core.values import replace
from zerowiz.emit.attempt_folder import read_measured
from zerowiz.emit.own_script import run_own_script
from zerowiz.errors import InterruptedByUserError, UsageError, ZerowizError
from zerowiz.words import _

# For ranks to save and end at a deadline, or on Ctrl-C.
_GRACE_S = 10


def plan_script(
    script: str, script_args: tuple[str, ...], options: Options, reporter: LaunchReporter
) -> Start:
    """The start of the script, as `launch` plans it on this machine.

    Raises:
        ZerowizError: It cannot be launched here, or contradicts the options.
    """
    check_alone(options)
    how = RunOptions(
        supervise=True,
        policy=RestartPolicy(),
        launcher=Launcher.PDSH,
        grace_seconds=_GRACE_S,
    )
    launch = prepare_launch(script, script_args, options, how, reporter)
    if launch.node is not None:
        raise UsageError(_("`measure` runs on this machine only"), _("add `$nodes 1`"))
    return plan_dry_run(launch, reporter, None)


def measure_script(
    start: Start, steps: int, deadline_s: int, reporter: LaunchReporter
) -> ScriptRun:
    """Run it until its ranks have taken so many optimizer steps, and end them there.

    Args:
        start: As `plan_script` made it.
        steps: Optimizer steps.
        deadline_s: After it, the job is asked to end.
        reporter: Hears the command, and why the job failed.

    Raises:
        ZerowizError: It could not be started.
    """
    reporter.start(start.launch_plan)
    ranks = start.plan.request.job.machine.world_size
    with tempfile.TemporaryDirectory(prefix="zerowiz-measure-") as name:
        watch = replace(start.run, folder=Path(name)).watch(1, ranks)
        end = run_own_script(
            start.launch_plan,
            watch,
            steps,
            deadline_s,
            os.environ,
            force=start.plan.options.force,
        )
        if end.status != 0:
            reporter.attempt_ended(end, start.strategy, 1)
        measured = read_measured(watch.folder)
        return ScriptRun(
            planned=start.plan.decision.of(start.strategy),
            end=end,
            ranks=[measured.get(rank, {}) for rank in range(ranks)],
            wanted_steps=steps,
        )


def require_steps(run: ScriptRun) -> None:
    """See that the run says something; running out of memory does.

    Raises:
        InterruptedByUserError: A person ended it.
        ZerowizError: It failed, or ended before its first step.
    """
    if run.measured:
        return
    if run.end.status == 0:
        raise ZerowizError(
            _("the script ended before its first optimizer step"),
            _(
                "`measure` counts the steps of DeepSpeed's engine: check that the script trains"
                " with it"
            ),
        )
    ended = _(
        "the script was ended after {steps} of {wanted_steps} optimizer steps",
        steps=run.steps,
        wanted_steps=run.wanted_steps,
    )
    if run.end.stopped_by == signal.SIGINT:
        raise InterruptedByUserError(ended)
    if run.end.stopped_by is not None:
        raise ZerowizError(ended, _("set a longer `--deadline`, or fewer `--steps`"))
    raise ZerowizError(
        _("the script was not measured: it ended with status {status}", status=run.end.status)
    )
