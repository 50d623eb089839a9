"""Take real steps on this machine, and compare each run with its prediction."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.ask.answers import answer, by_default, open_questions
from zerowiz.app.decide.decision import note_basis, note_emulation, plan_options, require_strategy
from zerowiz.app.launch.preflight import check_locks
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.measure.candidates import find_candidates, name_candidate
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.guards import check_accounting
from zerowiz.app.resolve.model import count_or_trace, read_and_trace
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.yaml_config import ready_values
from zerowiz.core.codec import encode
from zerowiz.core.launch.doctor.ops import BUILT_BY, Op
from zerowiz.core.launch.plan import launch_env, launcher_options
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.measure.keep import keep_run
from zerowiz.core.measure.machine_results import formulas_of, machine_key
from zerowiz.core.measure.optimizer_kernels import stepper_for
from zerowiz.core.measure.row import Comparison, compare, make_row
from zerowiz.core.measure.trial import (
    INTEGRATIONS,
    PlannedTrial,
    Trial,
    config_of_size,
    decode_trials,
    ops_of,
    plan_trial,
)
from zerowiz.core.script import ScriptSettings
from zerowiz.core.speed.rates import GpuRates, find_rates
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload import Loop, StateDtype
from zerowiz.emit.files import replace_file
from zerowiz.emit.measure import Batch, append_line, run_batch
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.config.cases import read_cases
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.machine.gpu_table import read_gpu_table
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.machine.results import read_results, results_path
from zerowiz.probe.model.hf import Named
from zerowiz.probe.model.libraries import read_transformers_release
from zerowiz.probe.model.model_config import read_config_json
from zerowiz.words import _, english, listing

OnResult = Callable[[Comparison, str], None]
"""Takes each comparison as it is known, and the last lines of its log."""
Notes = tuple[str, ...]

# What a case itself decides; a variable of the caller's would decide it for all.
_OF_A_CASE = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_P2P_DISABLE")
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
        raise UsageError(_("`--all` and `--cases` both choose what runs"), _("remove one of them"))
    listed = () if cases is None else decode_trials(read_cases(cases))
    machine = _find_machine(options, listed, reporter)
    trials = (
        _with_room(listed, machine, reporter)
        if listed
        else tuple(
            replace(trial, memory_cap_bytes=cap_bytes, steps=steps, timed_steps=timed_steps)
            for trial in _trials_of(options, machine, loop, reporter, every=every)
        )
    )
    planned = _plan_all(trials, machine, reporter, trace=options.trace)
    if listed:
        # Many runs share a note. Of a run by options the notes were said when it was decided.
        for note in dict.fromkeys(note for _, notes in planned for note in notes):
            reporter.note(note)
    return Measurement(machine=machine, trials=tuple(trial for trial, _ in planned))


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


def check_alone(options: Options) -> None:
    """Refuse several nodes: what is measured runs on this machine.

    Raises:
        UsageError: Several are named.
    """
    if options.hostfile is not None or (options.nodes or 1) > 1:
        raise UsageError(
            _("`measure` runs on this machine only"), _("remove `$nodes`, `$hostfile`")
        )


def _find_machine(options: Options, trials: Sequence[Trial], reporter: Reporter) -> Machine:
    """This machine; CPU ranks are as many as the largest case takes."""
    if trials and options.gpus_per_node is None and options.accelerator is Accelerator.CPU:
        options = replace(options, gpus_per_node=max(trial.gpus for trial in trials))
    machine = find_machine(options, os.environ, reporter=reporter)
    if not is_here(machine):
        raise UsageError(
            _(
                "`$machine {machine}` names another machine; `measure` runs on this one",
                machine=options.machine,
            ),
            _("remove `$machine`, or run `zerowiz measure` there"),
        )
    return machine


def _with_room(trials: Sequence[Trial], machine: Machine, reporter: Reporter) -> tuple[Trial, ...]:
    """The trials that have enough GPUs here."""
    few = tuple(trial for trial in trials if trial.gpus <= machine.world_size)
    left_out = [str(trial.id) for trial in trials if trial not in few]
    if not few:
        raise UsageError(
            _(
                "every case needs more than the {world_size} ranks of this machine",
                world_size=machine.world_size,
            ),
            _("set fewer `gpus` in a case"),
        )
    if left_out:
        reporter.event(
            _("this machine has too few ranks for {left_out}", left_out=listing(left_out))
        )
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
    plan = plan_options(asked, machine, None, (), reporter)
    note_basis(plan, reporter)
    note_emulation(plan, reporter)
    job, own = plan.request.job, options.config
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
        ds_config=None if own is None else ready_values(own, asked, job.workload, reader),
        config={},
    )
    if not every:
        return (_under(require_strategy(plan), chosen),)
    require_strategy(plan)
    return tuple(
        replace(
            _under(each.strategy, chosen), workload=each.workload, id=name_candidate(each, plan)
        )
        for each in find_candidates(plan, reporter)
    )


def _under(strategy: Strategy, trial: Trial) -> Trial:
    """The trial with this strategy, and with what takes its step then."""
    return replace(
        trial,
        stage=strategy.stage,
        offload=strategy.offload,
        kernel=stepper_for(trial.workload.optimizer, strategy.offload),
    )


def _plan_all(
    trials: Sequence[Trial], machine: Machine, reporter: Reporter, *, trace: bool | None
) -> list[tuple[PlannedTrial, Notes]]:
    """Every case as it will run, and what its prediction rests on."""
    release, rates = read_transformers_release(), find_rates(machine, read_gpu_table())
    return [
        _plan(
            replace(trial, workload=replace(trial.workload, transformers_version=release)),
            machine,
            rates,
            reporter,
            trace=trace,
        )
        for trial in trials
    ]


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
