"""Say in words what was decided, doubted, trained, and on which machine."""

from collections.abc import Iterator, Mapping, Sequence

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import (
    Answer,
    Decision,
    FlowchartQuestion,
    Reason,
    seconds_of,
)
from zerowiz.core.decision.job import Job, Pair, PairedSetting
from zerowiz.core.decision.uncertainty import Assumption, Interval, SettledBy, settled_by
from zerowiz.core.machine.types import (
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
)
from zerowiz.core.memory.allocations import AllocationKind, Phase
from zerowiz.core.memory.estimate import VllmShare
from zerowiz.core.memory.host import HostPhase
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts, ValueSource
from zerowiz.core.settings import OTHER_SETTINGS, Origin, SettingValue
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.workload import OPTIMIZERS, Optimizer, Reference, Uncounted, Workload
from zerowiz.translation import N_, _, listing
from zerowiz.ui.text import count, gib, gpus, on_device, small, times_faster, with_bounds


def model(value: Model) -> str:
    """A model, its size, and where that is from."""
    text = _(
        "{value}, {params} parameters ({source})",
        value=value.name,
        params=count(value.params),
        source=_(value.source.value),
    )
    if value.source is not ModelSource.SIZE:
        return text
    return _("{said}, interpolated: {shape}", said=text, shape=shape(value))


def model_in_short(value: Model) -> str:
    """A model and its size: `7b, 7 B (size)`."""
    return f"{value.name}, {count(value.params)} ({_(value.source.value)})"


_SAID = {Origin.OPTION: N_("your options"), Origin.ANSWER: N_("your answer")}


def learning(said: Mapping[str, SettingValue]) -> str:
    """How a model learns, and what says each part of it; empty where nobody sees that.

    Args:
        said: By the name of the setting; `optimizer` and `schedule` are among them.
    """
    parts: dict[str, list[str]] = {}
    for name, value in said.items():
        parts.setdefault(_source(value), []).append(_learned(name, value.value))
    return "; ".join(f"{', '.join(texts)} ({source})" for source, texts in parts.items())


def learning_in_short(said: Mapping[str, SettingValue]) -> str:
    """The lr and its schedule; empty where nobody sees that."""
    names = (name for name in ("lr", "schedule") if name in said)
    return listing(_learned(name, said[name].value) for name in names)


def _source(value: SettingValue) -> str:
    said = _SAID.get(value.origin, value.source)
    what = said.removeprefix("the default of ")
    return _(said) if what == said else _("the default of {what}", what=what)


def _learned(name: str, value: object) -> str:
    """One part of it: `lr 0.0006`."""
    if value is None:
        return _("no lr yet: `$lr`")
    if isinstance(value, Optimizer):
        return _(OPTIMIZERS[value].title)
    shown = f"{value:g}" if isinstance(value, int | float) else value
    if name == "warmup_steps" and isinstance(value, float) and 0 < value < 1:
        # transformers: below 1 it is the part of all steps.
        shown = f"{100 * value:g} %"
    text = _("schedule {value}") if name == "schedule" else _(OTHER_SETTINGS[name].shown or "")
    return text.format(value=shown)


def stands_for(model: Model) -> str:
    """What a size is taken to be: `7b is a Llama of 32 layers x 4096`."""
    a = model.architecture
    return _(
        "{name} is a {family} of {layers} layers x {hidden_size}",
        name=model.name,
        family=a.family.partition("_")[0].capitalize(),
        layers=a.layers,
        hidden_size=a.hidden_size,
    )


def shape(model: Model) -> str:
    """What a model is that stands for a size."""
    a = model.architecture
    family = a.family.partition("_")[0].capitalize()
    return _(
        "a {family} of {layers} layers x {hidden_size}, vocabulary {vocab_size}",
        family=family,
        layers=a.layers,
        hidden_size=a.hidden_size,
        vocab_size=a.vocab_size,
    )


# Say how far off a predicted peak may be, what that rests on, and what would settle it.

ROUGH_ON_CPU = N_(
    "The memory of CPU ranks, here without Python and its libraries, is predicted only roughly"
)
"""What stands below a predicted and a measured memory of CPU ranks."""
_SETTLED_BY: Mapping[SettledBy, str] = {
    SettledBy.CONFIG: N_("to be sure, pass your model's config.json (`--model FOLDER`)"),
    SettledBy.TRACE: N_("to be sure, add `--trace` (it needs torch)"),
    SettledBy.MEASURE: N_("to be sure, run `zerowiz measure` on these GPUs"),
    SettledBy.RUN: N_("only a few steps of the job itself can show it"),
}
_ASSUMPTIONS: Mapping[Assumption, str] = {
    Assumption.STAND_IN: N_("a Llama of that size"),
    Assumption.GUESSED: N_("a Llama of the config's sizes"),
    Assumption.TRACED: N_("the model as it was traced"),
    Assumption.NEW_FAMILY: N_("a family that was never measured"),
    Assumption.NEW_STRATEGY: N_("a strategy that was never measured"),
    Assumption.MIXTURE: N_("experts that share the tokens evenly"),
    Assumption.ENCODER_DECODER: N_("an encoder-decoder (measured a few times)"),
    Assumption.NEVER_TOGETHER: N_("settings that were never measured together"),
    Assumption.SEPARATE: N_("gradients that are not contiguous, measured twice"),
    Assumption.IMAGES: N_("an image encoder (measured a few times)"),
    Assumption.QUANTIZED: N_("4-bit weights (measured a few times)"),
    Assumption.RARE_OPTIMIZER: N_("an optimizer that was measured a few times"),
    Assumption.FOREACH: N_("an Adam that copies lists of tensors"),
    Assumption.SHARDED_ADAPTERS: N_("adapters recomputed under ZeRO-3, measured twice"),
    Assumption.AUTOCAST: N_("torch's autocast (measured a few times)"),
    Assumption.EAGER: N_("eager attention (measured a few times)"),
    Assumption.OTHER_LOSS: N_("a loss that was measured a few times"),
    Assumption.OTHER_TRAINER: N_("another trainer than SFT (measured a few times)"),
    Assumption.NEW_TRAINER: N_("a trainer that was never measured with these settings"),
    Assumption.OFFLOADED: N_("offload (measured a few times)"),
    Assumption.FIXED_SEGMENTS: N_("an allocator whose segments cannot expand"),
    Assumption.GATHERED: N_("as much gathered as on the measured machines"),
    Assumption.SHARED_SEQUENCES: N_("GPUs that share sequences"),
    Assumption.SHARED_WEIGHTS: N_("GPUs that share weights (never measured)"),
    Assumption.ON_CPU: N_("the CPU (never measured)"),
    Assumption.CUT: N_("shards that split tensors"),
    Assumption.FUSED_OPTIMIZER: N_("a fused Adam"),
    Assumption.FUSED_ATTENTION: N_("a fused attention kernel"),
    Assumption.UNPADDED: N_("a batch without padding"),
}
_UNCOUNTED: Mapping[Uncounted, str] = {
    Uncounted.WRAPPED_MODEL: N_("the parts of the model besides its language model"),
    Uncounted.TRAINER_OF_ANOTHER_MODEL: N_("what this trainer adds to this model"),
    Uncounted.PPO_ROLLOUT: N_("the logits that PPO keeps while it generates"),
    Uncounted.TRAINER: N_("what its trainer adds"),
    Uncounted.OWN_LOSS: N_("the loss that the script computes itself"),
    Uncounted.JUDGE: N_("the model that judges completions"),
    Uncounted.COPY: N_("another model of the script"),
    Uncounted.ENGINE: N_("what generates completions"),
    Uncounted.VLLM: N_("what vLLM holds beyond its fraction"),
    Uncounted.CONFIG: N_("keys of your config"),
    Uncounted.ADAPTERS: N_("what the script adds to its adapters"),
    Uncounted.PLAIN_LAYERS: N_("the layers that an unseen `every_n_layers` leaves out"),
}
_PAIRED: Mapping[PairedSetting, Mapping[str, str]] = {
    PairedSetting.STRATEGY: {row.name: row.words for row in STRATEGIES},
    PairedSetting.ACCUMULATION: {
        "1": N_("no accumulation"),
        "2": N_("2 to 7 micro-steps"),
        "8": N_("8 or more micro-steps"),
    },
    PairedSetting.CHECKPOINTING: {
        "on": N_("gradient checkpointing"),
        "off": N_("no checkpointing"),
    },
    PairedSetting.METHOD: {"full": N_("full training"), "lora": "LoRA", "qlora": "QLoRA"},
    PairedSetting.GPUS: {"1": N_("one GPU"), "2": N_("several GPUs")},
}


def settles(value: SettledBy) -> str:
    """What would show whether an uncertain strategy fits."""
    return _(_SETTLED_BY[value])


def uncounted(value: Uncounted) -> str:
    """What a job holds besides what is predicted."""
    return _(_UNCOUNTED[value])


def assumption(value: Assumption) -> str:
    """What an interval rests on."""
    return _(_ASSUMPTIONS[value])


def never_together(pair: Pair) -> str:
    """Two settings that no measured run had at once."""
    first, second = (_(_PAIRED.get(name, {}).get(value, value)) for name, value in pair)
    return _("{one} and {other}", one=first, other=second)


def interval(value: Interval, of: Model) -> str:
    """The expected peak, its bounds and what they rest on."""
    expected, low, high = with_bounds(value.expected_bytes, value.low_bytes, value.high_bytes)
    peak = _(
        "torch allocates {expected_bytes}, {low} to {high} on any rank",
        expected_bytes=expected,
        low=low,
        high=high,
    )
    # A trainer of which nothing was measured is not one of which a little was.
    never = Assumption.NEW_TRAINER in value.assumptions
    assumed = listing(
        assumption(basis)
        for basis in value.assumptions
        if not (never and basis is Assumption.OTHER_TRAINER)
    )
    besides = listing(map(uncounted, value.uncounted))
    apart = listing(map(never_together, value.never_together))
    parts = (
        peak,
        value.heaviest_bytes
        and of.heaviest
        and _(
            "another model of that size may need up to {size_bytes}, such as {shape}",
            size_bytes=gib(value.heaviest_bytes),
            shape=shape(of.heaviest),
        ),
        assumed and _("assumes {assumed}", assumed=assumed),
        besides and _("not counted: {besides}", besides=besides),
        apart and _("never measured together: {apart}", apart=apart),
    )
    return "; ".join(part for part in parts if part)


# Say what joins the GPUs of a machine, and where the machine was read from.

_LINKS: Mapping[LinkClass, str] = {
    LinkClass.NVLINK_ALL: N_("NVLink between every pair"),
    LinkClass.NVLINK_RING: N_("NVLink in NCCL's rings, but not between every pair"),
    LinkClass.NVLINK_PARTIAL: N_("NVLink between some pairs only, so NCCL's ring crosses PCIe"),
    LinkClass.PCIE: N_("PCIe between the GPUs"),
    LinkClass.NONE: N_("one GPU, no link"),
    LinkClass.UNKNOWN: N_("unknown link, treated as slow"),
}
_NETWORKS: Mapping[NetworkKind, str] = {
    NetworkKind.NVLINK: N_("one NVLink domain"),
    NetworkKind.INFINIBAND: "InfiniBand",
    NetworkKind.ROCE: "RoCE",
    NetworkKind.EFA: "EFA",
    NetworkKind.ETHERNET: "Ethernet",
    NetworkKind.UNKNOWN: N_("unknown"),
}
_SOURCES: Mapping[MachineSource, str] = {
    MachineSource.NVML: "NVML",
    MachineSource.FILE: N_("machine file"),
    MachineSource.SPEC: N_("GPU table"),
    MachineSource.CPU: N_("this host"),
}


_SHORT_LINKS: Mapping[LinkClass, str] = {
    LinkClass.NVLINK_ALL: "NVLink",
    LinkClass.NVLINK_RING: "NVLink",
    LinkClass.NVLINK_PARTIAL: N_("NVLink in part"),
    LinkClass.PCIE: "PCIe",
    LinkClass.NONE: N_("no link"),
    LinkClass.UNKNOWN: N_("unknown link"),
}


def short_links(machine: Machine) -> Iterator[str]:
    """What joins the GPUs of a node, then what joins nodes: `NVLink`, `InfiniBand`."""
    yield _(_SHORT_LINKS[machine.interconnect.link_class])
    if machine.nodes > 1:
        is_known = machine.network.kind is not NetworkKind.UNKNOWN
        yield _(_NETWORKS[machine.network.kind]) if is_known else _("unknown network")


def machine_in_short(machine: Machine) -> str:
    """A machine and its links: `4 x A100-SXM4-40GB, NVLink 300 GB/s (GPU table)`."""
    words = [gpus(machine).replace("NVIDIA ", ""), *links_in_short(machine)]
    return f"{', '.join(words)} ({source(machine)})"


def links_in_short(machine: Machine) -> Iterator[str]:
    """What joins the GPUs of a node, then its nodes, with their rates: `NVLink 300 GB/s`."""
    if machine.world_size > 1 and not machine.accelerator.row.on_host:
        rates = machine.interconnect.bytes_per_s, machine.network.bytes_per_s
        for name, rate in zip(short_links(machine), rates, strict=False):
            yield f"{name} {rate / 1e9:.0f} GB/s" if rate else name


def source(machine: Machine) -> str:
    """Where the machine was read from."""
    return _(_SOURCES[machine.source])


def link(interconnect: Interconnect) -> str:
    """The link in words, with its nominal rate one way where it is known."""
    words = _(_LINKS[interconnect.link_class])
    if interconnect.bytes_per_s:
        words += _(
            ", {gigabytes_per_s:.0f} GB/s one way", gigabytes_per_s=interconnect.bytes_per_s / 1e9
        )
    return words


def network(value: Network) -> str:
    """The way to other nodes in words, with its nominal rate one way where it is known."""
    words = _(_NETWORKS[value.kind])
    if value.bytes_per_s:
        words += _(", {gigabytes_per_s:g} GB/s one way", gigabytes_per_s=value.bytes_per_s / 1e9)
    return words


def links(machine: Machine) -> str:
    """Every link that a job crosses: inside a node, and between nodes when there are several."""
    if machine.accelerator.row.on_host and machine.world_size == 1:
        return _("one rank, no link")
    inside = link(machine.interconnect)
    if machine.nodes == 1:
        return inside
    if machine.network.kind is NetworkKind.UNKNOWN:
        return _(
            "{inside}; between nodes unknown, treated as slow: set it with `--interconnect`",
            inside=inside,
        )
    return _("{inside}; between nodes {network}", inside=inside, network=network(machine.network))


# Say what was decided: the answers, the verdicts, why, and what is lacking.

_QUESTIONS: Mapping[FlowchartQuestion, str] = {
    FlowchartQuestion.FITS_ONE_GPU: N_("Does a replica fit on one GPU?"),
    FlowchartQuestion.FITS_ZERO1: N_("Slow link: does it fit with ZeRO-1?"),
    FlowchartQuestion.FITS_ZERO2: N_("Does it fit with ZeRO-2?"),
    FlowchartQuestion.FAST_INTERCONNECT: N_("Is the interconnect fast?"),
    FlowchartQuestion.FITS_ZERO3: N_("Does it fit with ZeRO-3?"),
    FlowchartQuestion.IS_THE_SEQUENCE: N_("Is it the sequence that does not fit?"),
    FlowchartQuestion.FITS_OFFLOAD: N_("Does it fit with offload?"),
    FlowchartQuestion.LEANER_AND_FASTER: N_("Is another leaner and clearly faster?"),
    FlowchartQuestion.NO_OFFLOAD_AS_FAST: N_("Is another as fast without offload?"),
    FlowchartQuestion.RIGHT_FOR_SCRIPT: N_("Is the script right at another stage?"),
    FlowchartQuestion.SURE_AND_AS_FAST: N_("Is another as fast, and certain to fit?"),
}
_OFFLOADS: Mapping[Offload, str] = {
    Offload.OPTIMIZER: N_("With the optimizer offloaded?"),
    Offload.ALL: N_("With everything offloaded?"),
}

_REASONS: Mapping[Reason, str] = {
    Reason.REPLICATED_FITS: N_("a full replica fits each GPU, so nothing needs to be sharded"),
    Reason.SLOW_LINK_ZERO1: N_(
        "sharding the optimizer states is enough, and over a slow link ZeRO-1 is faster: it"
        " reduces once per optimizer step, ZeRO-2 at every micro-step"
    ),
    Reason.MIDDLE_FITS: N_("sharding gradients and optimizer states is enough"),
    Reason.FAST_LINK_ZERO3: N_("it fits only with sharded parameters, and the link is fast enough"),
    Reason.SLOW_ALLOWED: N_("ZeRO-3 runs over a slow link, which `--allow-slow` allows"),
    Reason.ONLY_OFFLOAD_FITS: N_("the GPUs have too little memory, and the host has enough"),
    Reason.OFFLOAD_OVER_SLOW_ZERO3: N_(
        "`--offload auto` prefers host memory to ZeRO-3 on a slow link"
    ),
    Reason.SLOW_LINK_REFUSES_ZERO3: N_(
        "only ZeRO-3 fits, and over this slow link it would gather every layer at each micro-step;"
        " `--allow-slow` takes it"
    ),
    Reason.ASKED_FOR: N_("you asked for it, and it fits"),
    Reason.FORCED: N_("you asked for it with `--force`, and it does not fit"),
    Reason.TIGHT: N_(
        "it is tight: near the memory limit, steps may be slower or run out of memory"
    ),
    Reason.UNCERTAIN: N_("it is uncertain, and may run out of memory"),
    Reason.UNCERTAIN_PASSED_OVER: N_("zerowiz skipped strategies that are uncertain"),
    Reason.SEQUENCE_TOO_LONG: N_(
        "without the activations and logits of so many tokens, ZeRO-3 would fit: see"
        " `--gradient-checkpointing`, `--loss` and `--sequence-parallel`"
    ),
    Reason.LEANER_AND_FASTER: N_("it needs less memory than {beaten}, and is {times} faster"),
    Reason.NO_OFFLOAD_AS_FAST: N_("it needs no offload, and is as fast as {beaten} or faster"),
    Reason.SURE_AND_AS_FAST: N_(
        "it is certain to fit, while {beaten} is not, and is about as fast"
    ),
    Reason.RIGHT_FOR_SCRIPT: N_(
        "your script does not work with {beaten}: a plan for that stage shows the lines"
    ),
    Reason.NOTHING_FITS: N_("no strategy fits with your options"),
    Reason.BUDGET_UNKNOWN: N_("the free GPU memory is unknown, so it may not fit"),
    Reason.FASTEST: N_("its step is predicted to be the fastest of all that fit"),
    Reason.AS_GOOD_AS_FASTEST: N_(
        "its step is predicted to be within 5 % of the fastest that fits"
    ),
    Reason.FASTER_NOT_WORTH: N_(
        "the faster ones recompute activations or come near the memory limit, and gain too little"
    ),
    Reason.LOSES_LEAST: N_(
        "zerowiz does not know how fast your host is, and this choice loses the least time on a"
        " slow or a fast one"
    ),
    Reason.SMALLEST: N_("it needs the least memory of all that fit"),
}
_WHEN: Mapping[HostPhase, str] = {
    HostPhase.LOAD: N_("while each rank builds the model"),
    HostPhase.INIT: N_("while DeepSpeed starts"),
    HostPhase.TRAINING: N_("while it trains"),
    HostPhase.SAVING: N_("while a checkpoint is saved"),
}

_VERDICTS: Mapping[Verdict, str] = {
    Verdict.FITS: _("fits"),
    Verdict.TIGHT: _("tight"),
    Verdict.UNCERTAIN: _("uncertain"),
    Verdict.DOES_NOT_FIT: _("too big"),
}


def reason(value: Reason, **values: str) -> str:
    """Why this strategy was chosen, or none."""
    return _(_REASONS[value], **values)


def reasons(decision: Decision) -> list[str]:
    """Each reason of a decision, with what would settle what is uncertain.

    Without the sizes, so that a plan says the same while free memory changes a little.
    """
    sentences = [_said(decision, value) + _doubt(decision, value) for value in decision.reasons]
    otherwise = None if decision.chosen is None else decision.otherwise
    if otherwise is not None:
        other = _(otherwise.strategy.words)
        sentences.append(_("the flowchart would choose {other}", other=other))
    return [on_device(sentence, decision.job.machine) for sentence in sentences]


def _said(decision: Decision, value: Reason) -> str:
    """What is uncertain was asked for, and nobody says that it fits."""
    if value is Reason.ASKED_FOR and Reason.UNCERTAIN in decision.reasons:
        return _("you asked for it")
    led, chosen = decision.beaten, decision.chosen
    if led is None or chosen is None:
        return reason(value)
    times = times_faster(seconds_of(led) or 0, seconds_of(chosen) or 1)
    if value is Reason.LEANER_AND_FASTER and chosen.device_bytes >= led.device_bytes:
        return _("it is {times} faster than {beaten}", beaten=_(led.strategy.words), times=times)
    return reason(value, beaten=_(led.strategy.words), times=times)


def _doubt(decision: Decision, value: Reason) -> str:
    """Which strategies a reason calls uncertain, and how to know."""
    uncertain = {
        Reason.UNCERTAIN: [decision.chosen],
        Reason.UNCERTAIN_PASSED_OVER: _passed_over(decision),
    }.get(value, [])
    others = (
        evaluated for evaluated in uncertain if evaluated and evaluated is not decision.chosen
    )
    named = [_(other.strategy.words) for other in others]
    intervals = [evaluated.doubted for evaluated in uncertain if evaluated and evaluated.doubted]
    ways = [settles(settled_by(decision.job, interval)) for interval in intervals[:1]]
    names = listing(named)
    return "".join([": " + names if named else "", *("; " + way for way in ways)])


def _passed_over(decision: Decision) -> list[StrategyEstimate | None]:
    """The uncertain strategies that were asked of, and not taken."""
    asked = {answer.strategy for answer in decision.answers if not answer.answer}
    uncertain = (
        evaluated for evaluated in decision.evaluated if evaluated.verdict is Verdict.UNCERTAIN
    )
    return [evaluated for evaluated in uncertain if evaluated.strategy.name in asked]


def question(value: FlowchartQuestion, about: Strategy | None) -> str:
    """A question of the flowchart; of offload it names what is offloaded."""
    if value is FlowchartQuestion.FITS_OFFLOAD and about is not None:
        return _(_OFFLOADS[about.offload])
    return _(_QUESTIONS[value])


def answered(decision: Decision, value: Answer) -> str:
    """Yes or no; an uncertain strategy counts as yes where nothing else surely runs.

    What fits and is not taken, for its link is slow, is no plain yes.
    """
    refused = decision.chosen is None and Reason.SLOW_LINK_REFUSES_ZERO3 in decision.reasons
    if refused and value.question is FlowchartQuestion.FITS_ZERO3:
        return _("too slow")
    about = None if value.strategy is None else _of(decision, value)
    if about is not None and about.verdict is Verdict.UNCERTAIN:
        return _("uncertain")
    if about is not None and about.is_host_unknown:
        return _("unknown")
    return _("yes") if value.answer else _("no")


def _of(decision: Decision, value: Answer) -> StrategyEstimate:
    """The strategy that a question was about."""
    return next(
        evaluated for evaluated in decision.evaluated if evaluated.strategy.name == value.strategy
    )


def remarks(decision: Decision) -> list[str]:
    """What of the answers no number says: what is not counted."""
    asked = [_of(decision, answer) for answer in decision.answers if answer.strategy is not None]
    return [
        f"{_(evaluated.strategy.words)}: {words}"
        for evaluated in asked
        for words in _remarks(evaluated)
    ]


def _remarks(evaluated: StrategyEstimate) -> Iterator[str]:
    if evaluated.verdict is Verdict.UNCERTAIN:
        if evaluated.interval is not None and evaluated.interval.uncounted:
            yield _(
                "not counting {uncounted}",
                uncounted=_(" and ").join(map(uncounted, evaluated.interval.uncounted)),
            )
        if evaluated.lacks_to_save:
            yield _("the host lacks memory to save")


def host(job: Job, evaluated: StrategyEstimate) -> str:
    """What all ranks of a node hold of its memory, and when that is most."""
    need, room_bytes = evaluated.host, evaluated.host_budget_bytes
    text = _(
        "{peak_bytes} on each node, most of it {when}",
        peak_bytes=gib(need.peak_bytes),
        when=_(_WHEN[need.peak_phase]),
    )
    if not job.host_use.is_seen:
        text += _(" (as the Trainer saves it)") if need.peak_phase is HostPhase.SAVING else ""
    if room_bytes is None:
        return _("{said}; the available memory is unknown (set it with `--host-memory`)", said=text)
    if evaluated.lacks_to_save:
        return _(
            "{said}; {room_bytes} is available, so the kernel may kill the job then",
            said=text,
            room_bytes=gib(room_bytes),
        )
    if evaluated.nearly_fills_host:
        return _(
            "{said}; {room_bytes} is available, only {left_bytes} more: it just fits if no other "
            "program or data loader takes that",
            said=text,
            room_bytes=gib(room_bytes),
            left_bytes=small(room_bytes - need.peak_bytes),
        )
    return _("{said}; {room_bytes} is available", said=text, room_bytes=gib(room_bytes))


def lack(evaluated: StrategyEstimate, machine: Machine) -> str:
    """What the closest strategy lacks, and on which GPUs of a machine."""
    room, host_room = evaluated.headroom_bytes, evaluated.host_headroom_bytes
    if evaluated.ran_out is not None:
        return _("ran out of memory in an attempt before")
    if room is None:
        return _(
            "cannot be checked: the free GPU memory is unknown (set it with `--memory-budget`)"
        )
    lacks = (
        [_("lacks {room} on {too_full}", room=small(-room), too_full=_too_full(evaluated, machine))]
        if room < 0
        else []
    )
    when = _(_WHEN[evaluated.host.running_phase])
    if host_room is None and evaluated.needs_known_host and not lacks:
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
        host = machine.host
        if host.available_by not in {None, "MemAvailable"}:
            lacks[-1] += _(
                " ({limit} leaves {available})",
                limit=host.available_by,
                available=gib(host.available_bytes or 0),
            )
    return _(", and ").join(lacks) or _("fits")


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
    if closest.estimate.peak_phase is Phase.EVALUATE and not closest.runs:
        lacks = f"{lacks}; {on_device(evaluation(job.workload, closest), job.machine)}"
    if decision.reasons[0] is Reason.SLOW_LINK_REFUSES_ZERO3:
        return _(
            "only ZeRO-3 fits {model} on {where}, and its link is slow ({links})",
            model=job.model.name,
            where=where,
            links=links(job.machine),
        )
    name = _(closest.strategy.words)
    if closest.runs:
        return _(
            "only {name} fits {model} on {where}; on one GPU, zerowiz uses it only if "
            "you ask for it",
            name=name,
            model=job.model.name,
            where=where,
        )
    nothing = N_("nothing fits {model} on {where}; the closest, {name}, {lacks}")
    if any(evaluated.is_host_unknown for evaluated in decision.allowed):
        nothing = N_(
            "nothing fits {model} on {where} without offload; the closest, {name}, {lacks}"
        )
    return (
        _(nothing, model=job.model.name, where=where, name=name, lacks=lacks)
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
    if evaluated.is_host_unknown:
        return _("host unknown")
    if room is not None and room >= 0 and on_host is not None and on_host < 0:
        return _("host too small")
    return _VERDICTS[evaluated.verdict]


# Say what was read of a script: how it gets its config, and where something stands.

_CONVENTIONS: Mapping[Convention, str] = {
    Convention.HF_PARSER: N_(
        "HF Trainer that parses its arguments, gets the config by `--deepspeed`"
    ),
    Convention.HF_IN_CODE: N_(
        "HF Trainer with arguments in code, gets the config through environment variables"
    ),
    Convention.HF_LITERAL: N_("HF Trainer with the config's file name in the code"),
    Convention.ADD_CONFIG_ARGUMENTS: N_("DeepSpeed loop, gets the config by `--deepspeed_config`"),
    Convention.OWN_FLAG: N_("gets the config by its own option"),
    Convention.CONFIG_LITERAL: N_("has the config's file name in the code"),
    Convention.CONFIG_DICT: N_("builds its config itself"),
    Convention.ACCELERATOR: N_("Accelerate, gets the config through environment variables"),
    Convention.LIGHTNING: N_("Lightning, gets the config through an environment variable"),
    Convention.NONE: N_("keeps its own config: zerowiz passes none, and plans with your options"),
    Convention.UNKNOWN: N_("zerowiz cannot see how it gets a config"),
}


def convention(facts: ScriptFacts) -> str:
    """How a config reaches a script."""
    if facts.obstacle is Obstacle.NO_STRATEGY:
        return _(
            'Lightning without DeepSpeed: write `strategy="deepspeed"` in line {line} first',
            line=facts.config_line,
        )
    file = facts.settings_file
    if facts.convention is Convention.HF_PARSER and file is not None and file.is_whole:
        return _(
            "HF Trainer with its arguments in `{path}`, gets the config by a copy of it",
            path=file.path,
        )
    return _(_CONVENTIONS[facts.convention])


def places(facts: ScriptFacts, bindings: Sequence[ValueSource]) -> str:
    """Where in a script something stands."""
    return listing(
        _("`{code}` in {path} line {line}", code=binding.code, path=path, line=line)
        for binding in bindings
        for path, line in [facts.locate(binding.line)]
    )


# Say what a trainer and its vLLM hold beside what trains, and what an evaluation holds.

_FROZEN = (
    AllocationKind.REFERENCE,
    AllocationKind.REFERENCE_SHARDED,
    AllocationKind.REFERENCE_PINNED,
)


def trainer(workload: Workload, evaluated: StrategyEstimate) -> str:
    """What a trainer runs, and the frozen models that it holds under a strategy."""
    engine = _("the model itself")
    if workload.vllm_memory_fraction is not None:
        engine = "vLLM" if workload.vllm_memory_fraction else _("vLLM on other GPUs")
    count = workload.resolved_generation_batch
    runs = _(workload.trainer.row.runs, count=count, engine=engine)
    return "; ".join(filter(None, (f"{workload.trainer}: {runs}", _frozen(workload, evaluated))))


def _frozen(workload: Workload, evaluated: StrategyEstimate) -> str:
    """The reference, and where it is; empty for a trainer that has none."""
    if not workload.trainer.row.compares:
        return ""
    if workload.resolved_reference is Reference.PRECOMPUTED:
        return _("the reference was computed before training")
    on_gpu = evaluated.estimate.moments[Phase.FORWARD][0]
    held_anywhere = (*on_gpu, *evaluated.estimate.host)
    held = {e.kind: e.size_bytes for e in held_anywhere if e.kind in _FROZEN}
    size_bytes = sum(held.values())
    if not size_bytes:
        return _("no reference model")
    models = (
        _("frozen models")
        if workload.trainer.row.has_value_model
        else _("a frozen reference model")
    )
    if AllocationKind.REFERENCE in held:
        return _("{models} on every GPU ({size_bytes})", models=models, size_bytes=gib(size_bytes))
    if held.get(AllocationKind.REFERENCE_PINNED):
        return _(
            "{models} in the host's memory ({size_bytes} of each rank)",
            models=models,
            size_bytes=gib(size_bytes),
        )
    return _(
        "{models}, sharded ({size_bytes} on each GPU)", models=models, size_bytes=gib(size_bytes)
    )


def evaluation(workload: Workload, evaluated: StrategyEstimate) -> str:
    """That an evaluation decides the peak, and how many sequences at a time would not."""
    below = evaluated.estimate.eval_batch_below_training
    decides = _(
        "evaluation ({eval_batch} per GPU) decides the peak; training holds {training}",
        eval_batch=workload.eval_batch,
        training=gib(evaluated.estimate.training_peak_bytes),
    )
    if below is None:
        return decides
    return _("{decides}; `$eval_batch {below}` keeps it below that", decides=decides, below=below)


def vllm(workload: Workload, share: VllmShare) -> str:
    """What a vLLM takes of the same GPUs, and when."""
    room = _(
        "{share_bytes} of each GPU ({vllm_memory_fraction:g} of it)",
        share_bytes=gib(share.share_bytes),
        vllm_memory_fraction=workload.vllm_memory_fraction,
    )
    if share.sleeps:
        resting = gib(share.resting_bytes)
        return _(
            "{taken} while it generates, on top of {resting} of training; it frees "
            "that memory while the step trains (never measured)",
            taken=room,
            resting=resting,
        )
    return _("{taken} at all times, on top of the peak (never measured)", taken=room)
