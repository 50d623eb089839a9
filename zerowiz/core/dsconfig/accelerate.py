"""Read what `accelerate config` writes: the DeepSpeed config that Accelerate builds of it."""

# Theory. `accelerate launch` turns its file into variables, of which the DeepSpeedPlugin of each
# rank makes a config (accelerate 1.15: commands/launch.py, _validate_launch_command;
# utils/launch.py, prepare_deepspeed_cmd_env; utils/dataclasses.py, DeepSpeedPlugin.__post_init__
# and set_mixed_precision). Where the file is silent the plugin has defaults, or an "auto" that the
# Trainer, or the Accelerator in `prepare`, fills. Of these defaults only those are written that are
# not DeepSpeed's own.
#
# In one thing the file is followed where Accelerate does not: no variable carries
# `offload_*_nvme_path`, so its ranks would offload into a folder of the name `none`.

import re
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from zerowiz.core.dsconfig.hjson import KeyToken, Member, Node, Object, Scalar, Span, plain
from zerowiz.core.workload import SWITCHED, Integration, Precision, Workload
from zerowiz.errors import UsageError

_Value = str | float | bool | None
_Path = tuple[str, ...]

_DEEPSPEED = "DEEPSPEED"
_SECTION = "deepspeed_config"
_TYPE = "distributed_type"
_PRECISION = "mixed_precision"
# What older versions wrote: `fp16: true`.
_OLD_PRECISION = "fp16"
PRECISION_KEYS = (_PRECISION, _OLD_PRECISION)
"""The keys of a file that say its precision; the second one counts where the first is missing."""
_FILE = "deepspeed_config_file"
# The answer that `accelerate config` takes for a path that was not given.
_NO_FILE = "none"
NO_PRECISION = "no"
"""The `mixed_precision` of a file that leaves it to the script."""
_AUTO = "auto"
_NVME = "nvme"


class NotForDeepSpeedError(UsageError):
    """A file has no config for DeepSpeed."""


class AccelerateFile(Struct, frozen=True, kw_only=True):
    """What a file of Accelerate says."""

    path: str
    """As it was given on the command line."""
    text: str
    section: tuple[Member, ...]
    """What stands in `deepspeed_config`."""
    precision: Member | None
    """What says the precision."""
    config_file: str | None
    """The config that it names; a relative path starts where the job does."""
    config: Object
    """What Accelerate builds where no file is named, each key where that of the file stands."""
    file_keys: Mapping[str, str]
    """Dotted paths in the file, by those in `config`."""
    mixed_precision: str
    """`no` leaves it to the script."""
    env: Mapping[str, str]
    """What reaches the ranks beside the config."""
    ranks: int | None
    """Of all nodes; None where the file leaves it open."""
    nodes: int
    gpu_ids: str | None
    refused: tuple[KeyToken, ...]
    """Its keys that Accelerate refuses beside a file that is named."""
    ignored: tuple[KeyToken, ...]
    """Keys of `deepspeed_config` that Accelerate does not have."""
    unknown: tuple[KeyToken, ...]
    """Keys beside `deepspeed_config` that Accelerate does not have."""
    dropped: tuple[KeyToken, ...]
    """Its paths for NVMe, which no variable of `accelerate launch` carries."""
    sharing: tuple[Member, ...]
    """By how many ranks data, sequences and tensors are shared."""

    @property
    def parallel(self) -> tuple[Member, ...]:
        """Its sizes by which ranks share more than data, and which are not planned."""
        return tuple(
            member
            for member in self.sharing
            if member.key.name in PARALLEL_KEYS and (_count(plain(member.value)) or 1) > 1
        )

    @property
    def sequence_parallel(self) -> int | None:
        """The ranks that share each sequence, where it says so."""
        return next(
            (_count(plain(m.value)) for m in self.sharing if m.key.name == SHARED_SIZE), None
        )

    @property
    def ranks_per_node(self) -> int:
        """What Accelerate starts on each node (1.15, utils/launch.py), where it says how many."""
        return max(1, (self.ranks or 1) // self.nodes)


class _Key(Struct, frozen=True, kw_only=True):
    """A key of `deepspeed_config`, and where its value goes in a config."""

    path: _Path
    read: Callable[[object], _Value]
    """What the plugin makes of the variable; a value that it cannot read is left as it is."""
    default: _Value = None
    """What the plugin takes without it; None where that is DeepSpeed's default too."""


def _as_it_is(value: object) -> _Value:
    """A list or a section is handed over as a text."""
    return value if isinstance(value, str | int | float | None) else str(value)


def _whole(value: object) -> _Value:
    # Python reads no text of thousands of digits.
    return int(str(value)) if re.fullmatch(r"\d{1,19}", str(value)) else _as_it_is(value)


def _number(value: object) -> _Value:
    try:
        return float(str(value))
    except ValueError:
        return _as_it_is(value)


def _word(value: object) -> _Value:
    return str(value).lower()


def _truth(value: object) -> _Value:
    return str(value).lower() == "true"


_ZERO = "zero_optimization"
_KEYS: Mapping[str, _Key] = {
    "gradient_accumulation_steps": _Key(
        path=("gradient_accumulation_steps",), read=_whole, default=_AUTO
    ),
    "gradient_clipping": _Key(path=("gradient_clipping",), read=_number, default=_AUTO),
    "zero_stage": _Key(path=(_ZERO, "stage"), read=_whole, default=2),
    "offload_optimizer_device": _Key(path=(_ZERO, "offload_optimizer", "device"), read=_word),
    "offload_optimizer_nvme_path": _Key(path=(_ZERO, "offload_optimizer", "nvme_path"), read=str),
    "offload_param_device": _Key(path=(_ZERO, "offload_param", "device"), read=_word),
    "offload_param_nvme_path": _Key(path=(_ZERO, "offload_param", "nvme_path"), read=str),
    "zero3_save_16bit_model": _Key(
        path=(_ZERO, "stage3_gather_16bit_weights_on_model_save"), read=_truth
    ),
}
# A section of the config stands for its device.
_FILE_KEYS: dict[str, str] = {
    **{".".join(key.path): f"{_SECTION}.{name}" for name, key in _KEYS.items()},
    **{
        f"{_ZERO}.{part}": f"{_SECTION}.{part}_device"
        for part in ("offload_optimizer", "offload_param")
    },
}
# The plugin reads a path for this device alone.
_PATHS = {
    "offload_optimizer_nvme_path": "offload_optimizer_device",
    "offload_param_nvme_path": "offload_param_device",
}
# set_mixed_precision; `no` leaves it to the Accelerator's own argument, and to the Trainer's.
_PRECISIONS: Mapping[str, Mapping[_Path, _Value]] = {
    "fp16": {("fp16", "enabled"): True, ("fp16", "auto_cast"): True},
    "bf16": {("bf16", "enabled"): True},
    "fp8": {("bf16", "enabled"): True},
}
_ENV: Mapping[str, tuple[str, Callable[[object], _Value]]] = {
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", _whole),
    "zero3_init_flag": ("ACCELERATE_DEEPSPEED_ZERO3_INIT", _word),
    "deepspeed_moe_layer_cls_names": ("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", str),
}

# launch.py, launch_command_parser: how ranks are started. `launch` starts them itself.
_OF_THE_LAUNCHER = frozenset(
    f"deepspeed_{name}"
    for name in ("hostfile", "multinode_launcher", "exclusion_filter", "inclusion_filter")
)
KNOWN = frozenset({_FILE, *_KEYS, *_ENV, *_OF_THE_LAUNCHER})
"""The keys of `deepspeed_config` that Accelerate has."""
# commands/config/config_args.py, ClusterConfig; what process_config takes besides stands last.
FILE_KNOWN = frozenset(
    (
        *("command_file", "commands", "compute_environment", "debug", _SECTION, _TYPE),
        *("downcast_bf16", "dynamo_config", "enable_cpu_affinity", "fp8_config", "fsdp_config"),
        *("gpu_ids", "machine_rank", "main_process_ip", "main_process_port"),
        *("main_training_function", "megatron_lm_config", _PRECISION, "mpirun_config"),
        *("num_machines", "num_processes", "parallelism_config", "rdzv_backend", "same_network"),
        *("tpu_env", "tpu_name", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_zone"),
        *("use_cpu", _OLD_PRECISION, "dynamo_backend"),
    )
)
"""The keys of a file that Accelerate has."""

# utils/dataclasses.py, ParallelismConfig; what replicates or shards data is DeepSpeed's own matter.
PARALLEL_KEYS: Mapping[str, str] = {
    f"parallelism_config_{name}_size": f"{kind} parallelism"
    for name, kind in (("tp", "tensor"), ("cp", "context"))
}
"""The keys by which ranks share more than data, and what that is called."""
SHARED_SIZE = "parallelism_config_sp_size"
"""The key by which ranks share sequences."""
SHARING: Mapping[str, str | None] = {
    **dict.fromkeys((*PARALLEL_KEYS, SHARED_SIZE)),
    **dict.fromkeys(f"parallelism_config_dp_{name}_size" for name in ("replicate", "shard")),
    **{
        f"parallelism_config_{name}_backend": b
        for name, b in (("cp", "torch"), ("sp", "deepspeed"))
    },
}
"""The keys of sizes, and of backends with the only one that there is.

The variables of the environment are the same in capitals.
"""


def is_accelerate(values: Mapping[str, Node]) -> bool:
    """Whether a YAML file with these keys is one of Accelerate.

    A file without `distributed_type` has none that Accelerate takes, but programs around it do.
    """
    return _TYPE in values or isinstance(values.get(_SECTION), Object)


def read_accelerate(path: str, text: str, root: Object) -> AccelerateFile:
    """What a file of Accelerate says.

    Args:
        path: The file.
        text: Its content.
        root: The same, parsed.

    Raises:
        NotForDeepSpeedError: It is for something else.
    """
    values, section = _values(root), Object(place=root.place, members=())
    members = {member.key.name: member for member in root.members}
    kind = values.get(_TYPE)
    if kind not in (None, _DEEPSPEED):
        # PyYAML reads a `NO` without quotes as false.
        raise NotForDeepSpeedError(
            f"`{path}` is an Accelerate config for {kind or 'NO'}, not for DeepSpeed",
            "`distributed_type: DEEPSPEED` makes it one; without the file, `zerowiz launch` writes"
            " a DeepSpeed config",
        )
    inner = members[_SECTION].value if _SECTION in members else None
    if isinstance(inner, Object):
        section = inner
    said = {name: value for name, value in _values(section).items() if value is not None}
    named = None if said.get(_FILE) in (None, _NO_FILE) else str(said[_FILE])
    precision = next((members[name] for name in PRECISION_KEYS if name in members), None)
    # utils/dataclasses.py, _deepspeed_config_checks: in the section, a key is enough.
    refused = [member.key for member in section.members if member.key.name in _KEYS]
    if precision is not None and _said_precision(precision) is not None:
        refused.append(precision.key)
    ids, sizes = values.get("gpu_ids"), members.get("parallelism_config")
    return AccelerateFile(
        path=path,
        text=text,
        section=section.members,
        precision=precision,
        config_file=named,
        config=_build(section, precision, said),
        file_keys=_FILE_KEYS
        | dict.fromkeys(
            (f"{name}.enabled" for name in SWITCHED),
            _PRECISION if precision is None else precision.key.name,
        ),
        mixed_precision=_mixed_precision(precision),
        env={
            variable: str(read(said[name]))
            for name, (variable, read) in _ENV.items()
            if said.get(name) not in (None, _AUTO)
        },
        ranks=_count(values.get("num_processes")),
        nodes=_count(values.get("num_machines")) or 1,
        gpu_ids=None if ids in (None, "all") else str(ids),
        refused=tuple(refused) if named is not None else (),
        ignored=tuple(member.key for member in section.members if member.key.name not in KNOWN),
        unknown=tuple(member.key for member in root.members if member.key.name not in FILE_KNOWN),
        dropped=tuple(
            member.key
            for member in section.members
            if member.key.name in said and named is None and _reads_path(said, member.key.name)
        ),
        sharing=sizes.value.members if sizes and isinstance(sizes.value, Object) else (),
    )


def _values(node: Object) -> dict[str, object]:
    return {member.key.name: plain(member.value) for member in node.members}


def _build(section: Object, precision: Member | None, said: Mapping[str, object]) -> Object:
    """The config that the plugin makes; what the file does not say stands where its section does.

    Args:
        section: The value of `deepspeed_config`.
        precision: What says the precision.
        said: The values in the section.
    """
    places = {member.key.name: member.key.place for member in section.members}
    built: dict[_Path, Node] = {}
    for name, key in _KEYS.items():
        value = key.read(said[name]) if name in said else key.default
        # The plugin leaves a clipping of 0 out, and DeepSpeed's own counts.
        is_left_out = value is None or (name == "gradient_clipping" and value == 0)
        if not is_left_out and (name not in _PATHS or _reads_path(said, name)):
            place = places[name] if name in said else section.place
            built[key.path] = Scalar(place=place, value=value)
    # The plugin's `train_batch_size` is left out: the readers work it out of the other two.
    built[("train_micro_batch_size_per_gpu",)] = Scalar(place=section.place, value=_AUTO)
    where = section.place if precision is None else precision.key.place
    switches = _PRECISIONS.get(_mixed_precision(precision), {})
    built |= {path: Scalar(place=where, value=value) for path, value in switches.items()}
    return _nested(built, section.place)


def _reads_path(said: Mapping[str, object], name: str) -> bool:
    """Whether this key is a path that the plugin reads."""
    return name in _PATHS and str(said.get(_PATHS[name])).lower() == _NVME


def _said_precision(member: Member | None) -> object:
    """What `process_config` of commands/config/config_args.py makes of it; None is nothing."""
    value = None if member is None else plain(member.value)
    if member is not None and member.key.name == _OLD_PRECISION:
        return Precision.FP16 if value else None
    return value


def _mixed_precision(member: Member | None) -> str:
    precision = _said_precision(member)
    # PyYAML reads a `no` without quotes as false.
    return NO_PRECISION if precision is None or precision is False else str(precision).lower()


def _count(value: object) -> int | None:
    """A number of ranks or nodes; -1 is one that the command line has to say."""
    count = _whole(value)
    return count if isinstance(count, int) and count > 0 else None


def _nested(values: Mapping[_Path, Node], place: Span) -> Object:
    """An object with nested sections, of values by their paths."""
    members: list[Member] = []
    for name in dict.fromkeys(path[0] for path in values):
        inner = {path[1:]: value for path, value in values.items() if path[0] == name}
        value = inner.get(()) or _nested(inner, next(iter(inner.values())).place)
        members.append(Member(key=KeyToken(place=value.place, name=name), value=value))
    return Object(place=place, members=tuple(members))


# accelerator.py, _prepare_deepspeed, fills in this one.
_CLIPPING = 1.0


def fill(
    config: Mapping[str, object],
    workload: Workload,
    integration: Integration,
    stated: Collection[str],
) -> dict[str, object]:
    """A config that Accelerate builds, for the program that will read it.

    The Trainer and Accelerate fill an "auto" from the script, which cannot know what options of
    zerowiz say; DeepSpeed itself fills none.

    Args:
        config: What Accelerate builds.
        workload: The step that is planned.
        integration: Who reads the config.
        stated: The settings that options of zerowiz say.

    Example:
        >>> config = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}}
        >>> step = Workload(micro_batch=2)
        >>> fill(config, step, Integration.DEEPSPEED, ())["train_micro_batch_size_per_gpu"]
        2
        >>> fill(config, step, Integration.ACCELERATE, ())["train_micro_batch_size_per_gpu"]
        'auto'
    """

    def is_ours(name: str) -> bool:
        return integration.row.as_written or name in stated

    planned = {
        "train_micro_batch_size_per_gpu": ("micro_batch", workload.micro_batch),
        "gradient_accumulation_steps": ("accumulation_steps", workload.accumulation_steps),
        "gradient_clipping": ("gradient_clipping", _CLIPPING),
    }
    numbers = {key: value for key, (name, value) in planned.items() if is_ours(name)}
    filled = {
        key: numbers.get(key, value) if value == _AUTO else value for key, value in config.items()
    }
    # The Trainer fills no section that is not there, and then casts its inputs to fp32.
    by_trainer = integration is Integration.HF and not is_ours("precision")
    if config.keys() & {*SWITCHED} or not (by_trainer or is_ours("precision")):
        return filled
    for precision in SWITCHED:
        filled[precision.value] = {
            "enabled": _AUTO if by_trainer else precision is workload.precision
        }
    return filled
