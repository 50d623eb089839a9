"""Say what was chosen of what a job leaves open, among what, and how to have one's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.flowchart import CLEARLY_FRACTION, SAME_FRACTION
from zerowiz.core.decision.job import Job, Objective
from zerowiz.core.decision.open_settings import (
    ROOM_FRACTION,
    Candidate,
    Limit,
    Search,
)
from zerowiz.core.settings import as_typed
from zerowiz.core.workload import Workload
from zerowiz.translation import N_, _, listing
from zerowiz.ui.text import (
    LABEL_COLUMNS,
    bare_gib,
    labelled,
    rate_of,
    rate_unit,
    say,
    seconds,
    show_rows,
    small,
    times_faster,
)


def chosen_step(
    unchosen: Candidate, choice: Candidate, *, by_script: bool, can_keep: bool = True
) -> str:
    """What was chosen, why, and the options that keep the step as it was.

    Args:
        unchosen: The step as it would be by itself, with the strategy of the choice.
        choice: What was chosen instead.
        by_script: Whether a default of the script says what the step would be by itself.
        can_keep: Whether the step as it would be by itself fits with any strategy.
    """
    step, before = choice.workload, unchosen.workload
    words = " ".join(_words(step, before, by_script=by_script))
    what, why = listing(_changed(step, before)), _why(unchosen, choice, by_script=by_script)
    if not can_keep:
        return f"{what}, {why}"
    says = _is_split(step, before) and not by_script
    if says:
        return _("{what}, {why}; `{options}` sets your own", what=what, why=why, options=words)
    return _("{what}, {why}; `{options}` keeps yours", what=what, why=why, options=words)


def _is_split(step: Workload, before: Workload) -> bool:
    return step.micro_batch != before.micro_batch


def split_of(step: Workload) -> str:
    """Sequences that a GPU trains at a time, and how often in an optimizer step: `4 x 2`."""
    return f"{step.micro_batch} x {step.accumulation_steps}"


# What else a search may change of a step.
_CHANGES: Mapping[str, Callable[[Workload], str]] = {
    "gradient_checkpointing": lambda step: (
        _("gradient checkpointing")
        if step.gradient_checkpointing
        else _("no gradient checkpointing")
    ),
    "attention": lambda step: _("{attention} attention", attention=step.attention),
    "loss": lambda step: _("{loss} loss", loss=step.loss),
    "sequence_parallel": lambda step: _(
        "{shared} GPUs for each sequence", shared=step.sequence_parallel
    ),
}


def _differing(step: Workload, before: Workload) -> list[str]:
    return [name for name in _CHANGES if getattr(step, name) != getattr(before, name)]


def _changed(step: Workload, before: Workload) -> Iterator[str]:
    """What is not as it was."""
    if _is_split(step, before):
        yield _("micro-batch {split}", split=split_of(step))
    yield from (_CHANGES[name](step) for name in _differing(step, before))


def _words(step: Workload, before: Workload, *, by_script: bool) -> Iterator[str]:
    """The options that keep it as it was."""
    if _is_split(step, before):
        yield f"$micro_batch {before.micro_batch if by_script else 'N'}"
    yield from (as_typed(name, getattr(before, name)) for name in _differing(step, before))


_UNFIT = {
    Verdict.DOES_NOT_FIT: _("does not fit"),
    Verdict.UNCERTAIN: _("may not fit"),
    Verdict.TIGHT: _("comes near the memory limit"),
}


def _why(unchosen: Candidate, choice: Candidate, *, by_script: bool) -> str:
    """Why another step was taken."""
    before = unchosen.workload.gradient_checkpointing
    whose = _("the step as it was")
    if choice.workload.gradient_checkpointing is not before:
        whose = _("the step with it") if before else _("the step without it")
    if _is_split(choice.workload, unchosen.workload):
        split = split_of(unchosen.workload)
        whose = _("the script's {split}", split=split) if by_script else split
    if unchosen.evaluated.verdict is not Verdict.FITS:
        return _(
            "as {whose} {unfit} with {strategy}",
            whose=whose,
            unfit=_UNFIT[unchosen.evaluated.verdict],
            strategy=_(choice.strategy.words),
        )
    less_bytes = choice.headroom_bytes - unchosen.headroom_bytes
    less = _("{less} less per rank", less=small(less_bytes)) if less_bytes > 0 else None
    joins = choice.workload.accumulation_steps < unchosen.workload.accumulation_steps
    if unchosen.seconds is None or choice.seconds is None:
        fewest = _("the fewest micro-steps that fit, instead of {whose}", whose=whose)
        return fewest if joins else _needs(less, whose)
    if choice.seconds * (1 + SAME_FRACTION) < unchosen.seconds:
        times = times_faster(unchosen.seconds, choice.seconds)
        return _("{times} faster than {whose}", times=times, whose=whose)
    if choice.seconds <= unchosen.seconds * (1 + SAME_FRACTION):
        if less is None:
            return _("as fast as {whose}", whose=whose)
        return _("as fast as {whose} with {less}", whose=whose, less=less)
    return _faster_on_slow_host(unchosen, choice, whose) or _needs(less, whose)


def _faster_on_slow_host(unchosen: Candidate, choice: Candidate, whose: str) -> str | None:
    slow, before = choice.slow_host_seconds, unchosen.slow_host_seconds
    if slow is None or before is None or before <= slow:
        return None
    times = times_faster(before, slow)
    return _("{times} faster than {whose} on a slow host", times=times, whose=whose)


def _needs(less: str | None, whose: str) -> str:
    """How much less memory another step needs."""
    if less is None:
        return _("which needs no more memory than {whose}", whose=whose)
    return _("which needs {less} than {whose}", less=less, whose=whose)


def search_in_short(searched: Search, asked: Objective) -> str:
    """Why the choice wins, or why nothing was searched; empty where nothing was chosen."""
    if searched.objective is not asked:
        why = _("no candidate is certain to fit")
        if searched.candidates:
            why = _(
                "zerowiz predicts no step time, as {why_untimed}",
                why_untimed=searched.decision.job.why_untimed,
            )
        # What was asked for is taken, whatever the flowchart says.
        chooses = searched.choice is not None and not searched.decision.constraints.pinned
        so = _(", so the flowchart chooses") if chooses else ""
        return _("{why}{so}", why=why, so=so)
    return "" if searched.choice is None else _why_taken(searched, searched.choice)


def search(searched: Search, asked: Objective, stream: TextIO) -> None:
    """The candidates that are fastest for their room, and why the choice wins."""
    if searched.objective is not asked:
        words = labelled(_("Search"), search_in_short(searched, asked))
        say(stream, "", words, hang=LABEL_COLUMNS)
        return
    choice = searched.choice
    if choice is None:
        return
    say(
        stream,
        "",
        _(
            "{count} candidates compared: strategy, batch split, checkpointing, buffers "
            "and kernels, where you set none. Of those that fit, the fastest for their "
            "memory, and the choice:",
            count=searched.count,
        ),
        hang=2,
    )
    front = searched.pareto or (choice,)
    # Without a column that tells them apart, two rows could look the same.
    kernels = {(candidate.workload.attention, candidate.workload.loss) for candidate in front}
    named = ("kernels",) if len(kernels) > 1 else ()
    rate = rate_unit(candidate.evaluated.step_time for candidate in front)
    headings = ("strategy", N_("batch"), "ckpt", *named, "headroom", "time", rate, "")
    rows = [
        _row(candidate, is_chosen=candidate == choice, names_kernels=bool(named))
        for candidate in front
    ]
    show_rows(stream, headings, rows, (rate, "kernels", "ckpt", "headroom"))
    say(stream, labelled(_("Why"), _why_taken(searched, choice)), hang=LABEL_COLUMNS)


def _row(candidate: Candidate, *, is_chosen: bool, names_kernels: bool) -> tuple[str, ...]:
    time, step = candidate.evaluated.step_time, candidate.workload
    return (
        _(candidate.strategy.short_words),
        split_of(step),
        _("yes") if step.gradient_checkpointing else _("no"),
        *([f"{step.attention} {step.loss}"] if names_kernels else []),
        bare_gib(candidate.evaluated.headroom_bytes),
        "-" if time is None else seconds(time.expected_seconds),
        rate_of(time),
        _("chosen") if is_chosen else "",
    )


def _why_taken(searched: Search, choice: Candidate) -> str:
    """Why nothing faster was taken, or nothing smaller."""
    if searched.objective is Objective.SMALLEST:
        return _(
            "no candidate needs less than {device_bytes} per device",
            device_bytes=small(choice.evaluated.device_bytes),
        )
    fastest = searched.candidates[0]
    if fastest.seconds is None or choice.seconds is None or fastest.seconds >= choice.seconds:
        others = [candidate for candidate in searched.candidates if candidate != choice]
        if not others:
            return _("it is the only candidate that is certain to fit")
        following = others[0]
        before, step = choice.workload, following.workload
        how = listing([_(following.strategy.words), *_changed(step, before)])
        return _(
            "it is the fastest of {count} candidates that fit; the next, {how}, takes {seconds} s"
            " a step",
            count=1 + len(others),
            how=how,
            seconds=seconds(following.seconds or 0),
        )
    percent = 100 * (choice.seconds / fastest.seconds - 1)
    named = {
        "strategy": _(fastest.strategy.words),
        "split": split_of(fastest.workload),
    }
    # What rounds to nothing is no difference.
    faster = (
        _("{strategy} {split} is {seconds:.1f} % faster", **named, seconds=percent)
        if percent >= _LEAST_PERCENT
        else _("{strategy} {split} is as fast", **named)
    )
    return _why_not(fastest, choice, faster)


def _why_not(fastest: Candidate, choice: Candidate, faster: str) -> str:
    """Why the fastest was not taken.

    Args:
        fastest: It.
        choice: What was taken.
        faster: That it is faster, in words.
    """
    if fastest.evaluated.verdict is not choice.evaluated.verdict:
        worth = _worth(CLEARLY_FRACTION)
        return _("{faster}, but comes near the memory limit: {worth}", faster=faster, worth=worth)
    if fastest.workload.gradient_checkpointing is not choice.workload.gradient_checkpointing:
        worth = _worth(SAME_FRACTION)
        return _("{faster}, but recomputes activations: {worth}", faster=faster, worth=worth)
    slow, own_slow = fastest.slow_host_seconds, choice.slow_host_seconds
    if slow is not None and own_slow is not None and own_slow < slow:
        return _(
            "{faster}, but takes {slow} s on a slow host, where the choice takes {own} s: zerowiz"
            " does not know how fast your host is, and takes what loses the least time",
            faster=faster,
            slow=seconds(slow),
            own=seconds(own_slow),
        )
    if fastest.strategy != choice.strategy:
        return _(
            "{faster}: within {percent:.0f} % zerowiz takes the simplest strategy",
            faster=faster,
            percent=100 * SAME_FRACTION,
        )
    less = small(choice.headroom_bytes - fastest.headroom_bytes)
    return _(
        "{faster} and leaves {less} less room: within {percent:.0f} % zerowiz takes the one with"
        " the most room",
        faster=faster,
        less=less,
        percent=100 * ROOM_FRACTION,
    )


_LEAST_PERCENT = 0.05


def _worth(fraction: float) -> str:
    return _(
        "zerowiz takes that only if it is {worth_fraction:.0f} % faster",
        worth_fraction=100 * fraction,
    )


def limits(largest: Sequence[Limit], job: Job, stream: TextIO) -> None:
    """The largest micro-batch and the longest sequence of each strategy."""
    step = job.workload
    say(
        stream,
        "",
        _(
            "The largest micro-batch of {sequence_tokens} tokens per sequence, and the "
            "longest sequence with micro-batch {micro_batch}, that fit, without and with "
            "gradient checkpointing (ckpt):",
            sequence_tokens=step.sequence_tokens,
            micro_batch=step.micro_batch,
        ),
    )
    rows = [
        (
            _(plain.strategy.short_words),
            *(str(limit.micro_batch or "-") for limit in (plain, recomputed)),
            *(
                f"{limit.sequence_tokens or '-'}{'*' if limit.by_positions else ''}"
                for limit in (plain, recomputed)
            ),
        )
        for plain, recomputed in zip(largest[::2], largest[1::2], strict=True)
    ]
    headings = ("strategy", "batch", N_("batch (ckpt)"), N_("tokens"), N_("tokens (ckpt)"))
    show_rows(stream, headings, rows)
    if not all(limit.micro_batch and limit.sequence_tokens for limit in largest):
        say(
            stream,
            _(
                "-: none is certain to fit; where the free host memory is unknown, no offload is"
                " (`$host_memory`)"
            ),
        )
    if any(limit.by_positions for limit in largest):
        say(
            stream,
            _(
                "* the most that the model's {positions} positions allow",
                positions=job.model.made_for_tokens,
            ),
        )
