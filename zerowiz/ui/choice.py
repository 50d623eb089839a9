"""Say in one line what was chosen of what a job leaves open, and how to have one's own."""

from collections.abc import Iterator

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.search.candidate import SAME_FRACTION, Candidate
from zerowiz.core.workload import Workload
from zerowiz.ui.text.units import small


def chosen_step(own: Candidate, choice: Candidate, *, by_script: bool) -> str:
    """What was chosen, why, and the options that keep the step as it was.

    Args:
        own: The step as it would be by itself, with the strategy of the choice.
        choice: What was chosen instead.
        by_script: Whether a default of the script says what the step would be by itself.
    """
    step, before = choice.workload, own.workload
    words = " ".join(_words(step, before, by_script=by_script))
    what, why = ", ".join(_changed(step, before)), _why(own, choice, by_script=by_script)
    return f"{what}, {why}; `{words}` {'keeps yours' if by_script else 'says your own'}"


def clearly_faster(faster: Candidate, choice: Candidate) -> str:
    """That another strategy is, and how to have it."""
    return (
        f"{faster.strategy.name} is predicted to be {_times(choice, faster)} faster than"
        f" {choice.strategy.name}: `$objective fastest` chooses by time"
    )


def _is_split(step: Workload, before: Workload) -> bool:
    return step.micro_batch != before.micro_batch


def _split_of(step: Workload) -> str:
    return f"{step.micro_batch} x {step.accumulation_steps}"


def _changed(step: Workload, before: Workload) -> Iterator[str]:
    """What is not as it was."""
    if _is_split(step, before):
        steps = "micro-step" if step.accumulation_steps == 1 else "micro-steps"
        yield f"micro-batch {_split_of(step)} {steps}"
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
    Verdict.TIGHT: "comes near the limit of memory",
}


def _why(own: Candidate, choice: Candidate, *, by_script: bool) -> str:
    """Why another step was taken."""
    switched_off = own.workload.gradient_checkpointing
    whose = f"the step {'with' if switched_off else 'without'} it"
    if _is_split(choice.workload, own.workload):
        theirs = "the script's " if by_script else ""
        whose = f"{theirs}{_split_of(own.workload)}"
    if own.evaluated.verdict is not Verdict.FITS:
        return f"as {whose} {_UNFIT[own.evaluated.verdict]} with {choice.strategy.name}"
    if own.seconds is None or choice.seconds is None:
        return f"the fewest micro-steps that fit, instead of {whose}"
    if choice.seconds * (1 + SAME_FRACTION) < own.seconds:
        return f"{_times(own, choice)} faster than {whose}"
    frees_bytes = choice.headroom_bytes - own.headroom_bytes
    return f"as fast as {whose} with {small(frees_bytes)} less on each GPU"


# Below, one decimal says too little.
_AS_TIMES = 1.5


def _times(slow: Candidate, fast: Candidate) -> str:
    """How much faster one is: `1.8 times`, or `12 %`."""
    ratio = (slow.seconds or 0) / (fast.seconds or 1)
    return f"{ratio:.1f} times" if ratio >= _AS_TIMES else f"{100 * (ratio - 1):.0f} %"
