"""Say what a plan rests on: what of it changes learning, what was assumed, which trainer."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zerowiz.core import shell
from zerowiz.core.command_words import spell_change
from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.dsconfig.merge import REPLACED
from zerowiz.core.memory.allocations import AllocationKind, Phase
from zerowiz.core.memory.estimate import VllmShare
from zerowiz.core.model.types import Model
from zerowiz.core.script.settings import AddedWords
from zerowiz.core.settings import Change
from zerowiz.core.speed.costs import Calibration
from zerowiz.core.workload import Integration, Reference, Workload
from zerowiz.translation import N_, _, listing
from zerowiz.ui.text import gib

if TYPE_CHECKING:
    from zerowiz.core.decision.job import Job
    from zerowiz.core.dsconfig.merge import KeyEdit, RemovedKey
    from zerowiz.core.launch.provenance import BatchChange
    from zerowiz.core.script.facts import ScriptValue


# What of a base is worth a word; all else that is there stays as well.
_LEARNING = ("optimizer", "scheduler", "gradient_clipping")


def kept_keys(values: Mapping[str, object]) -> list[str]:
    """The keys that stay of a base, those first that decide how the model learns."""
    kept = [key for key in values if key not in REPLACED]
    return [*dict.fromkeys(key for key in (*_LEARNING, *kept) if key in kept)]


def built_on(
    config: str, base: str, values: Mapping[str, object], removed: Sequence["RemovedKey"]
) -> str:
    """What a config keeps of the one that it is built on, and what of that the plan cannot have.

    Args:
        config: The path of the new one.
        base: The path of the person's.
        values: What that says.
        removed: What of it is gone.
    """
    said = _(
        "`{config}` is built on `{base}`: zerowiz replaces ZeRO and the batch, and keeps {kept}",
        config=config,
        base=base,
        kept=listing(f"`{key}`" for key in kept_keys(values)) or _("nothing else"),
    )
    lost = [each.key for each in removed if each.is_lost]
    if not lost:
        return said
    return _(
        "{said}; the plan cannot have {keys} (`$show_removed` says why)",
        said=said,
        keys=listing(f"`{key}`" for key in lost),
    )


def removed(base: str, key: "RemovedKey") -> str:
    """A key that left the base, and why."""
    return _(
        "`{base}`: `{key}` {value} is left out: {why}",
        base=base,
        key=key.key,
        value=json.dumps(key.value),
        why=key.why,
    )


def keeps_edits(config: str, edited: str, edits: Sequence["KeyEdit"]) -> str:
    """Which edits of a written config the new one keeps.

    Args:
        config: The path of the new one.
        edited: The path of the one with the edits.
        edits: Those that it keeps.
    """
    # A text may be a secret.
    numbers = (json.dumps(e.value) if isinstance(e.value, int | float) else "" for e in edits)
    keys = listing(f"`{e.key}` {n}".rstrip() for e, n in zip(edits, numbers, strict=True))
    if config == edited:
        return _("`{config}` keeps your edits: {keys}", config=config, keys=keys)
    return _(
        "`{config}` keeps your edits of `{edited}`: {keys}",
        config=config,
        edited=edited,
        keys=keys,
    )


def unused_configs(paths: Sequence[str]) -> str:
    """That a script has configs which this plan does not use, and how to use one."""
    named = listing(f"`{path}`" for path in paths)
    unused = (
        _("{paths} is not used", paths=named)
        if len(paths) == 1
        else _("{paths} are not used", paths=named)
    )
    return _(
        "{unused}: `$config {file} $stage auto` takes it as the base, and keeps all but ZeRO and"
        " the batch; `$config {file}` alone runs it unchanged",
        unused=unused,
        file=shell.quote(paths[0]) if len(paths) == 1 else "FILE",
    )


def batch_by_options(changes: Change, batch: "BatchChange") -> str:
    """That options change the global batch which script or base have by themselves."""
    return _("`{options}`: {moves}", options=spell_change(changes), moves=global_batch(batch))


def global_batch(batch: "BatchChange") -> str:
    """From what to what it changes, and how to keep it."""
    values = {"before": batch.before, "now": batch.now}
    moves = (
        _("the global batch falls from {before} to {now}", **values)
        if batch.now < batch.before
        else _("the global batch rises from {before} to {now}", **values)
    )
    if batch.accumulation_steps is None:
        return moves
    if batch.by_script:
        return _(
            "{moves}; an accumulation of {steps} in your script keeps it",
            moves=moves,
            steps=batch.accumulation_steps,
        )
    return _(
        "{moves}; keep it with `{options}`",
        moves=moves,
        options=spell_change({"accumulation_steps": batch.accumulation_steps}),
    )


PARTS_OF_BATCH = {
    "micro_batch": N_("micro-batch"),
    "accumulation_steps": N_("accumulation"),
}


def unseen_draw(config: str, micro_batch: int) -> str:
    """That a loop may draw another batch than the config has.

    Args:
        config: Its path.
        micro_batch: What it has.
    """
    return _(
        "zerowiz cannot see what the script draws, and takes micro-batch {micro_batch} of"
        " `{config}`",
        micro_batch=micro_batch,
        config=config,
    )


def differs_from_config(
    config: str,
    parts: "Mapping[str, tuple[int, ScriptValue[int]]]",
    job: "Job",
    instead: int,
) -> str:
    """That script and config say two batches, and which one the plan has.

    Args:
        config: The path of the config.
        parts: What it and the script say of each part of a batch.
        job: With the step of the plan.
        instead: The sequences of a step with the values that the plan does not take.
    """
    said = (
        _(
            "{name} {there} there, {value} by {source}",
            name=_(PARTS_OF_BATCH[name]),
            there=there,
            value=script.value,
            source=script.source,
        )
        for name, (there, script) in parts.items()
    )
    return _(
        "`{config}` and the script differ ({said}): the plan takes {micro_batch} x {steps} of each"
        " GPU, and the global batch is {now}, not {instead}",
        config=config,
        said=listing(said),
        micro_batch=job.workload.micro_batch,
        steps=job.workload.accumulation_steps,
        now=job.global_batch,
        instead=instead,
    )


# Sentences on what a plan was made of, and what it leaves to the person.

UNFUSED_ADAM = _(
    "this Adam is not fused: it needs up to 4 more bytes per trainable parameter during the step,"
    " which the plan counts; `fused=True` avoids that"
)


def in_fp32(change: str, loads_16_bit: str | None = None) -> str:
    """That nobody chose the precision of the script, and that another one is faster."""
    if loads_16_bit is not None:
        return _(
            "{loads_16_bit} may load 16-bit weights, and your script sets no precision: below"
            " stage 3 they stay 16-bit, and the plan counts fp32; {change}",
            loads_16_bit=loads_16_bit,
            change=change,
        )
    return _(
        "your script sets no precision, so the plan is in fp32; bf16 takes half the memory for"
        " weights and is several times faster on these GPUs: {change}",
        change=change,
    )


def float_batches(source: str, change: str) -> str:
    """That floats keep a loop in fp32, and what would take less memory."""
    return _(
        "{source}, so it is planned in fp32: 16-bit weights refuse floats; {change} takes less"
        " memory",
        source=source,
        change=change,
    )


def falls_back(family: str, release: str) -> str:
    """What runs in place of the attention that was asked for."""
    return _(
        "transformers {release} runs `{family}` with eager attention, which stores all "
        "attention scores",
        release=release,
        family=family,
    )


def size_untraced(text: str) -> str:
    """Why `--trace` did nothing."""
    return _(
        "`--trace` has no effect: `{text}` is a size, and only a real model can be traced",
        text=text,
    )


def traced(family: str | None, built: str, took_milliseconds: int) -> str:
    """What was traced; a family is named where it has no formulas."""
    unknown = "" if family is None else _("zerowiz does not know `{family}` yet: ", family=family)
    took = f"{took_milliseconds / 1000:.1f} s"
    return _(
        "{said}traced `{built}` on the meta device ({took}; the result is cached)",
        said=unknown,
        built=built,
        took=took,
    )


def guess(family: str, exact: str, *, wraps: bool) -> str:
    """What a guess rests on, and how to do without."""
    counted = _("its language model only") if wraps else _("a Llama of the same sizes")
    return _(
        "zerowiz does not know `{family}` yet, and estimates it as {counted}; {exact}",
        family=family,
        counted=counted,
        exact=exact,
    )


def calibrated(calibration: Calibration) -> str:
    """What the predicted times were learned from."""
    count = calibration.measured_steps
    settings = _("1 setting") if count == 1 else _("{count} settings", count=count)
    return _("step times are scaled by {settings} measured on this machine", settings=settings)


METRICS = _(
    "keeps the logits of a whole evaluation on the GPU, unless `eval_accumulation_steps` is set: "
    "not counted"
)
KEEPS_OPTIMIZER = _(
    "has no `offload_optimizer`: master weights and optimizer states are counted on the GPU"
)
KEEPS_GRADIENTS = _(
    "is planned as ZeRO-2 with the optimizer offloaded, and all gradients are counted on each GPU,"
    " where stage 1 keeps them until backward is over"
)
VLLM_ELSEWHERE = _("vLLM runs as a server on other GPUs, which this plan does not include")


def settled(values: Sequence[AddedWords], copied: str | None) -> str:
    """The words that are added after a script, or to a copy of its settings file."""
    words = shell.join(word for value in values for word in value.words)
    where = _("after the script") if copied is None else _("to a copy of `{copied}`", copied=copied)
    return _(
        "zerowiz adds {where}: `{words}`",
        where=where,
        words=words,
    )


def beyond_positions(model: Model, step: Workload) -> str | None:
    """That a sequence is longer than any that the model was made for; None where it is not."""
    tokens, positions = step.sequence_tokens, model.made_for_tokens
    if positions is None or tokens <= positions:
        return None
    return _(
        "sequences of {tokens} tokens are longer than the {positions} positions that `{model}` was"
        " made for (`$sequence_tokens`)",
        tokens=tokens,
        positions=positions,
        model=model.name,
    )


def each_layers(step: Workload) -> str:
    """Which layers alone are checkpointed."""
    return _(
        "`every_n_layers`: one layer in {count} is checkpointed, and the others keep their"
        " activations",
        count=step.every_n_layers,
    )


def shared_sequences(step: Workload, integration: Integration) -> str:
    """What is different for what a model learns where GPUs share sequences.

    transformers 5.23, integrations/deepspeed.py, deepspeed_sp_compute_loss: each rank has the loss
    of all, so its gradient comes as often as ranks share; deepspeed 0.19.8 divides by the groups
    alone (stage_1_and_2.py, average_tensor), and at stage 3 by all ranks (stage3.py,
    __avg_scatter_grads). Seen on a GPU: twice the norm at stage 2 with 2 and 2 x 2 ranks, the same
    at stage 3.
    """
    if integration is Integration.DEEPSPEED:
        return _(
            "{shared} GPUs share each sequence: a batch has to have a multiple of {shared} tokens,"
            " and the loop weights the losses of their parts itself",
            shared=step.sequence_parallel,
        )
    return _(
        "{shared} GPUs share each sequence: a batch has to have a multiple of {shared} tokens, the"
        " loss is the mean over micro-steps, and below ZeRO-3 the gradient's norm, which is"
        " clipped, is {shared} times as large as without",
        shared=step.sequence_parallel,
    )


def shared_weights(step: Workload) -> str:
    """How ranks share weights, where the config says so."""
    if step.tensor_parallel > 1:
        return _(
            "AutoTP of the config cuts the linear layers between {shared} GPUs, which train the"
            " same sequences; activations between the layers are not cut",
            shared=step.tensor_parallel,
        )
    return _(
        "AutoEP of the config deals out the experts to {shared} GPUs, in equal parts if tokens come"
        " to all alike",
        shared=step.expert_parallel,
    )


def size_only(size: str | None, script_model: str) -> str:
    """That a size says how large a model is, and that the script loads its own.

    Args:
        size: As it was named.
        script_model: What the script loads, and where it says so; empty where words can name it.
    """
    if not script_model:
        return _(
            "`$model {size}` is only a size, and the script still loads its own model: name a"
            " folder or a hub id, and zerowiz passes it to the script",
            size=size,
        )
    return _(
        "`$model {size}` is only a size; the script loads {script_model}",
        size=size,
        script_model=script_model,
    )


def trusted(options: Sequence[str]) -> str:
    """That a plan believes what options say of a script, which zerowiz cannot make come true."""
    return _(
        "zerowiz cannot pass {options} to your script: the plan is right only if the script sets "
        "the same",
        options=listing(f"`{option}`" for option in options),
    )


# Sentences on what a trainer and its vLLM hold beside what trains.

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
