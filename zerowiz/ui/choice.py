"""Say what was chosen of what a job leaves open, among what, and how to have one's own."""

from collections.abc import Iterator, Sequence
from typing import TextIO

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.search.candidate import SAME_FRACTION, WORTH_FRACTION, Candidate
from zerowiz.core.search.freedom import Objective
from zerowiz.core.search.limits import Limit
from zerowiz.core.search.search import Search
from zerowiz.core.workload import Workload
from zerowiz.ui.pictures.speed import speed
from zerowiz.ui.remedies import STRATEGIES
from zerowiz.ui.text.fold import columns_of
from zerowiz.ui.text.lines import draw
from zerowiz.ui.text.table import say, show_rows
from zerowiz.ui.text.units import bare_gib, seconds, small


def chosen_step(
    own: Candidate, choice: Candidate, *, by_script: bool, can_keep: bool = True
) -> str:
    """What was chosen, why, and the options that keep the step as it was.

    Args:
        own: The step as it would be by itself, with the strategy of the choice.
        choice: What was chosen instead.
        by_script: Whether a default of the script says what the step would be by itself.
        can_keep: Whether the step as it would be by itself fits with any strategy.
    """
    step, before = choice.workload, own.workload
    words = " ".join(_words(step, before, by_script=by_script))
    what, why = ", ".join(_changed(step, before)), _why(own, choice, by_script=by_script)
    if not can_keep:
        return f"{what}, {why}"
    says = _is_split(step, before) and not by_script
    return f"{what}, {why}; `{words}` {'sets your own' if says else 'keeps yours'}"


def clearly_faster(faster: Candidate, choice: Candidate) -> str:
    """That another strategy is, and how to have it."""
    other, own = STRATEGIES[faster.strategy.name], STRATEGIES[choice.strategy.name]
    return (
        f"{other} is predicted to be {_times(choice, faster)} faster than {own}: `$objective"
        " fastest` chooses by time"
    )


def _is_split(step: Workload, before: Workload) -> bool:
    return step.micro_batch != before.micro_batch


def split_of(step: Workload) -> str:
    """Sequences that a GPU trains at a time, and how often in an optimizer step: `4 x 2`."""
    return f"{step.micro_batch} x {step.accumulation_steps}"


def _changed(step: Workload, before: Workload) -> Iterator[str]:
    """What is not as it was."""
    if _is_split(step, before):
        steps = "micro-step" if step.accumulation_steps == 1 else "micro-steps"
        yield f"micro-batch {split_of(step)} {steps}"
    if step.gradient_checkpointing is not before.gradient_checkpointing:
        yield f"{'gradient' if step.gradient_checkpointing else 'no gradient'} checkpointing"
    if step.attention is not before.attention:
        yield f"{step.attention} attention"
    if step.loss is not before.loss:
        yield f"{step.loss} loss"


def _words(step: Workload, before: Workload, *, by_script: bool) -> Iterator[str]:
    """The options that keep what it was."""
    if _is_split(step, before):
        yield f"$micro_batch {before.micro_batch if by_script else 'N'}"
    if step.gradient_checkpointing is not before.gradient_checkpointing:
        yield (
            "$gradient_checkpointing"
            if before.gradient_checkpointing
            else "$no_gradient_checkpointing"
        )
    if step.attention is not before.attention:
        yield f"$attention {before.attention}"
    if step.loss is not before.loss:
        yield f"$loss {before.loss}"


_UNFIT = {
    Verdict.DOES_NOT_FIT: "does not fit",
    Verdict.UNCERTAIN: "may not fit",
    Verdict.TIGHT: "comes near the memory limit",
}


def _why(own: Candidate, choice: Candidate, *, by_script: bool) -> str:
    """Why another step was taken."""
    before = own.workload.gradient_checkpointing
    whose = "the step as it was"
    if choice.workload.gradient_checkpointing is not before:
        whose = f"the step {'with' if before else 'without'} it"
    if _is_split(choice.workload, own.workload):
        theirs = "the script's " if by_script else ""
        whose = f"{theirs}{split_of(own.workload)}"
    if own.evaluated.verdict is not Verdict.FITS:
        return f"as {whose} {_UNFIT[own.evaluated.verdict]} with {STRATEGIES[choice.strategy.name]}"
    less = f"{small(max(0, choice.headroom_bytes - own.headroom_bytes))} less per rank"
    joins = choice.workload.accumulation_steps < own.workload.accumulation_steps
    if own.seconds is None or choice.seconds is None:
        fewest = f"the fewest micro-steps that fit, instead of {whose}"
        return fewest if joins else f"which needs {less} than {whose}"
    if choice.seconds * (1 + SAME_FRACTION) < own.seconds:
        return f"{_times(own, choice)} faster than {whose}"
    if choice.seconds <= own.seconds * (1 + SAME_FRACTION):
        return f"as fast as {whose} with {less}"
    return f"which needs {less} than {whose}"


# Below, one decimal says too little.
_AS_TIMES = 1.5


def _times(slow: Candidate, fast: Candidate) -> str:
    """How much faster one is: `1.8 times`, or `12 %`."""
    ratio = (slow.seconds or 0) / (fast.seconds or 1)
    return f"{ratio:.1f} times" if ratio >= _AS_TIMES else f"{100 * (ratio - 1):.0f} %"


def search(found: Search, asked: Objective, stream: TextIO) -> None:
    """The candidates that are fastest for their room, and why the choice wins."""
    if found.objective is not asked:
        why = "no candidate is certain to fit"
        if found.candidates:
            why = f"zerowiz predicts no step time, as {found.decision.job.why_untimed}"
        so = "" if found.choice is None else ", so the flowchart chooses"
        say(stream, "", f"Search   {why}{so}", hang=_LABEL_COLUMNS)
        return
    choice = found.choice
    if choice is None:
        return
    say(
        stream,
        "",
        f"{found.count} candidates compared: strategy, batch split, checkpointing, buffers and"
        " kernels, where you set none. Of those that fit, the fastest for their memory, and the"
        " choice:",
    )
    front = found.pareto or (choice,)
    # Without a column that tells them apart, two rows could look the same.
    kernels = {(each.workload.attention, each.workload.loss) for each in front}
    named = ("kernels",) if len(kernels) > 1 else ()
    headings = ("strategy", "batch", "ckpt", *named, "headroom", "time", "tokens/s", "")
    rows = [_row(each, is_chosen=each == choice, names_kernels=bool(named)) for each in front]
    show_rows(stream, headings, rows, ("tokens/s", "kernels", "ckpt", "headroom"))
    say(stream, f"Why      {_why_taken(found, choice)}", hang=_LABEL_COLUMNS)
    candidates(found, stream)


def candidates(found: Search, stream: TextIO) -> None:
    """Every candidate that fits, by its time and its headroom."""
    if found.choice is None:
        return
    picture = speed(found.candidates, found.choice, columns_of(stream))
    if picture:
        stream.write("\n")
        draw(picture, stream)


# `Chosen   `, as the rest of a plan.
_LABEL_COLUMNS = 9


def _row(candidate: Candidate, *, is_chosen: bool, names_kernels: bool) -> tuple[str, ...]:
    time, step = candidate.evaluated.step_time, candidate.workload
    return (
        candidate.strategy.name,
        split_of(step),
        "yes" if step.gradient_checkpointing else "no",
        *([f"{step.attention} {step.loss}"] if names_kernels else []),
        bare_gib(candidate.evaluated.headroom_bytes),
        "-" if time is None else seconds(time.expected_seconds),
        "-" if time is None else f"{time.tokens_per_s:,.0f}",
        "chosen" if is_chosen else "",
    )


def _why_taken(found: Search, choice: Candidate) -> str:
    """Why nothing faster was taken, or nothing smaller."""
    if found.objective is Objective.SMALLEST:
        return f"no candidate needs less than {small(choice.evaluated.device_bytes)} per device"
    fastest = found.candidates[0]
    if fastest.seconds is None or choice.seconds is None or fastest.seconds >= choice.seconds:
        return "no candidate that fits is faster"
    faster = (
        f"{STRATEGIES[fastest.strategy.name]} {split_of(fastest.workload)} is"
        f" {100 * (choice.seconds / fastest.seconds - 1):.1f} % faster"
    )
    if fastest.evaluated.verdict is not choice.evaluated.verdict:
        return f"{faster}, but comes near the memory limit: {_WORTH}"
    if fastest.workload.gradient_checkpointing is not choice.workload.gradient_checkpointing:
        return f"{faster}, but recomputes activations: {_WORTH}"
    if found.decision.job.machine.world_size == 1 and fastest.strategy != choice.strategy:
        return (
            f"{faster}, but sharding gains nothing with one rank: {_SAME} zerowiz takes the"
            " simplest strategy"
        )
    less = small(choice.headroom_bytes - fastest.headroom_bytes)
    return f"{faster} and leaves {less} less room: {_SAME} zerowiz takes the one with the most room"


_SAME = f"within {100 * SAME_FRACTION:.0f} %"
_WORTH = f"zerowiz takes that only if it is {100 * WORTH_FRACTION:.0f} % faster"


def limits(found: Sequence[Limit], job: PlanInput, stream: TextIO) -> None:
    """The largest micro-batch and the longest sequence of each strategy."""
    step = job.workload
    say(
        stream,
        "",
        f"The largest micro-batch of {step.sequence_tokens} tokens per sequence, and the longest"
        f" sequence with micro-batch {step.micro_batch}, that fit, without and with gradient"
        " checkpointing:",
    )
    rows = [
        (
            plain.strategy.name,
            *(str(each.micro_batch or "-") for each in (plain, recomputed)),
            *(
                f"{each.sequence_tokens or '-'}{'*' if each.by_positions else ''}"
                for each in (plain, recomputed)
            ),
        )
        for plain, recomputed in zip(found[::2], found[1::2], strict=True)
    ]
    show_rows(stream, ("strategy", "batch", "with", "tokens", "with"), rows)
    if any(each.by_positions for each in found):
        say(
            stream,
            f"* the most that the model's {job.model.architecture.positions} positions allow",
        )
