"""Show a decision: the walk, the table of rungs, the remedies, the launch."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from zerowiz.core.decide import Decision
from zerowiz.core.launch import LaunchPlan
from zerowiz.core.ledger import Phase
from zerowiz.core.machine import Machine
from zerowiz.core.remedies import Remedy
from zerowiz.core.weigh import Job, Verdict, Weighed
from zerowiz.core.workload import Accounting, StateDtype
from zerowiz.ui import sentences
from zerowiz.ui.units import count, gib, gpus, small, told_gb

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLOURS = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.DOES_NOT_FIT: "red"}


def _console(stream: TextIO) -> "Console":
    from rich.console import Console

    # Files and pipes get whole lines, not lines folded at a guessed 80 columns.
    width = None if stream.isatty() else 120
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def _grid(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        right = column not in {"strategy", "verdict", "peak in", "GPU", "name"}
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def _job_lines(job: Job) -> tuple[str, ...]:
    w, machine = job.workload, job.machine
    checkpointing = "with" if w.gradient_checkpointing else "without"
    states = (job.state_dtype or StateDtype.FP32).value
    step = (
        f"{w.micro_batch} x {w.sequence_tokens} tokens per GPU, accumulation"
        f" {w.accumulation_steps}, {w.precision}, {states} optimizer states, {w.method},"
        f" {checkpointing} gradient checkpointing"
    )
    return (
        f"Machine  {gpus(machine)}; {sentences.link(machine.interconnect)}",
        f"Model    {job.model.name}, {count(job.model.params)} parameters ({job.model.source})",
        f"Step     {step}",
    )


def _walk_table(decision: Decision) -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for step in decision.walk:
        words = sentences.answer(decision, step)
        table.add_row(sentences.question(step.question), "yes" if step.answer else "no", words)
    return table


def _rung_row(weighed: Weighed) -> tuple[str, ...]:
    host = gib(weighed.host_bytes) if weighed.host_bytes else "-"
    colour = _COLOURS[weighed.verdict]
    return (
        weighed.strategy.name,
        gib(weighed.estimate.peak_bytes),
        weighed.estimate.peak_phase.value,
        gib(weighed.device_bytes),
        gib(weighed.headroom_bytes),
        host,
        small(weighed.wire_bytes_per_step),
        f"[{colour}]{sentences.VERDICTS[weighed.verdict]}[/]",
    )


def _rung_table(decision: Decision) -> "Table":
    columns = ("peak", "peak in", "on device", "headroom", "host RAM", "sent per step", "verdict")
    table = _grid("strategy", *columns)
    for weighed in decision.weighed:
        table.add_row(*_rung_row(weighed))
    return table


_TOLD_PARTS = ("parameters", "gradients", "optimizer", "activations")


def _told_table(decision: Decision) -> "Table":
    table = _grid("strategy", *_TOLD_PARTS, "per GPU", "verdict")
    for weighed in decision.weighed:
        held = {
            line.part: line.size_bytes
            for line in weighed.estimate.lines
            if line.phase is Phase.STEP and line.where == "gpu"
        }
        parts = [told_gb(held.get(part, 0)) for part in _TOLD_PARTS]
        verdict = sentences.VERDICTS[weighed.verdict]
        table.add_row(weighed.strategy.name, *parts, told_gb(weighed.device_bytes), verdict)
    return table


def _remedy_lines(remedies: Sequence[Remedy]) -> tuple[str, ...]:
    if not remedies:
        return ()
    return ("", "What would help:", *(f"  {sentences.remedy(remedy)}" for remedy in remedies))


def walk(decision: Decision, stream: TextIO) -> None:
    """The job, and the flowchart as it was walked."""
    console = _console(stream)
    for line in _job_lines(decision.job):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    console.print(_walk_table(decision))
    reasons = "; ".join(sentences.reason(reason) for reason in decision.reasons)
    name = "none" if decision.chosen is None else decision.chosen.strategy.name
    console.print(f"\nChosen   {name}: {reasons}", markup=False, soft_wrap=True)


def plan(decision: Decision, remedies: Sequence[Remedy], stream: TextIO) -> None:
    """The walk, every rung with its verdict, and what would help."""
    walk(decision, stream)
    console = _console(stream)
    told = decision.job.accounting is Accounting.TEXTBOOK
    console.print()
    console.print(_told_table(decision) if told else _rung_table(decision))
    if not told:
        budget = gib(decision.job.gpu_budget_bytes)
        note = (
            f"Each GPU may take {budget}. Peak is what torch allocates; on device adds CUDA, NCCL"
        )
        console.print(f"\n{note} and allocator slack.", markup=False, soft_wrap=True)
    for line in _remedy_lines(remedies):
        console.print(line, markup=False, soft_wrap=True)


def machine(value: Machine, stream: TextIO) -> None:
    """The GPUs, the link and the host."""
    console = _console(stream)
    table = _grid("GPU", "name", "total", "free")
    for gpu in value.gpus:
        table.add_row(str(gpu.index), gpu.name, gib(gpu.total_bytes), gib(gpu.free_bytes))
    console.print(table)
    host = f"{gib(value.host.available_bytes)} available of {gib(value.host.total_bytes)}"
    console.print(f"Link     {sentences.link(value.interconnect)}", markup=False, soft_wrap=True)
    console.print(f"Host     {host}", markup=False, soft_wrap=True)


def launch(plan: LaunchPlan, stream: TextIO, *, with_files: bool = False) -> None:
    """The plan as a shell line that can be copied, and the files with it."""
    for file in plan.files:
        stream.write(f"# writes {file.path}\n")
        if with_files:
            stream.write(file.text)
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in plan.env.items())
    stream.write(f"{env} {shlex.join(plan.argv)}".strip() + "\n")
