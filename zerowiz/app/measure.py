"""Measure: run a script for some steps as `launch` would, and hold its plan against them."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, inf
from pathlib import Path

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.command import open_questions
from zerowiz.app.decide import Plan
from zerowiz.app.launch.launch import plan_dry_run, prepare_launch
from zerowiz.app.launch.start import RunOptions, Start
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT, LaunchReporter, Reporter
from zerowiz.core.decision.open_settings import Candidate
from zerowiz.core.decision.questions import template_of
from zerowiz.core.job_end import ScriptMeasurement, formulas_of, keep_run, machine_key
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.model.from_name import config_of_size, model_from_size, parse_size
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.structs import encode, replace
from zerowiz.core.workload import Loop
from zerowiz.emit.files import add_files, replace_file
from zerowiz.emit.job import run_own_script
from zerowiz.emit.processes import read_measured
from zerowiz.errors import InterruptedByUserError, UsageError, ZerowizError
from zerowiz.probe.files import read_template
from zerowiz.probe.machine.machine_file import read_results, results_path
from zerowiz.probe.model.hf import read_config_json

# For ranks to save and end at a deadline, or on Ctrl-C.
_GRACE_S = 10
# The template as it is (templates/train_deepspeed.py): its sequence, and how much text it needs:
# a tenth is held out, in windows of the sequence's length.
_TOKENS, _WINDOWS = 128, 20


class MeasuredScript(Struct, frozen=True, kw_only=True):
    """The script whose steps are measured."""

    path: str
    words: tuple[str, ...]
    options: Options
    is_template: bool
    """Whether it is zerowiz's own: its times say how fast the machine is."""


@contextmanager
def find_measured(
    script: str | None, words: tuple[str, ...], options: Options, steps: int
) -> Iterator[MeasuredScript]:
    """The script that was named, or in a folder of its own the template, which trains a model.

    Args:
        script: As it was named, if it was.
        words: After it.
        options: What was said.
        steps: Optimizer steps.

    Raises:
        UsageError: Neither a script nor a model is named.
    """
    if options.hostfile is not None or (options.nodes or 1) > 1:
        raise UsageError("`measure` runs on this machine only", "remove `$nodes`, `$hostfile`")
    if script is not None:
        yield MeasuredScript(path=script, words=words, options=options, is_template=False)
        return
    if options.model is None:
        raise UsageError(
            "`measure` needs a script or a model",
            "name the script: `zerowiz measure train.py`",
            "or a model, which a template of zerowiz trains: `zerowiz measure $model 7b`",
        )
    with tempfile.TemporaryDirectory(prefix="zerowiz-measure-") as name:
        yield _copy_template(options, steps, Path(name))


def _copy_template(options: Options, steps: int, folder: Path) -> MeasuredScript:
    template = template_of(Loop.ENGINE).script
    files = {file.path: file for file in read_template(template, folder)}
    text, model = files[str(folder / "corpus.txt")].text, str(options.model)
    needed = _WINDOWS * (options.sequence_tokens or _TOKENS)
    corpus = PlannedFile(path=str(folder / "long.txt"), text=text * -(-needed // len(text)))
    size = None if read_config_json(model) else parse_size(model)
    configs = []
    if size is not None:
        config = json.dumps(config_of_size(model_from_size(model.strip(), size)))
        model = str(folder / model.strip())
        configs.append(PlannedFile(path=f"{model}/config.json", text=config))
    add_files([*files.values(), corpus, *configs])
    return MeasuredScript(
        path=str(folder / template),
        words=("--corpus", corpus.path, "--steps", str(steps), "--save_steps", "0"),
        options=replace(options, model=model, output_dir=options.output_dir or folder),
        is_template=True,
    )


# Plan what is measured.


class MeasuredStart(Struct, frozen=True, kw_only=True):
    """A start of the script, and what tells it from others of the same job."""

    name: str
    start: Start


def plan_script(script: MeasuredScript, reporter: Reporter) -> Start:
    """The start of the script, as `launch` plans it on this machine.

    Raises:
        ZerowizError: It cannot be launched here, or contradicts the options.
    """
    how = RunOptions(supervise=True, grace_seconds=_GRACE_S)
    launch = prepare_launch(script.path, script.words, script.options, how, reporter)
    if open_questions(launch.options, launch.script.settings).get("lr", "") is None:
        # Nothing is learned: a step takes as long with any.
        launch = replace(launch, options=replace(launch.options, lr=1e-5))
    if launch.node is not None:
        raise UsageError("`measure` runs on this machine only", "add `$nodes 1`")
    return plan_dry_run(launch, reporter, None)


def plan_starts(script: MeasuredScript, reporter: Reporter, *, every: bool) -> list[MeasuredStart]:
    """What is run: the strategy of the plan, or each that fits, the chosen one first.

    Args:
        script: The script.
        reporter: Hears what the plan rests on, and which strategy is left out.
        every: Whether each strategy is run.

    Raises:
        ZerowizError: It cannot be launched here, or nothing fits.
    """
    if script.is_template and not every and script.options.stage not in {None, "auto"}:
        # Whether a named stage fits is what its run shows.
        script = replace(script, options=replace(script.options, force=True))
    first = plan_script(script, reporter)
    starts = [MeasuredStart(name=first.strategy.name, start=first)]
    for way in find_candidates(first.plan) if every else ():
        if way.strategy is first.strategy:
            continue
        named = {
            "stage": str(way.strategy.stage),
            "offload": OffloadChoice(way.strategy.offload.value),
            **first.plan.resolved.freedom.values(way.workload),
        }
        options = replace(script.options, **named)  # type: ignore[arg-type]
        name = name_candidate(way, first.plan)
        try:
            start = plan_script(replace(script, options=options), SILENT)
        except UsageError as error:
            reporter.event(f"{name} is left out: {error.message}")
        else:
            starts.append(MeasuredStart(name=name, start=start))
    return starts


def find_candidates(plan: Plan) -> list[Candidate]:
    """The fastest way to run each strategy that fits: the chosen one first, then the fastest."""
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
    # A deadline cuts off what comes last.
    return sorted(ways.values(), key=lambda w: (w.evaluated is not chosen, w.seconds or inf))


def name_candidate(candidate: Candidate, plan: Plan) -> str:
    """Its strategy, and what of its step is not as in the plan: `zero2-mb4-ckpt`."""
    step, planned = candidate.workload, plan.resolved.job.workload
    if step == planned:
        return candidate.strategy.name
    recomputes = "-ckpt" if step.gradient_checkpointing else ""
    return f"{candidate.strategy.name}-mb{step.micro_batch}{recomputes}"


# Run it, and compare each run with its plan.

OnResult = Callable[[ScriptMeasurement], None]
"""Takes each run as it ends."""


def measure_starts(
    starts: Sequence[MeasuredStart],
    steps: int,
    deadline_s: int,
    reporter: LaunchReporter,
    on_result: OnResult,
    *,
    keeps: bool,
) -> None:
    """Run each start, until the deadline or a person ends that.

    Args:
        starts: What is run, one after the other.
        steps: Optimizer steps of each.
        deadline_s: For all of them.
        reporter: Hears each command, and why a job failed.
        on_result: Takes each run.
        keeps: Whether later plans on this machine rest on the times.

    Raises:
        ZerowizError: One could not be started.
    """
    until = time.monotonic() + deadline_s
    for start in starts:
        left_s = ceil(until - time.monotonic())
        if left_s < 1:
            return
        run = measure_script(start, steps, left_s, reporter)
        if keeps:
            _keep(start.start, run, reporter)
        on_result(run)
        if run.end.stopped_by is not None:
            return


def measure_script(
    measured: MeasuredStart, steps: int, deadline_s: int, reporter: LaunchReporter
) -> ScriptMeasurement:
    """Run it until its ranks have taken so many optimizer steps, and end them there.

    Args:
        measured: As `plan_starts` made it.
        steps: Optimizer steps.
        deadline_s: After it, the job is asked to end.
        reporter: Hears the command, and why the job failed.

    Raises:
        ZerowizError: It could not be started.
    """
    start = measured.start
    reporter.start(start.launch_plan)
    ranks = start.plan.resolved.job.machine.world_size
    with tempfile.TemporaryDirectory(prefix="zerowiz-measure-") as name:
        watch = replace(start.run, folder=Path(name)).watch(1, ranks)
        end = run_own_script(
            start.launch_plan,
            replace(watch, deadline_s=deadline_s),
            steps,
            os.environ,
            force=start.plan.options.force,
        )
        if end.status != 0:
            reporter.attempt_ended(end, start.strategy, 1)
        reports = read_measured(watch.folder)
        return ScriptMeasurement(
            name=measured.name,
            planned=start.plan.decision.of(start.strategy),
            end=end,
            ranks=[reports.get(rank, {}) for rank in range(ranks)],
            wanted_steps=steps,
        )


def _keep(start: Start, run: ScriptMeasurement, reporter: Reporter) -> None:
    """Keep a run for later plans on the same machine."""
    job = start.plan.resolved.job
    path = results_path(machine_key(job.machine), os.environ)
    before = read_results(path)
    kept = keep_run(job, run, formulas_of(__version__), before)
    if kept is None:
        return
    try:
        replace_file(path, json.dumps(encode(before.plus(kept)), indent=1) + "\n")
    except ZerowizError as error:
        reporter.note(f"cannot save the result for later plans: {error.message}")


def require_all(runs: Sequence[ScriptMeasurement], wanted: int) -> None:
    """See that every run says something; running out of memory does.

    Args:
        runs: Those that ended.
        wanted: How many were planned.

    Raises:
        InterruptedByUserError: A person ended one.
        ZerowizError: Some failed, ended before their first step, or did not begin in time.
    """
    failed = [run for run in runs if not run.measured]
    missing = wanted - len(runs)
    for run in failed:
        if wanted == 1 or run.end.stopped_by == signal.SIGINT:
            raise _failure(run)
    if failed or missing:
        late = (f"{missing} did not start: set a longer `--deadline`",) if missing else ()
        raise ZerowizError(
            f"{len(failed) + missing} of {wanted} strategies were not measured",
            *(f"{run.name}: {_failure(run).message}" for run in failed),
            *late,
        )


def _failure(run: ScriptMeasurement) -> ZerowizError:
    """Why a run says nothing."""
    if run.end.status == 0:
        return ZerowizError(
            "the script ended before its first optimizer step",
            "`measure` counts the steps of DeepSpeed's engine: check that the script trains"
            " with it",
        )
    ended = f"the script was ended after {run.steps} of {run.wanted_steps} optimizer steps"
    if run.end.stopped_by == signal.SIGINT:
        return InterruptedByUserError(ended)
    if run.end.stopped_by is not None:
        return ZerowizError(ended, "set a longer `--deadline`, or fewer `--steps`")
    return ZerowizError(f"the script was not measured: it ended with status {run.end.status}")
