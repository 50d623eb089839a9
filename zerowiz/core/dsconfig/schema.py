"""Define which keys a DeepSpeed config may hold, and which values DeepSpeed accepts for each.

The rows come out of DeepSpeed itself, version by version (`tests/schema/make_schema.py`). What
DeepSpeed accepts was tried on its own config class: a row states what happens when the config is
read, not what a key is for.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.dsconfig.merge import TRUTHS, ZERO, truth_of, value_at
from zerowiz.core.structs import Count, decode

# Define the classes that the `type` of an optimizer or a scheduler names, and what they take.
#
# The rows come out of DeepSpeed and torch themselves, version by version (`tests/schema/`).


class Where(StrEnum):
    """What decides which class DeepSpeed builds for the name of an optimizer."""

    GPU = "gpu"
    CPU = "cpu"
    """The optimizer is offloaded."""
    TORCH_ADAM = "torch_adam"
    """The argument of this name is true."""


class BuiltClass(Struct, frozen=True, kw_only=True):
    """What DeepSpeed builds for a name, with the `params` beside it."""

    path: str
    """Its section, its name, and where it steps: `optimizer adamw cpu`, `scheduler OneCycle`."""
    name: str
    is_deepspeeds: bool = False
    """A name of DeepSpeed's own; an optimizer's may be written in any case."""
    class_name: str | None = None
    """None where it comes from a package that was not installed."""
    arguments: tuple[str, ...] | None = None
    """What may stand in `params`."""
    needs: tuple[str, ...] = ()
    """Those without a default."""
    ignores_others: bool = False
    """Whether other arguments are left alone, not refused."""
    has_cpu_form: bool = False
    """Whether another class is built where the optimizer is offloaded."""
    refuses_zero: bool = False
    tested_with_zero: bool | None = False
    """Whether ZeRO takes it unasked."""


class Kind(StrEnum):
    """What a JSON value looks like, as far as DeepSpeed treats them differently."""

    NULL = "null"
    BOOLEAN = "boolean"
    WHOLE = "whole"
    """`8`, and `5e8`, which JSON makes a float."""
    FRACTION = "fraction"
    DIGITS = "digits"
    """`"8"`."""
    DECIMAL = "decimal"
    """`"8.0"`: digits in quotes, and a fraction of nothing."""
    NUMERAL = "numeral"
    """`"5e8"`, `"1.5"`: any other number in quotes."""
    SWITCH = "switch"
    """`"true"`, `"off"`: a word that stands for a truth."""
    WORD = "word"
    AUTO = "auto"
    """`"auto"`, which the Trainer or Accelerate replaces before DeepSpeed reads it."""
    ARRAY = "array"
    OBJECT = "object"


NUMERALS = frozenset({Kind.DIGITS, Kind.DECIMAL, Kind.NUMERAL})
"""Numbers in quotes."""


class Unknown(StrEnum):
    """What DeepSpeed does with a key of a section that it does not know."""

    REFUSED = "refused"
    IGNORED = "ignored"
    FREE = "free"
    """The keys are the reader's own: an optimizer's arguments, names of layers."""


# pydantic's words for the bounds of a field.
BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}


class SchemaKey(Struct, frozen=True, kw_only=True):
    """One key of a config; a section is one too, and the path of the whole config is empty."""

    path: str
    """As DeepSpeed's documentation spells it: `zero_optimization.stage3_max_live_parameters`."""
    types: tuple[str, ...] = ()
    """What is meant, in JSON Schema's words; empty when no type of JSON is."""
    takes: tuple[Kind, ...] = ()
    """What DeepSpeed reads without an error, meant or not."""
    default: str | None = None
    """As JSON; `None` when the section has none, or DeepSpeed names none."""
    choices: tuple[str, ...] = ()
    """As JSON; of the items, where the value is an array."""
    any_case: bool = False
    """Whether a choice may be spelled in capitals or without."""
    bounds: Mapping[str, Count] = field(default_factory=dict)
    """By the words of BOUNDS."""
    deprecated: bool = False
    new_path: str | None = None
    """Where the value of a deprecated key goes."""
    aliases: tuple[str, ...] = ()
    """Other names that it has in its section."""
    unknown: Unknown | None = None
    """What happens to unknown keys in it; `None` for what is no section."""
    about: str | None = None
    source: str | None = None
    """The file of DeepSpeed, and the class or function in it that reads the key."""

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.path.rpartition(".")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it has in its section."""
        return (self.name, *self.aliases)

    @property
    def section(self) -> str:
        """The path of what holds it."""
        return self.path.rpartition(".")[0]

    @property
    def removed(self) -> bool:
        """Whether DeepSpeed knows the key only to refuse it."""
        return not self.takes

    def is_default(self, value: object) -> bool:
        """Whether a config without the key has this value."""
        return self.default is not None and json.loads(self.default) == value

    def accepts(self, value: object) -> bool:
        """Whether DeepSpeed reads this value of the key without an error.

        It does not look at other keys, nor inside a section.
        """
        return (
            kind_of(value) in self.takes
            and all(self._offers(item) for item in _items(value))
            and all(self._bounds(item) for item in _items(value))
        )

    def _offers(self, item: object) -> bool:
        if not self.choices or kind_of(item) in _NO_CHOICE:
            return True
        choices = [json.loads(choice) for choice in self.choices]
        if self.any_case and isinstance(item, str):
            return item.lower() in [choice.lower() for choice in choices]
        return item in choices or _number(item) in choices

    def _bounds(self, item: object) -> bool:
        number = _number(item)
        if number is None:
            return True
        return all(BOUNDS[word](number, bound) for word, bound in self.bounds.items())


_NO_CHOICE = frozenset({Kind.NULL, Kind.AUTO, Kind.OBJECT})

# Words alone: "1" and "0" are digits first.
_SWITCHES = TRUTHS.keys() - {"1", "0"}


def kind_of(value: object) -> Kind:
    """What a value of a parsed JSON text looks like."""
    if isinstance(value, str):
        return next((kind for form, kind in _TEXTS if re.fullmatch(form, value)), Kind.WORD)
    if isinstance(value, float):
        # pydantic-core, input/shared.rs, float_as_int: a larger one has no integer.
        is_whole = value.is_integer() and abs(value) < _MOST_WHOLE
        return Kind.WHOLE if is_whole else Kind.FRACTION
    return next(kind for of, kind in _KINDS if isinstance(value, of))


_MOST_WHOLE = 2.0**63
# In this order: a bool is an int to Python.
_KINDS: Sequence[tuple[type, Kind]] = (
    (bool, Kind.BOOLEAN),
    (int, Kind.WHOLE),
    (type(None), Kind.NULL),
    (Mapping, Kind.OBJECT),
    (Sequence, Kind.ARRAY),
)
_TEXTS: Sequence[tuple[str, Kind]] = (
    (r"auto", Kind.AUTO),
    (r"[+-]?\d+", Kind.DIGITS),
    (r"[+-]?\d+\.0+", Kind.DECIMAL),
    (r"(?i)[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", Kind.NUMERAL),
    ("(?i)" + "|".join(sorted(_SWITCHES)), Kind.SWITCH),
)


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str) and kind_of(value) in NUMERALS:
        return float(value)
    return None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


class Schema(Struct, frozen=True, kw_only=True):
    """Every key that one version of DeepSpeed knows."""

    version: str
    keys: Mapping[str, SchemaKey]
    """By their paths."""
    classes: Mapping[str, BuiltClass] = field(default_factory=dict)
    """The optimizers and schedulers, by their paths."""

    def names(self) -> Mapping[str, SchemaKey]:
        """Every key, by each of its names behind the path of its section."""
        aliases = {
            join_path(key.section, alias): key
            for key in self.keys.values()
            for alias in key.aliases
        }
        return {**aliases, **self.keys}

    def children(self, section: str) -> tuple[SchemaKey, ...]:
        """The keys right inside a section."""
        return tuple(key for key in self.keys.values() if key.path and key.section == section)

    @property
    def top_names(self) -> frozenset[str]:
        """Every name at the top level of a config."""
        return frozenset(name for key in self.children("") for name in key.names)

    def optimizer(self, name: str, where: Where = Where.GPU) -> BuiltClass | None:
        """The class of a name; that of the GPU where no other is built."""
        for spelled in (name.lower(), name):
            for place in (where, Where.GPU):
                row = self.classes.get(f"optimizer {spelled} {place}")
                if row is not None and (row.is_deepspeeds or spelled == name):
                    return row
        return None

    def scheduler(self, name: str) -> BuiltClass | None:
        """The class of a name."""
        return self.classes.get(f"scheduler {name}")

    @property
    def own_schedulers(self) -> tuple[str, ...]:
        """The names of schedulers that are DeepSpeed's own."""
        rows = (row for path, row in self.classes.items() if path.startswith("scheduler "))
        return tuple(sorted(row.name for row in rows if row.is_deepspeeds))


def join_path(section: str, name: str) -> str:
    """The path of a key; that of the whole config is empty."""
    return f"{section}.{name}" if section else name


class _Step(Struct, frozen=True, kw_only=True):
    """A version, as it differs from the one before it in the file."""

    version: str
    keys: tuple[SchemaKey, ...]
    classes: tuple[BuiltClass, ...] = ()
    dropped: tuple[str, ...] = ()


class _File(Struct, frozen=True, kw_only=True):
    versions: tuple[_Step, ...]


def decode_schemas(value: object) -> tuple[Schema, ...]:
    """The schemas of `zerowiz/data/ds_schema.json`, the newest first."""
    schemas: list[Schema] = []
    keys: dict[str, SchemaKey] = {}
    classes: dict[str, BuiltClass] = {}
    for step in decode(_File, value, "ds_schema").versions:
        kept = {path: key for path, key in keys.items() if path not in step.dropped}
        keys = dict(sorted((kept | {key.path: key for key in step.keys}).items()))
        left = {path: class_ for path, class_ in classes.items() if path not in step.dropped}
        classes = left | {class_.path: class_ for class_ in step.classes}
        schemas.append(Schema(version=step.version, keys=keys, classes=classes))
    return tuple(schemas)


def choose_schema(schemas: Sequence[Schema], version: str | None) -> Schema:
    """The schema to hold a config of this version against.

    The version's own; else the newest that is not newer; else the oldest. Without a version, the
    newest. A version without a patch is the last of its patches: `0.19` is 0.19.8.

    Args:
        schemas: The newest first.
        version: Of DeepSpeed, as in `deepspeed.__version__`.
    """
    if version is None:
        return schemas[0]
    wanted = release(version)
    size = len(wanted)
    return next((s for s in schemas if release(s.version)[:size] <= wanted), schemas[-1])


def release(version: str) -> tuple[int, ...]:
    """`0.19.8+cu13` is (0, 19, 8)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


# Find the keys by which ranks share more than data.

# runtime/tensor_parallel/config.py; runtime/config.py, DeepSpeedConfig.__init__;
# module_inject/auto_ep_config.py.
PARALLEL_KEYS: Mapping[str, str] = {
    "tensor_parallel.autotp_size": "tensor parallelism",
    "tensor_parallel.tp.tp_size": "tensor parallelism",
    "sequence_parallel_size": "sequence parallelism by this key alone",
    "expert_parallel.enabled": "expert parallelism",
}
"""The keys by which ranks share a tensor, a sequence or experts, and what that is called."""
PLANNED_KEYS = frozenset({"tensor_parallel.autotp_size", "expert_parallel.enabled"})
"""Those of a file that a plan reads, where the file is a config."""


def shares_work(values: object, key: str) -> bool:
    """Whether one of PARALLEL_KEYS makes ranks share the work.

    Example:
        >>> shares_work({"tensor_parallel": {"autotp_size": 4}}, "tensor_parallel.autotp_size")
        True
    """
    value = value_at(values, key)
    if key.endswith(".enabled"):
        return bool(truth_of(value))
    return isinstance(value, int | float | str) and value not in (0, 1, "0", "1", "auto")


# Find the keys of a config that change what a rank holds, and that no line of the ledger counts.
#
# They are all that DeepSpeed knows, by its schema, but for those that a plan reads and those that
# are known to hold nothing: a key of a newer DeepSpeed is named before anybody has thought of it.

# core/dsconfig/own_config.py reads them.
_COUNTED = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("bf16.enabled", "fp16.enabled", "torch_autocast.enabled", "torch_autocast.dtype"),
        *("bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"),
        *(f"{ZERO}.{name}" for name in ("stage", "reduce_bucket_size", "overlap_comm")),
        *(f"{ZERO}.{name}" for name in ("contiguous_gradients", "sub_group_size")),
        *(f"{ZERO}.stage3_{name}" for name in ("prefetch_bucket_size", "max_live_parameters")),
        *(f"{ZERO}.{name}" for name in ("zero_hpz_partition_size", "offload_optimizer.device")),
        *(f"{ZERO}.stage3_param_persistence_threshold", f"{ZERO}.offload_param.device"),
        *(f"{ZERO}.offload_{name}.buffer_count" for name in ("optimizer", "param")),
        *PLANNED_KEYS,
        *(f"expert_parallel.{name}" for name in ("autoep_size", "preset_model")),
        *(f"{ZERO}.offload_param.{name}" for name in ("buffer_size", "max_in_cpu")),
    }
)
# What is written, printed, compared or scaled; how files are read and saved; how ranks are sent
# what they hold anyway.
_HOLDS_NOTHING = frozenset(
    {
        *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level"),
        *("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler"),
        *("autotuning", "timers", "vocabulary_size", "dataloader_drop_last", "disable_python_gc"),
        *("gradient_clipping", "prescale_gradients", "gradient_predivide_factor"),
        *("gradient_allreduce_op", "optimizer", "scheduler", "disable_allgather", "allgather_size"),
        *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "data_parallel_size"),
        *("aio", "checkpoint", "nebula", "elasticity", "use_data_before_expert_parallelism"),
        *(f"fp16.{name}" for name in ("loss_scale", "loss_scale_window", "initial_scale_power")),
        *(f"fp16.{name}" for name in ("hysteresis", "consecutive_hysteresis", "min_loss_scale")),
        *("fp16.auto_cast", "bf16.check_grad_overflow"),
        *(f"{ZERO}.{name}" for name in ("allgather_partitions", "allgather_bucket_size")),
        *(f"{ZERO}.{name}" for name in ("reduce_scatter", "round_robin_gradients")),
        *(f"{ZERO}.{name}" for name in ("ignore_unused_parameters", "legacy_stage1")),
        *(f"{ZERO}.{name}" for name in ("load_from_fp32_weights", "elastic_checkpoint")),
        *(f"{ZERO}.stage3_gather_{name}_weights_on_model_save" for name in ("16bit", "fp16")),
        *(f"{ZERO}.{name}" for name in ("compute_grad_norm", "log_trace_cache_warnings")),
        *(f"{ZERO}.{name}" for name in ("enable_sanity_checks", "cpu_offload_use_pin_memory")),
        *(
            f"{ZERO}.offload_{part}.{name}"
            for part in ("optimizer", "param")
            for name in ("nvme_path", "pin_memory")
        ),
        *(f"{ZERO}.offload_optimizer.pipeline_{name}" for name in ("read", "write")),
        *(f"{ZERO}.offload_optimizer.{name}" for name in ("fast_init", "cpuadam_cores_perc")),
    }
)
_NEVER_NAMED = _COUNTED | _HOLDS_NOTHING
# Optimizers that keep no more than AdamW, as which all are counted (runtime/engine.py,
# _configure_basic_optimizer).
_LEANER_OPTIMIZERS = frozenset({"adagrad", "lion", "muadam", "muadamw", "muon", "musgd", "sgd"})
# Named, but they never make a rank hold more: deepspeed.checkpointing reads the section, if the
# script calls it, and then keeps less.
_NEVER_MORE = ("activation_checkpointing",)


def may_hold_more(keys: Iterable[str], values: Mapping[str, object]) -> bool:
    """Whether keys that are not counted may make a rank hold more than is predicted.

    Args:
        keys: By DeepSpeed's names.
        values: The config.
    """
    section = values.get("optimizer")
    name = str(section.get("type")).lower() if isinstance(section, Mapping) else ""
    never = (*_NEVER_MORE, *(("optimizer.type",) if name in _LEANER_OPTIMIZERS else ()))
    return any(not key.startswith(never) for key in keys)


def uncounted_keys(values: Mapping[str, object], schema: Schema) -> tuple[str, ...]:
    """The keys that are set to something else than their default, by DeepSpeed's names.

    Args:
        values: The config.
        schema: Of the DeepSpeed that reads it; what that does not know changes nothing.

    Example:
        A section that is switched on by its `enabled` is named as a whole:
        `hybrid_engine`, but `compile.deepcompile`.
    """
    return tuple(dict.fromkeys(_uncounted(values, schema, schema.names(), "")))


def _uncounted(
    values: Mapping[str, object], schema: Schema, names: Mapping[str, SchemaKey], above: str
) -> Iterator[str]:
    for name, value in values.items():
        key = names.get(join_path(above, name)) if "." not in name else None
        if key is None or key.removed or key.path in _NEVER_NAMED:
            continue
        switch = names.get(f"{key.path}.enabled")
        if not isinstance(value, Mapping):
            if not _holds_nothing_more(key, value):
                yield key.path
        elif switch is not None and switch.path not in _COUNTED:
            # It is switched on as a whole, and named as a whole.
            if value.get("enabled", switch.default == "true"):
                yield key.path
        elif Kind.NULL in key.takes and not any(
            inner.path in _NEVER_NAMED for inner in schema.children(key.path)
        ):
            # What is off until it is there: `zenflow`, even if empty.
            yield key.path
        else:
            yield from _uncounted(value, schema, names, key.path)


def _holds_nothing_more(key: SchemaKey, value: object) -> bool:
    """Whether it changes nothing, or is for somebody else to fill in."""
    if value is None or value is False or value == "auto":
        return True
    return key.is_default(value)
