"""Settle what a run will use: the script's own values, overridden by the words after it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from zerowiz.core.machine import Accelerator
from zerowiz.core.script.facts import Binding, ScriptFacts
from zerowiz.core.script.options import SWITCHES, Given, Option, Reads, Scalar, Takes, read_words
from zerowiz.core.workload import Attention, Loss, Method, Optimizer, Precision
from zerowiz.errors import PreflightError, UsageError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting(Generic[T]):
    """One setting of the run that the script, or a word after it, decides."""

    value: T
    said_by: str
    change: str
    """How to make it another value; `{value}`, where it stands, is that value."""
    by_default: bool = False
    """Nobody chose it."""
    spellings: Mapping[T, str] = field(default_factory=dict)
    """The script's words for values that have another name here."""

    def change_to(self, value: T) -> str:
        """How to make it this value."""
        return self.change.replace("{value}", self.spellings.get(value, str(value)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptSettings:
    """What the run will use; None where the script does not decide or cannot be read."""

    micro_batch: Setting[int] | None = None
    accumulation_steps: Setting[int] | None = None
    precision: Setting[Precision] | None = None
    gradient_checkpointing: Setting[bool] | None = None
    sequence_tokens: Setting[int] | None = None
    optimizer: Setting[Optimizer] | None = None
    attention: Setting[Attention] | None = None
    loss: Setting[Loss] | None = None
    packing: Setting[bool] | None = None
    model: Setting[str] | None = None
    use_cpu: Setting[bool] | None = None


# transformers 5.23, training_args.py, class OptimizerNames: those whose states the ledger knows.
_OPTIMIZERS: Mapping[Scalar, Optimizer] = {
    "adamw_torch": Optimizer.ADAMW,
    "adamw_torch_fused": Optimizer.ADAMW,
    "adamw_8bit": Optimizer.ADAMW_8BIT,
    "adamw_bnb_8bit": Optimizer.ADAMW_8BIT,
    "adamw_torch_8bit": Optimizer.ADAMW_8BIT,
    "adafactor": Optimizer.ADAFACTOR,
    "lion_32bit": Optimizer.LION,
    "sgd": Optimizer.SGD,
}
# transformers 5.23, modeling_utils.py: the names `attn_implementation` accepts.
_ATTENTIONS: Mapping[Scalar, Attention] = {
    "sdpa": Attention.SDPA,
    "eager": Attention.EAGER,
    "flash_attention_2": Attention.FLASH,
    "flash_attention_3": Attention.FLASH,
}
# transformers 5.23, training_args.py, `use_liger_kernel`.
_LOSSES: Mapping[Scalar, Loss] = {True: Loss.LIGER, False: Loss.PLAIN}
# accelerate 1.x, utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision: with `no` the
# DeepSpeed config decides.
_MIXED_PRECISIONS: Mapping[Scalar, Precision] = {"bf16": Precision.BF16, "fp16": Precision.FP16}


def settle(facts: ScriptFacts, script_args: tuple[str, ...]) -> ScriptSettings:
    """What the run will use: the script's own values, overridden by the words after it."""
    run = _Bindings(facts, script_args)
    return ScriptSettings(
        micro_batch=_count(run.setting(facts.micro_batch)),
        accumulation_steps=_count(run.setting(facts.accumulation_steps)),
        precision=_precision(run),
        gradient_checkpointing=_truth(run.setting(facts.gradient_checkpointing)),
        sequence_tokens=_count(run.setting(facts.sequence_tokens)),
        optimizer=_named(run.setting(facts.optimizer), _OPTIMIZERS),
        attention=_named(run.setting(facts.attention), _ATTENTIONS),
        loss=_named(run.setting(facts.liger), _LOSSES),
        packing=_either(run.setting(facts.packing), run.setting(facts.padding_free)),
        model=_text(run.setting(facts.model)),
        use_cpu=_truth(run.setting(facts.use_cpu)),
    )


def check_accelerator(facts: ScriptFacts, settings: ScriptSettings, on: Accelerator) -> None:
    """See that the script will train on this accelerator.

    Raises:
        PreflightError: A Trainer on the CPU accelerator that was not told so: with bf16 it refuses,
            and with fp32 each rank trains alone (transformers 5.23, TrainingArguments).
    """
    use_cpu = settings.use_cpu
    if on is Accelerator.CPU and use_cpu is not None and not use_cpu.value:
        raise PreflightError(
            f"on the CPU accelerator {facts.path} would not see its other ranks without `use_cpu`",
            use_cpu.change_to(value=True),
        )


def check_method(facts: ScriptFacts, method: Method) -> None:
    """See that the script trains what was planned.

    Raises:
        UsageError: Adapters were planned, and the script shows none.
    """
    if method is not Method.FULL and not facts.trains_adapters:
        raise UsageError(
            f"`--method {method}` disagrees with {facts.path}, which does not import peft",
            f"drop `--method {method}`: the script trains every parameter",
        )


class _Bindings:
    """The script's bindings, seen through the words after it."""

    def __init__(self, facts: ScriptFacts, script_args: tuple[str, ...]) -> None:
        self.facts = facts
        self.file_words = read_words(facts.parser, facts.args_file_words)
        self.script_words = read_words(facts.parser, script_args)
        self.all_hidden = facts.parser.takes_file(script_args)
        self.defaults_hidden = facts.parser.config_flag in script_args

    def setting(self, binding: Binding) -> Setting[Scalar] | None:
        """What one binding comes to, or None when it does not decide."""
        if binding.flag is not None:
            return self._from_option(binding, binding.flag)
        return None if binding.value is None else self._from_code(binding)

    def _from_code(self, binding: Binding) -> Setting[Scalar]:
        where = f"in {self.facts.path} line {binding.line}"
        said_by = f"`{binding.code}` {where}"
        if binding.default_of is not None:
            said_by = f"the default of {binding.default_of}"
        change = f"edit {self.facts.path} line {binding.line}"
        if binding.keyword is not None:
            quote = '"' if isinstance(binding.value, str) else ""
            change = f"set `{binding.keyword}={quote}{{value}}{quote}` {where}"
        return Setting(
            value=binding.value,
            said_by=said_by,
            change=change,
            by_default=binding.default_of is not None,
        )

    def _from_option(self, binding: Binding, flag: str) -> Setting[Scalar] | None:
        option = self.facts.parser.find(flag)[0]
        by_word, by_file = (
            words.get(option.dest) for words in (self.script_words, self.file_words)
        )
        given = by_word or by_file
        value = given.value if given else None if self.defaults_hidden else binding.value
        if self.all_hidden or value is None:
            return None
        said_by = f"the default of `{flag}` in {self.facts.path} line {binding.line}"
        if given:
            where = "after the script" if by_word else f"in {self.facts.args_file}"
            said_by = f"`{given.words}` {where}"
        elif binding.default_of is not None:
            said_by = f"the default of {binding.default_of}"
        return Setting(
            value=value,
            said_by=said_by,
            change=self._change(option, given, value=value),
            by_default=given is None,
        )

    def _change(self, option: Option, given: Given | None, *, value: Scalar) -> str:
        """How to turn the option round, or give it another value."""
        after = f"after {self.facts.path}"
        if option.reads is Reads.NONEMPTY and option.takes is Takes.VALUE:
            word = "''" if value else "1"
            return f"put `{option.flag} {word}` {after}"
        if option.takes not in SWITCHES:
            return f"put `{option.flag} {{value}}` {after}"
        for other in self.facts.parser.of(option.dest):
            if SWITCHES.get(other.takes, value) != value:
                return f"put `{other.flag}` {after}"
        return f"drop `{given.words}` {after}" if given else f"edit {self.facts.path}"


def _as(said: Setting[Scalar], value: T, spellings: Mapping[T, str] | None = None) -> Setting[T]:
    return Setting(
        value=value,
        said_by=said.said_by,
        change=said.change,
        by_default=said.by_default,
        spellings=spellings or {},
    )


def _count(said: Setting[Scalar] | None) -> Setting[int] | None:
    if said is None or isinstance(said.value, bool) or not isinstance(said.value, int):
        return None
    return _as(said, said.value) if said.value > 0 else None


def _truth(said: Setting[Scalar] | None) -> Setting[bool] | None:
    return _as(said, said.value) if said is not None and isinstance(said.value, bool) else None


def _either(*said: Setting[Scalar] | None) -> Setting[bool] | None:
    """The first that is on, else the first that is known."""
    known = [truth for truth in map(_truth, said) if truth is not None]
    return next((truth for truth in known if truth.value), known[0] if known else None)


def _text(said: Setting[Scalar] | None) -> Setting[str] | None:
    return _as(said, said.value) if said is not None and isinstance(said.value, str) else None


def _named(said: Setting[Scalar] | None, names: Mapping[Scalar, T]) -> Setting[T] | None:
    """A value that has another name here; the table's first name for it is the one to write."""
    if said is None or said.value not in names:
        return None
    spellings = {ours: str(theirs) for theirs, ours in reversed([*names.items()])}
    return _as(said, names[said.value], spellings)


def _precision(run: _Bindings) -> Setting[Precision] | None:
    """One precision out of `bf16` and `fp16`, or out of Accelerate's one word."""
    bf16, fp16 = (_truth(run.setting(b)) for b in (run.facts.bf16, run.facts.fp16))
    change = _precision_change(run.facts)
    for said, precision in ((bf16, Precision.BF16), (fp16, Precision.FP16)):
        if said is not None and said.value:
            return Setting(value=precision, said_by=said.said_by, change=change)
    if bf16 is None or fp16 is None:
        return _named(run.setting(run.facts.mixed_precision), _MIXED_PRECISIONS)
    chosen = fp16 if bf16.by_default else bf16
    return Setting(
        value=Precision.FP32,
        said_by=chosen.said_by,
        change=change,
        by_default=bf16.by_default and fp16.by_default,
    )


def _precision_change(facts: ScriptFacts) -> str:
    flags = [f"`{b.flag}`" for b in (facts.bf16, facts.fp16) if b.flag is not None]
    if flags:
        return f"put {' or '.join(flags)} after {facts.path}, or leave it out for fp32"
    line = facts.bf16.line or facts.fp16.line
    return f"set `bf16=True` or `fp16=True` in {facts.path} line {line}, or neither for fp32"
