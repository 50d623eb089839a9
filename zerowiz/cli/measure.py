"""`zerowiz measure`: real steps on this machine, the prediction beside them."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.ask.answers import answer, open_questions
from zerowiz.app.decide.decision import note_emulation, plan_options, require_strategy, write_notes
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.options import Options
from zerowiz.app.resolve.model import ReadModel, count_or_trace, read_and_trace
from zerowiz.cli.options import takes_options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import answer_or_default
from zerowiz.core.launch.plan import launch_env, launcher_options
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.measure.optimizer_kernels import stepper_for
from zerowiz.core.measure.row import Comparison, compare, encode_comparison, make_row
from zerowiz.core.measure.trial import (
    PlannedTrial,
    Trial,
    config_of_size,
    decode_trials,
    ops_of,
    plan_trial,
)
from zerowiz.core.plan_json import SCHEMA_VERSION
from zerowiz.core.script import ScriptSettings
from zerowiz.core.values import replace
from zerowiz.core.workload import Integration, StateDtype
from zerowiz.emit.measure import Batch, append_line, run_batch
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.config.cases import read_cases
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.model.libraries import read_transformers_release
from zerowiz.probe.model.model_config import read_config_json
from zerowiz.ui import measure as show_measured
from zerowiz.ui import show
from zerowiz.ui.text.progress import counting

Tell = Callable[[Comparison, str], None]
Notes = tuple[str, ...]

# What a case itself decides; a variable of the caller's would decide it for all.
_OF_A_CASE = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_P2P_DISABLE")
_HALF_STATES = ("bf16_master_weights_and_grads", "bf16_optimizer_states")


def _check(options: Options) -> None:
    """Refuse what has no meaning for a run on this machine."""
    if options.hostfile is not None or (options.nodes or 1) > 1:
        raise UsageError("`measure` runs on this machine alone", "drop `--nodes`, `--hostfile`")


def _trial_of(options: Options, machine: Machine, cap_bytes: int | None, steps: int) -> Trial:
    """The run that the options describe; a named stage is run whether or not it fits."""
    answers = {"model": open_questions(options, ScriptSettings())["model"]}
    options = answer(options, answers, answer_or_default)
    named = options.stage not in {None, "auto"}
    asked = replace(options, integration=Integration.DEEPSPEED, force=options.force or named)
    plan = plan_options(asked, machine, None, ())
    write_notes(plan)
    note_emulation(plan)
    strategy, job = require_strategy(plan), plan.request.job
    own = None if options.config is None else read_cases(options.config)
    return Trial(
        id="run",
        model=options.model or "",
        gpus=machine.world_size,
        stage=strategy.stage,
        offload=strategy.offload,
        workload=job.workload,
        kernel=stepper_for(job.workload.optimizer, strategy.offload),
        nvme_path=job.nvme_path,
        hpz=job.hpz,
        quantized_weights=job.quantized_weights,
        memory_budget_bytes=job.budget_bytes,
        memory_cap_bytes=cap_bytes,
        steps=steps,
        bf16=dict.fromkeys(_HALF_STATES, True) if job.state_dtype is StateDtype.BF16 else {},
        ds_config=own if isinstance(own, dict) else None,
        config={},
    )


def _read(trial: Trial, *, trace: bool | None) -> ReadModel | str:
    """The model as the estimator counts it, or why it cannot.

    Raises:
        ZerowizError: There is no such model at all.
    """
    workload = trial.workload
    try:
        if trial.config:
            named = (Path(trial.model).name, trial.config)
            return count_or_trace(trial.model, named, workload, os.environ, trace=trace)
        return read_and_trace(trial.model, workload, os.environ, trace=trace)
    except ZerowizError as error:
        if not trial.config:
            raise
        return error.message


def _plan(trial: Trial, machine: Machine, *, trace: bool | None) -> tuple[PlannedTrial, Notes]:
    """The case as it will run, and what its prediction rests on."""
    trial = replace(trial, config=trial.config or read_config_json(trial.model))
    read = _read(trial, trace=trace)
    if isinstance(read, str):
        return plan_trial(trial, machine, read), ()
    if not trial.config:
        trial = replace(trial, config=config_of_size(read.model))
    return plan_trial(trial, machine, read.model, read.traced), read.notes


def _plan_all(
    trials: Sequence[Trial], machine: Machine, *, trace: bool | None, quiet: bool
) -> list[PlannedTrial]:
    """Every case; a note that many of them share is said once."""
    release = read_transformers_release()
    planned = [
        _plan(
            replace(trial, workload=replace(trial.workload, transformers_version=release)),
            machine,
            trace=trace,
        )
        for trial in trials
    ]
    if not quiet:
        for note in dict.fromkeys(note for _, notes in planned for note in notes):
            show.note(note, sys.stderr)
    return [plan for plan, _ in planned]


def _with_room(trials: Sequence[Trial], machine: Machine) -> tuple[Trial, ...]:
    """The trials that have enough GPUs here."""
    few = tuple(trial for trial in trials if trial.gpus <= machine.world_size)
    left_out = [str(trial.id) for trial in trials if trial not in few]
    if not few:
        raise UsageError(f"every case takes more than the {machine.world_size} GPUs here")
    if left_out:
        show.note(f"not enough GPUs here for {', '.join(left_out)}", sys.stderr)
    return few


def _batch(
    plans: Sequence[PlannedTrial], machine: Machine, deadline_s: int, case_deadline_s: int
) -> Batch:
    programs = find_programs(os.environ)
    trials = [plan.trial for plan in plans]
    used = with_gpus(machine, max(trial.gpus for trial in trials))
    port = ("--master_port", str(programs.master_port))
    env = launch_env(used, programs, os.environ, {})
    return Batch(
        cases=[plan.as_case() for plan in plans],
        ops=ops_of(trials, machine.accelerator),
        launcher=(programs.deepspeed, *launcher_options(used), *port),
        env={name: value for name, value in env.items() if name not in _OF_A_CASE},
        deadline_s=deadline_s,
        case_deadline_s=case_deadline_s,
    )


def _run(
    plans: Sequence[PlannedTrial], batch: Batch, machine: Machine, output: Path | None, tell: Tell
) -> list[Comparison]:
    """Every case as it ends: its row is kept at once, whatever comes after it."""
    comparisons: list[Comparison] = []
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_CASE}
    with (
        counting("Measuring", len(plans), sys.stderr) as advance,
        closing(run_batch(batch, environ)) as ended,
    ):
        for each in ended:
            plan = plans[each.index]
            row = make_row(plan, each.ends, machine.accelerator)
            if output is not None:
                append_line(output, json.dumps(row))
            comparisons.append(compare(plan, row))
            tell(comparisons[-1], each.log_tail)
            advance(str(plan.trial.id))
    return comparisons


def _teller(options: Options) -> Tell:
    def tell(comparison: Comparison, log_tail: str) -> None:
        if not options.as_json:
            show_measured.comparison(comparison, sys.stdout)
            sys.stdout.flush()
        if not comparison.measured and log_tail and not options.quiet:
            sys.stderr.write(f"{log_tail}\n")

    return tell


def _require_all(comparisons: Sequence[Comparison], plans: Sequence[PlannedTrial]) -> None:
    """Every case has an answer; running out of memory is one.

    Raises:
        ZerowizError: Some failed, or did not begin before the deadline.
    """
    failed = [c for c in comparisons if not c.measured]
    missing = len(plans) - len(comparisons)
    if not failed and not missing:
        return
    hints = [f"{c.row['id']}: {c.row['error']}" for c in failed]
    late = [f"{missing} did not begin: a longer `--deadline`, or fewer cases"] if missing else []
    count = len(failed) + missing
    raise ZerowizError(f"{count} of {len(plans)} cases were not measured", *hints, *late)


def _write_json(comparisons: Sequence[Comparison]) -> None:
    content = {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": __version__,
        "runs": [encode_comparison(comparison) for comparison in comparisons],
    }
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def _machine(options: Options, trials: Sequence[Trial]) -> Machine:
    """This machine; CPU ranks are as many as the largest case takes."""
    if trials and options.gpus_per_node is None and options.accelerator is Accelerator.CPU:
        options = replace(options, gpus_per_node=max(trial.gpus for trial in trials))
    machine = find_machine(options, os.environ)
    if not is_here(machine):
        raise UsageError(
            f"`--machine {options.machine}`: `measure` runs on this machine alone",
            "drop `--machine`, or run `zerowiz measure` there",
        )
    return machine


@takes_options
def measure(
    options: Options,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="JSON list of runs, instead of the options")
    ] = None,
    cap_bytes: Annotated[
        int | None,
        typer.Option("--cap-bytes", min=1, help="Cap torch's allocator: a smaller card"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps")] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", help="Append each run as a line of JSON")
    ] = None,
    deadline: Annotated[
        int, typer.Option("--deadline", min=1, help="Seconds for everything")
    ] = 900,
    case_deadline: Annotated[
        int, typer.Option("--case-deadline", min=1, help="Seconds for one run")
    ] = 300,
) -> None:
    """Take real steps on this machine, and hold the prediction against them"""
    _check(options)
    listed = () if cases is None else decode_trials(read_cases(cases))
    machine = _machine(options, listed)
    trials = (
        _with_room(listed, machine) if listed else (_trial_of(options, machine, cap_bytes, steps),)
    )
    # Of a run by options the notes are said already.
    quiet = options.quiet or not listed
    plans = _plan_all(trials, machine, trace=options.trace, quiet=quiet)
    if options.dry_run:
        sys.stdout.write(json.dumps([plan.as_case() for plan in plans], indent=2) + "\n")
        return
    batch = _batch(plans, machine, deadline, case_deadline)
    comparisons = _run(plans, batch, machine, output, _teller(options))
    if options.as_json:
        _write_json(comparisons)
    _require_all(comparisons, plans)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="measure", cls=PlainCommand)(measure)
