"""Show a decision: the flowchart, the table of strategies, the remedies, the launch."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TextIO

from zerowiz.core.decision.buffer_costs import buffer_costs
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.script import ScriptFacts
from zerowiz.core.speed.terms import StepTime
from zerowiz.core.workload import SETTINGS, Accounting, Trainer
from zerowiz.ui import remedies as ui_remedies
from zerowiz.ui import sentences
from zerowiz.ui.pictures import memory
from zerowiz.ui.pictures import strategies as table
from zerowiz.ui.pictures.flowchart import VERDICT_COLOURS
from zerowiz.ui.pictures.flowchart import flowchart as draw_flowchart
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.fold import columns_of, fold_command
from zerowiz.ui.text.lines import draw
from zerowiz.ui.text.table import say
from zerowiz.ui.text.units import gpus, on_device, seconds, small


def _job_lines(job: PlanInput) -> tuple[str, ...]:
    w, machine = job.workload, job.machine
    checkpointing = "with" if w.gradient_checkpointing else "without"
    states = job.state_format
    said = {name: row.shown for name, row in SETTINGS.items() if row.shown is not None}
    others = [said[name].format(value=v) for name, v in w.changed().items() if name in said]
    step = (
        f"{w.micro_batch} x {w.sequence_tokens} tokens per GPU, accumulation"
        f" {w.accumulation_steps}, {w.precision}, {states} optimizer states, {w.method},"
        f" {checkpointing} gradient checkpointing"
    )
    return (
        f"Machine  {gpus(machine)} ({sentences.source(machine)}); {sentences.links(machine)}",
        f"Model    {sentences.model(job.model)}",
        f"Step     {', '.join([step, *others])}",
    )


# `Machine  `, `Model    `, `Chosen   `.
_LABEL_COLUMNS = 9


def script(facts: ScriptFacts, stream: TextIO) -> None:
    """What was read of the script, and where the reading ended."""
    words = sentences.convention(facts)
    say(stream, f"Script   {facts.path}: {words}", hang=_LABEL_COLUMNS)
    unseen(facts, stream)


def unseen(facts: ScriptFacts, stream: TextIO) -> None:
    """Where the reading of a script ended."""
    if facts.unfollowed:
        ends = sentences.places(facts.unfollowed)
        say(stream, f"Unseen   zerowiz did not follow {ends}", hang=_LABEL_COLUMNS)


def _say(
    decision: Decision,
    stream: TextIO,
    *lines: str,
    hang: int = 0,
    marks: Mapping[str, Colour] | None = None,
) -> None:
    """Lines on a decision, whose GPUs are ranks where it is for the CPU."""
    machine = decision.job.machine
    say(stream, *(on_device(line, machine) for line in lines), hang=hang, marks=marks)


def flowchart(decision: Decision, stream: TextIO) -> None:
    """The job, and the answers of the flowchart."""
    _say(decision, stream, *_job_lines(decision.job), "", hang=_LABEL_COLUMNS)
    _say_answers(decision, stream)


def answers(decision: Decision, stream: TextIO) -> None:
    """The step, the answers of the flowchart, and what the chosen strategy takes."""
    _, *job = _job_lines(decision.job)
    _say(decision, stream, "", *job, "", hang=_LABEL_COLUMNS)
    _say_answers(decision, stream)
    _say_interval(decision, stream)
    _say_time(decision, stream)


def _say_answers(decision: Decision, stream: TextIO) -> None:
    draw(draw_flowchart(decision), stream)
    if remarks := sentences.remarks(decision):
        _say(decision, stream, "", *remarks, hang=_LABEL_COLUMNS)
    reasons = "; ".join(sentences.reasons(decision))
    chosen = decision.chosen
    name = "none" if chosen is None else ui_remedies.strategy(chosen.strategy.name)
    colour = Colour.BAD if chosen is None else VERDICT_COLOURS[chosen.verdict]
    marks = {rf"(?<=^Chosen   ){name}(?=:)": colour}
    _say(decision, stream, "", f"Chosen   {name}: {reasons}", hang=_LABEL_COLUMNS, marks=marks)


def _say_interval(decision: Decision, stream: TextIO) -> None:
    """How far the peak of the chosen strategy may be off; the rule of thumb has no bounds."""
    chosen = decision.chosen
    if chosen is not None and chosen.interval is not None:
        words = sentences.interval(chosen.strategy, chosen.interval, decision.job.model)
        _say(decision, stream, "", f"Peak     {words}", hang=_LABEL_COLUMNS)


def _time(value: StepTime) -> str:
    low, high = seconds(value.low_seconds), seconds(value.high_seconds)
    steps = value.measured_steps
    scaled = f", scaled by {steps} measured here" if value.calibrated else ""
    return (
        f"{seconds(value.expected_seconds)} s per optimizer step expected, {low} to {high}{scaled};"
        f" {value.tokens_per_s:,.0f} tokens/s on all GPUs together"
    )


def _say_time(decision: Decision, stream: TextIO) -> None:
    """How long a step of the chosen strategy takes, and how far off that may be."""
    chosen = decision.chosen
    if chosen is not None and chosen.step_time is not None:
        name = ui_remedies.strategy(chosen.strategy.name)
        words = f"{name}: {_time(chosen.step_time)}"
        _say(decision, stream, f"Time     {words}", hang=_LABEL_COLUMNS)


def _say_host(decision: Decision, stream: TextIO) -> None:
    """What the chosen strategy takes of its nodes' memory."""
    if decision.chosen is not None:
        words = sentences.host(decision.job, decision.chosen)
        _say(decision, stream, f"Host     {words}", hang=_LABEL_COLUMNS)


def _say_trainer(decision: Decision, stream: TextIO) -> None:
    """What a trainer other than SFT runs and holds besides."""
    if decision.chosen is not None and decision.job.workload.trainer is not Trainer.SFT:
        words = sentences.trainer(decision.job.workload, decision.chosen)
        _say(decision, stream, f"Trainer  {words}", hang=_LABEL_COLUMNS)


def _say_vllm(decision: Decision, stream: TextIO) -> None:
    """What a vLLM takes of the same GPUs."""
    chosen = decision.chosen
    if chosen is not None and chosen.vllm is not None:
        words = sentences.vllm(decision.job.workload, chosen.vllm)
        _say(decision, stream, f"vLLM     {words}", hang=_LABEL_COLUMNS)


def _say_buffers(decision: Decision, stream: TextIO) -> None:
    """What the sizes that the config gets cost each GPU."""
    costs = decision.chosen and buffer_costs(decision.job, decision.chosen)
    if costs:
        words = ", ".join(f"{c.key} {c.value} ({small(c.size_bytes)})" for c in costs)
        _say(decision, stream, f"Buffers  {words}", hang=_LABEL_COLUMNS)


def plan(
    decision: Decision, remedies: Sequence[Remedy], stream: TextIO, *, is_verbose: bool = False
) -> None:
    """The flowchart, every strategy with its verdict, and the remedies.

    Args:
        decision: What was decided.
        remedies: What would help.
        stream: Where to.
        is_verbose: Whether all that is known of each strategy is shown, and not only what people
            decide by.
    """
    flowchart(decision, stream)
    strategies(decision, stream, is_verbose=is_verbose)
    ui_remedies.listed(remedies, stream)


def strategies(decision: Decision, stream: TextIO, *, is_verbose: bool = False) -> None:
    """Every strategy with its verdict and its memory, and what the chosen one takes."""
    job = decision.job
    by_rule_of_thumb = job.accounting is Accounting.TEXTBOOK
    stream.write("\n")
    if by_rule_of_thumb:
        table.rule_of_thumb_table(decision, stream)
    else:
        table.table(decision, stream, is_verbose=is_verbose)
        stream.write("\n")
        draw(memory.strategies(job, decision.evaluated, columns_of(stream)), stream)
    _say_interval(decision, stream)
    if not by_rule_of_thumb:
        _say_time(decision, stream)
        _say_trainer(decision, stream)
    _say_vllm(decision, stream)
    if not by_rule_of_thumb:
        _say_host(decision, stream)
        if is_verbose:
            _say_buffers(decision, stream)


def launch(plan: LaunchPlan, stream: TextIO) -> None:
    """The names of the files, and the plan as a shell line that can be copied."""
    stream.writelines(f"# writes {file.path}\n" for file in plan.files)
    if plan.by_rank_program:
        more = ", keeps its output and status" if plan.supervised else ""
        stream.write(f"# worker/rank.py starts your script in each rank{more}\n")
    env = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
    unset = ["env", *(word for name in plan.unset for word in ("-u", name))] if plan.unset else []
    words = [*unset, *env, *map(shlex.quote, plan.argv)]
    stream.write(fold_command(words, stream) + "\n")


def next_steps(
    words: Sequence[str], job_script: Sequence[str], elsewhere: str | None, stream: TextIO
) -> None:
    """How to go on, how to have come here without being asked, and on which machine.

    Args:
        words: The command that goes on.
        job_script: The one that needs no wizard.
        elsewhere: The machine that they run on; None where it is this one.
        stream: Where they are shown.
    """
    then = "next" if elsewhere is None else "next, on the other machine"
    for label, command in ((then, words), ("the same in a job script", job_script)):
        quoted = [shlex.quote(word) for word in command]
        stream.write(fold_command(quoted, stream, before=f"{label}: ") + "\n")
    if elsewhere is not None:
        say(stream, f"Run it on {elsewhere}, in a copy of this folder")


def config_alone(config_path: str, again: Sequence[str], stream: TextIO) -> None:
    """How a script gets a config that was written without one.

    Args:
        config_path: The config.
        again: The command that writes it again.
        stream: Where it is shown.
    """
    say(
        stream,
        f'next: give it to your Trainer, as TrainingArguments(deepspeed="{config_path}"); once you'
        " have a script, `zerowiz launch SCRIPT` plans with what it sets",
        hang=len("next: "),
    )
    quoted = [shlex.quote(word) for word in again]
    stream.write(fold_command(quoted, stream, before="the same in a job script: ") + "\n")


def note(text: str, stream: TextIO) -> None:
    """What a result rests on."""
    say(stream, f"note: {text}", hang=len("note: "), marks={"^note:": Colour.LABEL})


def error(message: str, hints: Sequence[str], stream: TextIO) -> None:
    """What went wrong in one line, then what to do next."""
    say(stream, f"error: {message}", hang=len("error: "), marks={"^error:": Colour.BAD})
    what_next(hints, stream)


def what_next(hints: Sequence[str], stream: TextIO) -> None:
    """What to do, after an empty line."""
    if hints:
        stream.write("\n")
        lines = (f"hint: {hint}" for hint in hints)
        say(stream, *lines, hang=len("hint: "), marks={"^hint:": Colour.GOOD})
