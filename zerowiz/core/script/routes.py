"""Find the words after a script that give one of its settings another value."""

from collections.abc import Callable, Mapping

from zerowiz.core.script.bindings import Bindings, Setting, Words, as_count, as_truth, spell
from zerowiz.core.script.facts import Binding
from zerowiz.core.script.names import (
    ATTENTIONS,
    COLOCATED,
    LOSSES,
    MIXED_PRECISIONS,
    OPTIMIZERS,
)
from zerowiz.core.script.options import Scalar
from zerowiz.core.workload.choices import Integration, Method, Precision, Reference

Route = Callable[[Bindings, object], Words | None]


def words_for(run: Bindings, name: str, value: object) -> Words | None:
    """The words after the script that give a setting this value.

    Args:
        run: The script, and the words that are there already.
        name: Of the setting.
        value: Ours, such as `Precision.BF16`.

    Returns:
        An empty tuple where the config gives it the value. None where no words can, or where
        somebody said it or the code fixes it.
    """
    route = _ROUTES.get(name)
    return None if route is None else route(run, value)


def _by_option(field: str, names: Mapping[Scalar, object] | None = None) -> Route:
    """By the option that decides a setting; its values may have other names there."""
    theirs = None if names is None else spell(names)

    def route(run: Bindings, value: object) -> Words | None:
        binding: Binding = getattr(run.facts, field)
        if theirs is not None and value not in theirs:
            return None
        return run.words_for(binding, value if theirs is None else theirs[value])

    return route


def _precision(run: Bindings, value: object) -> Words | None:
    """By two switches, or by Accelerate's `mixed_precision`."""
    facts = run.facts
    if facts.mixed_precision.flag is not None:
        return run.words_for(facts.mixed_precision, _MIXED_NAMES[value])
    if facts.bf16.flag is None and facts.fp16.flag is None:
        return None
    words: Words = ()
    for switch, precision in ((facts.bf16, Precision.BF16), (facts.fp16, Precision.FP16)):
        now, wanted = as_truth(run.setting(switch)), value is precision
        known = now is not None and now.value is wanted
        without = now is None and switch.flag is None and not wanted
        more = () if known or without else run.words_for(switch, wanted)
        if more is None:
            return None
        words += more
    return words


_MIXED_NAMES: Mapping[object, Scalar] = {**spell(MIXED_PRECISIONS)}


def longer_side(run: Bindings) -> Setting[int] | None:
    """The sequence length; of an encoder-decoder that of its longer side.

    The ledger counts as many tokens on both.
    """
    source = as_count(run.setting(run.facts.sequence_tokens))
    target = as_count(run.setting(run.facts.target_tokens))
    if source is None or target is None:
        return source
    return target if target.value > source.value else source


def _sequence(run: Bindings, value: object) -> Words | None:
    """By the option of the length; none makes it shorter than what a decoder gets."""
    target = as_count(run.setting(run.facts.target_tokens))
    is_shorter = target is not None and isinstance(value, int) and value < target.value
    return None if is_shorter else run.words_for(run.facts.sequence_tokens, value)


def _accumulation(run: Bindings, value: object) -> Words | None:
    """By its option; an Accelerator of the script that says nothing takes the steps of the config.

    Source: accelerate 1.15, accelerator.py, _prepare_deepspeed ("Using DeepSpeed's value").
    """
    binding = run.facts.accumulation_steps
    own = run.facts.integration is Integration.ACCELERATE
    if own and binding.default_of is not None:
        return ()
    return run.words_for(binding, value)


def _method(run: Bindings, value: object) -> Words | None:
    """By the conditions under which the script adds adapters, and loads their base in 4 bits."""
    adapts = value is not Method.FULL
    words = run.words_where(run.facts.adapters, holds=adapts)
    if words is None or not adapts:
        return words
    more = run.words_where(run.facts.quantized, holds=value is Method.QLORA)
    return None if more is None else words + more


def _reference(run: Bindings, value: object) -> Words | None:
    """By `precompute_ref_log_probs`; no word hands a model over, or changes what is trained."""
    wanted = value is Reference.PRECOMPUTED
    handed = as_truth(run.setting(run.facts.trainer.reference))
    if value is Reference.NONE or handed is None or handed.value:
        return None
    return run.words_for(run.facts.trainer.precomputed, wanted)


def _vllm_fraction(run: Bindings, value: object) -> Words | None:
    """By the options of trl that start vLLM in the same GPUs, and give it this part of each."""
    seen = run.facts.trainer
    words: Words = ()
    for binding, wanted in ((seen.use_vllm, True), (seen.vllm_mode, COLOCATED)):
        now = run.setting(binding)
        known = now is not None and now.value == wanted
        more = () if known else run.words_for(binding, wanted)
        if more is None:
            return None
        words += more
    more = run.words_for(seen.vllm_fraction, value)
    return None if more is None else words + more


def _eval_batch(run: Bindings, value: object) -> Words | None:
    """By the option of the Trainer; no evaluation is no batch of none."""
    return run.words_for(run.facts.trainer.eval_batch, value) if value else None


def _in_trainer(field: str) -> Route:
    """By the option that decides a setting of the trainer."""

    def route(run: Bindings, value: object) -> Words | None:
        binding: Binding = getattr(run.facts.trainer, field)
        return run.words_for(binding, value)

    return route


# The settings that a script may have, by their names.
_ROUTES: Mapping[str, Route] = {
    **{
        name: _by_option(name)
        for name in (
            *("model", "micro_batch", "packing"),
            *("gradient_checkpointing", "lora_rank", "lora_target_modules", "use_cpu"),
        )
    },
    "sequence_tokens": _sequence,
    "accumulation_steps": _accumulation,
    "attention": _by_option("attention", ATTENTIONS),
    "optimizer": _by_option("optimizer", OPTIMIZERS),
    "loss": _by_option("liger", LOSSES),
    "precision": _precision,
    "reference": _reference,
    "completion_tokens": _in_trainer("completion_tokens"),
    "vllm_memory_fraction": _vllm_fraction,
    "vllm_sleeps": _in_trainer("vllm_sleep"),
    "eval_batch": _eval_batch,
    "method": _method,
}
