"""The facts that a training script's syntax tree shows."""

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct, field

from zerowiz.core.script.arguments import (
    LOCAL_RANK_FLAG,
    SWITCHES,
    Given,
    Option,
    Reads,
    Scalar,
    ScriptParser,
    SettingsFile,
    Takes,
    missing_arguments,
    read_values,
    read_words,
    write_words,
)
from zerowiz.core.settings import HYPERPARAMETERS, OF_ADAM, OTHER_SETTINGS
from zerowiz.core.structs import replace
from zerowiz.core.workload import SETTINGS, Integration
from zerowiz.errors import LineEdit, UsageError


class Convention(StrEnum):
    """How a script takes its DeepSpeed config."""

    HF_PARSER = "hf_parser"
    """HfArgumentParser or TrlParser over TrainingArguments."""
    HF_IN_CODE = "hf_in_code"
    """TrainingArguments built in the script, without `deepspeed=`."""
    HF_LITERAL = "hf_literal"
    """`TrainingArguments(deepspeed="x.json")`."""
    ADD_CONFIG_ARGUMENTS = "add_config_arguments"
    """`deepspeed.add_config_arguments(parser)`, then `initialize(args=args)`."""
    OWN_FLAG = "own_flag"
    """An option of the script has the path."""
    CONFIG_LITERAL = "config_literal"
    """`deepspeed.initialize(config="x.json")`."""
    CONFIG_DICT = "config_dict"
    """A config that the script builds itself."""
    ACCELERATOR = "accelerator"
    """`Accelerator()`, configured from outside."""
    LIGHTNING = "lightning"
    """Lightning's `Trainer(strategy="deepspeed")`, configured from outside."""
    NONE = "none"
    """A person says that none is passed."""
    UNKNOWN = "unknown"


class Obstacle(StrEnum):
    """Why a script takes no config."""

    NO_ENGINE = "no_engine"
    ENGINE_UNSEEN = "engine_unseen"
    NO_CONFIG = "no_config"
    TWO_CONFIGS = "two_configs"
    BUILT = "built"
    BUILT_HF = "built_hf"
    BUILT_ACCELERATE = "built_accelerate"
    BUILT_LIGHTNING = "built_lightning"
    NO_STRATEGY = "no_strategy"
    HIDDEN_HF = "hidden_hf"
    HIDDEN_LIGHTNING = "hidden_lightning"
    HYDRA = "hydra"
    """Hydra owns the command line, and builds the config or what the script makes it of."""
    PROGRAM_FILE = "program_file"
    """LLaMA-Factory takes the config from its own YAML file."""


# The word before the colon; whether a name follows it; what it means; and who takes the config
# where the script does not show it.
WAYS: Mapping[str, tuple[bool, Convention, Integration]] = {
    "flag": (True, Convention.OWN_FLAG, Integration.DEEPSPEED),
    "key": (True, Convention.OWN_FLAG, Integration.DEEPSPEED),
    "env": (False, Convention.ACCELERATOR, Integration.ACCELERATE),
    "file": (True, Convention.CONFIG_LITERAL, Integration.DEEPSPEED),
    "none": (False, Convention.NONE, Integration.DEEPSPEED),
}


def split_config_via(text: str) -> tuple[str, str]:
    """The way, and the name that belongs to it; empty if it has none.

    Raises:
        UsageError: There is no such way.

    Example:
        >>> split_config_via("flag:ds_config")
        ('flag', 'ds_config')
    """
    way, colon, name = text.partition(":")
    named = way in WAYS and WAYS[way][0]
    is_empty = not posixpath.basename(name).strip("-. ")
    if way not in WAYS or bool(colon) is not named or (named and is_empty):
        raise UsageError(
            f"`$config_via {text}` is not a way to pass a config",
            (
                "use `flag:NAME` (an option of the script), `key:NAME` (a key of Hydra), `env` "
                "(Accelerate's variables, or Lightning's), "
                "`file:PATH` (a file that it reads) or `none`"
            ),
        )
    return way, name


def named_file(text: str | None) -> str | None:
    """The path that the config is written to, where the script reads that one alone."""
    if text is None:
        return None
    way, name = split_config_via(text)
    return name if way == "file" else None


class ValueSource(Struct, frozen=True, kw_only=True):
    """What decides one setting of the script; empty where that is not known."""

    value: Scalar = None
    flag: str | None = None
    """The script's option that decides the setting; `value` is its default."""
    line: int | None = None
    code: str | None = None
    """The expression that decides it."""
    keyword: str | None = None
    """The keyword argument that decides it, or could."""
    default_of: str | None = None
    """The arguments class that has `value` as its default."""
    from_config: bool = False
    """Whether the script takes the value from the DeepSpeed config, so that they agree; of one that
    the script builds itself, `value` is what it says."""
    when: tuple[Scalar, ...] = ()
    """For a condition: it holds where the option has one of these values, or is on for none."""
    unless: bool = False
    """For a condition: whether it is negated."""

    @property
    def seen(self) -> bool:
        """Whether it is known what decides the setting."""
        return self.value is not None or self.flag is not None or self.from_config


UNSEEN = ValueSource()


class ScriptCall(Struct, frozen=True, kw_only=True):
    """A call of the script that some strategies, or DeepSpeed, do not go with."""

    conditions: tuple[ValueSource, ...] = ()
    """What has to hold for the script to come there."""
    line: int
    code: str


class Placement(ScriptCall, frozen=True, kw_only=True):
    """A call with `device_map=` by which the script loads the model that it trains."""

    place: ValueSource
    """The map, where it is a word or a number; that of `{"": x}` is x."""
    is_map: bool
    """Whether it is a map by how it is written, and so surely not None."""
    engine_is_known: bool = False
    """Whether the library has read the config by then."""


class BuiltModel(ScriptCall, frozen=True, kw_only=True):
    """Where the script makes the model that it trains, of whatever it makes it."""

    from_library: bool
    """Whether it has a config that can be saved: one of transformers, or loaded as theirs are."""


class WeightSave(ScriptCall, frozen=True, kw_only=True):
    """A call that writes the weights of the trained model as this rank has them."""

    adapters_only: bool
    """Whether it writes the adapters alone, where the model has some."""
    instead: LineEdit | None = None
    """What saves whole weights at every stage; None where no such line is exact."""


class StageKind(StrEnum):
    """What is right at some ZeRO stages only."""

    ALONE = "alone"
    """What all ranks have to call, on some of them."""
    ALONE_SHARDED = "alone_sharded"
    """What all ranks have to call where weights are sharded, on some of them."""
    READS = "reads"
    """The script uses weights of the model by itself."""
    NO_SYNC = "no_sync"
    EVALUATES_FIRST = "evaluates_first"
    CLIPS_VALUES = "clips_values"
    TWO_MODELS = "two_models"
    NO_MODEL = "no_model"
    """Accelerate gets the optimizer in one call, and its model in another."""
    SECOND_TRAINER = "second_trainer"
    """A second Trainer with the same TrainingArguments."""
    COPIES_MODEL = "copies_model"
    """TRL's `create_reference_model`."""


class StageCall(ScriptCall, frozen=True, kw_only=True):
    """A call that is wrong at some stages."""

    kind: StageKind


SHARED_SEQUENCES = "sequence parallelism"
"""The only kind that is planned: its size is a setting."""


class ParallelUse(ScriptCall, frozen=True, kw_only=True):
    """What makes several ranks share a tensor, a sequence or experts."""

    size: ValueSource
    """How many ranks; more than that where it is a value that is no number."""
    kind: str
    """What it is called: `tensor parallelism`."""
    is_open: bool = False
    """Whether something else than a number stands for how many."""


class OwnSizes(Struct, frozen=True, kw_only=True):
    """The sizes of a model that a script builds of its own classes."""

    layers: ValueSource
    hidden_size: ValueSource
    vocab_size: ValueSource = UNSEEN
    is_tied: bool = False
    """Whether the weight of one layer is made that of another."""


class TrainerUse(Struct, frozen=True, kw_only=True):
    """A trainer that the script builds."""

    name: str
    """Of the library's class; of one in another module, its name there."""
    line: int
    code: str
    changed: str | None = None
    """The method of a class of the script that makes the loss itself: `MyTrainer.compute_loss`."""
    changed_line: int | None = None
    conditions: tuple[ValueSource, ...] = ()
    """What has to hold for the script to build it."""


class TrainerFacts(Struct, frozen=True, kw_only=True):
    """What a script shows of its trainer."""

    uses: tuple[TrainerUse, ...] = ()
    models_beside: tuple[ValueSource, ...] = ()
    """The models that judge completions."""
    evaluations: tuple[ScriptCall, ...] = ()
    """The calls of the trainer's `evaluate`."""
    metrics: ValueSource | None = None
    """The `compute_metrics` that it is handed; None for none."""


# What a script shows of its trainer: the fields of TrainingArguments and its subclasses, by the
# setting that they say, or by a name of what they say beside the settings.
TRAINER_FIELDS: Mapping[str, tuple[str, ...]] = {
    **{name: row.trainer_fields for name, row in SETTINGS.items() if row.trainer_fields},
    **{name: OTHER_SETTINGS[name].trainer_fields for name in HYPERPARAMETERS},
    **{name: (name,) for name in (*OF_ADAM, "max_steps")},
    "schedule": ("lr_scheduler_type",),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "every_n_layers": ("gradient_checkpointing_kwargs",),
    "padding_free": ("padding_free",),
    "use_cpu": ("use_cpu",),
    "fsdp": ("fsdp",),
    "loader_workers": ("dataloader_num_workers",),
    "do_eval": ("do_eval",),
    "eval_strategy": ("eval_strategy",),
    "precomputed": ("precompute_ref_log_probs",),
    "beta": ("beta",),
    "prompt_tokens": ("max_prompt_length",),
    "group": ("num_generations",),
    "steps_per_generation": ("steps_per_generation",),
    "whole_generation": ("generation_batch_size",),
    "use_vllm": ("use_vllm",),
    "vllm_mode": ("vllm_mode",),
    "save_only_model": ("save_only_model",),
    "load_best_model_at_end": ("load_best_model_at_end",),
    "auto_find_batch_size": ("auto_find_batch_size",),
}
_SOURCES = {
    *SETTINGS,
    *TRAINER_FIELDS,
    # `Accelerator(mixed_precision=...)`, and what a Trainer of Lightning gets.
    *("mixed_precision", "devices", "strategy"),
    # `dp_shard_size` of a ParallelismConfig.
    "data_parallel",
    # What makes the batches of a loop floats, or may, where nothing casts them.
    "float_batches",
    "model",
    # How many positions a model that it builds has.
    "positions",
    # The conditions under which it trains adapters of LoRA, and loads their base in 4 bits.
    "adapters",
    "quantized",
}


RELEASE_CALLS = frozenset({"accumulate", "resize_token_embeddings", "save_model"})
"""Methods that only some scripts call, and by which a release harms them."""


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """What a training script shows without being run."""

    path: str
    module: str | None = None
    """Its name as a module, where it is started as one: `python -m NAME`."""
    files: tuple[tuple[int, str], ...] = ()
    """The modules whose definitions it uses, each with the number of lines before it: the lines of
    all facts are counted through the script and these."""
    starts: str | None = None
    """The module that names the config, or the parser, where the script itself does not."""
    convention: Convention
    integration: Integration | None
    """The library that passes the config to DeepSpeed; None where it is not known."""
    parser: ScriptParser = field(default_factory=ScriptParser)
    own_flag: str | None = None
    literal_config: str | None = None
    config_line: int | None = None
    """The line at which the script names its config, or would have to."""
    obstacle: Obstacle | None = None
    adapters_if: tuple[ValueSource, ...] = ()
    """What has to hold for the only call that adds adapters, where no one option decides that."""
    trains_adapters: bool = False
    """Whether it imports peft, or a library's configuration of it."""
    builds_elsewhere: bool = False
    """Whether a function of another module builds its model, which may add adapters to it."""
    uncounted: tuple[ValueSource, ...] = ()
    """What it does with its adapters that the ledger does not count."""
    passed: frozenset[str] = frozenset()
    """The `optimizer` and the `lr_scheduler`, if it passes them to `deepspeed.initialize`."""
    own_optimizers: tuple[str, ...] = ()
    """The classes of the optimizers that it builds, each once."""
    unfused_adam_line: int | None = None
    """Where it builds torch's Adam without `fused=True`, which holds more than is counted."""
    names_positions: bool = False
    """Whether it says `position_ids` somewhere."""
    saves_portably: bool = False
    """Whether it saves by the templates' `portable_checkpoint`, which loads at every stage."""
    calls: frozenset[str] = frozenset()
    """Those of RELEASE_CALLS that it calls somewhere, and `backward`."""
    counts_micro_steps: bool = False
    """Whether its loop asks the engine after how many micro-steps it updates the weights."""
    builds_on_host: bool = False
    """Whether it makes a model from a config, and shows no other place than host memory for it."""
    settings_file: SettingsFile | None = None
    """The file of values that the words after the script name."""

    sources: Mapping[str, ValueSource] = {}
    """What decides each setting that it shows. As an attribute of its name each is there, unseen
    where the script does not show it: `facts.micro_batch`.

    `float_batches` is true where a call shows them, and false where nothing shows integers.
    `reference` says whether its trainer is handed a reference model, `every_n_layers` has a value
    of the code, or the text that may have it, and `lora_target_modules` names that commas separate,
    `all-linear`, or BY_ARCHITECTURE."""
    checkpoints_too: ValueSource | None = None
    """The condition under which a call of the script turns gradient checkpointing on as well; None
    for no call."""
    trainer: TrainerFacts = field(default_factory=TrainerFacts)
    loads_16_bit: ValueSource | None = None
    """What makes the weights that it loads 16-bit ones, whatever the job trains in."""
    own_sizes: OwnSizes | None = None
    """By the names that it has for them; None where it shows none."""
    built_model: BuiltModel | None = None
    """Where it makes its model, for messages; None where it names one, or that is not seen."""
    placements: tuple[Placement, ...] = ()
    weight_saves: tuple[WeightSave, ...] = ()
    stage_calls: tuple[StageCall, ...] = ()
    parallel: tuple[ParallelUse, ...] = ()
    freezes: tuple[ScriptCall, ...] = ()
    """Where it may make parameters of a model that do not train."""
    copies: tuple[ScriptCall, ...] = ()
    """Where its loop makes another model than the one that it trains."""
    optimizers_passed: tuple[ScriptCall, ...] = ()
    """Where it hands a Trainer an optimizer or a scheduler of its own."""

    def __getattr__(self, name: str) -> ValueSource:
        """What decides a setting; unseen where the script does not show it."""
        if name not in _SOURCES:
            raise AttributeError(name)
        return self.sources.get(name, UNSEEN)

    def with_sources(self, **sources: ValueSource) -> "ScriptFacts":
        """The facts with what decides these settings; what is unseen is left out."""
        seen = {name: source for name, source in sources.items() if source != UNSEEN}
        kept = {name: source for name, source in self.sources.items() if name not in sources}
        return replace(self, sources=kept | seen)

    @property
    def gives_positions(self) -> bool:
        """Whether its batches may have the `position_ids` that ranks need to share sequences.

        trl 1.16, sft_trainer.py, __init__: its collator gives them to such ranks.
        """
        by_trl = any(use.name == "SFTTrainer" for use in self.trainer.uses)
        return by_trl or self.names_positions

    @property
    def target(self) -> str:
        """What it is started by: its path, or its name as a module."""
        return self.module or self.path

    @property
    def text_path(self) -> str:
        """The file in which the config arrives."""
        return self.starts or self.path

    def locate(self, line: int | None) -> tuple[str, int]:
        """The file that has a line of the facts, and the line in it."""
        before = [file for file in self.files if file[0] < (line or 0)]
        first, path = max(before, default=(0, self.path))
        return path, (line or 0) - first

    def where(self, line: int | None) -> str:
        """A line of the facts, with its file: `train.py line 8`."""
        path, number = self.locate(line)
        return f"{path} line {number}"

    def edit(self, line: int | None, **change: str) -> LineEdit:
        """What to write at the call in a line of the facts: fields of LineEdit."""
        path, number = self.locate(line)
        return LineEdit(path=path, line=number, **change)

    def removal(self, source: ValueSource) -> tuple[LineEdit, ...]:
        """What to write where an argument of a call decides a setting, and is to be removed."""
        name = source.keyword
        return () if name is None else (self.edit(source.line, keyword=name),)

    def place(self, line: int | None) -> str:
        """As `where`, without the file if that is `text_path`."""
        return self.where(line).removeprefix(f"{self.text_path} ")

    @property
    def passes_optimizer(self) -> bool:
        """Whether DeepSpeed gets the optimizer of the script, and builds none of the config."""
        return "optimizer" in self.passed or self.integration is Integration.LIGHTNING

    @property
    def unfollowed(self) -> tuple[ValueSource, ...]:
        """The expressions that decide settings and could not be followed, by line."""
        bindings = [self.sources.get(name, UNSEEN) for name in _DECISIVE]
        ends = {b.code: b for b in bindings if b.code is not None and not b.seen}
        return tuple(sorted(ends.values(), key=lambda b: b.line or 0))


# The settings that a plan always depends on.
_DECISIVE = (
    *("micro_batch", "accumulation_steps", "bf16", "fp16", "mixed_precision", "sequence_tokens"),
    *("gradient_checkpointing", "optimizer", "model", "adapters", "quantized", "lora_rank"),
    *("lora_target_modules", "strategy"),
)


# Join what a person says to a script: in the words after it, and in the files that it reads.


def read_said(facts: ScriptFacts, script_args: tuple[str, ...]) -> Mapping[str, Given]:
    """The options that somebody gave a value, by their `dest`; what takes precedence counts.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script.
    """
    file, words = facts.settings_file, read_words(facts.parser, script_args)
    values = {} if file is None else read_values(facts.parser, file)
    # Of TrlParser they become defaults (trl 1.16, scripts/utils.py, parse_args_and_config).
    return {**values, **words}


def unsaid_arguments(facts: ScriptFacts, script_args: tuple[str, ...]) -> tuple[Option, ...]:
    """What the script's parser requires, and nobody says.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script, with those that zerowiz adds.
    """
    parser = facts.parser
    reads_file = parser.takes_file(script_args) or parser.config_flag in script_args
    if facts.settings_file is not None or reads_file:
        return ()
    # zerowiz and DeepSpeed's launcher add these themselves.
    added = {"--deepspeed", "--deepspeed_config", LOCAL_RANK_FLAG, facts.own_flag}
    return tuple(
        missing_argument
        for missing_argument in missing_arguments(parser, script_args)
        if added.isdisjoint(missing_argument.flags)
    )


S = TypeVar("S")
T = TypeVar("T")

Words = tuple[str, ...]
"""Words after the script."""


class State(StrEnum):
    """Who decides a setting of the script."""

    SAID = "said"
    """A word after the script, or a file of words that is handed to it."""
    FIXED = "fixed"
    """A value in the script's code."""
    OPEN = "open"
    """Nobody: it is a parser's default, or a library's."""


class ScriptValue(Struct, Generic[T], frozen=True, kw_only=True):
    """One setting of the run, which the script or a word after it decides."""

    value: T
    source: str
    """What decides it, for messages."""
    change: str
    """How to give it another value, for messages; `{value}` in it stands for that value."""
    state: State
    spellings: Mapping[T, Scalar] = field(default_factory=dict)
    """The script's names for values that have another name here."""

    def change_to(self, value: T) -> str:
        """How to give it this value."""
        return self.change.replace("{value}", str(self.spellings.get(value, value)))


# Of the type that the setting has; only its row knows it.
SettledValue: TypeAlias = ScriptValue[Any]  # type: ignore[explicit-any]


RESUME = "--resume"
"""The switch by which a script of the templates resumes from its newest checkpoint."""


class Resolver:
    """Resolves the bindings of a script that is started with certain words.

    Args:
        facts: What the script shows.
        words: Those after the script.
    """

    def __init__(self, facts: ScriptFacts, words: Sequence[str] = ()) -> None:
        self.facts = facts
        self.words = tuple(words)
        unread = facts.settings_file is None
        self.all_hidden = unread and facts.parser.takes_file(self.words)
        self.defaults_hidden = unread and facts.parser.config_flag in self.words

    @cached_property
    def said(self) -> Mapping[str, Given]:
        """What somebody says, as `read_said` has it.

        Raises:
            UsageError: A settings file has a value of another type.
        """
        return read_said(self.facts, self.words)

    @property
    def resumes(self) -> bool:
        """Whether these words make the script resume from its newest portable checkpoint."""
        says = any(option.dest in self.said for option in self.facts.parser.find(RESUME))
        return says and self.facts.saves_portably

    def setting(self, binding: ValueSource) -> ScriptValue[Scalar] | None:
        """The setting that a binding has in this run; None where it is not known."""
        if not binding.unless and not binding.when:
            return self._value(binding)
        value = self.condition(binding)
        return None if value is None else cast(value, value.value)

    def _value(self, binding: ValueSource) -> ScriptValue[Scalar] | None:
        if binding.flag is not None:
            return self._from_option(binding, binding.flag)
        return None if binding.value is None else self._from_code(binding)

    def may_hold(self, binding: ValueSource) -> bool:
        """Whether something is done in this run, or may be: by an option that is on, or always."""
        if binding.flag is None:
            return True
        value = self.setting(binding)
        if value is not None:
            return bool(value.value)
        given = self.said.get(self.facts.parser.find(binding.flag)[0].dest)
        return self.all_hidden or (given is not None and not given.is_null)

    def condition(self, binding: ValueSource) -> ScriptValue[bool] | None:
        """Whether a condition of the script holds in this run; None where that is not known."""
        decider = self._value(binding)
        if decider is None:
            return None
        holds = decider.value in binding.when if binding.when else bool(decider.value)
        change = decider.change
        if binding.flag is None:
            change = f"edit {self.facts.where(binding.line)}"
        elif "{value}" in change and isinstance(decider.value, bool):
            change = change.replace("{value}", str(not decider.value))
        elif "{value}" in change:
            change = f"choose another `{binding.flag}` after {self.facts.path}"
        return ScriptValue(
            value=holds is not binding.unless,
            source=decider.source,
            change=change,
            state=decider.state,
        )

    def holds(self, conditions: Iterable[ValueSource]) -> bool | None:
        """Whether the script comes to a place of these conditions; None where that is unknown."""
        settled = [self.condition(binding) for binding in conditions]
        if any(setting is not None and not setting.value for setting in settled):
            return False
        return None if None in settled else True

    def words_for(self, binding: ValueSource, value: object) -> Words | None:
        """The words after the script that give a binding's setting this value.

        None where no word can, or one is there already.
        """
        if binding.unless or binding.when:
            return self.words_where(binding, holds=bool(value))
        return self._words(binding, value)

    def _words(self, binding: ValueSource, value: object) -> Words | None:
        """By the option that decides the binding's setting, where no word names it yet."""
        if binding.flag is None or self.all_hidden or self.defaults_hidden:
            return None
        option = self.facts.parser.find(binding.flag)[0]
        return None if option.dest in self.said else write_words(self.facts.parser, option, value)

    def words_where(self, binding: ValueSource, *, holds: bool) -> Words | None:
        """The words after the script with which a condition holds, or does not; None as above."""
        now = self.condition(binding)
        if now is not None and now.value is holds:
            return ()
        wanted = holds is not binding.unless
        if not binding.when:
            return self._words(binding, wanted)
        return self._words(binding, binding.when[0]) if wanted else None

    def _from_code(self, binding: ValueSource) -> ScriptValue[Scalar]:
        where = f"in {self.facts.where(binding.line)}"
        source = f"`{binding.code}` " + where
        if binding.default_of is not None:
            source = f"the default of {binding.default_of}"
        change = f"edit {self.facts.where(binding.line)}"
        if binding.keyword is not None:
            quote = '"' if isinstance(binding.value, str) else ""
            change = f"set `{binding.keyword}={quote}{{value}}{quote}` {where}"
        return ScriptValue(
            value=binding.value,
            source=source,
            change=change,
            state=State.FIXED if binding.default_of is None else State.OPEN,
        )

    def _from_option(self, binding: ValueSource, flag: str) -> ScriptValue[Scalar] | None:
        option = self.facts.parser.find(flag)[0]
        given = self.said.get(option.dest)
        if given and given.fault is not None:
            raise UsageError(given.fault)
        value = given.value if given else None if self.defaults_hidden else binding.value
        if self.all_hidden or value is None:
            return None
        source = f"the default of `{flag}` in {self.facts.where(binding.line)}"
        if binding.line is None:
            source = f"the default of `{flag}`"
        if given:
            source = f"`{given.words}` " + given.where
        elif binding.default_of is not None:
            source = f"the default of {binding.default_of}"
        return ScriptValue(
            value=value,
            source=source,
            change=self._change(option, given, value=value),
            state=State.OPEN if given is None else State.SAID,
        )

    def _change(self, option: Option, given: Given | None, *, value: Scalar) -> str:
        """How to switch the option, or give it another value."""
        if given and given.in_file:
            wanted = json.dumps(not value) if isinstance(value, bool) else "{value}"
            return f"set `{given.words}` to {wanted} {given.where}"
        after = f"after {self.facts.path}"
        if option.reads is Reads.NONEMPTY and option.takes is Takes.VALUE:
            word = "''" if value else "1"
            return f"put `{option.flag} {word}` {after}"
        if option.takes is Takes.WORDS:
            return f"name others with `{option.flag}` {after}"
        if option.takes not in SWITCHES:
            return f"put `{option.flag} {{value}}` {after}"
        for other in self.facts.parser.of(option.dest):
            if SWITCHES.get(other.takes, value) != value:
                return f"put `{other.flag}` {after}"
        return f"remove `{given.words}` {after}" if given else f"edit {self.facts.text_path}"


def cast(
    setting: ScriptValue[S], value: T, spellings: Mapping[T, Scalar] | None = None
) -> ScriptValue[T]:
    """The setting with a value of another type."""
    return ScriptValue(
        value=value,
        source=setting.source,
        change=setting.change,
        state=setting.state,
        spellings=spellings or {},
    )


def as_count(setting: ScriptValue[Scalar] | None) -> ScriptValue[int] | None:
    """The setting, where its value is a whole number from 1 on."""
    if setting is None or isinstance(setting.value, bool) or not isinstance(setting.value, int):
        return None
    return cast(setting, setting.value) if setting.value > 0 else None


def as_number(setting: ScriptValue[Scalar] | None) -> ScriptValue[float] | None:
    """The setting, where its value is a number."""
    if setting is None or isinstance(setting.value, bool | str | None):
        return None
    return cast(setting, float(setting.value))


def as_truth(setting: ScriptValue[Scalar] | None) -> ScriptValue[bool] | None:
    """The setting, where its value is a boolean."""
    if setting is None or not isinstance(setting.value, bool):
        return None
    return cast(setting, setting.value)


def either(*settings: ScriptValue[Scalar] | None) -> ScriptValue[bool] | None:
    """The first setting that is on, else the first that is known."""
    known = [truth for truth in map(as_truth, settings) if truth is not None]
    return next((truth for truth in known if truth.value), known[0] if known else None)


def as_text(setting: ScriptValue[Scalar] | None) -> ScriptValue[str] | None:
    """The setting, where its value is a text; an empty one names nothing."""
    if setting is None or not isinstance(setting.value, str) or not setting.value:
        return None
    return cast(setting, setting.value)


def as_named(
    setting: ScriptValue[Scalar] | None, names: Mapping[Scalar, T]
) -> ScriptValue[T] | None:
    """The setting, where its value has another name here.

    Args:
        setting: The setting.
        names: Our value for each of the script's; the first of several is the one to write.
    """
    if setting is None or setting.value not in names:
        return None
    return cast(setting, names[setting.value], spell(names))


def spell(names: Mapping[Scalar, T]) -> dict[T, Scalar]:
    """The script's name for each of our values; the first of several."""
    return {ours: theirs for theirs, ours in reversed([*names.items()])}


# Settle the sizes of a model of the script's own classes.


class OwnModel(Struct, frozen=True, kw_only=True):
    """A model of the script's own classes, counted as a GPT of the same sizes."""

    layers: int
    hidden_size: int
    vocab_size: int
    is_tied: bool = False
    """Whether the head is the embedding."""
    source: str
    """Where the sizes stand, for messages."""

    @property
    def name(self) -> str:
        """As `--model` takes it."""
        tied = "-tied" if self.is_tied else ""
        return f"gpt-{self.layers}x{self.hidden_size}-v{self.vocab_size}{tied}"


# That of GPT-2.
_VOCABULARY = 50257


def settle_own_model(run: Resolver) -> OwnModel | None:
    """The sizes of the script's own model in this run; None where they are not known."""
    seen = run.facts.own_sizes
    if seen is None:
        return None
    layers, width = (as_count(run.setting(binding)) for binding in (seen.layers, seen.hidden_size))
    vocabulary = as_count(run.setting(seen.vocab_size))
    if layers is None or width is None:
        return None
    vocabulary_source = "the vocabulary of GPT-2" if vocabulary is None else vocabulary.source
    return OwnModel(
        layers=layers.value,
        hidden_size=width.value,
        vocab_size=_VOCABULARY if vocabulary is None else vocabulary.value,
        is_tied=seen.is_tied,
        source=", ".join(dict.fromkeys((layers.source, width.source, vocabulary_source))),
    )
