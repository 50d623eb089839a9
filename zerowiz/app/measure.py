"""Measure: choose the runs, plan their steps, run them, and hold the prediction against them."""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from math import inf
from pathlib import Path

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.ask import answer, by_default, open_questions
from zerowiz.app.decide import Plan, note_basis, note_emulation, plan_options, require_strategy
from zerowiz.app.launch.attempts import RestartPolicy
from zerowiz.app.launch.launch import RunOptions, plan_dry_run, prepare_launch
from zerowiz.app.launch.start import Start, check_locks
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.model import count_or_trace, read_and_trace
from zerowiz.app.resolve.own_config import ready_values
from zerowiz.app.resolve.workload import check_accounting
from zerowiz.core.decision.open_settings import Candidate
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.launch.plan import Launcher, launch_env, launcher_options
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.measured_row import (
    Comparison,
    ScriptMeasurement,
    compare,
    formulas_of,
    keep_run,
    machine_key,
    make_row,
)
from zerowiz.core.measured_trial import (
    INTEGRATIONS,
    PlannedTrial,
    Trial,
    config_of_size,
    decode_trials,
    ops_of,
    plan_trial,
    stepper_for,
)
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.preflight.facts import BUILT_BY
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.speed.costs import GpuRates, find_rates
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.structs import encode, replace
from zerowiz.core.workload import Loop, StateDtype
from zerowiz.emit.files import replace_file
from zerowiz.emit.measure import Batch, append_line, run_batch, run_own_script
from zerowiz.emit.processes import read_measured
from zerowiz.errors import InterruptedByUserError, UsageError, ZerowizError
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.machine.machine_file import read_results, results_path
from zerowiz.probe.model.hf import Named, read_config_json
from zerowiz.probe.package_data import read_cases, read_gpu_table, read_transformers_release
from zerowiz.probe.preflight.interpreter import find_programs


def find_candidates(plan: Plan, reporter: Reporter) -> list[Candidate]:
    """The fastest way to run each strategy that fits: the chosen one first, then the fastest.

    Args:
        plan: What was decided.
        reporter: Hears which strategy is left out, and why.
    """
    workload, chosen = plan.resolved.job.workload, plan.decision.chosen
    ways: dict[str, Candidate] = {}
    if chosen is not None:
        ways[chosen.strategy.name] = Candidate(workload=workload, evaluated=chosen)
    for candidate in () if plan.search is None else plan.search.candidates:
        ways.setdefault(candidate.strategy.name, candidate)
    for evaluated in plan.decision.allowed:
        if evaluated.runs:
            untried = Candidate(workload=workload, evaluated=evaluated)
            ways.setdefault(evaluated.strategy.name, untried)

    def order(way: Candidate) -> tuple[bool, float]:
        # A deadline cuts off what comes last.
        return way.evaluated is not chosen, inf if way.seconds is None else way.seconds

    named = sorted(ways.values(), key=order)
    return [way for way in named if _is_supported(way.strategy, plan, reporter)]


def name_candidate(candidate: Candidate, plan: Plan) -> str:
    """Its strategy, and what of its step is not as in the plan: `zero2-mb4-ckpt`."""
    step, planned = candidate.workload, plan.resolved.job.workload
    if step == planned:
        return candidate.strategy.name
    recomputes = "-ckpt" if step.gradient_checkpointing else ""
    return f"{candidate.strategy.name}-mb{step.micro_batch}{recomputes}"


def _is_supported(strategy: Strategy, plan: Plan, reporter: Reporter) -> bool:
    """Whether DeepSpeed trains this job under the strategy; else it is said why not."""
    resolved = plan.resolved
    handover = resolved.handover
    try:
        refuse_unsupported(
            resolved.job,
            strategy,
            handover.integration,
            script_has_optimizer=handover.script_has_optimizer,
        )
    except UsageError as error:
        reporter.event(f"{strategy.name} is left out: {error.message}")
        return False
    return True


# Plan what is measured: each run with its prediction, on this machine.

Notes = tuple[str, ...]

_HALF_STATES = ("bf16_master_weights_and_grads", "bf16_optimizer_states")


class Measurement(Struct, frozen=True, kw_only=True):
    """The runs that will be measured, each with its prediction, and where."""

    machine: Machine
    trials: tuple[PlannedTrial, ...]


def plan_measurement(
    options: Options,
    cases: Path | None,
    reporter: Reporter,
    *,
    loop: Loop,
    cap_bytes: int | None,
    steps: int,
    timed_steps: int | None,
    every: bool,
) -> Measurement:
    """Predict every run.

    Args:
        options: What was said; they describe the runs where there are no cases.
        cases: A file with a JSON list of runs.
        reporter: Hears what the predictions rest on.
        loop: What takes the steps in the runs of the options.
        cap_bytes: A cap for torch's allocator in the runs of the options.
        steps: Optimizer steps of the runs of the options whose memory is measured.
        timed_steps: Those of them that run freely; None takes as many as they need.
        every: Whether each strategy that the plan says runs is run, or the chosen one alone.

    Raises:
        ZerowizError: A run is described wrongly, or has no place here.
    """
    check_alone(options)
    check_accounting(options)
    if every and cases is not None:
        raise UsageError("`--all` and `--cases` both choose what runs", "remove one of them")
    listed = () if cases is None else decode_trials(read_cases(cases))
    machine = _find_machine(options, listed, reporter)
    if cap_bytes is not None and machine.accelerator.row.on_host:
        raise UsageError(
            "`--cap-bytes` limits the memory of GPUs, and these ranks run on the CPU",
            "remove `--cap-bytes`",
        )
    trials = (
        _with_room(listed, machine, reporter)
        if listed
        else tuple(
            replace(trial, memory_cap_bytes=cap_bytes, steps=steps, timed_steps=timed_steps)
            for trial in _trials_of(options, machine, loop, reporter, every=every)
        )
    )
    release, rates = read_transformers_release(), find_rates(machine, read_gpu_table())
    planned = [
        _plan(
            replace(trial, workload=replace(trial.workload, transformers_version=release)),
            machine,
            rates,
            reporter,
            trace=options.trace,
        )
        for trial in trials
    ]
    if listed:
        # Many runs share a note. Of a run by options the notes were said when it was decided.
        for note in dict.fromkeys(note for _, notes in planned for note in notes):
            reporter.note(note)
    return Measurement(machine=machine, trials=tuple(trial for trial, _ in planned))


def check_alone(options: Options) -> None:
    """Refuse several nodes: what is measured runs on this machine.

    Raises:
        UsageError: Several are named.
    """
    if options.hostfile is not None or (options.nodes or 1) > 1:
        raise UsageError("`measure` runs on this machine only", "remove `$nodes`, `$hostfile`")


def _find_machine(options: Options, trials: Sequence[Trial], reporter: Reporter) -> Machine:
    """This machine; CPU ranks are as many as the largest case takes."""
    if trials and options.gpus_per_node is None and options.accelerator is Accelerator.CPU:
        options = replace(options, gpus_per_node=max(trial.gpus for trial in trials))
    machine = find_machine(options, os.environ, reporter=reporter)
    if not is_here(machine):
        raise UsageError(
            f"`$machine {options.machine}` names another machine; `measure` runs on this one",
            "remove `$machine`, or run `zerowiz measure` there",
        )
    return machine


def _with_room(trials: Sequence[Trial], machine: Machine, reporter: Reporter) -> tuple[Trial, ...]:
    """The trials that have enough GPUs here."""
    few = tuple(trial for trial in trials if trial.gpus <= machine.world_size)
    left_out = [str(trial.id) for trial in trials if trial not in few]
    if not few:
        raise UsageError(
            f"every case needs more than the {machine.world_size} ranks of this machine",
            "set fewer `gpus` in a case",
        )
    if left_out:
        reporter.event(f"this machine has too few ranks for {', '.join(left_out)}")
    return few


def _trials_of(
    options: Options,
    machine: Machine,
    loop: Loop,
    reporter: Reporter,
    *,
    every: bool,
) -> tuple[Trial, ...]:
    """The runs that the options describe; a named stage is run whether or not it fits."""
    answers = {"model": open_questions(options, ScriptSettings())["model"]}
    options = answer(options, answers, by_default)
    named = options.stage not in {None, "auto"}
    reader = INTEGRATIONS[loop]
    asked = replace(options, integration=reader, force=options.force or (named and not every))
    plan = plan_options(asked, machine, None, reporter)
    note_basis(plan, reporter)
    note_emulation(plan, reporter)
    job, config = plan.resolved.job, options.config
    chosen = Trial(
        id="run",
        loop=loop,
        model=options.model or "",
        gpus=machine.world_size,
        stage=0,
        workload=job.workload,
        nvme_path=job.nvme_path,
        hpz=job.hpz,
        quantized_weights=job.quantized_weights,
        memory_budget_bytes=job.budget_bytes,
        bf16=dict.fromkeys(_HALF_STATES, True) if job.state_dtype is StateDtype.BF16 else {},
        ds_config=None if config is None else ready_values(config, asked, job.workload, reader),
        config={},
    )
    if not every:
        return (_under(require_strategy(plan), chosen),)
    require_strategy(plan)
    return tuple(
        replace(
            _under(candidate.strategy, chosen),
            workload=candidate.workload,
            id=name_candidate(candidate, plan),
        )
        for candidate in find_candidates(plan, reporter)
    )


def _under(strategy: Strategy, trial: Trial) -> Trial:
    """The trial with this strategy, and with what takes its step then."""
    return replace(
        trial,
        stage=strategy.stage,
        offload=strategy.offload,
        kernel=stepper_for(trial.workload.optimizer, strategy.offload),
    )


def _plan(
    trial: Trial,
    machine: Machine,
    rates: GpuRates | None,
    reporter: Reporter,
    *,
    trace: bool | None,
) -> tuple[PlannedTrial, Notes]:
    """The case as it will run, and what its prediction rests on."""
    trial = replace(trial, config=trial.config or read_config_json(trial.model))
    read = _read(trial, reporter, trace=trace)
    if isinstance(read, str):
        return plan_trial(trial, machine, read), ()
    if not trial.config:
        trial = replace(trial, config=config_of_size(read.model))
    return plan_trial(trial, machine, read.model, read.traced, rates), read.notes


def _read(trial: Trial, reporter: Reporter, *, trace: bool | None) -> ReadModel | str:
    """The model as the estimator counts it, or why it cannot.

    Raises:
        ZerowizError: There is no such model at all.
    """
    workload = trial.workload
    try:
        if trial.config:
            named = Named(Path(trial.model).name, trial.config)
            return count_or_trace(trial.model, named, workload, os.environ, reporter, trace=trace)
        return read_and_trace(trial.model, workload, os.environ, reporter, trace=trace)
    except ZerowizError as error:
        if not trial.config:
            raise
        return error.message


# Take real steps on this machine, and compare each run with its prediction.

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
        reporter.wait("measuring", len(planned)) as wait,
        closing(
            run_batch(batch, environ, lambda index: wait.at(str(planned[index].trial.id)))
        ) as ended,
    ):
        # What the ranks do before the first case begins.
        wait.at(
            f"DeepSpeed compiles {', '.join(op.name for op in compiled)}"
            if compiled
            else "loading torch and DeepSpeed"
        )
        for trial in ended:
            plan = planned[trial.index]
            row = make_row(plan, trial.ends, machine.accelerator)
            if output is not None:
                append_line(output, json.dumps(row))
            comparisons.append(compare(plan, row))
            _keep(plan, comparisons[-1], reporter)
            on_result(comparisons[-1], trial.log_tail)
            wait.done(str(plan.trial.id))
    return comparisons


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
        reporter.note(f"cannot save the result for later plans: {error.message}")


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
        [f"{missing} did not start: set a longer `--deadline`, or run fewer cases"]
        if missing
        else []
    )
    count = len(failed) + missing
    raise ZerowizError(
        f"{count} of {len(measurement.trials)} cases were not measured",
        *hints,
        *late,
    )


def _batch(
    planned: Sequence[PlannedTrial], machine: Machine, deadline_s: int, case_deadline_s: int
) -> Batch:
    programs = find_programs(os.environ)
    trials = [plan.trial for plan in planned]
    used = with_gpus(machine, max(trial.gpus for trial in trials))
    port = ("--master_port", str(programs.master_port))
    env = launch_env(used, programs, os.environ, {})
    return Batch(
        cases=[plan.as_case() for plan in planned],
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
    from zerowiz.probe.preflight.read_facts import try_core_binding  # noqa: PLC0415 - seldom needed

    return sorted(parse_list(try_core_binding(os.environ, len(machine.gpus)).cores or ""))


# Run a person's own script for some optimizer steps, and compare it with its plan.

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
        raise UsageError("`measure` runs on this machine only", "add `$nodes 1`")
    return plan_dry_run(launch, reporter, None)


def measure_script(
    start: Start, steps: int, deadline_s: int, reporter: LaunchReporter
) -> ScriptMeasurement:
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
    ranks = start.plan.resolved.job.machine.world_size
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
        return ScriptMeasurement(
            planned=start.plan.decision.of(start.strategy),
            end=end,
            ranks=[measured.get(rank, {}) for rank in range(ranks)],
            wanted_steps=steps,
        )


def require_steps(run: ScriptMeasurement) -> None:
    """See that the run says something; running out of memory does.

    Raises:
        InterruptedByUserError: A person ended it.
        ZerowizError: It failed, or ended before its first step.
    """
    if run.measured:
        return
    if run.end.status == 0:
        raise ZerowizError(
            "the script ended before its first optimizer step",
            (
                "`measure` counts the steps of DeepSpeed's engine: check that the script "
                "trains with it"
            ),
        )
    ended = f"the script was ended after {run.steps} of {run.wanted_steps} optimizer steps"
    if run.end.stopped_by == signal.SIGINT:
        raise InterruptedByUserError(ended)
    if run.end.stopped_by is not None:
        raise ZerowizError(ended, "set a longer `--deadline`, or fewer `--steps`")
    raise ZerowizError(f"the script was not measured: it ended with status {run.end.status}")
