"""Say what was decided: the answers, the verdicts, why, and what is lacking."""

from collections.abc import Iterator, Mapping

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Answer, Decision, FlowchartQuestion, Reason
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.decision.uncertainty import settled_by
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.host_phases import HostPhase
from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.ui.remedies import STRATEGIES
from zerowiz.ui.sentences.doubts import settles, uncounted
from zerowiz.ui.sentences.machines import links
from zerowiz.ui.text.units import gib, gpus, on_device, small
from zerowiz.words import _, joined, listing

_QUESTIONS: Mapping[FlowchartQuestion, str] = {
    FlowchartQuestion.FITS_ONE_GPU: _("Does a replica fit on one GPU?"),
    FlowchartQuestion.FITS_ZERO1: _("Slow link: does it fit with ZeRO-1?"),
    FlowchartQuestion.FITS_ZERO2: _("Does it fit with ZeRO-2?"),
    FlowchartQuestion.FAST_INTERCONNECT: _("Is the interconnect fast?"),
    FlowchartQuestion.FITS_ZERO3: _("Does it fit with ZeRO-3?"),
    FlowchartQuestion.FITS_OFFLOAD: _("Does it fit with offload?"),
}
_OFFLOADS: Mapping[Offload, str] = {
    Offload.OPTIMIZER: _("With the optimizer offloaded?"),
    Offload.ALL: _("With everything offloaded?"),
}

_ASKED_FOR = _("you asked for it")
_REASONS: Mapping[Reason, str] = {
    Reason.REPLICATED_FITS: _("a full replica fits each GPU, so nothing needs to be sharded"),
    Reason.SLOW_LINK_ZERO1: _(
        "sharding the optimizer states is enough, and over a slow link ZeRO-1 is faster: it"
        " reduces once per optimizer step, ZeRO-2 at every micro-step"
    ),
    Reason.MIDDLE_FITS: _("sharding gradients and optimizer states is enough"),
    Reason.FAST_LINK_ZERO3: _("it fits only with sharded parameters, and the link is fast enough"),
    Reason.SLOW_ALLOWED: _("ZeRO-3 runs over a slow link, which `--allow-slow` allows"),
    Reason.ONLY_OFFLOAD_FITS: _("the GPUs have too little memory, and the host has enough"),
    Reason.OFFLOAD_OVER_SLOW_ZERO3: _(
        "`--offload auto` prefers host memory to ZeRO-3 on a slow link"
    ),
    Reason.SLOW_LINK_REFUSES_ZERO3: _(
        "only ZeRO-3 fits, and over this slow link it would gather every layer at each micro-step;"
        " `--allow-slow` takes it"
    ),
    Reason.ASKED_FOR: _("{asked_for}, and it fits", asked_for=_ASKED_FOR),
    Reason.FORCED: _("you asked for it with `--force`, and it does not fit"),
    Reason.TIGHT: _("it is tight: near the memory limit, steps may be slower or run out of memory"),
    Reason.UNCERTAIN: _("it is uncertain, and may run out of memory"),
    Reason.UNCERTAIN_PASSED_OVER: _("zerowiz skipped strategies that are uncertain"),
    Reason.NOTHING_FITS: _("no strategy fits with your options"),
    Reason.BUDGET_UNKNOWN: _("the free GPU memory is unknown, so it may not fit"),
    Reason.FASTEST: _("its step is predicted to be the fastest of all that fit"),
    Reason.AS_GOOD_AS_FASTEST: _("its step is predicted to be within 3 % of the fastest that fits"),
    Reason.FASTER_NOT_WORTH: _(
        "the faster ones recompute activations or come near the memory limit, and gain less than"
        " 5 %"
    ),
    Reason.SMALLEST: _("it needs the least memory of all that fit"),
}
_WHEN: Mapping[HostPhase, str] = {
    HostPhase.LOAD: _("while each rank builds the model"),
    HostPhase.INIT: _("while DeepSpeed starts"),
    HostPhase.TRAINING: _("while it trains"),
    HostPhase.SAVING: _("while a checkpoint is saved"),
}

HOST_UNKNOWN = _("host?")
"""The verdict where the GPU has room, and what the host has is unknown."""
HOST_TOO_SMALL = _("x host")
"""The verdict where the GPU has room, and the host has not."""
VERDICTS: Mapping[Verdict, str] = {
    Verdict.FITS: _("+ fits"),
    Verdict.TIGHT: _("~ tight"),
    Verdict.UNCERTAIN: _("? uncertain"),
    Verdict.DOES_NOT_FIT: _("x too big"),
}


def reason(value: Reason) -> str:
    """Why this strategy was chosen, or none."""
    return _REASONS[value]


def reasons(decision: Decision) -> list[str]:
    """Each reason of a decision, with what would settle what is uncertain.

    Without the sizes, so that a plan says the same while free memory changes a little.
    """
    said = [_said(decision, each) + _doubt(decision, each) for each in decision.reasons]
    otherwise = None if decision.chosen is None else decision.otherwise
    if otherwise is not None:
        other = STRATEGIES[otherwise.strategy.name]
        said.append(_("the flowchart would choose {other}", other=other))
    return [on_device(each, decision.job.machine) for each in said]


def _said(decision: Decision, value: Reason) -> str:
    """What is uncertain was asked for, and nobody says that it fits."""
    if value is Reason.ASKED_FOR and Reason.UNCERTAIN in decision.reasons:
        return _ASKED_FOR
    return reason(value)


def _doubt(decision: Decision, value: Reason) -> str:
    """Which strategies a reason calls uncertain, and how to know."""
    uncertain = {
        Reason.UNCERTAIN: [decision.chosen],
        Reason.UNCERTAIN_PASSED_OVER: _passed_over(decision),
    }.get(value, [])
    others = (each for each in uncertain if each and each is not decision.chosen)
    named = [STRATEGIES[each.strategy.name] for each in others]
    intervals = [each.doubted for each in uncertain if each and each.doubted]
    ways = [settles(settled_by(decision.job, interval)) for interval in intervals[:1]]
    names = listing(named)
    return joined("", [": " + names if named else "", *("; " + way for way in ways)])


def _passed_over(decision: Decision) -> list[StrategyEstimate | None]:
    """The uncertain strategies that were asked of, and not taken."""
    asked = {answer.strategy for answer in decision.answers if not answer.answer}
    uncertain = (each for each in decision.evaluated if each.verdict is Verdict.UNCERTAIN)
    return [each for each in uncertain if each.strategy.name in asked]


def question(value: FlowchartQuestion, about: Strategy | None) -> str:
    """A question of the flowchart; of offload it names what is offloaded."""
    if value is FlowchartQuestion.FITS_OFFLOAD and about is not None:
        return _OFFLOADS[about.offload]
    return _QUESTIONS[value]


def answered(decision: Decision, value: Answer) -> str:
    """Yes or no; an uncertain strategy counts as yes where nothing else surely runs.

    What fits and is not taken, for its link is slow, is no plain yes.
    """
    refused = decision.chosen is None and Reason.SLOW_LINK_REFUSES_ZERO3 in decision.reasons
    if refused and value.question is FlowchartQuestion.FITS_ZERO3:
        return _("too slow")
    uncertain = value.strategy is not None and (_of(decision, value).verdict is Verdict.UNCERTAIN)
    if uncertain:
        return _("uncertain")
    return _("yes") if value.answer else _("no")


def _of(decision: Decision, value: Answer) -> StrategyEstimate:
    """The strategy that a question was about."""
    return next(each for each in decision.evaluated if each.strategy.name == value.strategy)


def remarks(decision: Decision) -> list[str]:
    """What of the answers no number says: a run that died, what is not counted."""
    asked = [_of(decision, each) for each in decision.answers if each.strategy is not None]
    return [
        f"{STRATEGIES[each.strategy.name]}: {words}" for each in asked for words in _remarks(each)
    ]


def _remarks(evaluated: StrategyEstimate) -> Iterator[str]:
    seen = evaluated.ran_out
    if seen is not None:
        memory = _("host memory") if seen.memory is MemoryKind.HOST else _("memory")
        yield _(
            "{strategy} ran out of {memory} here on {seen_on} (`--ignore-oom`)",
            strategy=seen.strategy,
            memory=memory,
            seen_on=seen.seen_on,
        )
    if evaluated.verdict is Verdict.UNCERTAIN:
        if evaluated.interval is not None and evaluated.interval.uncounted:
            yield _(
                "not counting {uncounted}",
                uncounted=joined(_(" and "), map(uncounted, evaluated.interval.uncounted)),
            )
        if evaluated.lacks_to_save:
            yield _("the host lacks memory to save")


def host(job: PlanInput, evaluated: StrategyEstimate) -> str:
    """What all ranks of a node hold of its memory, and when that is most."""
    need, room_bytes = evaluated.host, evaluated.host_budget_bytes
    said = _(
        "{peak_bytes} on each node, most of it {when}",
        peak_bytes=gib(need.peak_bytes),
        when=_WHEN[need.peak_phase],
    )
    if not job.host_use.is_seen:
        said += _(" (as the Trainer saves it)") if need.peak_phase is HostPhase.SAVING else ""
    if room_bytes is None:
        return _("{said}; the available memory is unknown (set it with `--host-memory`)", said=said)
    if evaluated.lacks_to_save:
        return _(
            "{said}; {room_bytes} is available, so the kernel may kill the job then",
            said=said,
            room_bytes=gib(room_bytes),
        )
    if evaluated.nearly_fills_host:
        return _(
            "{said}; {room_bytes} is available, only {left_bytes} more: it just fits if no other "
            "program or data loader takes that",
            said=said,
            room_bytes=gib(room_bytes),
            left_bytes=small(room_bytes - need.peak_bytes),
        )
    return _("{said}; {room_bytes} is available", said=said, room_bytes=gib(room_bytes))


def lack(evaluated: StrategyEstimate, machine: Machine) -> str:
    """What the closest strategy lacks, and on which GPUs of a machine."""
    room, host_room = evaluated.headroom_bytes, evaluated.host_headroom_bytes
    if evaluated.ran_out is not None:
        return _(
            "ran out of memory here on {seen_on} (`--ignore-oom` tries again)",
            seen_on=evaluated.ran_out.seen_on,
        )
    if room is None:
        return _(
            "cannot be checked: the free GPU memory is unknown (set it with `--memory-budget`)"
        )
    lacks = (
        [_("lacks {room} on {too_full}", room=small(-room), too_full=_too_full(evaluated, machine))]
        if room < 0
        else []
    )
    when = _WHEN[evaluated.host.running_phase]
    if host_room is None and evaluated.needs_known_host:
        needs = _(
            "needs {running_bytes} of host memory", running_bytes=gib(evaluated.host.running_bytes)
        )
        lacks.append(
            _(
                "{needs}, and the free host memory is unknown (set it with `--host-memory`)",
                needs=needs,
            )
        )
    elif host_room is not None and host_room < 0:
        lacks.append(
            _("lacks {host_room} of host memory {when}", host_room=small(-host_room), when=when)
        )
    return joined(_(", and "), lacks) or _("fits")


def _too_full(evaluated: StrategyEstimate, machine: Machine) -> str:
    """The GPUs that have too little room for a strategy."""
    labels = [g.label for g in machine.gpus if (g.free_bytes or 0) < evaluated.device_bytes]
    if len(labels) in {0, len(machine.gpus)} or machine.nodes > 1:
        return _("each GPU")
    others = len(machine.gpus) - len(labels)
    return _("GPU {labels} ({others} others have room)", labels=listing(labels), others=others)


def nothing_fits(decision: Decision) -> str:
    """The one line of the error."""
    job, closest = decision.job, decision.closest
    where, lacks = gpus(job.machine), on_device(lack(closest, job.machine), job.machine)
    if decision.reasons[0] is Reason.SLOW_LINK_REFUSES_ZERO3:
        return _(
            "only ZeRO-3 fits {model} on {where}, and its link is slow ({links})",
            model=job.model.name,
            where=where,
            links=links(job.machine),
        )
    name = STRATEGIES[closest.strategy.name]
    if closest.runs:
        return _(
            "only {name} fits {model} on {where}; on one GPU, zerowiz uses it only if "
            "you ask for it",
            name=name,
            model=job.model.name,
            where=where,
        )
    return (
        _(
            "nothing fits {model} on {where}; the closest, {name}, {lacks}",
            model=job.model.name,
            where=where,
            name=name,
            lacks=lacks,
        )
        if decision.constraints.stage is None
        else _(
            "{name} does not fit {model} on {where}: it {lacks}",
            name=name,
            model=job.model.name,
            where=where,
            lacks=lacks,
        )
    )


def verdict(evaluated: StrategyEstimate) -> str:
    """The verdict in a column's width; the GPU may have room where the host has none."""
    room, on_host = evaluated.headroom_bytes, evaluated.host_headroom_bytes
    if evaluated.ran_out is not None:
        return _("x ran out")
    if room is not None and room >= 0:
        if on_host is None and evaluated.needs_known_host:
            return HOST_UNKNOWN
        if on_host is not None and on_host < 0:
            return HOST_TOO_SMALL
    return VERDICTS[evaluated.verdict]
