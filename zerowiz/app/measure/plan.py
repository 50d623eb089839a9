"""Plan what is measured: each run with its prediction, on this machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.answers import answer, by_default, open_questions
from zerowiz.app.decide.decision import plan_options, require_strategy
from zerowiz.app.decide.notes import note_basis, note_emulation
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.measure.candidates import find_candidates, name_candidate
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.guards import check_accounting
from zerowiz.app.resolve.model import count_or_trace, read_and_trace
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.yaml_config import ready_values
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.measure.optimizer_kernels import stepper_for
from zerowiz.core.measure.trial import (
    INTEGRATIONS,
    PlannedTrial,
    Trial,
    config_of_size,
    decode_trials,
    plan_trial,
)
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.speed.rates import GpuRates, find_rates
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Loop, StateDtype
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.config.cases import read_cases
from zerowiz.probe.machine.gpu_table import read_gpu_table
from zerowiz.probe.model.hf import Named
from zerowiz.probe.model.libraries import read_transformers_release
from zerowiz.probe.model.model_config import read_config_json
from zerowiz.words import _, listing

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
        raise UsageError(_("`--all` and `--cases` both choose what runs"), _("remove one of them"))
    listed = () if cases is None else decode_trials(read_cases(cases))
    machine = _find_machine(options, listed, reporter)
    if cap_bytes is not None and machine.accelerator is Accelerator.CPU:
        raise UsageError(
            _("`--cap-bytes` limits the memory of GPUs, and these ranks run on the CPU"),
            _("remove `--cap-bytes`"),
        )
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
