"""Show a decision: the flowchart, the table of strategies, the remedies, the launch."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from zerowiz.core.decision.buffer_costs import buffer_costs
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.memory.ledger import AllocationKind, Phase
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.script import ScriptFacts
from zerowiz.core.speed.links import is_assumed
from zerowiz.core.speed.terms import StepTime
from zerowiz.core.strategy import Offload
from zerowiz.core.workload import SETTINGS, Accounting, Trainer
from zerowiz.ui import remedies as ui_remedies
from zerowiz.ui import sentences
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.fold import fold_command
from zerowiz.ui.text.table import grid, has_room, print_table, say
from zerowiz.ui.text.units import bare_gib, decimal_gb, gib, gpus, on_device, seconds, small

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {
    Verdict.FITS: Colour.GOOD,
    Verdict.TIGHT: Colour.DOUBT,
    Verdict.UNCERTAIN: Colour.DOUBT,
    Verdict.DOES_NOT_FIT: Colour.BAD,
}
# What the columns of a flowchart's answer hold.
_ANSWERS = {
    r"(?<=  )yes(?=\s)": Colour.GOOD,
    r"(?<=  )uncertain(?=\s)": Colour.DOUBT,
    r"(?<=  )no(?=\s)": Colour.BAD,
}


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

_LEGEND = (
    "peak is what torch allocates; device adds CUDA, NCCL and allocator slack; room is what is"
    " left of the budget; host is the most that a node's ranks hold of its memory, saving"
    ' included ("host?" means that it is unknown); sent is what each GPU sends in one optimizer'
    " step; time is the seconds of one optimizer step"
)


_RULE_OF_THUMB_LEGEND = (
    "This is the usual rule of thumb; by default DeepSpeed needs more: remove `--accounting"
    " textbook` to count what it allocates"
)


def _answer_lines(decision: Decision) -> Iterator[str]:
    asked = _even([sentences.question(step.question) for step in decision.answers])
    answered = _even([sentences.answered(decision, step) for step in decision.answers])
    for step, question, answer in zip(decision.answers, asked, answered, strict=True):
        yield f"{question}  {answer}  {sentences.answer(decision, step)}"


def _even(words: Sequence[str]) -> list[str]:
    width = max(map(len, words), default=0)
    return [f"{word:{width}}" for word in words]


def _strategy_row(evaluated: StrategyEstimate, *, wide: bool) -> tuple[str, ...]:
    colour = _COLOURS[evaluated.verdict]
    phase = (evaluated.estimate.peak_phase.value,) if wide else ()
    return (
        evaluated.strategy.name,
        bare_gib(evaluated.estimate.peak_bytes),
        *phase,
        bare_gib(evaluated.device_bytes),
        bare_gib(evaluated.headroom_bytes),
        bare_gib(evaluated.host_bytes) if evaluated.host_bytes else "-",
        bare_gib(evaluated.wire_bytes_per_step),
        "-" if evaluated.step_time is None else seconds(evaluated.step_time.expected_seconds),
        f"[{colour}]{sentences.verdict(evaluated)}[/]",
    )


def _strategy_table(decision: Decision, stream: TextIO) -> "Table":
    """Narrow enough for 80 columns, so the unit stands above the table."""
    wide = has_room(stream)
    phase = ("peak in",) if wide else ()
    table = grid(
        stream, "strategy", "peak", *phase, "device", "room", "host", "sent", "time", "verdict"
    )
    for evaluated in decision.evaluated:
        table.add_row(*_strategy_row(evaluated, wide=wide))
    return table


# The ledger's kind, and the heading of the rule of thumb for it.
_RULE_OF_THUMB_KINDS = {
    AllocationKind.PARAMETERS: "params",
    AllocationKind.GRADIENTS: "grads",
    AllocationKind.OPTIMIZER: "optimizer",
    AllocationKind.ACTIVATIONS: "activations",
}


def _rule_of_thumb_table(decision: Decision, stream: TextIO) -> "Table":
    table = grid(
        stream,
        "strategy",
        *_RULE_OF_THUMB_KINDS.values(),
        on_device("per GPU", decision.job.machine),
        "verdict",
    )
    for evaluated in decision.evaluated:
        held = {
            allocation.kind: allocation.size_bytes
            for allocation in evaluated.estimate.peaks()[Phase.STEP]
        }
        parts = [decimal_gb(held.get(part, 0)) for part in _RULE_OF_THUMB_KINDS]
        verdict = sentences.verdict(evaluated)
        table.add_row(evaluated.strategy.name, *parts, decimal_gb(evaluated.device_bytes), verdict)
    return table


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
    _say(decision, stream, *_answer_lines(decision), hang=_LABEL_COLUMNS, marks=_ANSWERS)
    reasons = "; ".join(sentences.reasons(decision))
    name = "none" if decision.chosen is None else decision.chosen.strategy.name
    colour = Colour.BAD if decision.chosen is None else _COLOURS[decision.chosen.verdict]
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
        words = _time(chosen.step_time)
        _say(decision, stream, f"Time     {chosen.strategy.name}: {words}", hang=_LABEL_COLUMNS)


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


def plan(decision: Decision, remedies: Sequence[Remedy], stream: TextIO) -> None:
    """The flowchart, every strategy with its verdict, and the remedies."""
    flowchart(decision, stream)
    strategies(decision, stream)
    ui_remedies.listed(remedies, stream)


def strategies(decision: Decision, stream: TextIO) -> None:
    """Every strategy with its verdict, and what the chosen one takes."""
    by_rule_of_thumb = decision.job.accounting is Accounting.TEXTBOOK
    stream.write("\n")
    if not by_rule_of_thumb:
        budget = gib(decision.job.gpu_budget_bytes)
        _say(decision, stream, f"Sizes in GiB; the budget of each GPU is {budget}")
    table = _rule_of_thumb_table if by_rule_of_thumb else _strategy_table
    print_table(table(decision, stream), stream)
    _say(decision, stream, "", _RULE_OF_THUMB_LEGEND if by_rule_of_thumb else _LEGEND)
    _say_interval(decision, stream)
    if not by_rule_of_thumb:
        _say_time(decision, stream)
        _say_trainer(decision, stream)
    _say_vllm(decision, stream)
    if not by_rule_of_thumb:
        _say_host(decision, stream)
        _say_buffers(decision, stream)


def explain(decision: Decision, stream: TextIO) -> None:
    """What makes the time and the memory of the chosen strategy, part by part."""
    chosen = decision.chosen
    if chosen is None:
        return
    _say(decision, stream, "", f"Time of a step with {chosen.strategy.name}, in seconds:")
    if chosen.step_time is None:
        _say(decision, stream, f"  unknown: {decision.job.why_untimed}")
    else:
        print_table(_time_table(chosen.step_time, stream), stream)
        for line in _pcie(decision.job, chosen):
            _say(decision, stream, line)
    _say(decision, stream, "", f"Memory of each GPU with {chosen.strategy.name}, in GiB, by phase:")
    table = grid(stream, "phase", "part", "GiB", "formula")
    for phase, moment in chosen.estimate.peaks().items():
        for allocation in moment:
            size = bare_gib(allocation.size_bytes)
            table.add_row(phase.value, allocation.kind.value, size, allocation.formula)
    print_table(table, stream)


def _pcie(job: PlanInput, chosen: StrategyEstimate) -> Iterator[str]:
    """Where the PCIe rate of the GPU enters the time, and how large it is taken to be."""
    if job.rates is None:
        return
    rate = f"{job.rates.pcie_bytes_per_s / 1e9:.0f} GB/s one way"
    if is_assumed(job.machine):
        yield f"The link between the GPUs has no known speed: their PCIe is assumed, {rate}."
    if chosen.strategy.offload is not Offload.NONE:
        yield f"What is offloaded crosses the PCIe of each GPU: {rate} by the table of GPUs."


def _time_table(value: StepTime, stream: TextIO) -> "Table":
    table = grid(stream, "part", "seconds", "share", "formula")
    for term in value.terms:
        share = term.exposed_seconds / value.expected_seconds
        words = term.kind.value.replace("_", " ")
        table.add_row(words, seconds(term.exposed_seconds), f"{share:.0%}", term.formula)
    table.add_row("sum", seconds(value.expected_seconds), "100%", "")
    return table


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
    for label, command in (("next", words), ("the same in a job script", job_script)):
        quoted = [shlex.quote(word) for word in command]
        stream.write(fold_command(quoted, stream, before=f"{label}: ") + "\n")
    if elsewhere is not None:
        say(stream, f"Run it on {elsewhere}, in a copy of this folder")


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
