"""Find offloads that do nothing or fail, and settings that lose a training."""

from collections.abc import Iterator, Mapping

from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import AUTO, STAGE_3, ZERO, Config, Entry, shown
from zerowiz.core.lint.keys import OUT_OF_RANGE
from zerowiz.core.lint.report import ConfigFinding
from zerowiz.core.workload import FP32_BYTES


def check_offload(config: Config) -> Iterator[ConfigFinding]:
    """Stages, devices, optimizers."""
    yield from _stages(config)
    yield from _nvme(config)
    yield from _ratio(config)
    if offloads(config) and config.stage:
        yield from _optimizer(config)


def offloads(config: Config) -> bool | None:
    """Whether the optimizer goes to the CPU or further; None where it is not known yet."""
    # runtime/zero/config.py: cpu_offload becomes an offload_optimizer.
    if config.device("offload_optimizer") or config.truth(f"{ZERO}.cpu_offload"):
        return True
    return None if config.get(f"{ZERO}.offload_optimizer.device") == AUTO else False


OFFLOAD_WITHOUT_STAGE = Rule(
    code="ZW502",
    name="offload-without-stage",
    severity=Severity.WARNING,
    why="the offload has no effect at this stage, or fails in the first step",
)


def _stages(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, zero_use_cpu_optimizer asks for no stage, and at stage 0 the parameters
    # that the CPU's optimizer gets are on the GPU.
    if offloads(config) and config.stage == 0:
        forced = config.truth("zero_force_ds_cpu_optimizer", default=True)
        entry = _place(config)
        yield entry.found(
            OFFLOAD_WITHOUT_STAGE,
            f"`{entry.label}` needs stage 1, 2 or 3",
            severity=Severity.ERROR if forced else Severity.WARNING,
            fix="write stage 1, 2 or 3, or remove it",
        )
    # runtime/engine.py, _configure_zero_optimizer hands offload_param to stage 3 alone.
    if config.device("offload_param") and config.stage in {0, 1, 2}:
        entry = _at(config, "offload_param")
        yield entry.found(
            OFFLOAD_WITHOUT_STAGE,
            f"`{entry.label}` has no effect at stage {config.stage}",
            fix="write stage 3, or remove it",
        )


NVME_WITHOUT_STAGE_3 = Rule(
    code="ZW509",
    name="nvme-without-stage-3",
    severity=Severity.WARNING,
    why="below stage 3, DeepSpeed treats `nvme` as host memory",
)
NVME_WITHOUT_PATH = Rule(
    code="ZW510",
    name="nvme-without-path",
    severity=Severity.ERROR,
    why="DeepSpeed needs a path to write to, and fails without one",
)


def _nvme(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage_1_and_2.py: every device but none is the CPU.
    if config.device("offload_optimizer") == "nvme" and config.stage in {1, 2}:
        yield _at(config, "offload_optimizer.device").found(
            NVME_WITHOUT_STAGE_3,
            (
                f"at stage {config.stage} DeepSpeed offloads the optimizer to host memory, "
                "not to NVMe"
            ),
            fix="write stage 3, or `cpu`",
        )
    for part in ("offload_optimizer", "offload_param"):
        # runtime/zero/stage3.py, _configure_tensor_swapping and partition_parameters.py.
        path = f"{ZERO}.{part}.nvme_path"
        is_missing = config.get(path) is None
        if config.device(part) == "nvme" and config.stage == STAGE_3 and is_missing:
            entry, key = _at(config, part), config.label(path)
            yield entry.found(
                NVME_WITHOUT_PATH,
                f"`{entry.label}` has no `{key}`",
                fix=f"write `{key}`",
            )


PARTIAL_OFFLOAD = Rule(
    code="ZW512",
    name="partial-offload",
    severity=Severity.ERROR,
    why="only stage 3 can offload a part of the states",
)


def _ratio(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/config.py, offload_ratio_check.
    entry = config.last.get(f"{ZERO}.offload_optimizer.ratio")
    is_part = entry and isinstance(entry.value, float) and entry.value < 1
    if entry and is_part and config.stage in {0, 1, 2}:
        yield entry.found(
            PARTIAL_OFFLOAD,
            f"a `ratio` of {entry.value} needs stage 3, not {config.stage}",
            fix="remove it, or write stage 3",
        )


OPTIMIZER_UNDER_OFFLOAD = Rule(
    code="ZW503",
    name="optimizer-under-offload",
    severity=Severity.WARNING,
    why="DeepSpeed rejects an optimizer without a CPU version, or runs it slowly",
)


def _optimizer(config: Config) -> Iterator[ConfigFinding]:
    kind = config.last.get("optimizer.type")
    if kind is None or not isinstance(kind.value, str):
        # runtime/engine.py, _configure_optimizer.
        if config.by_deepspeed and config.truth("zero_force_ds_cpu_optimizer", default=True):
            yield _place(config).found(
                OPTIMIZER_UNDER_OFFLOAD,
                (
                    "the script must pass a DeepSpeedCPUAdam: DeepSpeed rejects other "
                    "optimizers here"
                ),
                fix='write an `optimizer`, or `"zero_force_ds_cpu_optimizer": false`',
            )
        return
    # runtime/engine.py, _do_optimizer_sanity_check.
    untested = config.truth("zero_allow_untested_optimizer")
    built = config.schema.classes.optimizer(kind.value)
    if built is None or not built.has_cpu_form:
        finding = kind.found(
            OPTIMIZER_UNDER_OFFLOAD,
            f"`{shown(kind.value)}` has no CPU version, which `offload_optimizer` needs",
            severity=Severity.WARNING if untested else Severity.ERROR,
            fix="write `AdamW`",
        )
        yield config.if_built(finding)
    # runtime/engine.py, get_optimizer_configuration.
    elif config.truth("optimizer.params.torch_adam"):
        yield config.last["optimizer.params.torch_adam"].found(
            OPTIMIZER_UNDER_OFFLOAD,
            "`torch_adam` uses torch's own AdamW on the CPU, which is slow",
            fix="remove it",
        )


def _place(config: Config) -> Entry:
    old = config.last.get(f"{ZERO}.cpu_offload")
    return config.last.get(f"{ZERO}.offload_optimizer") or old or config.last[ZERO]


def _at(config: Config, part: str) -> Entry:
    return config.last[f"{ZERO}.{part}"]


# Find values that work, and cost more than anybody meant.

_REDUCE = f"{ZERO}.reduce_bucket_size"
_SUB_GROUP = f"{ZERO}.sub_group_size"
_LIVE = f"{ZERO}.stage3_max_live_parameters"
_PREFETCH = f"{ZERO}.stage3_prefetch_bucket_size"
_PERSISTENCE = f"{ZERO}.stage3_param_persistence_threshold"
_HALF_BYTES = 2
# DeepSpeed's default of 5e8 elements takes up to an eighth of a GPU of 8 GiB.
_MOST_FRACTION = 1 / 8
# An eighth of 80 GB, for a GPU that is not known.
_MOST_BYTES = 10 * 10**9
# runtime/zero/partitioned_param_coordinator.py, fetch_sub_module and __params_to_release. What
# recurs within the reuse distance was passed on the way in and on the way out: half of it is held.
_HELD_FRACTION: Mapping[str, float] = {
    _LIVE: 1,
    _PREFETCH: 1,
    f"{ZERO}.stage3_max_reuse_distance": 1 / 2,
}
# runtime/zero/parameter_offload.py, mark_persistent_parameters: a weight of 4096 x 4096 has 1.7e7.
_MOST_PERSISTENT_ELEMENTS = 10**7
# torch/nn/parallel/distributed.py, _DEFAULT_FIRST_BUCKET_BYTES: DDP sends 1 MiB only to begin with,
# then 25 MiB at a time.
_LEAST_ELEMENTS = 10**6


def check_danger(config: Config) -> Iterator[ConfigFinding]:
    """Sizes of buffers and thresholds, against the GPU's memory where it is known."""
    if config.stage:
        yield from _reduce_bucket(config)
        yield from _small_pieces(config)
    if config.stage == STAGE_3:
        yield from _kept_whole(config)
        yield from _persistent(config)
        yield from _nothing_prefetched(config)


BUCKET_TOO_LARGE = Rule(
    code="ZW801",
    name="bucket-too-large",
    severity=Severity.WARNING,
    why="DeepSpeed allocates the whole buffer, even for a small model",
)


def _reduce_bucket(config: Config) -> Iterator[ConfigFinding]:
    elements = config.number(_REDUCE)
    if elements is None:
        return
    entry, gpu_bytes = config.last[_REDUCE], config.context.gpu_bytes
    # runtime/zero/stage_1_and_2.py, setup_buckets: a second one with overlap_comm; stage3.py has
    # one.
    buckets = 2 if config.truth(f"{ZERO}.overlap_comm") and config.stage in {1, 2} else 1
    size_bytes = elements * _element_bytes(config) * buckets
    most_bytes = _MOST_BYTES if gpu_bytes is None else int(gpu_bytes * _MOST_FRACTION)
    if size_bytes > most_bytes:
        yield entry.found(
            BUCKET_TOO_LARGE,
            f"buckets of {elements} elements take {size_bytes} bytes on each GPU",
            fix="write 50000000",
        )
    # 0.16.9, runtime/zero/stage_1_and_2.py and stage3.py, and 0.17.6 and 0.18.9,
    # runtime/base_optimizer.py, report_ipg_memory_usage; from 0.19 on the schema has a bound. At
    # stage 1 they may take another optimizer, which does not divide.
    is_taken = entry.key is not None and entry.key.accepts(elements)
    if elements == 0 and is_taken and config.stage != 1:
        yield entry.found(
            OUT_OF_RANGE, "DeepSpeed divides by `reduce_bucket_size`", fix="write 50000000"
        )


SMALL_PIECES = Rule(
    code="ZW806",
    name="small-pieces",
    severity=Severity.INFO,
    why="starting each of so many small pieces takes longer than the work",
)


def _small_pieces(config: Config) -> Iterator[ConfigFinding]:
    elements = config.number(_REDUCE)
    if elements is not None and 0 < elements < _LEAST_ELEMENTS:
        yield config.last[_REDUCE].found(
            SMALL_PIECES,
            f"gradients are reduced only {elements} elements at a time",
            fix="write 50000000",
        )
    # runtime/zero/stage3.py, _create_fp16_sub_groups: a group ends behind the parameter that fills
    # it, so that at 0 each is a group, with an optimizer step of its own.
    sub_group = config.number(_SUB_GROUP)
    if sub_group is not None and sub_group < _LEAST_ELEMENTS and config.stage == STAGE_3:
        yield config.last[_SUB_GROUP].found(
            SMALL_PIECES,
            f"the optimizer steps {sub_group} elements at a time"
            if sub_group
            else "the optimizer steps each parameter by itself",
            severity=Severity.INFO if sub_group else Severity.WARNING,
            fix="remove it to use the default of 1000000000",
        )


def _kept_whole(config: Config) -> Iterator[ConfigFinding]:
    gpu_bytes = config.context.gpu_bytes
    for path, fraction in _HELD_FRACTION.items():
        elements = config.number(path)
        if elements is None or gpu_bytes is None:
            continue
        size_bytes = int(elements * fraction) * _element_bytes(config)
        if size_bytes > gpu_bytes * _MOST_FRACTION:
            yield _held(
                config.last[path],
                (
                    f"`{config.last[path].label}` lets {size_bytes} bytes of parameters stay "
                    f"unsharded on a GPU of {gpu_bytes}"
                ),
                int(gpu_bytes * _MOST_FRACTION / _element_bytes(config) / fraction),
            )


def _persistent(config: Config) -> Iterator[ConfigFinding]:
    elements = config.number(_PERSISTENCE)
    if elements is not None and elements > _MOST_PERSISTENT_ELEMENTS:
        yield _held(
            config.last[_PERSISTENCE],
            f"weights of up to {elements} elements are not sharded at all",
            10**5,
        )


KEPT_WHOLE = Rule(
    code="ZW805",
    name="kept-whole",
    severity=Severity.INFO,
    why="stage 3 shards the parameters, but keeps this many gathered on each GPU",
)


def _held(entry: Entry, message: str, most_elements: int) -> ConfigFinding:
    digits = 10 ** (len(str(most_elements)) - 1)
    return entry.found(
        KEPT_WHOLE,
        message,
        fix=f"write {most_elements // digits * digits} or less",
    )


NOTHING_PREFETCHED = Rule(
    code="ZW807",
    name="nothing-prefetched",
    severity=Severity.INFO,
    why="stage 3 then gathers parameters only when they are needed, and the GPU waits",
)


def _nothing_prefetched(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/partitioned_param_coordinator.py, fetch_sub_module takes the smaller of the two.
    for path, default in ((_LIVE, 10**9), (_PREFETCH, 5 * 10**7)):
        if config.number(path) == 0:
            yield config.last[path].found(
                NOTHING_PREFETCHED,
                f"a `{config.last[path].label}` of 0 prefetches nothing",
                fix=f"remove it to use the default of {default}",
            )


def _element_bytes(config: Config) -> int:
    off = all(config.get(f"{name}.enabled") is False for name in ("bf16", "fp16"))
    return FP32_BYTES if off else _HALF_BYTES
