"""Run a job under zerowiz's eyes: its attempts one after the other, and the record of them."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from json import dumps
from pathlib import Path

from zerowiz import __version__
from zerowiz.app.decide import Plan, require_strategy
from zerowiz.app.launch.start import Start, check_start, plan_launch
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.resolved_job import config_file
from zerowiz.core.decision.flowchart import OffloadChoice
from zerowiz.core.decision.job import RanOut
from zerowiz.core.job_end import (
    FILE_NAME,
    AttemptRecord,
    JobEnd,
    RunRecord,
    decide_again,
    measure_run,
    memory_of,
    predict_run,
    remember,
    render_record,
)
from zerowiz.core.launch.plan import output_folder, plan_resume, resumes
from zerowiz.core.launch.provenance import plan_path
from zerowiz.core.launch.secrets import hide_secrets
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.structs import encode, replace
from zerowiz.emit.files import refuse_loss, release, replace_file, write_held, write_private
from zerowiz.emit.job import noted_signals, supervise
from zerowiz.emit.processes import read_measured
from zerowiz.errors import ZerowizError
from zerowiz.probe.output_folder import history_path, read_history
from zerowiz.probe.preflight.read_facts import CheckpointStates, read_saved, read_states
from zerowiz.ui import sentences

# Plan the next start, with less memory, after a job ran out of it; remember that it did.


def keep(start: Start, memory: MemoryKind) -> RanOut | None:
    """Remember what was seen on this machine; where nothing can be kept, this run knows it."""
    day = datetime.now(tz=UTC).date().isoformat()
    seen = remember(start.plan.decision, start.strategy, memory, day)
    if seen is None:
        return None
    path = history_path(seen.job_key, os.environ)
    try:
        replace_file(path, dumps(encode(read_history(path).plus(seen)), indent=2) + "\n")
    except ZerowizError:
        return seen
    return seen


def _output_folder(start: Start) -> Path | None:
    folder = output_folder(start.script)
    return None if folder is None else Path(folder)


def checkpoints_before(start: Start) -> CheckpointStates:
    """The checkpoints of other runs; none where this run goes on from them too."""
    if resumes(start.script):
        return {}
    return read_states(_output_folder(start))


def escalate(
    start: Start, seen: RanOut | None, number: int, before: CheckpointStates, reporter: Reporter
) -> Start:
    """The next start: more frugal, at the same global batch.

    Args:
        start: The one that ran out of memory.
        seen: What it showed.
        number: Of the next attempt.
        before: Of `checkpoints_before`, as the first attempt began.
        reporter: Hears what may go wrong with it.

    Raises:
        ZerowizError: No strategy is left that fits, or its config cannot reach the script, or would
            replace one that somebody changed.
    """
    if seen is None:
        raise ZerowizError(
            "zerowiz does not try again: the free memory is unknown",
            "set it: `--memory-budget 30GiB`",
        )
    decision = decide_again(start.plan.decision, seen)
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
        why=f"{seen.strategy} ran out of memory; {reasons}",
    )


Publish = Callable[[int, Start], None]


def run_attempts(start: Start, reporter: LaunchReporter, publish: Publish | None = None) -> int:
    """Start the job, and after it ran out of memory perhaps once more; the status of the last.

    Args:
        start: The first.
        reporter: Hears how each attempt ended, and what follows.
        publish: Told of each start once its files are written; other nodes wait for it.

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
    before, end = checkpoints_before(start), None
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
                start.launch_plan.argv, start.launch_plan.environ(os.environ), watch, signals
            )
            release(held)
            reports = read_measured(watch.folder).values()
            measured = measure_run(reports, attempt.predicted.memory)
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
    seen = keep(start, memory)
    most = start.run.max_attempts
    if most == 1:
        return None
    if number >= most:
        reporter.event(f"zerowiz does not try again: `--max-attempts {most}` is reached")
        return None
    try:
        return escalate(start, seen, number + 1, before, reporter)
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
    job = plan.decision.job
    accelerator = job.machine.accelerator
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
        predicted=predict_run(job, plan.decision.of(start.strategy), accelerator),
    )


def _write(record: RunRecord, plan: Plan) -> None:
    folder = plan.options.output_dir or Path()
    write_private(folder / FILE_NAME, render_record(record).encode())


def _now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
