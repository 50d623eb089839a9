"""Bind a plan to its training script: what the script settles, how a config reaches it."""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Generic, TypeAlias, TypeVar

from zerowiz.core.strategy import STRATEGIES, Offload
from zerowiz.core.workload import Attention, Integration, Optimizer, Precision
from zerowiz.errors import PreflightError, UsageError, ZerowizError

Scalar: TypeAlias = int | float | str | bool | None
T = TypeVar("T")


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
    """Why no config can reach a script; a key of OBSTACLES."""

    NO_ENGINE = "no_engine"
    NO_CONFIG = "no_config"
    TWO_CONFIGS = "two_configs"
    BUILT = "built"
    BUILT_HF = "built_hf"
    BUILT_ACCELERATE = "built_accelerate"
    HIDDEN_HF = "hidden_hf"


class Takes(StrEnum):
    """What an option does with the word after it."""

    VALUE = "value"
    PERHAPS = "perhaps"
    """argparse's `nargs="?"`: a value, or its `const` when none follows."""
    STORE_TRUE = "store_true"
    STORE_FALSE = "store_false"
    UNSEEN = "unseen"
    """Lists and actions that are not followed."""


class Reads(StrEnum):
    """How an option turns its word into a value; a key of READERS."""

    INT = "int"
    FLOAT = "float"
    STR = "str"
    TRUTH = "truth"
    """yes or no, in words."""
    NONEMPTY = "nonempty"
    """argparse's `type=bool`: every word is true, `False` too."""
    UNSEEN = "unseen"


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option of the script's own command line."""

    flags: tuple[str, ...]
    """Its spellings, such as `--batch_size`, `-b`."""
    dest: str
    default: Scalar = None
    """None when there is none, or none that can be seen."""
    takes: Takes = Takes.VALUE
    reads: Reads = Reads.STR
    const: Scalar = True
    line: int | None = None

    @property
    def flag(self) -> str:
        """The spelling to show: the first long one."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptParser:
    """The script's command line, as far as it is seen."""

    options: tuple[Option, ...] = ()
    abbreviates: bool = True
    """argparse's `allow_abbrev`."""
    complete: bool = True
    """Whether every option is seen, so that a shortened spelling can be told."""
    args_file_suffixes: tuple[str, ...] = ()
    """A first argument that ends so is a file that holds all the others."""
    config_flag: str | None = None
    """TrlParser's `--config`: a file of defaults, which is not read."""

    def find(self, flag: str) -> tuple[Option, ...]:
        """The options that `flag` may mean; none or several when it cannot be told."""
        exact = tuple(option for option in self.options if flag in option.flags)
        if exact or not self.abbreviates or not flag.startswith("--") or flag == "--":
            return exact[:1]
        return tuple(o for o in self.options if any(f.startswith(flag) for f in o.flags))

    def of(self, dest: str) -> tuple[Option, ...]:
        """Every option that writes `dest`."""
        return tuple(option for option in self.options if option.dest == dest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
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

    @property
    def seen(self) -> bool:
        """Whether anything is known."""
        return self.value is not None or self.flag is not None or self.from_config


UNSEEN = Binding()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFacts:
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
    passes_optimizer: bool = False
    """A raw script hands `optimizer=` to `deepspeed.initialize`."""
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
    """`optim` of TrainingArguments."""
    attention: Binding = UNSEEN
    model: Binding = UNSEEN


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
    model: Setting[str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """How the config travels: the words after the script, and the environment."""

    script_args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


# What TrainingArguments is asked about, with its defaults; None is one that cannot be seen.
# transformers 5.23, training_args.py, class TrainingArguments.
_TRAINING_ARGUMENTS: Mapping[str, tuple[Reads, Scalar]] = {
    "per_device_train_batch_size": (Reads.INT, 8),
    "gradient_accumulation_steps": (Reads.INT, 1),
    "bf16": (Reads.TRUTH, False),
    "fp16": (Reads.TRUTH, False),
    "gradient_checkpointing": (Reads.TRUTH, False),
    "optim": (Reads.STR, "adamw_torch_fused"),
    "deepspeed": (Reads.STR, None),
}
# trl 1.x, trainer/base_config.py, class _BaseConfig: bf16 becomes true unless fp16 is, where older
# releases stayed with fp32, so its default is not seen.
_TRL_CONFIG: Mapping[str, tuple[Reads, Scalar]] = {
    **_TRAINING_ARGUMENTS,
    "bf16": (Reads.TRUTH, None),
    "gradient_checkpointing": (Reads.TRUTH, True),
}
_MAX_LENGTH: tuple[Reads, Scalar] = (Reads.INT, None)

# Rule: an arguments class of a library is a row here, or it is not seen.
ARGUMENT_CLASSES: Mapping[str, Mapping[str, tuple[Reads, Scalar]]] = {
    "TrainingArguments": _TRAINING_ARGUMENTS,
    "Seq2SeqTrainingArguments": _TRAINING_ARGUMENTS,
    "SentenceTransformerTrainingArguments": _TRAINING_ARGUMENTS,
    # trl 1.x, trainer/sft_config.py: max_length is 1024.
    "SFTConfig": {**_TRL_CONFIG, "max_length": (Reads.INT, 1024)},
    # Their max_length defaults changed between releases; the generating ones have no one length.
    "DPOConfig": {**_TRL_CONFIG, "max_length": _MAX_LENGTH},
    "KTOConfig": {**_TRL_CONFIG, "max_length": _MAX_LENGTH},
    "RewardConfig": {**_TRL_CONFIG, "max_length": _MAX_LENGTH},
    "ORPOConfig": {**_TRL_CONFIG, "max_length": _MAX_LENGTH},
    "CPOConfig": {**_TRL_CONFIG, "max_length": _MAX_LENGTH},
    "GRPOConfig": _TRL_CONFIG,
    "RLOOConfig": _TRL_CONFIG,
    "GKDConfig": _TRL_CONFIG,
    "OnlineDPOConfig": _TRL_CONFIG,
    # trl 1.x, trainer/model_config.py and scripts/utils.py.
    "ModelConfig": {
        "model_name_or_path": (Reads.STR, None),
        "attn_implementation": (Reads.STR, None),
    },
    "ScriptArguments": {},
}
TRAINING_CLASSES = frozenset(name for name, row in ARGUMENT_CLASSES.items() if "deepspeed" in row)

# A field's other names over the releases, the one that wins first: transformers 5.23,
# training_args.py; trl 0.16, trainer/sft_config.py.
FIELD_ALIASES: Mapping[str, tuple[str, ...]] = {
    "gradient_checkpointing": ("activation_checkpointing",),
    "max_length": ("max_seq_length",),
}

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
# accelerate 1.x, utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision: with `no` the
# DeepSpeed config decides.
_MIXED_PRECISIONS: Mapping[Scalar, Precision] = {"bf16": Precision.BF16, "fp16": Precision.FP16}

# transformers 5.23, hf_argparser.py, string_to_bool.
_TRUE_WORDS = frozenset({"yes", "true", "t", "y", "1"})
_FALSE_WORDS = frozenset({"no", "false", "f", "n", "0"})
# argparse, _negative_number_matcher: the one value that may start with a dash.
_NEGATIVE_NUMBER = re.compile(r"-(\d+|\d*\.\d+)")


def _read_truth(text: str) -> bool:
    if text.lower() not in _TRUE_WORDS | _FALSE_WORDS:
        raise ValueError(text)
    return text.lower() in _TRUE_WORDS


READERS: Mapping[Reads, Callable[[str], Scalar]] = {
    Reads.INT: int,
    Reads.FLOAT: float,
    Reads.STR: str,
    Reads.TRUTH: _read_truth,
    Reads.NONEMPTY: bool,
    Reads.UNSEEN: lambda _: None,
}


def read_word(reads: Reads, text: str) -> Scalar:
    """The value an option makes of a word, or None when the script would refuse it."""
    try:
        return READERS[reads](text)
    except ValueError:
        return None


def field_options(
    name: str, reads: Reads, default: Scalar, line: int | None = None
) -> tuple[Option, ...]:
    """The options that HfArgumentParser makes of a dataclass field, `--no_x` included."""
    names = (name, *FIELD_ALIASES.get(name, ()))
    takes = Takes.PERHAPS if reads is Reads.TRUTH else Takes.VALUE
    flags = dict.fromkeys(f"--{n}" for m in names for n in (m, m.replace("_", "-")))
    on = Option(flags=tuple(flags), dest=name, default=default, takes=takes, reads=reads, line=line)
    if default is not True:
        return (on,)
    off = (f"--no_{name}", f"--no-{name.replace('_', '-')}")
    return (on, Option(flags=off, dest=name, default=True, takes=Takes.STORE_FALSE, line=line))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """An option as it stands on the command line."""

    words: str
    value: Scalar
    where: str


def _split(word: str) -> tuple[str, str | None]:
    """The flag and the value joined to it: `--x=4`, `-x4`."""
    if not word.startswith("--") and len(word) > 2 and "=" not in word:  # noqa: PLR2004 - `-x`
        return word[:2], word[2:]
    flag, joined, value = word.partition("=")
    return flag, value if joined else None


def _is_value(word: str | None) -> bool:
    return word is not None and (
        not word.startswith("-") or word == "-" or bool(_NEGATIVE_NUMBER.fullmatch(word))
    )


def _take(option: Option, word: str, after: str | None, where: str) -> _Given:
    """Read one option and the word that belongs to it."""
    flag, joined = (word, None) if word in option.flags else _split(word)
    if option.takes in {Takes.STORE_TRUE, Takes.STORE_FALSE}:
        return _Given(words=flag, value=option.takes is Takes.STORE_TRUE, where=where)
    if joined is None and not _is_value(after):
        value = option.const if option.takes is Takes.PERHAPS else None
        return _Given(words=word, value=value, where=where)
    value = None
    if option.takes is not Takes.UNSEEN:
        value = read_word(option.reads, joined if joined is not None else after or "")
    return _Given(words=word if joined is not None else f"{word} {after}", value=value, where=where)


def _find(parser: ScriptParser, word: str) -> tuple[Option, ...]:
    """The options a word may mean, joined value or not."""
    return parser.find(word) if word in _spellings(parser) else parser.find(_split(word)[0])


def _spellings(parser: ScriptParser) -> frozenset[str]:
    return frozenset(flag for option in parser.options for flag in option.flags)


def _read_words(parser: ScriptParser, words: tuple[str, ...], where: str) -> dict[str, _Given]:
    """What the words say of each destination; the last one wins, as in argparse."""
    given: dict[str, _Given] = {}
    words = words[: words.index("--")] if "--" in words else words
    for word, after in zip_longest(words, words[1:]):
        if not word.startswith("-"):
            continue
        meant = _find(parser, word)
        certain = len({option.dest for option in meant}) == 1 and (
            parser.complete or _split(word)[0] in _spellings(parser)
        )
        for option in meant:
            given[option.dest] = (
                _take(option, word, after, where)
                if certain
                else _Given(words=word, value=None, where=where)
            )
    return given


def reads_args_file(facts: ScriptFacts, script_args: tuple[str, ...]) -> bool:
    """Whether the first word after the script is a file that holds all its arguments."""
    first = script_args[0] if script_args else ""
    return not first.startswith("-") and first.endswith(facts.parser.args_file_suffixes)


class _Run:
    """The script's bindings, seen through the words after it."""

    def __init__(self, facts: ScriptFacts, script_args: tuple[str, ...]) -> None:
        self.facts = facts
        self.given = _read_words(facts.parser, facts.args_file_words, f"in {facts.args_file}")
        self.given |= _read_words(facts.parser, script_args, "after the script")
        flag = facts.parser.config_flag
        self.all_hidden = reads_args_file(facts, script_args)
        self.defaults_hidden = flag is not None and flag in script_args

    def setting(self, binding: Binding) -> Setting[Scalar] | None:
        """What one binding comes to, or None when it does not decide."""
        if binding.flag is not None:
            return self._from_option(binding, binding.flag)
        if binding.value is None:
            return None
        where = f"in {self.facts.path} line {binding.line}"
        said_by = f"`{binding.code}` {where}"
        if binding.default_of is not None:
            said_by = f"the default of {binding.default_of}"
        change = f"set `{binding.keyword}={{value}}` {where}"
        if isinstance(binding.value, str):
            change = f'set `{binding.keyword}="{{value}}"` {where}'
        if binding.keyword is None:
            change = f"edit {self.facts.path} line {binding.line}"
        return Setting(
            value=binding.value,
            said_by=said_by,
            change=change,
            by_default=binding.default_of is not None,
        )

    def _from_option(self, binding: Binding, flag: str) -> Setting[Scalar] | None:
        option = self.facts.parser.find(flag)[0]
        given = self.given.get(option.dest)
        value = given.value if given else None if self.defaults_hidden else binding.value
        if self.all_hidden or value is None:
            return None
        said_by = f"the default of `{flag}` in {self.facts.path} line {binding.line}"
        if given:
            said_by = f"`{given.words}` {given.where}"
        elif binding.default_of is not None:
            said_by = f"the default of {binding.default_of}"
        return Setting(
            value=value,
            said_by=said_by,
            change=self._change(option, given, value=value),
            by_default=given is None,
        )

    def _change(self, option: Option, given: _Given | None, *, value: Scalar) -> str:
        """How to turn the option round, or give it another value."""
        after = f"after {self.facts.path}"
        switches = {Takes.STORE_TRUE: True, Takes.STORE_FALSE: False}
        if option.reads is Reads.NONEMPTY and option.takes is Takes.VALUE:
            word = "''" if value else "1"
            return f"put `{option.flag} {word}` {after}"
        if option.takes not in switches:
            return f"put `{option.flag} {{value}}` {after}"
        for other in self.facts.parser.of(option.dest):
            if switches.get(other.takes, value) != value:
                return f"put `{other.flag}` {after}"
        return f"drop `{given.words}` {after}" if given else f"edit {self.facts.path}"


def settle(facts: ScriptFacts, script_args: tuple[str, ...]) -> ScriptSettings:
    """What the run will use: the script's own values, overridden by the words after it."""
    run = _Run(facts, script_args)
    return ScriptSettings(
        micro_batch=_count(run.setting(facts.micro_batch)),
        accumulation_steps=_count(run.setting(facts.accumulation_steps)),
        precision=_precision(run),
        gradient_checkpointing=_truth(run.setting(facts.gradient_checkpointing)),
        sequence_tokens=_count(run.setting(facts.sequence_tokens)),
        optimizer=_named(run.setting(facts.optimizer), _OPTIMIZERS),
        attention=_named(run.setting(facts.attention), _ATTENTIONS),
        model=_text(run.setting(facts.model)),
    )


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


def _text(said: Setting[Scalar] | None) -> Setting[str] | None:
    return _as(said, said.value) if said is not None and isinstance(said.value, str) else None


def _named(said: Setting[Scalar] | None, names: Mapping[Scalar, T]) -> Setting[T] | None:
    """A value that has another name here; the table's first name for it is the one to write."""
    if said is None or said.value not in names:
        return None
    spellings = {ours: str(theirs) for theirs, ours in reversed([*names.items()])}
    return _as(said, names[said.value], spellings)


def _precision(run: _Run) -> Setting[Precision] | None:
    """One precision out of `bf16` and `fp16`, or out of Accelerate's one word."""
    mixed = _named(run.setting(run.facts.mixed_precision), _MIXED_PRECISIONS)
    bf16, fp16 = (_truth(run.setting(b)) for b in (run.facts.bf16, run.facts.fp16))
    change = _precision_change(run.facts)
    for said, precision in ((bf16, Precision.BF16), (fp16, Precision.FP16)):
        if said is not None and said.value:
            return Setting(value=precision, said_by=said.said_by, change=change)
    if bf16 is None or fp16 is None:
        return mixed
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


def deliver(facts: ScriptFacts, script_args: tuple[str, ...], config_path: str) -> Delivery:
    """How this config reaches this script.

    Raises:
        PreflightError: It cannot, and what to change in the script so that it can.
        UsageError: The words after the script name another config.
        ZerowizError: The script's own literal names another config.
    """
    return _ROUTES[facts.convention](facts, script_args, config_path)


def _by_hf_flag(facts: ScriptFacts, script_args: tuple[str, ...], config_path: str) -> Delivery:
    if reads_args_file(facts, script_args):
        return _by_environment(facts, script_args, config_path)
    return _by_flag(facts, script_args, config_path, "--deepspeed")


def _by_own_flag(facts: ScriptFacts, script_args: tuple[str, ...], config_path: str) -> Delivery:
    return _by_flag(facts, script_args, config_path, facts.own_flag or "--deepspeed_config")


def _by_config_arguments(
    facts: ScriptFacts, script_args: tuple[str, ...], config_path: str
) -> Delivery:
    # deepspeed 0.19.8, __init__.py, _add_core_arguments: `--deepspeed` is a bare switch here.
    if not _read_words(facts.parser, script_args, "").get("deepspeed"):
        script_args = _append(script_args, "--deepspeed")
    return _by_flag(facts, script_args, config_path, "--deepspeed_config")


def _by_flag(
    facts: ScriptFacts, script_args: tuple[str, ...], config_path: str, flag: str
) -> Delivery:
    options = facts.parser.find(flag)
    given = _read_words(facts.parser, script_args, "").get(options[0].dest) if options else None
    if given is None:
        return Delivery(script_args=_append(script_args, flag, config_path))
    if isinstance(given.value, str) and _same_path(given.value, config_path):
        return Delivery(script_args=script_args)
    raise UsageError(
        f"two configs for {facts.path}: `{given.words}` after the script, and `{config_path}`",
        f"`--config {given.value}` before {facts.path} runs your own file as it is",
        f"without `{given.words}` the run takes `{config_path}`",
    )


# accelerate 1.x, accelerator.py and utils/dataclasses.py: these two alone make a bare Accelerator,
# the HF Trainer's one included, build its DeepSpeedPlugin from this file.
def _by_environment(
    facts: ScriptFacts,  # noqa: ARG001 - one signature for every route
    script_args: tuple[str, ...],
    config_path: str,
) -> Delivery:
    env = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": config_path,
    }
    return Delivery(script_args=script_args, env=env)


def _by_literal(facts: ScriptFacts, script_args: tuple[str, ...], config_path: str) -> Delivery:
    literal = facts.literal_config or ""
    if _same_path(literal, config_path):
        return Delivery(script_args=script_args)
    raise ZerowizError(
        f"{facts.path} line {facts.config_line} names `{literal}`, and the plan is `{config_path}`",
        f"write `{config_path}` in {facts.path} line {facts.config_line}",
        *_stage_hints(literal),
        f"`--config {literal}` runs the script's own file as it is",
    )


def _stage_hints(literal: str) -> tuple[str, ...]:
    """The options that make zerowiz write a file of that name."""
    for strategy in STRATEGIES:
        if strategy.template == posixpath.normpath(literal):
            offload = f" --offload {strategy.offload}" if strategy.offload != Offload.NONE else ""
            return (f"`--stage {strategy.stage}{offload}` writes `{literal}`",)
    return ()


def _refuse(
    facts: ScriptFacts,
    script_args: tuple[str, ...],  # noqa: ARG001 - one signature for every route
    config_path: str,
) -> Delivery:
    reason, *hints = OBSTACLES[facts.obstacle or Obstacle.NO_ENGINE]
    words = {"path": facts.path, "line": str(facts.config_line), "config": config_path}
    raise PreflightError(
        f"no config can reach {facts.path}: {reason.format(**words)}",
        *(hint.format(**words) for hint in hints),
    )


_Route: TypeAlias = Callable[[ScriptFacts, tuple[str, ...], str], Delivery]
_ROUTES: Mapping[Convention, _Route] = {
    Convention.HF_PARSER: _by_hf_flag,
    Convention.HF_IN_CODE: _by_environment,
    Convention.HF_LITERAL: _by_literal,
    Convention.ADD_CONFIG_ARGUMENTS: _by_config_arguments,
    Convention.OWN_FLAG: _by_own_flag,
    Convention.CONFIG_LITERAL: _by_literal,
    Convention.CONFIG_DICT: _refuse,
    Convention.ACCELERATOR: _by_environment,
    Convention.UNKNOWN: _refuse,
}

# Obstacle -> the reason, then the lines to change; {path}, {line} and {config} are the run's.
OBSTACLES: Mapping[Obstacle, tuple[str, ...]] = {
    Obstacle.NO_ENGINE: (
        "it shows no `deepspeed.initialize`, no TrainingArguments and no `Accelerator()`",
        "raw DeepSpeed: call `deepspeed.add_config_arguments(parser)`, then hand `args=args` on",
        'HF Trainer: `TrainingArguments(..., deepspeed="{config}")`',
    ),
    Obstacle.NO_CONFIG: (
        "`deepspeed.initialize` in line {line} gets no config that can be seen",
        "call `deepspeed.add_config_arguments(parser)`, and hand `args=args` over in line {line}",
    ),
    # deepspeed 0.19.8, __init__.py, initialize: an assertion refuses both.
    Obstacle.TWO_CONFIGS: (
        "`deepspeed.initialize` in line {line} gets the config twice, as `args=` and as `config=`",
        "drop `config=` in {path} line {line}: `args=` already carries it",
    ),
    Obstacle.BUILT: (
        "`deepspeed.initialize` in line {line} takes a config that the script builds itself",
        "call `deepspeed.add_config_arguments(parser)`, and hand `args=args` over in line {line}",
        "and drop `config=` there",
    ),
    Obstacle.BUILT_HF: (
        "`deepspeed=` in line {line} is a value that the script builds itself",
        "drop `deepspeed=` in {path} line {line}: zerowiz then hands its file over",
        'or write `deepspeed="{config}"` there',
    ),
    Obstacle.BUILT_ACCELERATE: (
        "the DeepSpeed plugin in line {line} is one that the script builds itself",
        "drop `deepspeed_plugin=` in {path} line {line}: zerowiz then hands its file over",
    ),
    Obstacle.HIDDEN_HF: (
        "its TrainingArguments come from where they cannot be seen (line {line})",
        'write `deepspeed="{config}"` where TrainingArguments is called, in {path} itself',
    ),
}


def _append(script_args: tuple[str, ...], *words: str) -> tuple[str, ...]:
    """Add words at the end, but before a bare `--`, after which argparse reads no option."""
    end = script_args.index("--") if "--" in script_args else len(script_args)
    return (*script_args[:end], *words, *script_args[end:])


def _same_path(one: str, other: str) -> bool:
    return posixpath.normpath(one) == posixpath.normpath(other)
