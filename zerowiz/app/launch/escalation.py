"""Plan the next start, with less memory, after a job ran out of it; remember that it did."""

import os
from datetime import UTC, datetime
from json import dumps
from pathlib import Path

from zerowiz.app.decide.decision import Plan, require_strategy
from zerowiz.app.launch.preflight import check_start
from zerowiz.app.launch.start import Start, plan_launch
from zerowiz.app.reporter import Reporter
from zerowiz.core.codec import encode
from zerowiz.core.decision.flowchart import OffloadChoice
from zerowiz.core.decision.oom_history import RanOut
from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.outcome.next_strategy import decide_again, remember
from zerowiz.core.outcome.resume import output_folder, plan_resume, resumes
from zerowiz.core.values import replace
from zerowiz.emit.files import refuse_loss, replace_file
from zerowiz.errors import ZerowizError
from zerowiz.probe.launch.checkpoints import CheckpointStates, read_saved, read_states
from zerowiz.probe.launch.oom_history import history_path, read_history
from zerowiz.ui.sentences import decisions
from zerowiz.words import _, joined


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


def _open_step(plan: Plan) -> dict[str, object]:
    """What was chosen of the step for the first attempt, which the next ones keep."""
    return {name: getattr(plan.decision.job.workload, name) for name in plan.request.freedom.names}


def _output_folder(start: Start) -> Path | None:
    folder = output_folder(start.facts, start.script_args)
    return None if folder is None else Path(folder)


def checkpoints_before(start: Start) -> CheckpointStates:
    """The checkpoints of other runs; none where this run goes on from them too."""
    if resumes(start.facts, start.script_args):
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
            _("zerowiz does not try again: the free memory is unknown"),
            _("set it: `--memory-budget 30GiB`"),
        )
    decision = decide_again(start.plan.decision, seen)
    plan = replace(
        start.plan,
        request=replace(start.plan.request, job=decision.job, constraints=decision.constraints),
        decision=decision,
        search=None,
        remedies=(),
    )
    strategy = require_strategy(plan)
    # The plan file names this strategy: without this run, the flowchart would choose another.
    named = {
        "stage": str(strategy.stage),
        "offload": OffloadChoice(strategy.offload.value),
        **_open_step(plan),
    }
    plan = replace(plan, options=replace(plan.options, **named))  # type: ignore[arg-type]
    saved = read_saved(_output_folder(start), before)
    resume = plan_resume(start.facts, start.script_args, saved, start.strategy, strategy)
    launch_plan = plan_launch(plan, start.facts, resume.script_args, strategy, start.run, number)
    refuse_loss(*launch_plan.files, force=plan.options.force)
    check_start(plan, start.facts, strategy, resume.script_args, launch_plan, reporter)
    reasons = joined("; ", decisions.reasons(decision))
    return replace(
        start,
        plan=plan,
        strategy=strategy,
        launch_plan=launch_plan,
        resume=resume,
        why=_(
            "{strategy} ran out of {memory} memory; {reasons}",
            strategy=seen.strategy,
            memory=seen.memory,
            reasons=reasons,
        ),
    )
