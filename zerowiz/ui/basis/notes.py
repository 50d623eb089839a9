"""Sentences on what a plan was made of, and what it leaves to the person."""

from collections.abc import Sequence

from zerowiz.core import shell
from zerowiz.core.model.types import Model
from zerowiz.core.script.settings import Settled
from zerowiz.core.speed.calibration import Calibration
from zerowiz.core.workload.workload import Workload
from zerowiz.words import _, joined, listing

UNFUSED_ADAM = _(
    "this Adam is not fused: it needs up to 4 more bytes per trainable parameter during the step,"
    " which the plan counts; `fused=True` avoids that"
)


def in_fp32(change: str, loads_16_bit: str | None = None) -> str:
    """That nobody chose the precision of the script, and that another one is faster."""
    if loads_16_bit is not None:
        return _(
            "{loads_16_bit} loads 16-bit weights, but your script sets no precision: below stage 3"
            " they stay 16-bit, and the plan counts fp32; {change}",
            loads_16_bit=loads_16_bit,
            change=change,
        )
    return _(
        "your script trains in fp32, because it sets no precision; bf16 takes half the memory for"
        " weights and is several times faster on these GPUs: {change}",
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
    said = "" if family is None else _("zerowiz does not know `{family}` yet: ", family=family)
    took = f"{took_milliseconds / 1000:.1f} s"
    return _(
        "{said}traced `{built}` on the meta device ({took}; the result is cached)",
        said=said,
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


def built(source: str) -> str:
    """That the script makes its model.

    Args:
        source: The code that makes its config, and where it stands.
    """
    return _("the script builds its model with new weights, by {source}", source=source)


def built_beside(model: str | None, source: str) -> str:
    """That the plan is for another model than the one that the script makes.

    Args:
        model: As it was named.
        source: As of `built`.
    """
    return _(
        "the plan is for `$model {model}`, but the script builds another model, by {source}",
        model=model,
        source=source,
    )


def taken(key: str, value: object, code: str) -> str:
    """That a value of the config which the script makes is not known.

    Args:
        key: Of the value.
        value: The one that is assumed; None for the default of a class that is not known.
        code: What the script takes it from.
    """
    if value is None:
        said = _("assumed the default of `{key}`", key=key)
    else:
        said = _("assumed `{key}` {value}", key=key, value=value)
    return joined("; ", (said, _("the script takes it from `{code}`", code=code)))


METRICS = _(
    "keeps the logits of a whole evaluation on the GPU, unless `eval_accumulation_steps` is set: "
    "not counted"
)
VLLM_ELSEWHERE = _("vLLM runs as a server on other GPUs, which this plan does not include")


def settled(values: Sequence[Settled], copied: str | None) -> str:
    """The words that are added after a script, or to a copy of its settings file."""
    words = shell.join(word for each in values for word in each.words)
    where = _("after the script") if copied is None else _("to a copy of `{copied}`", copied=copied)
    return _(
        "zerowiz adds arguments {where}, which does not set them: `{words}`",
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
        options=listing(f"`{each}`" for each in options),
    )
