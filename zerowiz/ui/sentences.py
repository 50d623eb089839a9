"""Make sentences of the values that core decided with."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Answer, Decision, FlowchartQuestion, Reason
from zerowiz.core.decision.measured_together import Pair, PairedSetting
from zerowiz.core.decision.plan_input import PlanInput, Uncounted
from zerowiz.core.decision.uncertainty import Assumption, Interval, SettledBy, settled_by
from zerowiz.core.machine.links import Interconnect, LinkClass
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.types import Machine, MachineSource
from zerowiz.core.memory.host_phases import HostPhase
from zerowiz.core.memory.ledger import AllocationKind, MemoryKind, Phase
from zerowiz.core.memory.vllm import VllmShare
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.script import Binding, Convention, ScriptFacts, Settled
from zerowiz.core.speed.calibration import Calibration
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.core.workload import Reference, Trainer, Workload
from zerowiz.ui.remedies import STRATEGIES
from zerowiz.ui.text.units import (
    bare_gib,
    count,
    gib,
    gpus,
    on_device,
    small,
)

_QUESTIONS: Mapping[FlowchartQuestion, str] = {
    FlowchartQuestion.FITS_ONE_GPU: "Does a replica fit on one GPU?",
    FlowchartQuestion.FITS_ZERO1: "Slow link: does it fit with ZeRO-1?",
    FlowchartQuestion.FITS_ZERO2: "Does it fit with ZeRO-2?",
    FlowchartQuestion.FAST_INTERCONNECT: "Is the interconnect fast?",
    FlowchartQuestion.FITS_ZERO3: "Does it fit with ZeRO-3?",
    FlowchartQuestion.FITS_OFFLOAD: "Does it fit with offload?",
}
_OFFLOADS: Mapping[Offload, str] = {
    Offload.OPTIMIZER: "With the optimizer offloaded?",
    Offload.ALL: "With everything offloaded?",
}

_LINKS: Mapping[LinkClass, str] = {
    LinkClass.NVLINK_ALL: "NVLink between every pair",
    LinkClass.NVLINK_RING: "NVLink in NCCL's rings, but not between every pair",
    LinkClass.NVLINK_PARTIAL: "NVLink between some pairs only, so NCCL's ring crosses PCIe",
    LinkClass.PCIE: "PCIe between the GPUs",
    LinkClass.NONE: "one GPU, no link",
    LinkClass.UNKNOWN: "unknown link, treated as slow",
}

_ASKED_FOR = "you asked for it"
_REASONS: Mapping[Reason, str] = {
    Reason.REPLICATED_FITS: "a full replica fits each GPU, so nothing needs to be sharded",
    Reason.SLOW_LINK_ZERO1: (
        "sharding the optimizer states is enough, and over a slow link ZeRO-1 is faster: it"
        " reduces once per optimizer step, ZeRO-2 at every micro-step"
    ),
    Reason.MIDDLE_FITS: "sharding gradients and optimizer states is enough",
    Reason.FAST_LINK_ZERO3: "it fits only with sharded parameters, and the link is fast enough",
    Reason.SLOW_ALLOWED: "ZeRO-3 runs over a slow link, which `--allow-slow` allows",
    Reason.ONLY_OFFLOAD_FITS: "the GPUs have too little memory, and the host has enough",
    Reason.OFFLOAD_OVER_SLOW_ZERO3: "`--offload auto` prefers host memory to ZeRO-3 on a slow link",
    Reason.SLOW_LINK_REFUSES_ZERO3: (
        "only ZeRO-3 fits, and over this slow link it would gather every layer at each micro-step;"
        " `--allow-slow` takes it"
    ),
    Reason.ASKED_FOR: f"{_ASKED_FOR}, and it fits",
    Reason.FORCED: "you asked for it with `--force`, and it does not fit",
    Reason.TIGHT: "it is tight: near the memory limit, steps may be slower or run out of memory",
    Reason.UNCERTAIN: "it is uncertain, and may run out of memory",
    Reason.UNCERTAIN_PASSED_OVER: "zerowiz skipped strategies that are uncertain",
    Reason.NOTHING_FITS: "no strategy that your options allow fits",
    Reason.BUDGET_UNKNOWN: "the free GPU memory is unknown, so it may not fit",
    Reason.FASTEST: "its step is predicted to be the fastest of all that fit",
    Reason.AS_GOOD_AS_FASTEST: "its step is predicted to be within 3 % of the fastest that fits",
    Reason.FASTER_NOT_WORTH: (
        "the faster ones recompute activations or come near the memory limit, and gain less than"
        " 5 %"
    ),
    Reason.SMALLEST: "it needs the least memory of all that fit",
}


_CONVENTIONS: Mapping[Convention, str] = {
    Convention.HF_PARSER: "HF Trainer that parses its arguments, gets the config by `--deepspeed`",
    Convention.HF_IN_CODE: "HF Trainer with arguments in code, gets the config by environment",
    Convention.HF_LITERAL: "HF Trainer with the config's file name in the code",
    Convention.ADD_CONFIG_ARGUMENTS: "DeepSpeed loop, gets the config by `--deepspeed_config`",
    Convention.OWN_FLAG: "gets the config by its own option",
    Convention.CONFIG_LITERAL: "has the config's file name in the code",
    Convention.CONFIG_DICT: "builds its config itself",
    Convention.ACCELERATOR: "Accelerate, gets the config by environment",
    Convention.NONE: "keeps its own config: zerowiz passes none, and plans with your options",
    Convention.UNKNOWN: "zerowiz cannot see how it gets a config",
}


def convention(facts: ScriptFacts) -> str:
    """How a config reaches a script."""
    file = facts.settings_file
    if facts.convention is Convention.HF_PARSER and file is not None and file.is_whole:
        return f"HF Trainer with its arguments in `{file.path}`, gets the config by a copy of it"
    return _CONVENTIONS[facts.convention]


def places(bindings: Sequence[Binding]) -> str:
    """Where in a script something stands."""
    return ", ".join(f"`{binding.code}` in line {binding.line}" for binding in bindings)


def reason(value: Reason) -> str:
    """Why this strategy was chosen, or none."""
    return _REASONS[value]


_SETTLED_BY: Mapping[SettledBy, str] = {
    SettledBy.CONFIG: "to be sure, pass your model's config.json (`--model FOLDER`)",
    SettledBy.TRACE: "to be sure, add `--trace` (it needs torch)",
    SettledBy.MEASURE: "to be sure, run `zerowiz measure` on these GPUs",
    SettledBy.RUN: "only a few steps of the job itself can show it",
}


def settles(value: SettledBy) -> str:
    """What would show whether an uncertain strategy fits."""
    return _SETTLED_BY[value]


def reasons(decision: Decision) -> list[str]:
    """Each reason of a decision, with what would settle what is uncertain.

    Without the sizes, so that a plan says the same while free memory changes a little.
    """
    said = (_said(decision, each) + _doubt(decision, each) for each in decision.reasons)
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
    return "".join([f": {', '.join(named)}" if named else "", *(f"; {way}" for way in ways)])


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


def link(interconnect: Interconnect) -> str:
    """The link in words, with its nominal rate one way where it is known."""
    words = _LINKS[interconnect.link_class]
    if interconnect.bytes_per_s:
        words += f", {interconnect.bytes_per_s / 1e9:.0f} GB/s one way"
    return words


_NETWORKS: Mapping[NetworkKind, str] = {
    NetworkKind.NVLINK: "one NVLink domain",
    NetworkKind.INFINIBAND: "InfiniBand",
    NetworkKind.ROCE: "RoCE",
    NetworkKind.EFA: "EFA",
    NetworkKind.ETHERNET: "Ethernet",
    NetworkKind.UNKNOWN: "unknown",
}


def network(value: Network) -> str:
    """The way to other nodes in words, with its nominal rate one way where it is known."""
    words = _NETWORKS[value.kind]
    if value.bytes_per_s:
        words += f", {value.bytes_per_s / 1e9:g} GB/s one way"
    return words


_SOURCES: Mapping[MachineSource, str] = {
    MachineSource.NVML: "NVML",
    MachineSource.FILE: "machine file",
    MachineSource.SPEC: "GPU table",
    MachineSource.CPU: "this host",
}


def source(machine: Machine) -> str:
    """Where the machine was read from."""
    return _SOURCES[machine.source]


def links(machine: Machine) -> str:
    """Every link that a job crosses: inside a node, and between nodes when there are several."""
    inside = link(machine.interconnect)
    return inside if machine.nodes == 1 else f"{inside}; between nodes {network(machine.network)}"


def _shape(model: Model) -> str:
    """What a model is that stands for a size."""
    a = model.architecture
    family = a.family.partition("_")[0].capitalize()
    return f"a {family} of {a.layers} layers x {a.hidden_size}, vocabulary {a.vocab_size}"


def model(value: Model) -> str:
    """A model, its size, and where that is from."""
    said = f"{value.name}, {count(value.params)} parameters ({value.source})"
    return f"{said}: {_shape(value)}" if value.source is ModelSource.SIZE else said


def answered(decision: Decision, value: Answer) -> str:
    """Yes or no; an uncertain strategy counts as yes where nothing else surely runs.

    What fits and is not taken, for its link is slow, is no plain yes.
    """
    refused = decision.chosen is None and Reason.SLOW_LINK_REFUSES_ZERO3 in decision.reasons
    if refused and value.question is FlowchartQuestion.FITS_ZERO3:
        return "too slow"
    uncertain = value.strategy is not None and (_of(decision, value).verdict is Verdict.UNCERTAIN)
    return "uncertain" if uncertain else "yes" if value.answer else "no"


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
        memory = "host memory" if seen.memory is MemoryKind.HOST else "memory"
        yield f"{seen.strategy} ran out of {memory} here on {seen.seen_on} (`--ignore-oom`)"
    if evaluated.verdict is Verdict.UNCERTAIN:
        if evaluated.interval is not None and evaluated.interval.uncounted:
            yield f"not counting {' and '.join(map(uncounted, evaluated.interval.uncounted))}"
        if evaluated.lacks_to_save:
            yield "the host lacks memory to save"


_WHEN: Mapping[HostPhase, str] = {
    HostPhase.LOAD: "while each rank builds the model",
    HostPhase.INIT: "while DeepSpeed starts",
    HostPhase.TRAINING: "while it trains",
    HostPhase.SAVING: "while a checkpoint is saved",
}


def host(job: PlanInput, evaluated: StrategyEstimate) -> str:
    """What all ranks of a node hold of its memory, and when that is most."""
    need, room_bytes = evaluated.host, evaluated.host_budget_bytes
    said = f"{STRATEGIES[evaluated.strategy.name]}: {gib(need.peak_bytes)} on each node"
    said += f", most of it {_WHEN[need.peak_phase]}"
    if not job.host_use.is_seen:
        said += " (as the Trainer saves it)" if need.peak_phase is HostPhase.SAVING else ""
    if room_bytes is None:
        return f"{said}; the available memory is unknown (set it with `--host-memory`)"
    if evaluated.lacks_to_save:
        return f"{said}; {gib(room_bytes)} is available, so the kernel may kill the job then"
    return f"{said}; {gib(room_bytes)} is available"


def lack(evaluated: StrategyEstimate) -> str:
    """What the closest strategy lacks."""
    room, host_room = evaluated.headroom_bytes, evaluated.host_headroom_bytes
    if evaluated.ran_out is not None:
        return f"ran out of memory here on {evaluated.ran_out.seen_on} (`--ignore-oom` tries again)"
    if room is None:
        return "cannot be checked: the free GPU memory is unknown (set it with `--memory-budget`)"
    lacks = [f"lacks {small(-room)} on each GPU"] if room < 0 else []
    when = _WHEN[evaluated.host.running_phase]
    if host_room is None and evaluated.needs_known_host:
        needs = f"needs {gib(evaluated.host.running_bytes)} of host memory"
        lacks.append(f"{needs}, and the free host memory is unknown (set it with `--host-memory`)")
    elif host_room is not None and host_room < 0:
        lacks.append(f"lacks {small(-host_room)} of host memory {when}")
    return ", and ".join(lacks) or "fits"


def nothing_fits(decision: Decision) -> str:
    """The one line of the error."""
    job, closest = decision.job, decision.closest
    where, lacks = gpus(job.machine), on_device(lack(closest), job.machine)
    if decision.reasons[0] is Reason.SLOW_LINK_REFUSES_ZERO3:
        return (
            f"only ZeRO-3 fits {job.model.name} on {where}, and its link is slow"
            f" ({links(job.machine)})"
        )
    name = STRATEGIES[closest.strategy.name]
    if closest.runs:
        return (
            f"only {name} fits {job.model.name} on {where}, and it is"
            " not taken unasked where no other GPU shares the load"
        )
    return (
        f"nothing fits {job.model.name} on {where}; the closest, {name}, {lacks}"
        if decision.constraints.stage is None
        else f"{name} does not fit {job.model.name} on {where}: it {lacks}"
    )


# acts-050 of tests/measured/h200.jsonl: 29.7 GB where a fused AdamW takes 24.8 GB.
UNFUSED_ADAM = (
    "this Adam is not fused: it needs up to 4 more bytes per trainable parameter during the step,"
    " which the plan counts; `fused=True` avoids that"
)


def falls_back(family: str, release: str) -> str:
    """What runs in place of the attention that was asked for."""
    return (
        f"transformers {release} runs `{family}` with eager attention, which stores all attention"
        " scores"
    )


def size_untraced(text: str) -> str:
    """Why `--trace` did nothing."""
    return f"`--trace` has no effect: `{text}` is a size, and only a real model can be traced"


def traced(family: str | None, built: str, took_milliseconds: int) -> str:
    """What was traced; a family is named where it has no formulas."""
    said = "" if family is None else f"zerowiz does not know `{family}` yet: "
    took = f"{took_milliseconds / 1000:.1f} s"
    return f"{said}traced `{built}` on the meta device ({took}; the result is cached)"


def guess(family: str, exact: str, *, wraps: bool) -> str:
    """What a guess rests on, and how to do without."""
    counted = "its language model only" if wraps else "a Llama of the same sizes"
    return f"zerowiz does not know `{family}` yet, and estimates it as {counted}; {exact}"


HOST_UNKNOWN = "host?"
"""The verdict where the GPU has room, and what the host has is unknown."""
VERDICTS: Mapping[Verdict, str] = {
    Verdict.FITS: "+ fits",
    Verdict.TIGHT: "~ tight",
    Verdict.UNCERTAIN: "? uncertain",
    Verdict.DOES_NOT_FIT: "x too big",
}


_ASSUMPTIONS: Mapping[Assumption, str] = {
    Assumption.STAND_IN: "a Llama of that size",
    Assumption.GUESSED: "a Llama of the config's sizes",
    Assumption.TRACED: "the model as it was traced",
    Assumption.NEW_FAMILY: "a family that was never measured",
    Assumption.NEW_STRATEGY: "a strategy that was never measured",
    Assumption.MIXTURE: "experts that share the tokens evenly",
    Assumption.ENCODER_DECODER: "an encoder-decoder (measured a few times)",
    Assumption.NEVER_TOGETHER: "settings that were never measured together",
    Assumption.SEPARATE: "gradients that are not contiguous, measured twice",
    Assumption.IMAGES: "an image encoder (measured a few times)",
    Assumption.QUANTIZED: "4-bit weights (measured a few times)",
    Assumption.RARE_OPTIMIZER: "an optimizer that was measured a few times",
    Assumption.FOREACH: "an Adam that copies lists of tensors",
    Assumption.SHARDED_ADAPTERS: "adapters recomputed under ZeRO-3, measured twice",
    Assumption.AUTOCAST: "torch's autocast (measured a few times)",
    Assumption.EAGER: "eager attention (measured a few times)",
    Assumption.OTHER_LOSS: "a loss that was measured a few times",
    Assumption.OTHER_TRAINER: "another trainer than SFT (measured a few times)",
    Assumption.NEW_TRAINER: "a trainer that was never measured with these settings",
    Assumption.OFFLOADED: "offload (measured a few times)",
    Assumption.GATHERED: "as much gathered as on the measured machines",
    Assumption.ON_CPU: "the CPU (never measured)",
    Assumption.CUT: "shards that split tensors",
    Assumption.FUSED_OPTIMIZER: "a fused Adam",
    Assumption.FUSED_ATTENTION: "a fused attention kernel",
    Assumption.UNPADDED: "a batch without padding",
}


_UNCOUNTED: Mapping[Uncounted, str] = {
    Uncounted.WRAPPED_MODEL: "the parts of the model besides its language model",
    Uncounted.TRAINER_OF_ANOTHER_MODEL: "what this trainer adds to this model",
    Uncounted.PPO_ROLLOUT: "the logits that PPO keeps while it generates",
    Uncounted.TRAINER: "what its trainer adds",
    Uncounted.OWN_LOSS: "the loss that the script computes itself",
    Uncounted.JUDGE: "the model that judges completions",
    Uncounted.ENGINE: "what generates completions",
    Uncounted.VLLM: "what vLLM holds beyond its fraction",
}


_RUNS: Mapping[Trainer, str] = {
    Trainer.DPO: "2 sequences of each pair at once, chosen and rejected",
    Trainer.REWARD: "2 sequences of each pair at once, chosen and rejected",
    Trainer.KTO: "each sequence, and one of another prompt beside it without gradients",
    Trainer.GRPO: "completions generated by {engine}, {count} at a time on each GPU",
    Trainer.RLOO: "completions generated by {engine}, {count} at a time on each GPU",
    Trainer.PPO: "completions generated by {engine}, {count} at a time on each GPU; a value model"
    " trains too, and a reward model scores",
}
_FROZEN = (
    AllocationKind.REFERENCE,
    AllocationKind.REFERENCE_SHARDED,
    AllocationKind.REFERENCE_PINNED,
)


def trainer(workload: Workload, evaluated: StrategyEstimate) -> str:
    """What a trainer runs, and the frozen models that it holds under a strategy."""
    engine = "the model itself"
    if workload.vllm_memory_fraction is not None:
        engine = "vLLM" if workload.vllm_memory_fraction else "vLLM on other GPUs"
    count = workload.resolved_generation_batch
    runs = _RUNS[workload.trainer].format(count=count, engine=engine)
    return "; ".join(filter(None, (f"{workload.trainer}: {runs}", _frozen(workload, evaluated))))


def _frozen(workload: Workload, evaluated: StrategyEstimate) -> str:
    """The reference, and where it is; empty for a trainer that has none."""
    if not workload.trainer.compares:
        return ""
    if workload.resolved_reference is Reference.PRECOMPUTED:
        return "the reference was computed before training"
    on_gpu = evaluated.estimate.moments[Phase.FORWARD][0]
    on_host = evaluated.estimate.host[Phase.FORWARD][0]
    held = {e.kind: e.size_bytes for e in (*on_gpu, *on_host) if e.kind in _FROZEN}
    size_bytes = sum(held.values())
    if not size_bytes:
        return "no reference model"
    models = "frozen models" if workload.trainer is Trainer.PPO else "a frozen reference model"
    if AllocationKind.REFERENCE in held:
        return f"{models} on every GPU ({gib(size_bytes)})"
    if held.get(AllocationKind.REFERENCE_PINNED):
        return f"{models} in the host's memory ({gib(size_bytes)} of each rank)"
    return f"{models}, sharded ({gib(size_bytes)} on each GPU)"


def calibrated(calibration: Calibration) -> str:
    """What the predicted times were learned from."""
    count = calibration.measured_steps
    settings = "1 setting" if count == 1 else f"{count} settings"
    return f"step times are scaled by {settings} measured on this machine"


VLLM_ELSEWHERE = "vLLM runs as a server on other GPUs, which this plan does not include"


def vllm(workload: Workload, share: VllmShare) -> str:
    """What a vLLM takes of the same GPUs, and when."""
    taken = f"{gib(share.share_bytes)} of each GPU ({workload.vllm_memory_fraction:g} of it)"
    if share.sleeps:
        resting = gib(share.resting_bytes)
        return (
            f"{taken} while it generates, on top of {resting} of training; it frees that memory"
            " while the step trains (never measured)"
        )
    return f"{taken} at all times, on top of the peak (never measured)"


def uncounted(value: Uncounted) -> str:
    """What a job holds besides what is predicted."""
    return _UNCOUNTED[value]


def assumption(value: Assumption) -> str:
    """What an interval rests on."""
    return _ASSUMPTIONS[value]


_PAIRED: Mapping[PairedSetting, Mapping[str, str]] = {
    PairedSetting.STRATEGY: STRATEGIES,
    PairedSetting.ACCUMULATION: {
        "1": "no accumulation",
        "2": "2 to 7 micro-steps",
        "8": "8 or more micro-steps",
    },
    PairedSetting.CHECKPOINTING: {"on": "gradient checkpointing", "off": "no checkpointing"},
    PairedSetting.METHOD: {"full": "full training", "lora": "LoRA", "qlora": "QLoRA"},
    PairedSetting.GPUS: {"1": "one GPU", "2": "several GPUs"},
}


def never_together(pair: Pair) -> str:
    """Two settings that no measured run had at once."""
    one, other = (_PAIRED.get(name, {}).get(value, value) for name, value in pair)
    return f"{one} and {other}"


def interval(strategy: Strategy, value: Interval, of: Model) -> str:
    """The expected peak, its bounds and what they rest on."""
    low, high = bare_gib(value.low_bytes), bare_gib(value.high_bytes)
    peak = f"torch allocates {gib(value.expected_bytes)}, {low} to {high} on any rank"
    said = f"{STRATEGIES[strategy.name]}: {peak}"
    # A trainer of which nothing was measured is not one of which a little was.
    never = Assumption.NEW_TRAINER in value.assumptions
    assumed = ", ".join(
        assumption(each)
        for each in value.assumptions
        if not (never and each is Assumption.OTHER_TRAINER)
    )
    besides = ", ".join(map(uncounted, value.uncounted))
    apart = ", ".join(map(never_together, value.never_together))
    parts = (
        said,
        value.heaviest_bytes and of.heaviest and _heaviest(value.heaviest_bytes, of.heaviest),
        assumed and f"assumes {assumed}",
        besides and f"not counted: {besides}",
        apart and f"never measured together: {apart}",
    )
    return "; ".join(part for part in parts if part)


def _heaviest(size_bytes: int, of: Model) -> str:
    return f"another model of that size may need up to {gib(size_bytes)}, such as {_shape(of)}"


def verdict(evaluated: StrategyEstimate) -> str:
    """The verdict in a column's width; the GPU may have room where that of the host is unknown."""
    room = evaluated.headroom_bytes
    if evaluated.ran_out is not None:
        return "x ran out"
    unknown = evaluated.host_headroom_bytes is None and evaluated.needs_known_host
    if room is not None and room >= 0 and unknown:
        return HOST_UNKNOWN
    return VERDICTS[evaluated.verdict]


def settled(values: Sequence[Settled], copied: str | None) -> str:
    """The words that are added after a script, or to a copy of its settings file."""
    words = shlex.join(word for each in values for word in each.words)
    where = "after the script" if copied is None else f"to a copy of `{copied}`"
    return f"zerowiz adds arguments {where}, which does not set them: `{words}`"


def size_only(size: str | None, script_model: str | None) -> str:
    """That a size says how large a model is, and that the script loads its own."""
    return f"`$model {size}` is only a size; the script loads {script_model}"
