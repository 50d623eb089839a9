"""The facts that a training script's syntax tree shows."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.script.arguments import Scalar, ScriptParser
from zerowiz.core.script.settings_file import SettingsFile
from zerowiz.core.workload import Integration


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
    HIDDEN_HF = "hidden_hf"
    PROGRAM_FILE = "program_file"
    """LLaMA-Factory takes the config from its own YAML file."""


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
    """Whether the script takes the value from the DeepSpeed config, so that they agree."""
    when: tuple[Scalar, ...] = ()
    """For a condition: it holds where the option has one of these values, or is on for none."""
    unless: bool = False
    """For a condition: whether it is negated."""

    @property
    def seen(self) -> bool:
        """Whether it is known what decides the setting."""
        return self.value is not None or self.flag is not None or self.from_config


UNSEEN = ValueSource()


class KeyUse(Struct, frozen=True, kw_only=True):
    """A place where the script asks for a key of the config that it gets, or sets one."""

    keys: tuple[str, ...]
    """The key, after those of the sections around it; as far as they are constants."""
    all_seen: bool = True
    """Whether they all are."""
    sets: bool = False
    removes: bool = False
    """Whether it takes the key out, if it is there."""
    value: ValueSource = UNSEEN
    """What it is set to."""
    conditions: tuple[ValueSource, ...] = ()
    """What has to hold for the script to come there."""
    line: int
    code: str


class Placement(Struct, frozen=True, kw_only=True):
    """A `device_map=` with which the script loads the model that it trains."""

    place: ValueSource
    """The map, where it is a word or a number; that of `{"": x}` is x."""
    is_map: bool
    """Whether it is a map by how it is written, and so surely not None."""
    conditions: tuple[ValueSource, ...] = ()
    """What has to hold for the script to come there."""
    engine_is_known: bool = False
    """Whether the library has read the config by then."""
    line: int
    code: str


class ScriptCall(Struct, frozen=True, kw_only=True):
    """A call of the script that some strategies, or DeepSpeed, do not go with."""

    conditions: tuple[ValueSource, ...] = ()
    """What has to hold for the script to come there."""
    line: int
    code: str


class WeightSave(ScriptCall, frozen=True, kw_only=True):
    """A call that writes the weights of the trained model as this rank has them."""

    adapters_only: bool
    """Whether it writes the adapters alone, where the model has some."""


class RemovedUse(Struct, frozen=True, kw_only=True):
    """A field that the script gives TrainingArguments, and that newer releases do not have."""

    name: str
    conditions: tuple[ValueSource, ...] = ()
    """What has to hold for the script to come there."""
    line: int
    code: str


class BuiltConfig(Struct, frozen=True, kw_only=True):
    """The config of a model that the script makes in its code, and then builds with new weights."""

    base: ValueSource = UNSEEN
    """The model whose config it changes; unseen for a config of its own."""
    family: ValueSource = UNSEEN
    """The `model_type` of a config of its own."""
    values: Mapping[str, ValueSource]
    """Those that it sets, by their keys in a config.json."""
    line: int
    code: str


class OwnSizes(Struct, frozen=True, kw_only=True):
    """The sizes of a model that a script builds of its own classes."""

    layers: ValueSource
    hidden_size: ValueSource
    vocab_size: ValueSource = UNSEEN


class TrainerUse(Struct, frozen=True, kw_only=True):
    """A trainer that the script builds."""

    name: str
    """Of the library's class; of one in another module, its name there."""
    line: int
    code: str
    changed: str | None = None
    """The method of a class of the script that makes the loss itself: `MyTrainer.compute_loss`."""
    changed_line: int | None = None


class TrainerFacts(Struct, frozen=True, kw_only=True):
    """What a script shows of its trainer."""

    uses: tuple[TrainerUse, ...] = ()
    reference: ValueSource = UNSEEN
    """Whether it is handed a reference model; unseen where that depends on something."""
    precomputed: ValueSource = UNSEEN
    """`precompute_ref_log_probs`."""
    beta: ValueSource = UNSEEN
    prompt_tokens: ValueSource = UNSEEN
    completion_tokens: ValueSource = UNSEEN
    """`max_completion_length`, PPO's `response_length`."""
    group: ValueSource = UNSEEN
    """`num_generations`: the completions of one prompt."""
    steps_per_generation: ValueSource = UNSEEN
    whole_generation: ValueSource = UNSEEN
    """`generation_batch_size`: the completions of all ranks that are generated at a time."""
    use_vllm: ValueSource = UNSEEN
    vllm_mode: ValueSource = UNSEEN
    vllm_fraction: ValueSource = UNSEEN
    """`vllm_gpu_memory_utilization`."""
    vllm_sleep: ValueSource = UNSEEN
    """`vllm_enable_sleep_mode`."""
    models_beside: tuple[ValueSource, ...] = ()
    """The models that judge completions."""
    eval_batch: ValueSource = UNSEEN
    """`per_device_eval_batch_size`."""
    eval_strategy: ValueSource = UNSEEN
    do_eval: ValueSource = UNSEEN
    evaluations: tuple[tuple[ValueSource, ...], ...] = ()
    """Of each call of the trainer's `evaluate`, what has to hold for the script to come there."""
    metrics: ValueSource | None = None
    """The `compute_metrics` that it is handed; None for none."""


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """What a training script shows without being run."""

    path: str
    module: str | None = None
    """Its name as a module, where it is started as one: `python -m NAME`."""
    starts: str | None = None
    """The module whose function trains, where the script itself only calls that."""
    convention: Convention
    integration: Integration | None
    """The library that passes the config to DeepSpeed; None where it is not known."""
    parser: ScriptParser = field(default_factory=ScriptParser)
    reads_no_words: bool = False
    """Whether it is seen that nothing in it reads the command line."""
    own_flag: str | None = None
    literal_config: str | None = None
    config_line: int | None = None
    """The line at which the script names its config, or would have to."""
    obstacle: Obstacle | None = None
    config_keys: tuple[KeyUse, ...] = ()
    """The keys of its config that the script itself uses, in the order of its text."""
    removed_fields: tuple[RemovedUse, ...] = ()
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
    saves_portably: bool = False
    """Whether it saves by the templates' `portable_checkpoint`, which loads at every stage."""
    counts_micro_steps: bool = False
    """Whether its loop asks the engine after how many micro-steps it updates the weights."""
    builds_on_host: bool = False
    """Whether it makes a model from a config, and shows no other place than host memory for it."""
    args_file: str | None = None
    """For `train.py` the file `train.args`, which HfArgumentParser reads before the words."""
    args_file_words: tuple[str, ...] = ()
    settings_file: SettingsFile | None = None
    """The file of values that the words after the script name."""

    micro_batch: ValueSource = UNSEEN
    accumulation_steps: ValueSource = UNSEEN
    bf16: ValueSource = UNSEEN
    fp16: ValueSource = UNSEEN
    mixed_precision: ValueSource = UNSEEN
    """`Accelerator(mixed_precision=...)`."""
    gradient_checkpointing: ValueSource = UNSEEN
    checkpoints_too: ValueSource | None = None
    """The condition under which a call of the script turns that on as well; None for no call."""
    every_n_layers: ValueSource = UNSEEN
    """Its value in code, or else `gradient_checkpointing_kwargs`, the text that may have it."""
    sequence_tokens: ValueSource = UNSEEN
    target_tokens: ValueSource = UNSEEN
    """Of what a decoder gets beside the sequence of its encoder."""
    trainer: TrainerFacts = field(default_factory=TrainerFacts)
    optimizer: ValueSource = UNSEEN
    """`optim` of TrainingArguments, or the class that the script builds."""
    attention: ValueSource = UNSEEN
    liger: ValueSource = UNSEEN
    """`use_liger_kernel` of TrainingArguments."""
    packing: ValueSource = UNSEEN
    padding_free: ValueSource = UNSEEN
    """Of SFTConfig; like `packing` it puts a micro-batch into one row."""
    model: ValueSource = UNSEEN
    loads_16_bit: ValueSource | None = None
    """What makes the weights that it loads 16-bit ones, whatever the job trains in."""
    built_config: BuiltConfig | None = None
    """What it builds its model of; None where it loads weights, or where that is not seen."""
    own_sizes: OwnSizes | None = None
    """By the names that it has for them; None where it shows none."""
    placements: tuple[Placement, ...] = ()
    pipelines: tuple[ScriptCall, ...] = ()
    """Where it cuts its model into stages of a pipeline."""
    weight_saves: tuple[WeightSave, ...] = ()
    optimizers_passed: tuple[ScriptCall, ...] = ()
    """Where it hands a Trainer an optimizer or a scheduler of its own."""
    fsdp: ValueSource = UNSEEN
    """`fsdp` of TrainingArguments."""
    use_cpu: ValueSource = UNSEEN
    """`use_cpu` of TrainingArguments."""
    loader_workers: ValueSource = UNSEEN
    """`dataloader_num_workers` of TrainingArguments, or `num_workers` of a DataLoader."""
    epochs: ValueSource = UNSEEN
    """`num_train_epochs` of TrainingArguments."""
    max_steps: ValueSource = UNSEEN
    """`max_steps` of TrainingArguments."""
    adapters: ValueSource = UNSEEN
    """The condition under which it trains adapters of LoRA."""
    quantized: ValueSource = UNSEEN
    """The condition under which their base has 4 bits."""
    lora_rank: ValueSource = UNSEEN
    lora_target_modules: ValueSource = UNSEEN
    """Names separated by commas, `all-linear`, or BY_ARCHITECTURE."""

    @property
    def target(self) -> str:
        """What it is started by: its path, or its name as a module."""
        return self.module or self.path

    @property
    def text_path(self) -> str:
        """The file whose lines the facts name."""
        return self.starts or self.path

    @property
    def passes_optimizer(self) -> bool:
        """Whether DeepSpeed gets the optimizer of the script, and builds none of the config."""
        return "optimizer" in self.passed

    @property
    def unfollowed(self) -> tuple[ValueSource, ...]:
        """The expressions that decide settings and could not be followed, by line."""
        bindings: list[ValueSource] = [getattr(self, name) for name in _DECISIVE]
        ends = {b.code: b for b in bindings if b.code is not None and not b.seen}
        return tuple(sorted(ends.values(), key=lambda b: b.line or 0))


# The settings that a plan always depends on.
_DECISIVE = (
    *("micro_batch", "accumulation_steps", "bf16", "fp16", "mixed_precision", "sequence_tokens"),
    *("gradient_checkpointing", "optimizer", "model", "adapters", "quantized", "lora_rank"),
    "lora_target_modules",
)
