"""See before a job starts what would end it; `launch` and `doctor` look in the same way."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerowiz.app.ask.script import require_reachable
from zerowiz.app.decide.decision import Plan
from zerowiz.app.launch.start import deliver_plan
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.guards import check_local_rank
from zerowiz.core.dsconfig.write import write_config
from zerowiz.core.launch.doctor import script
from zerowiz.core.launch.doctor.builds import WAITS, dead_locks, judge_lock, will_compile
from zerowiz.core.launch.doctor.examine import examine
from zerowiz.core.launch.doctor.facts import Lock
from zerowiz.core.launch.doctor.finding import PreflightFinding
from zerowiz.core.launch.doctor.inputs import PlannedJob, PreflightInput
from zerowiz.core.launch.doctor.ops import Op, list_ops
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.outcome.resume import output_folder, resumed_checkpoint
from zerowiz.core.rule import Severity, errors_of
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Method, Optimizer
from zerowiz.emit.build_locks import remove_lock
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.launch.doctor import read_builds, read_facts
from zerowiz.probe.model.libraries import parse_release, read_version
from zerowiz.probe.recording.files import HostFiles
from zerowiz.ui import doctor
from zerowiz.words import _


def check_start(
    plan: Plan,
    facts: ScriptFacts,
    strategy: Strategy,
    script_args: Sequence[str],
    launch_plan: LaunchPlan,
    reporter: Reporter,
    *,
    master_port: int | None = None,
    escalates: bool = False,
) -> None:
    """See that nothing surely ends a start, note what may, and take over the locks of dead ranks.

    Args:
        plan: What was decided.
        facts: Of the script.
        strategy: The strategy that the job runs with.
        script_args: The words after the script.
        launch_plan: The command, and what the job gets.
        reporter: Hears what may go wrong.
        master_port: A port on this host that somebody chose for the job.
        escalates: Whether it may start again with another strategy.

    Raises:
        PreflightError: Something does, and nobody forces it.
    """
    options, program = plan.options, launch_plan.argv[0]
    environ = launch_plan.environ(os.environ)
    with reporter.wait(_("checking what the job needs")):
        inputs = preflight_input(
            plan, facts, strategy, script_args, program, environ, master_port=master_port
        )
        findings = examine(_with_escalation(inputs, escalates=escalates))
    note_findings(findings, reporter, force=options.force)
    require_no_error(findings, force=options.force)
    if not options.dry_run:
        take_over(dead_locks(inputs), reporter)
    note_waits(findings, reporter)


def check_script(
    plan: Plan,
    facts: ScriptFacts,
    strategy: Strategy,
    script_args: Sequence[str],
    reporter: Reporter,
    *,
    escalates: bool = False,
) -> None:
    """See that the script does nothing against its plan that ends the job on its own machine.

    Raises:
        PreflightError: It does, and nobody forces it.
    """
    planned, force = plan_of(plan, facts, strategy, script_args), plan.options.force
    inputs = _with_escalation(PreflightInput(planned=planned), escalates=escalates)
    findings = [*script.check_script(inputs)]
    note_findings(findings, reporter, force=force)
    require_no_error(findings, force=force)


def _with_escalation(inputs: PreflightInput, *, escalates: bool) -> PreflightInput:
    if inputs.planned is None:
        return inputs
    return replace(inputs, planned=replace(inputs.planned, escalates=escalates))


def preflight_input(
    plan: Plan,
    facts: ScriptFacts | None,
    strategy: Strategy,
    script_args: Sequence[str],
    program: str | None,
    environ: Mapping[str, str],
    *,
    master_port: int | None,
) -> PreflightInput:
    """A planned job, with the facts that its preflight checks read.

    Args:
        plan: What was decided.
        facts: Of the script; None without one.
        strategy: The strategy that the job runs with.
        script_args: The words after the script.
        program: `deepspeed`, as a launch found it; None where it found none.
        environ: What the job gets: the caller's environment, and what the launch adds.
        master_port: A port on this host that somebody chose for the job.
    """
    planned = plan_of(plan, facts, strategy, script_args)
    job = planned.job
    return PreflightInput(
        machine=job.machine,
        planned=planned,
        facts=read_facts(
            program,
            environ,
            HostFiles(),
            ops=planned.ops,
            cuda=job.machine.accelerator is Accelerator.CUDA,
            script=None if facts is None else Path(facts.path),
            import_folder=_import_folder(facts),
            nvme_path=job.nvme_path,
            output_folder=_output_folder(plan, facts, script_args),
            resumed_from=None if facts is None else resumed_checkpoint(facts, script_args),
            master_port=master_port,
        ),
        environ=environ,
    )


def check_any_job(
    program: str | None,
    machine: Machine | None,
    environ: Mapping[str, str],
    script: ScriptFacts | None,
) -> tuple[PreflightFinding, ...]:
    """Run the preflight checks that need no plan: those of any job here, and of its imports."""
    facts = read_facts(
        program,
        environ,
        HostFiles(),
        cuda=machine is not None and machine.accelerator is Accelerator.CUDA,
        script=None if script is None else Path(script.path),
        import_folder=_import_folder(script),
    )
    return examine(PreflightInput(machine=machine, facts=facts, environ=environ))


def _import_folder(script: ScriptFacts | None) -> Path | None:
    """Where the script imports from first, if not from its own folder."""
    # `python -m` imports from the working folder.
    return None if script is None or script.module is None else Path()


def require_no_error(findings: Sequence[PreflightFinding], *, force: bool = False) -> None:
    """See that nothing surely ends the job.

    Raises:
        PreflightError: Something does; its fixes are the hints.
    """
    errors = errors_of(findings)
    if errors and not force:
        first, *others = errors
        raise PreflightError(
            doctor.in_short(first),
            *first.fixes,
            *(line for each in others for line in (doctor.in_short(each), *each.fixes)),
            _("add `$force` to go on anyway"),
        )


def note_findings(
    findings: Sequence[PreflightFinding], reporter: Reporter, *, force: bool = False
) -> None:
    """Note what may go wrong, with the first fix; errors too, where they are forced."""
    noted = (Severity.ERROR, Severity.WARNING) if force else (Severity.WARNING,)
    for finding in findings:
        if finding.severity in noted:
            fixes = [fix if "`" in fix else f"`{fix}`" for fix in finding.fixes[:1]]
            reporter.note("; ".join((doctor.in_short(finding), *fixes)))


def note_waits(findings: Sequence[PreflightFinding], reporter: Reporter) -> None:
    """Say for what the job waits when it starts, as it writes nothing meanwhile."""
    for finding in findings:
        if finding.rule in WAITS:
            reporter.note(finding.message)


def take_over(locks: Sequence[Lock], reporter: Reporter) -> None:
    """Remove locks that ranks of a supervised job have left.

    Raises:
        PreflightError: One cannot be removed.
    """
    for lock in locks:
        if remove_lock(lock):
            reporter.note(
                _(
                    "removed the lock `{path}` of a build of `{op}` that was killed",
                    path=lock.path,
                    op=lock.op,
                )
            )


def check_locks(
    program: str, environ: Mapping[str, str], ops: Sequence[Op], reporter: Reporter
) -> tuple[Op, ...]:
    """See that ranks which load these ops do not wait for the lock of a build that was killed.

    Returns those that the ranks will compile.

    Args:
        program: `deepspeed`.
        environ: What the ranks get.
        ops: What they load.
        reporter: Hears what they may wait for, and which locks are taken over.

    Raises:
        PreflightError: They would wait for ever.
    """
    extensions = read_builds(program, environ, ops, HostFiles())
    if extensions is None:
        return ()
    take_over([lock for lock in extensions.locks if lock.left_by_rank], reporter)
    findings = [
        judge_lock(lock, extensions.file_system)
        for lock in extensions.locks
        if not lock.left_by_rank
    ]
    compiled = tuple(op for op in ops if op.name not in extensions.built)
    waits = [will_compile(compiled)] if compiled else []
    note_findings(findings, reporter)
    note_waits([*findings, *waits], reporter)
    for finding in errors_of(findings):
        raise PreflightError(doctor.in_short(finding), *finding.fixes)
    return compiled


def note_refusal(
    facts: ScriptFacts, script_args: Sequence[str], options: Options, reporter: Reporter
) -> None:
    """Note why `launch` would refuse a script, whatever is planned, in its own words."""
    try:
        check_local_rank(facts, script_args)
        require_reachable(facts, script_args, options)
    except ZerowizError as error:
        _note_refused(error, reporter)


def _note_refused(error: ZerowizError, reporter: Reporter) -> None:
    reporter.note(
        _(
            "{message}; `zerowiz launch` refuses it, and says what to change",
            message=error.message,
        )
    )


def note_script(
    plan: Plan, facts: ScriptFacts, script_args: Sequence[str], reporter: Reporter
) -> None:
    """Note why the config of a plan would not reach a script, and what that does against it."""
    if plan.strategy is not None:
        try:
            if facts.obstacle is None:
                deliver_plan(plan, facts, script_args, plan.strategy)
        except ZerowizError as error:
            _note_refused(error, reporter)
        planned = plan_of(plan, facts, plan.strategy, script_args)
        note_findings(
            (*script.check_script(PreflightInput(planned=planned)),), reporter, force=True
        )


def plan_of(
    plan: Plan,
    facts: ScriptFacts | None,
    strategy: Strategy,
    script_args: Sequence[str] = (),
) -> PlannedJob:
    """The job as the checks read it."""
    request, evaluated = plan.request, plan.decision.of(strategy)
    step = request.job.workload
    integration = request.handover.integration
    config = _config(plan, strategy)
    ops = list_ops(
        config,
        accelerator=request.job.machine.accelerator,
        integration=integration,
        own_optimizers=() if facts is None else facts.own_optimizers,
        passes_optimizer=facts is not None and facts.passes_optimizer,
    )
    return PlannedJob(
        job=request.job,
        evaluated=evaluated,
        integration=integration,
        ops=ops,
        uses_peft=step.method is not Method.FULL,
        uses_bitsandbytes=step.method is Method.QLORA or step.optimizer is Optimizer.ADAMW_8BIT,
        script=facts,
        script_args=tuple(script_args),
        settled=tuple(request.settled),
        transformers_version=parse_release(read_version("transformers")),
        config=config,
    )


def _config(plan: Plan, strategy: Strategy) -> Mapping[str, object]:
    """What DeepSpeed will read: the person's own config, or the one that is written."""
    own, job, handover = plan.options.config, plan.request.job, plan.request.handover
    if own is None:
        return write_config(job, plan.decision.of(strategy), handover)
    from zerowiz.app.resolve.yaml_config import ready_values  # noqa: PLC0415 - takes long to load

    return ready_values(own, plan.options, job.workload, handover.integration)


def _output_folder(plan: Plan, facts: ScriptFacts | None, script_args: Sequence[str]) -> Path:
    """Where checkpoints go, as far as the script says."""
    said = None if facts is None else output_folder(facts, script_args)
    return plan.options.output_dir or Path() if said is None else Path(said)
