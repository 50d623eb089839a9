"""Take real steps on this machine, and compare each run with its prediction."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from zerowiz import __version__
from zerowiz.app.launch.preflight import check_locks
from zerowiz.app.measure.plan import Measurement
from zerowiz.app.reporter import Reporter
from zerowiz.core.codec import encode
from zerowiz.core.launch.doctor.ops import BUILT_BY, Op
from zerowiz.core.launch.plan import launch_env, launcher_options
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.measure.keep import keep_run
from zerowiz.core.measure.machine_results import formulas_of, machine_key
from zerowiz.core.measure.row import Comparison, compare, make_row
from zerowiz.core.measure.trial import (
    PlannedTrial,
    Trial,
    ops_of,
)
from zerowiz.core.strategy import Offload
from zerowiz.emit.files import replace_file
from zerowiz.emit.measure import Batch, append_line, run_batch
from zerowiz.errors import ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.machine.results import read_results, results_path
from zerowiz.words import _, english, listing

OnResult = Callable[[Comparison, str], None]
"""Takes each comparison as it is known, and the last lines of its log."""

# What a case itself decides; a variable of the caller's would decide it for all.
_OF_A_CASE = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_P2P_DISABLE")


def run_measurement(
    measurement: Measurement,
    output: Path | None,
    reporter: Reporter,
    on_result: OnResult,
    *,
    deadline_s: int,
    case_deadline_s: int,
) -> list[Comparison]:
    """Run every case; its row is kept as it ends, whatever comes after it.

    Args:
        measurement: What is run.
        output: A file that gets a line of JSON for each run.
        reporter: Hears how far it is.
        on_result: Takes each comparison.
        deadline_s: For everything.
        case_deadline_s: For one run.

    Raises:
        ZerowizError: The ranks could not be started.
    """
    machine, planned = measurement.machine, measurement.trials
    batch = _batch(planned, machine, deadline_s, case_deadline_s)
    comparisons: list[Comparison] = []
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_CASE}
    ops = [BUILT_BY[builder] for builder in batch.ops]
    compiled = check_locks(batch.launcher[0], {**environ, **batch.env}, ops, reporter)
    with (
        reporter.wait(_("measuring"), len(planned)) as wait,
        closing(
            run_batch(batch, environ, lambda index: wait.at(str(planned[index].trial.id)))
        ) as ended,
    ):
        wait.at(_before_first(compiled))
        for each in ended:
            plan = planned[each.index]
            row = make_row(plan, each.ends, machine.accelerator)
            if output is not None:
                append_line(output, json.dumps(english(row)))
            comparisons.append(compare(plan, row))
            _keep(plan, comparisons[-1], reporter)
            on_result(comparisons[-1], each.log_tail)
            wait.done(str(plan.trial.id))
    return comparisons


def _before_first(compiled: Sequence[Op]) -> str:
    """What the ranks do before the first case begins."""
    if not compiled:
        return _("loading torch and DeepSpeed")
    return _("DeepSpeed compiles {compiled}", compiled=listing(op.name for op in compiled))


def _keep(plan: PlannedTrial, comparison: Comparison, reporter: Reporter) -> None:
    """Keep a run for later plans on the same machine."""
    if plan.job is None:
        return
    path = results_path(machine_key(plan.job.machine), os.environ)
    before = read_results(path)
    run = keep_run(plan, comparison, formulas_of(__version__), before)
    if run is None:
        return
    try:
        replace_file(path, json.dumps(encode(before.plus(run)), indent=1) + "\n")
    except ZerowizError as error:
        reporter.note(_("cannot save the result for later plans: {message}", message=error.message))


def require_all(comparisons: Sequence[Comparison], measurement: Measurement) -> None:
    """See that every case has an answer; running out of memory is one.

    Raises:
        ZerowizError: Some failed, or did not begin before the deadline.
    """
    failed = [c for c in comparisons if not c.measured]
    missing = len(measurement.trials) - len(comparisons)
    if not failed and not missing:
        return
    hints = [f"{c.row['id']}: {c.row['error']}" for c in failed]
    late = (
        [
            _(
                "{missing} did not start: set a longer `--deadline`, or run fewer cases",
                missing=missing,
            )
        ]
        if missing
        else []
    )
    count = len(failed) + missing
    raise ZerowizError(
        _(
            "{count} of {trials} cases were not measured",
            count=count,
            trials=len(measurement.trials),
        ),
        *hints,
        *late,
    )


def _batch(
    planned: Sequence[PlannedTrial], machine: Machine, deadline_s: int, case_deadline_s: int
) -> Batch:
    programs = find_programs(os.environ)
    trials = [each.trial for each in planned]
    used = with_gpus(machine, max(trial.gpus for trial in trials))
    port = ("--master_port", str(programs.master_port))
    env = launch_env(used, programs, os.environ, {})
    return Batch(
        cases=[each.as_case() for each in planned],
        ops=ops_of(trials, machine.accelerator),
        launcher=(programs.deepspeed, *launcher_options(used), *port),
        env={name: value for name, value in env.items() if name not in _OF_A_CASE},
        deadline_s=deadline_s,
        case_deadline_s=case_deadline_s,
        cores=_find_cores(trials, used),
    )


def _find_cores(trials: Sequence[Trial], machine: Machine) -> Sequence[int]:
    """The cores that the ranks of a run that offloads divide, as those of a launch do."""
    offloads = any(trial.offload is not Offload.NONE for trial in trials)
    if not offloads or machine.accelerator is not Accelerator.CUDA:
        return ()
    from zerowiz.probe.launch.core_binding import try_core_binding  # noqa: PLC0415 - seldom needed

    return sorted(parse_list(try_core_binding(os.environ, len(machine.gpus)).cores or ""))
