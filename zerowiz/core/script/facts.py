"""State what a training script shows without being run."""

from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.script.options import Scalar, ScriptParser
from zerowiz.core.workload import Integration


class Convention(StrEnum):
    """How a script takes its DeepSpeed config, by what its syntax tree shows."""

    HF_PARSER = "hf_parser"
    """HfArgumentParser or TrlParser over TrainingArguments."""
    HF_IN_CODE = "hf_in_code"
    """TrainingArguments built in the file, without `deepspeed=`."""
    HF_LITERAL = "hf_literal"
    """`TrainingArguments(deepspeed="x.json")`."""
    ADD_CONFIG_ARGUMENTS = "add_config_arguments"
    """`deepspeed.add_config_arguments(parser)`, then `initialize(args=args)`."""
    OWN_FLAG = "own_flag"
    """An option of the script's own carries the path."""
    CONFIG_LITERAL = "config_literal"
    """`deepspeed.initialize(config="x.json")`."""
    CONFIG_DICT = "config_dict"
    """A config that the script builds itself."""
    ACCELERATOR = "accelerator"
    """`Accelerator()`, configured from outside."""
    UNKNOWN = "unknown"


class Obstacle(StrEnum):
    """Why no config can reach a script."""

    NO_ENGINE = "no_engine"
    NO_CONFIG = "no_config"
    TWO_CONFIGS = "two_configs"
    BUILT = "built"
    BUILT_HF = "built_hf"
    BUILT_ACCELERATE = "built_accelerate"
    HIDDEN_HF = "hidden_hf"


class Binding(Struct, frozen=True, kw_only=True):
    """What the script says of one setting; empty when that cannot be seen."""

    value: Scalar = None
    flag: str | None = None
    """The script's own option that carries the setting, with `value` as its default."""
    line: int | None = None
    code: str | None = None
    """The expression that says so."""
    keyword: str | None = None
    """The keyword that says so, or would."""
    default_of: str | None = None
    """The arguments class whose default `value` is."""
    from_config: bool = False
    """The script asks the DeepSpeed config, so nothing can disagree."""
    when: tuple[Scalar, ...] = ()
    """A condition holds where the option has one of these values; none: where it is on."""
    unless: bool = False
    """A condition holds where that is not so."""

    @property
    def seen(self) -> bool:
        """Whether anything is known."""
        return self.value is not None or self.flag is not None or self.from_config


UNSEEN = Binding()


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """What a training script shows without being run."""

    path: str
    convention: Convention
    integration: Integration | None
    """Who hands the config over; None when nothing shows it."""
    parser: ScriptParser = field(default_factory=ScriptParser)
    own_flag: str | None = None
    literal_config: str | None = None
    config_line: int | None = None
    """Where the script says, or would have to say, which config it takes."""
    obstacle: Obstacle | None = None
    trains_adapters: bool = False
    """It imports peft, or a library's configuration of it."""
    uncounted: tuple[Binding, ...] = ()
    """What it does with its adapters that the ledger does not know."""
    passes_optimizer: bool = False
    """A raw script hands `optimizer=` to `deepspeed.initialize`."""
    own_optimizers: tuple[str, ...] = ()
    """The classes of those that it builds itself, each once."""
    unfused_adam_line: int | None = None
    """Where torch's own Adam is built without `fused=True`, which holds more than is counted."""
    saves_portably: bool = False
    """It saves with `portable_checkpoint` of the templates, whose state loads at every stage."""
    args_file: str | None = None
    """HfArgumentParser reads `train.args` beside `train.py` before the command line."""
    args_file_words: tuple[str, ...] = ()

    micro_batch: Binding = UNSEEN
    accumulation_steps: Binding = UNSEEN
    bf16: Binding = UNSEEN
    fp16: Binding = UNSEEN
    mixed_precision: Binding = UNSEEN
    """`Accelerator(mixed_precision=...)`."""
    gradient_checkpointing: Binding = UNSEEN
    sequence_tokens: Binding = UNSEEN
    optimizer: Binding = UNSEEN
    """`optim` of TrainingArguments, or the class that a loop of its own builds."""
    attention: Binding = UNSEEN
    liger: Binding = UNSEEN
    """`use_liger_kernel` of TrainingArguments."""
    packing: Binding = UNSEEN
    padding_free: Binding = UNSEEN
    """Of SFTConfig, as `packing`: either puts a micro-batch into one row."""
    model: Binding = UNSEEN
    use_cpu: Binding = UNSEEN
    """`use_cpu` of TrainingArguments."""
    adapters: Binding = UNSEEN
    """Whether it trains adapters of LoRA, as a condition."""
    quantized: Binding = UNSEEN
    """Whether their base has 4 bits, as a condition."""
    lora_rank: Binding = UNSEEN
    lora_target_modules: Binding = UNSEEN
    """Names with commas between them, `all-linear`, or BY_ARCHITECTURE."""

    @property
    def unfollowed(self) -> tuple[Binding, ...]:
        """The expressions that settings stand behind and that could not be followed, by line."""
        bindings: list[Binding] = [getattr(self, name) for name in _DECISIVE]
        ends = {b.code: b for b in bindings if b.code is not None and not b.seen}
        return tuple(sorted(ends.values(), key=lambda b: b.line or 0))


# The settings that a plan always rests on.
_DECISIVE = (
    *("micro_batch", "accumulation_steps", "bf16", "fp16", "mixed_precision", "sequence_tokens"),
    *("gradient_checkpointing", "optimizer", "model", "adapters", "quantized", "lora_rank"),
    "lora_target_modules",
)
