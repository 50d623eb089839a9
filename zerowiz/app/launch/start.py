"""Plan one start of a job (files, command, environment), and check what would end it."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.command import require_reachable
from zerowiz.app.decide import Plan, plan_config, plan_copy, require_strategy, with_plan
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.resolved_job import config_file, is_same, lr_needed
from zerowiz.app.resolve.workload import check_local_rank
from zerowiz.core.findings import Finding, Severity, errors_of
from zerowiz.core.job_end import (
    FILE_NAME,
    AttemptRecord,
    JobEnd,
    RunRecord,
    decide_again,
    measure_run,
    memory_of,
    predict_run,
    render_record,
)
from zerowiz.core.launch.plan import (
    OTHER_LAUNCHERS_VARIABLES,
    PROGRESS_VARIABLE,
    EntryPoint,
    LauncherCommand,
    LaunchPlan,
    NodeRank,
    Programs,
    Resume,
    entry_options,
    hostfile_text,
    launch_env,
    launcher_options,
    merge_env,
    needs_rank_program,
    node_options,
    output_folder,
    pdsh_command,
    plan_resume,
    quote_script,
    quote_words,
    refuse_slices,
    refuse_unsafe_paths,
    resumed_checkpoint,
)
from zerowiz.core.launch.provenance import PlannedFile, plan_path
from zerowiz.core.launch.secrets import hide_secrets
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.memory.buffers import shares_with_sleeping_vllm, without_expansion
from zerowiz.core.preflight import script as script_checks
from zerowiz.core.preflight.builds import COMPILES
from zerowiz.core.preflight.environment import check_releases
from zerowiz.core.preflight.examine import examine
from zerowiz.core.preflight.facts import Installed, PlannedJob, PreflightInput, list_ops
from zerowiz.core.script.config_delivery import (
    Delivery,
    add_settled,
    deliver,
    share_sequences,
)
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptRun, check_accelerator, facts_of
from zerowiz.core.strategy_types import Offload, OffloadChoice, Strategy
from zerowiz.core.structs import replace
from zerowiz.core.workload import OPTIMIZERS, Integration, Method
from zerowiz.emit.files import refuse_loss, release, write_held, write_private
from zerowiz.emit.job import Watch, noted_signals, supervise, watched_env
from zerowiz.emit.processes import read_measured
from zerowiz.errors import PreflightError, UsageError, ZerowizError
from zerowiz.probe.files import Files, read_bad_releases, read_version
from zerowiz.probe.nodes import find_master_address, read_env_lines, read_hostfile
from zerowiz.probe.preflight.read_facts import (
    CheckpointStates,
    check_pdsh,
    find_programs,
    read_facts,
    read_saved,
    read_states,
    try_core_binding,
)
from zerowiz.translation import _
from zerowiz.ui import sentences

# What the launch of a job is made of: the launcher's command, the node, the run.


class NodeLaunch(Struct, frozen=True, kw_only=True):
    """One zerowiz of many, which starts the ranks of its own node."""

    node: NodeRank
    slots: tuple[tuple[int, ...], ...]
    """The devices of each node, by its rank, as DeepSpeed calls them."""
    master_addr: str
    master_port: int | None
    """As it was given; None where node 0 takes a free one."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those of this node; every node has as many."""
        count = len(self.slots[self.node.node_rank])
        first = self.node.node_rank * count
        return tuple(range(first, first + count))

    def launcher_command(self, folder: Path, env: Mapping[str, str]) -> LauncherCommand:
        """DeepSpeed starts this node's ranks alone; they meet those of the others."""
        hostfile = str(folder / "hostfile")
        return LauncherCommand(
            options=node_options(self.node, hostfile, self.slots, self.master_addr),
            env=env,
            unset=tuple(name for name in OTHER_LAUNCHERS_VARIABLES if name in os.environ),
            files=(
                PlannedFile(
                    path=hostfile, text=hostfile_text(self.node, self.slots), own_folder=True
                ),
            ),
            master_port=self.master_port,
        )


class RunOptions(Struct, frozen=True, kw_only=True):
    """How a job is run, apart from what it is."""

    supervise: bool | None = None
    """Whether zerowiz stays with the job; None where what it was started from decides."""
    max_attempts: int = 1
    """How often it is started at most: with less memory, after it ran out of it."""
    grace_seconds: int = 30
    """For ranks to save and end, once they are asked to."""
    verbose: bool = False
    """Whether what DeepSpeed's launcher says is wanted, too."""


class Run(Struct, frozen=True, kw_only=True):
    """What all attempts of one launch share."""

    folder: Path
    """Of its own, absolute: what its ranks said stays there."""
    supervised: bool
    how: RunOptions
    is_seen: bool = False
    """Whether a person looks on at this terminal."""
    hostfile: Path | None = None
    node_launch: NodeLaunch | None = None
    """Where each node has a zerowiz of its own: this one."""

    def watch(self, number: int, ranks: int) -> Watch:
        """What is watched of one attempt."""
        return Watch(
            folder=self.folder / f"attempt-{number}",
            ranks=ranks,
            local_ranks=self._local_ranks(ranks),
            grace_s=self.how.grace_seconds,
            hosts=() if self.hostfile is None else tuple(read_hostfile(self.hostfile)),
        )

    def _local_ranks(self, ranks: int) -> tuple[int, ...] | None:
        """The ranks of this host; None where a launcher spreads them over many."""
        if self.hostfile is not None:
            return None
        return tuple(range(ranks)) if self.node_launch is None else self.node_launch.ranks


class Start(Struct, frozen=True, kw_only=True):
    """One start of a job, ready to be done."""

    plan: Plan
    script: ScriptRun
    """With the words that the person said."""
    strategy: Strategy
    run: Run
    launch_plan: LaunchPlan
    resume: Resume
    """From where the script goes on, and with which words."""
    why: str


def plan_files(
    plan: Plan, strategy: Strategy, script: str | None, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """What this job writes: of a person's own config only one that stands in YAML.

    Raises:
        AnswerNeededError: Nobody names the learning rate of the optimizer in it.
    """
    if plan.resolved.lacks_lr:
        raise lr_needed(facts_of(plan.script) if plan.options.config is None else None)
    own_config = plan.options.own_config
    if own_config is not None:
        from zerowiz.app.resolve.own_config import plan_yaml_config  # noqa: PLC0415 - takes long to load

        resolved = plan.resolved
        step, reader = resolved.job.workload, resolved.handover.integration
        return plan_yaml_config(own_config, plan.options, step, reader)
    return with_plan(plan, plan_config(plan, strategy), script, script_args)


def plan_launch(
    plan: Plan,
    script: ScriptRun,
    strategy: Strategy,
    run: Run,
    number: int = 1,
) -> LaunchPlan:
    """The files, the command and the environment of this job.

    Raises:
        ZerowizError: The config cannot reach the script, or what starts it is missing.
    """
    machine = plan.resolved.job.machine
    delivery = deliver_plan(plan, script, strategy)
    programs = find_programs(os.environ)
    env = launch_env(machine, programs, os.environ, delivery.env)
    if run.is_seen:
        planned = predict_run(plan.decision.of(strategy))
        env[PROGRESS_VARIABLE] = f"{planned.peak_bytes}:{planned.step_seconds or ''}"
    offloads = strategy.offload is not Offload.NONE
    command = launcher_command(run, number, machine, programs, env, offloads=offloads)
    has_secret = hide_secrets(script.words) != script.words
    if (run.is_seen or has_secret) and not run.how.verbose:
        # Of a rank that was killed it alone speaks where nobody supervises, and quotes all words.
        level = "critical" if run.supervised or has_secret else "error"
        command = replace(command, options=("--log_level", level, *command.options))
    entry = entry_point(script.facts, delivery.script_args)
    files = plan_files(plan, strategy, script.facts.target, script.words)
    if delivery.copy is not None:
        files = (*files, plan_copy(delivery.copy))
    return make_launch_plan(
        command, programs, entry, delivery.script_args, files, supervised=run.supervised
    )


def entry_point(facts: ScriptFacts, script_args: tuple[str, ...]) -> EntryPoint:
    """What each rank runs, and whether it bears the word that DeepSpeed's launcher adds.

    Args:
        facts: What the script shows.
        script_args: All words after it.
    """
    return EntryPoint(
        target=facts.target,
        is_module=facts.module is not None,
        takes_local_rank=not facts.parser.refuses_local_rank(script_args),
    )


def deliver_plan(plan: Plan, script: ScriptRun, strategy: Strategy) -> Delivery:
    """How the config, and what was settled, reach the script.

    Raises:
        ZerowizError: They cannot.
    """
    options = plan.options
    words = add_settled(script.words, plan.resolved.settled)
    check_accelerator(script.with_words(words), plan.resolved.job.machine.accelerator)
    folder = str(options.output_dir or "")
    is_own = options.own_config is not None
    if options.config is not None and options.config.is_fifo():
        raise UsageError(
            f"`$config {options.config}` is a pipe, and each rank would read it",
            "write it to a file, and name that",
        )
    path, named = config_file(options, strategy), script.facts.literal_config
    reads_base = options.base is not None and named is not None and is_same(options.base, named)
    delivery = deliver(script.facts, words, path, folder, is_own=is_own, reads_base=reads_base)
    step, ranks = plan.resolved.job.workload, plan.resolved.job.machine.world_size
    if step.sequence_parallel > 1:
        if script.facts.integration in {Integration.HF, Integration.ACCELERATE}:
            delivery = replace(delivery, env={**delivery.env, **share_sequences(step, ranks)})
        elif not script.facts.sequence_parallel.seen:
            raise UsageError(
                f"`$sequence_parallel {step.sequence_parallel}` works with a Trainer or an"
                f" Accelerator: {script.facts.text_path} has a loop of its own",
                "one that shares sequences: `zerowiz template --loop engine"
                f" --sequence-parallel {step.sequence_parallel} DIR`",
                f"remove `$sequence_parallel {step.sequence_parallel}`",
            )
    if shares_with_sleeping_vllm(plan.resolved.job.workload):
        delivery = replace(delivery, env={**delivery.env, **without_expansion(os.environ)})
    if options.own_config is None or plan.resolved.handover.integration.row.as_written:
        return delivery
    from zerowiz.app.resolve.own_config import read_yaml_config  # noqa: PLC0415 - takes long to load

    env = read_yaml_config(options.own_config, options.output_dir).env
    return replace(delivery, env={**delivery.env, **env})


def launcher_command(
    run: Run,
    number: int,
    machine: Machine,
    programs: Programs,
    env: Mapping[str, str],
    *,
    offloads: bool = False,
) -> LauncherCommand:
    """How the ranks of one attempt are started.

    Raises:
        ZerowizError: What starts them is missing, or would break on a path.
    """
    if run.node_launch is not None:
        return run.node_launch.launcher_command(run.folder, env)
    if run.hostfile is None:
        if not offloads or machine.accelerator is not Accelerator.CUDA:
            return LauncherCommand(options=launcher_options(machine), env=env)
        # With cores of their own for ranks whose optimizer steps there, where that can be had.
        binding = try_core_binding(os.environ, len(machine.gpus), Files())
        options = launcher_options(machine, binding.cores)
        return LauncherCommand(options=options, env=env, notes=binding.notes)
    refuse_slices(machine)

    watched = watched_env(run.watch(number, machine.world_size)) if run.supervised else {}
    return hosts_command(run, run.hostfile, programs, env, watched)


def make_launch_plan(
    command: LauncherCommand,
    programs: Programs,
    entry: EntryPoint,
    script_args: Sequence[str],
    files: Sequence[PlannedFile],
    *,
    supervised: bool,
) -> LaunchPlan:
    """The plan of a start, once it is known how its ranks are reached.

    Args:
        command: How.
        programs: What runs the job.
        entry: What each rank runs.
        script_args: All words after it.
        files: Its config and the plan of that.
        supervised: Whether zerowiz stays with the job.
    """
    port = command.master_port or programs.master_port
    # Under supervision the launcher starts a program of ours, whose first word the script is.
    by_rank_program = supervised or needs_rank_program(command.env)
    program = (programs.rank_program, *entry.program) if by_rank_program else (entry.target,)
    script, *args = (*program, *script_args)
    launched = (quote_script(script), *quote_words(args)) if command.by_pdsh else (script, *args)
    options = (*command.options, *entry_options(entry, by_rank_program=by_rank_program))
    return LaunchPlan(
        files=(*command.files, *files),
        argv=(programs.deepspeed, *options, "--master_port", str(port), *launched),
        env=command.env,
        unset=command.unset,
        notes=command.notes,
        master_port=port,
        supervised=supervised,
        by_rank_program=by_rank_program,
    )


# Reach the ranks of the nodes that a hostfile names, through pdsh.


def hosts_command(
    run: Run,
    hostfile: Path,
    programs: Programs,
    env: Mapping[str, str],
    watched: Mapping[str, str],
) -> LauncherCommand:
    """The options for DeepSpeed's runner, and the file of variables that it sends.

    Args:
        run: The launch.
        hostfile: The nodes.
        programs: What starts it here.
        env: All that differs from the caller's environment.
        watched: Variables that tell the ranks who supervises them.

    Raises:
        ZerowizError: What starts the ranks is missing, or would break on a path.
    """
    check_pdsh(os.environ)
    places = {"the working folder": str(Path.cwd()), "the interpreter": sys.executable}
    refuse_unsafe_paths({**places, "the rank program": programs.rank_program})
    return pdsh_command(
        str(hostfile),
        merge_env(os.environ, {**env, **watched}, read_env_lines(os.environ)),
        os.environ,
        env,
        env_file=str(run.folder / "deepspeed_env"),
        master_addr=find_master_address(next(iter(read_hostfile(hostfile)))),
    )


# See before a job starts what would end it; `launch` and `doctor` look in the same way.


def check_start(
    plan: Plan,
    script: ScriptRun,
    strategy: Strategy,
    launch_plan: LaunchPlan,
    reporter: Reporter,
    *,
    escalates: bool = False,
) -> None:
    """See that nothing surely ends a start, and note what may; elsewhere by the script alone.

    Args:
        plan: What was decided.
        script: The script as it is run.
        strategy: The strategy that the job runs with.
        launch_plan: The command, and what the job gets.
        reporter: Hears what may go wrong.
        escalates: Whether it may start again with another strategy.

    Raises:
        PreflightError: Something does, and nobody forces it.
    """
    program, environ = launch_plan.argv[0], launch_plan.environ(os.environ)
    machine, output_dir = plan.resolved.job.machine, plan.options.output_dir
    with reporter.wait(_("checking what the job needs")):
        planned = plan_of(plan, script, strategy, escalates=escalates)
        inputs = PreflightInput(planned=planned)
        if is_here(machine):
            inputs = preflight_input(planned, machine, script, program, environ, output_dir)
        findings = examine(inputs)
    note_findings(findings, reporter, force=plan.options.force)
    require_no_error(findings, force=plan.options.force)


def preflight_input(
    planned: PlannedJob | None,
    machine: Machine | None,
    script: ScriptRun | None,
    program: str | None,
    environ: Mapping[str, str],
    output_dir: Path | None,
) -> PreflightInput:
    """A job, with the facts that its preflight checks read.

    Args:
        planned: As `plan_of`; None for the checks of any job here.
        machine: What it runs on; None where that cannot be read.
        script: The script as it is run; None without one.
        program: `deepspeed`, as a launch found it; None where it found none.
        environ: What the job gets: the caller's environment, and what the launch adds.
        output_dir: Where zerowiz writes.
    """
    # Where checkpoints go, as far as the script says.
    folder = None if script is None else output_folder(script)
    is_module = script is not None and script.facts.module is not None
    return PreflightInput(
        machine=machine,
        planned=planned,
        facts=read_facts(
            program,
            environ,
            Files(),
            ops=() if planned is None else planned.ops,
            cuda=machine is not None and machine.accelerator is Accelerator.CUDA,
            script=None if script is None else Path(script.facts.path),
            # `python -m` imports from the working folder.
            import_folder=Path() if is_module else None,
            nvme_path=None if planned is None else planned.job.nvme_path,
            output_folder=output_dir or Path() if folder is None else Path(folder),
            resumed_from=None if script is None else resumed_checkpoint(script),
        ),
        environ=environ,
    )


def require_no_error(findings: Sequence[Finding], *, force: bool = False) -> None:
    """See that nothing surely ends the job.

    Raises:
        PreflightError: Something does; its fixes are the hints.
    """
    errors = errors_of(findings)
    if errors and not force:
        first, *others = errors
        raise PreflightError(
            first.in_short(),
            *first.fixes,
            *(line for other in others for line in (other.in_short(), *other.fixes)),
            "add `$force` to go on anyway",
        )


def note_findings(findings: Sequence[Finding], reporter: Reporter, *, force: bool = False) -> None:
    """Note what may go wrong, with the first fix, and what the job waits for when it starts.

    Errors are noted where they are forced.
    """
    noted = (Severity.ERROR, Severity.WARNING) if force else (Severity.WARNING,)
    for finding in findings:
        if finding.rule is COMPILES:
            reporter.note(finding.message)
        elif finding.severity in noted:
            fixes = [fix if "`" in fix else f"`{fix}`" for fix in finding.fixes[:1]]
            reporter.note("; ".join((finding.named, *fixes)))


def note_refusal(script: ScriptRun, options: Options, reporter: Reporter) -> None:
    """Note why `launch` would refuse a script, whatever is planned, in its own words."""
    try:
        check_local_rank(script)
        require_reachable(script, options)
    except ZerowizError as error:
        _note_refused(error, reporter)


def _note_refused(error: ZerowizError, reporter: Reporter) -> None:
    reporter.note(f"{error.message}; `zerowiz launch` refuses it, and says what to change")


def note_script(plan: Plan, script: ScriptRun, reporter: Reporter) -> None:
    """Note why the config of a plan would not reach a script, and what that does against it."""
    if plan.strategy is not None:
        try:
            if script.facts.obstacle is None:
                deliver_plan(plan, script, plan.strategy)
        except ZerowizError as error:
            _note_refused(error, reporter)
        planned = plan_of(plan, script, plan.strategy)
        findings = [*script_checks.check_script(PreflightInput(planned=planned))]
        if is_here(plan.resolved.job.machine):
            rows = read_bad_releases()
            here = {row.library: read_version(row.library) for row in rows}
            installed = Installed(program=sys.executable, own=True, modules=here)
            findings += check_releases(installed, planned, rows)
        note_findings(findings, reporter, force=True)


def plan_of(
    plan: Plan,
    script: ScriptRun | None,
    strategy: Strategy,
    *,
    escalates: bool = False,
) -> PlannedJob:
    """The job as the checks read it."""
    resolved, evaluated = plan.resolved, plan.decision.of(strategy)
    step = resolved.job.workload
    integration = resolved.handover.integration
    config = _config(plan, strategy)
    ops = list_ops(
        config,
        accelerator=resolved.job.machine.accelerator,
        integration=integration,
        own_optimizers=() if script is None else script.facts.own_optimizers,
        passes_optimizer=script is not None and script.facts.passes_optimizer,
    )
    return PlannedJob(
        job=resolved.job,
        evaluated=evaluated,
        integration=integration,
        ops=ops,
        uses_peft=step.method is not Method.FULL,
        uses_bitsandbytes=step.method is Method.QLORA
        or {*OPTIMIZERS[step.optimizer].classes} == {"bitsandbytes"},
        script=script,
        settled=tuple(resolved.settled),
        config=config,
        transformers=read_version("transformers"),
        escalates=escalates,
    )


def _config(plan: Plan, strategy: Strategy) -> Mapping[str, object]:
    """What DeepSpeed will read: the person's own config, or the one that is written."""
    config, job, handover = plan.options.own_config, plan.resolved.job, plan.resolved.handover
    if config is None:
        return plan_config(plan, strategy).merged.values
    from zerowiz.app.resolve.own_config import ready_values  # noqa: PLC0415 - takes long to load

    return ready_values(config, plan.options, job.workload, handover.integration)


# Run a job under zerowiz's eyes: its attempts one after the other, and the record of them.

# Plan the next start, with less memory, after a job ran out of it.


def _output_folder(start: Start) -> Path | None:
    folder = output_folder(start.script)
    return None if folder is None else Path(folder)


def escalate(
    start: Start, memory: MemoryKind, number: int, before: CheckpointStates, reporter: Reporter
) -> Start:
    """The next start: more frugal, at the same global batch.

    Args:
        start: The one that ran out of memory.
        memory: The memory that was too small.
        number: Of the next attempt.
        before: The checkpoints of other runs, as the first attempt began.
        reporter: Hears what may go wrong with it.

    Raises:
        ZerowizError: No strategy is left that fits, or its config cannot reach the script, or would
            replace one that somebody changed.
    """
    decision = decide_again(start.plan.decision, start.strategy, memory)
    plan = replace(
        start.plan,
        resolved=replace(start.plan.resolved, job=decision.job, constraints=decision.constraints),
        decision=decision,
        search=None,
        remedies=(),
    )
    strategy = require_strategy(plan)
    # The plan file names this strategy: without this run, the flowchart would choose another.
    named = {
        "stage": str(strategy.stage),
        "offload": OffloadChoice(strategy.offload.value),
        **plan.resolved.freedom.values(plan.decision.job.workload),
    }
    plan = replace(plan, options=replace(plan.options, **named))  # type: ignore[arg-type]
    saved = read_saved(_output_folder(start), before)
    resume = plan_resume(start.script, saved, start.strategy, strategy)
    script = start.script.with_words(resume.script_args)
    launch_plan = plan_launch(plan, script, strategy, start.run, number)
    refuse_loss(*launch_plan.files, force=plan.options.force)
    check_start(plan, script, strategy, launch_plan, reporter)
    reasons = "; ".join(sentences.reasons(decision))
    return replace(
        start,
        plan=plan,
        strategy=strategy,
        launch_plan=launch_plan,
        resume=resume,
        why=f"{start.strategy.name} ran out of memory; {reasons}",
    )


Publish = Callable[[int, Start], None]


def run_attempts(start: Start, reporter: LaunchReporter, publish: Publish | None = None) -> int:
    """Start the job, and after it ran out of memory perhaps once more; the status of the last.

    Args:
        start: The first.
        reporter: Hears how each attempt ended, and what follows.
        publish: Hears of each start once its files are written; other nodes wait for it.

    Raises:
        ZerowizError: The first attempt could not be started.
    """
    # What a person finds the job by.
    names = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
    record = RunRecord(
        zerowiz_version=__version__,
        script=start.script.facts.target,
        script_args=hide_secrets(start.script.words),
        job=next((f"{name}={os.environ[name]}" for name in names if name in os.environ), None),
        attempts=(),
    )
    # Where this run goes on from those of others, they are its own.
    before = {} if start.script.resumes else read_states(_output_folder(start))
    end: JobEnd | None = None
    with noted_signals() as signals:
        while True:
            number = len(record.attempts) + 1
            watch = start.run.watch(number, start.plan.resolved.job.machine.world_size)
            attempt = _attempt(start, watch.folder)
            last, record = record, replace(record, attempts=(*record.attempts, attempt))
            try:
                held = write_held(start.launch_plan.files, force=start.plan.options.force)
                _write(record, start.plan)
            except ZerowizError as error:
                if end is None:
                    raise
                reporter.error(error)
                return _finish(last, start.plan, end.status, reporter)
            if publish is not None:
                publish(number, start)
            end = supervise(
                start.launch_plan.argv,
                start.launch_plan.environ(os.environ),
                watch,
                signals,
                reporter.event,
            )
            release(held)
            measured = measure_run(read_measured(watch.folder).values())
            attempt = replace(attempt, ended_at=_now(), end=end, measured=measured)
            record = replace(record, attempts=(*record.attempts[:-1], attempt))
            if end.status != 0:
                reporter.attempt_ended(end, start.strategy, number)
            if measured is not None:
                reporter.attempt_measured(attempt, str(start.plan.options.output_dir or ""))
            next_start = _next_start(start, end, number, before, reporter)
            if next_start is None or signals:
                return _finish(record, start.plan, end.status, reporter)
            reporter.next_attempt(next_start.strategy, next_start.resume, number + 1)
            _update(record, start.plan, reporter)
            start = next_start


def _next_start(
    start: Start,
    end: JobEnd,
    number: int,
    before: CheckpointStates,
    reporter: LaunchReporter,
) -> Start | None:
    """The next attempt; only memory that was too small is worth one."""
    lives_on_host = start.plan.decision.job.machine.lives_on_host
    memory = memory_of(end.cause, lives_on_host=lives_on_host)
    if memory is None or end.stopped_by is not None:
        return None
    most = start.run.how.max_attempts
    if most == 1:
        return None
    if number >= most:
        reporter.event(f"zerowiz does not try again: `--max-attempts {most}` is reached")
        return None
    try:
        return escalate(start, memory, number + 1, before, reporter)
    except ZerowizError as error:
        reporter.error(error)
    except OSError as error:
        # Whatever could not be read for the next attempt, the end of this one is known.
        reporter.event(f"zerowiz does not try again: {error}")
    return None


def _finish(record: RunRecord, plan: Plan, status: int, reporter: LaunchReporter) -> int:
    _update(replace(record, exit_status=status), plan, reporter)
    return status


def _update(record: RunRecord, plan: Plan, reporter: LaunchReporter) -> None:
    """Write the record; a disk that is full changes no status."""
    try:
        _write(record, plan)
    except ZerowizError as error:
        reporter.error(error)


def _attempt(start: Start, logs: Path) -> AttemptRecord:
    plan = start.plan
    path = config_file(plan.options, start.strategy)
    return AttemptRecord(
        strategy=start.strategy.name,
        why=start.why,
        config_path=path,
        plan_path=plan_path(path) if plan.options.own_config is None else None,
        command=hide_secrets(start.launch_plan.argv),
        env=start.launch_plan.env,
        logs=str(logs),
        resume_from=start.resume.resume_from,
        resume_path=start.resume.path,
        started_at=_now(),
        predicted=predict_run(plan.decision.of(start.strategy)),
    )


def _write(record: RunRecord, plan: Plan) -> None:
    content = render_record(record).encode()
    # Another job of the folder writes its own over the first.
    for folder in (plan.options.output_dir or Path(), Path(record.attempts[0].logs).parent):
        write_private(folder / FILE_NAME, content)


def _now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
