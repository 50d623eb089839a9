"""Find offloads that do nothing or fail, and settings that lose a training."""

from collections.abc import Mapping

from zerowiz.core.dsconfig.merge import ZERO
from zerowiz.core.findings import Rule, Severity, size
from zerowiz.core.lint.config import Config, Entry, Relation
from zerowiz.core.lint.keys import OUT_OF_RANGE
from zerowiz.core.workload import FP32_BYTES, HALF_BYTES

_OFFLOAD_OPTIMIZER = f"{ZERO}.offload_optimizer"
_OFFLOAD_PARAM = f"{ZERO}.offload_param"


def _place(config: Config) -> str:
    """The key that offloads the optimizer."""
    places = (_OFFLOAD_OPTIMIZER, f"{ZERO}.cpu_offload", ZERO)
    return next((path for path in places if path in config.last), ZERO)


def _moves_optimizer(config: Config) -> bool:
    """Whether a stage of ZeRO steps on the CPU."""
    return bool(config.offloads and config.stage)


def _forces_cpu_adam(config: Config) -> bool | None:
    return config.truth("zero_force_ds_cpu_optimizer", default=True)


def _has_cpu_form(config: Config) -> bool:
    built = config.schema.optimizer(config.word("optimizer.type") or "")
    return built is not None and built.has_cpu_form


def _lacks_path(config: Config, part: str) -> bool:
    # runtime/zero/stage3.py, _configure_tensor_swapping and partition_parameters.py.
    is_missing = config.get(f"{ZERO}.{part}.nvme_path") is None
    return config.is_stage_3 and config.device(part) == "nvme" and is_missing


OFFLOADS: Mapping[Rule, tuple[Relation, ...]] = {
    Rule(
        code="ZW502",
        name="offload-without-stage",
        severity=Severity.WARNING,
        why="the offload has no effect at this stage, or fails in the first step",
    ): (
        # runtime/engine.py, zero_use_cpu_optimizer asks for no stage, and at stage 0 the parameters
        # that the CPU's optimizer gets are on the GPU.
        Relation(
            at=_place,
            when=lambda config, _: config.offloads and config.stage == 0,
            says=lambda _, entry: f"`{entry.label}` needs stage 1, 2 or 3",
            fix="write stage 1, 2 or 3, or remove it",
            severity=lambda config, _: (
                Severity.ERROR if _forces_cpu_adam(config) else Severity.WARNING
            ),
        ),
        # runtime/engine.py, _configure_zero_optimizer hands offload_param to stage 3 alone.
        Relation(
            at=_OFFLOAD_PARAM,
            when=lambda config, _: config.device("offload_param") and config.stage in {0, 1, 2},
            says=lambda config, entry: f"`{entry.label}` has no effect at stage {config.stage}",
            fix="write stage 3, or remove it",
        ),
    ),
    Rule(
        code="ZW509",
        name="nvme-without-stage-3",
        severity=Severity.WARNING,
        why="below stage 3, DeepSpeed treats `nvme` as host memory",
    ): (
        # runtime/zero/stage_1_and_2.py: every device but none is the CPU.
        Relation(
            at=f"{_OFFLOAD_OPTIMIZER}.device",
            when=lambda config, entry: entry.value == "nvme" and config.stage in {1, 2},
            says=lambda config, _: (
                f"at stage {config.stage} DeepSpeed offloads the optimizer to host memory, not to"
                " NVMe"
            ),
            fix="write stage 3, or `cpu`",
        ),
    ),
    Rule(
        code="ZW510",
        name="nvme-without-path",
        severity=Severity.ERROR,
        why="DeepSpeed needs a path to write to, and fails without one",
    ): tuple(
        Relation(
            at=part,
            when=lambda config, entry: _lacks_path(config, entry.name),
            says=lambda config, entry: (
                f"`{entry.label}` has no `{config.label(f'{entry.known_path}.nvme_path')}`"
            ),
            fix=lambda config, entry: f"write `{config.label(f'{entry.known_path}.nvme_path')}`",
        )
        for part in (_OFFLOAD_OPTIMIZER, _OFFLOAD_PARAM)
    ),
    Rule(
        code="ZW512",
        name="partial-offload",
        severity=Severity.ERROR,
        why="only stage 3 can offload a part of the states",
    ): (
        # runtime/zero/config.py, offload_ratio_check.
        Relation(
            at=f"{_OFFLOAD_OPTIMIZER}.ratio",
            when=lambda config, entry: (
                entry.number is not None and entry.number < 1 and config.stage in {0, 1, 2}
            ),
            says=lambda config, entry: (
                f"a `ratio` of {entry.value} needs stage 3, not {config.stage}"
            ),
            fix="remove it, or write stage 3",
        ),
    ),
    Rule(
        code="ZW503",
        name="optimizer-under-offload",
        severity=Severity.WARNING,
        why="DeepSpeed rejects an optimizer without a CPU version, or runs it slowly",
    ): (
        # runtime/engine.py, _configure_optimizer.
        Relation(
            at=_place,
            when=lambda config, _: (
                _moves_optimizer(config)
                and config.word("optimizer.type") is None
                and config.by_deepspeed
                and _forces_cpu_adam(config)
            ),
            says="the script must pass a DeepSpeedCPUAdam: DeepSpeed rejects other optimizers here",
            fix='write an `optimizer`, or `"zero_force_ds_cpu_optimizer": false`',
        ),
        # runtime/engine.py, _do_optimizer_sanity_check.
        Relation(
            at="optimizer.type",
            when=lambda config, entry: (
                _moves_optimizer(config)
                and isinstance(entry.value, str)
                and not _has_cpu_form(config)
            ),
            says=lambda _, entry: (
                f"`{entry.shown}` has no CPU version, which `offload_optimizer` needs"
            ),
            fix="write `AdamW`",
            severity=lambda config, _: (
                Severity.WARNING
                if config.truth("zero_allow_untested_optimizer")
                else Severity.ERROR
            ),
        ),
        # runtime/engine.py, get_optimizer_configuration.
        Relation(
            at="optimizer.params.torch_adam",
            when=lambda config, _: (
                _moves_optimizer(config)
                and config.truth("optimizer.params.torch_adam")
                and _has_cpu_form(config)
            ),
            says="`torch_adam` uses torch's own AdamW on the CPU, which is slow",
            fix="remove it",
        ),
    ),
}

# Find values that work, and cost more than anybody meant.

_REDUCE = f"{ZERO}.reduce_bucket_size"
# DeepSpeed's default of 5e8 elements takes up to an eighth of a GPU of 8 GiB.
_MOST_FRACTION = 1 / 8
# An eighth of 80 GB, for a GPU that is not known.
_MOST_BYTES = 10 * 10**9
# runtime/zero/partitioned_param_coordinator.py, fetch_sub_module and __params_to_release. What
# recurs within the reuse distance was passed on the way in and on the way out: half of it is held.
_HELD_FRACTION: Mapping[str, float] = {
    f"{ZERO}.stage3_max_live_parameters": 1,
    f"{ZERO}.stage3_prefetch_bucket_size": 1,
    f"{ZERO}.stage3_max_reuse_distance": 1 / 2,
}
# runtime/zero/parameter_offload.py, mark_persistent_parameters: a weight of 4096 x 4096 has 1.7e7.
_MOST_PERSISTENT_ELEMENTS = 10**7
# torch/nn/parallel/distributed.py, _DEFAULT_FIRST_BUCKET_BYTES: DDP sends 1 MiB only to begin with,
# then 25 MiB at a time.
_LEAST_ELEMENTS = 10**6


def _element_bytes(config: Config) -> int:
    off = all(config.get(f"{name}.enabled") is False for name in ("bf16", "fp16"))
    return FP32_BYTES if off else HALF_BYTES


def _elements(config: Config, entry: Entry) -> int:
    """The size that a key says; -1 where it says none."""
    elements = config.number(entry.known_path)
    return -1 if elements is None else elements


def _bucket_bytes(config: Config, entry: Entry) -> int:
    # runtime/zero/stage_1_and_2.py, setup_buckets: a second one with overlap_comm; stage3.py has
    # one.
    buckets = 2 if config.truth(f"{ZERO}.overlap_comm") and config.stage in {1, 2} else 1
    return _elements(config, entry) * _element_bytes(config) * buckets


def _most_bytes(config: Config) -> int:
    gpu_bytes = config.context.gpu_bytes
    return _MOST_BYTES if gpu_bytes is None else int(gpu_bytes * _MOST_FRACTION)


def _held_bytes(config: Config, entry: Entry) -> int:
    """What a limit of stage 3 lets stay whole on a GPU."""
    elements = int(_elements(config, entry) * _HELD_FRACTION[entry.known_path])
    return elements * _element_bytes(config)


def _held_at_most(config: Config, entry: Entry) -> int:
    """As many elements of this limit as leave room, with one digit."""
    bytes_each = _element_bytes(config) * _HELD_FRACTION[entry.known_path]
    elements = int((config.context.gpu_bytes or 0) * _MOST_FRACTION / bytes_each)
    unit: int = 10 ** (len(str(elements)) - 1)
    return elements // unit * unit


def _is_divided_by(config: Config, entry: Entry) -> bool:
    # 0.16.9, runtime/zero/stage_1_and_2.py and stage3.py, and 0.17.6 and 0.18.9,
    # runtime/base_optimizer.py, report_ipg_memory_usage; from 0.19 on the schema has a bound. At
    # stage 1 they may take another optimizer, which does not divide.
    is_taken = entry.key is not None and entry.key.accepts(0)
    return is_taken and config.stage not in {None, 0, 1}


SIZES: Mapping[Rule, tuple[Relation, ...]] = {
    Rule(
        code="ZW801",
        name="bucket-too-large",
        severity=Severity.WARNING,
        why="DeepSpeed allocates the whole buffer, even for a small model",
    ): (
        Relation(
            at=_REDUCE,
            when=lambda config, entry: (
                config.stage and _bucket_bytes(config, entry) > _most_bytes(config)
            ),
            says=lambda config, entry: (
                f"buckets of {_elements(config, entry)} elements take"
                f" {size(_bucket_bytes(config, entry))} on each GPU"
            ),
            fix="write 50000000",
        ),
    ),
    OUT_OF_RANGE: (
        Relation(
            at=_REDUCE,
            when=lambda config, entry: (
                _elements(config, entry) == 0 and _is_divided_by(config, entry)
            ),
            says="DeepSpeed divides by `reduce_bucket_size`",
            fix="write 50000000",
        ),
    ),
    Rule(
        code="ZW806",
        name="small-pieces",
        severity=Severity.INFO,
        why="starting each of so many small pieces takes longer than the work",
    ): (
        Relation(
            at=_REDUCE,
            when=lambda config, entry: (
                config.stage and 0 < _elements(config, entry) < _LEAST_ELEMENTS
            ),
            says=lambda config, entry: (
                f"gradients are reduced only {_elements(config, entry)} elements at a time"
            ),
            fix="write 50000000",
        ),
        # runtime/zero/stage3.py, _create_fp16_sub_groups: a group ends behind the parameter that
        # fills it, so that at 0 each is a group, with an optimizer step of its own.
        Relation(
            at=f"{ZERO}.sub_group_size",
            when=lambda config, entry: (
                config.is_stage_3
                and config.number(entry.known_path) is not None
                and _elements(config, entry) < _LEAST_ELEMENTS
            ),
            says=lambda config, entry: (
                f"the optimizer steps {_elements(config, entry)} elements at a time"
                if _elements(config, entry)
                else "the optimizer steps each parameter by itself"
            ),
            fix="remove it to use the default of 1000000000",
            severity=lambda config, entry: (
                Severity.INFO if _elements(config, entry) else Severity.WARNING
            ),
        ),
    ),
    Rule(
        code="ZW805",
        name="kept-whole",
        severity=Severity.INFO,
        why="stage 3 shards the parameters, but keeps this many gathered on each GPU",
    ): (
        *(
            Relation(
                at=path,
                when=lambda config, entry: (
                    config.is_stage_3
                    and config.context.gpu_bytes is not None
                    and _held_bytes(config, entry) > config.context.gpu_bytes * _MOST_FRACTION
                ),
                says=lambda config, entry: (
                    f"`{entry.label}` lets {size(_held_bytes(config, entry))} of parameters stay"
                    f" unsharded on a GPU of {size(config.context.gpu_bytes or 0)}"
                ),
                fix=lambda config, entry: f"write {_held_at_most(config, entry)} or less",
            )
            for path in _HELD_FRACTION
        ),
        Relation(
            at=f"{ZERO}.stage3_param_persistence_threshold",
            when=lambda config, entry: (
                config.is_stage_3 and _elements(config, entry) > _MOST_PERSISTENT_ELEMENTS
            ),
            says=lambda config, entry: (
                f"weights of up to {_elements(config, entry)} elements are not sharded at all"
            ),
            fix="write 100000 or less",
        ),
    ),
    Rule(
        code="ZW807",
        name="nothing-prefetched",
        severity=Severity.INFO,
        why="stage 3 then gathers parameters only when they are needed, and the GPU waits",
    ): tuple(
        # runtime/zero/partitioned_param_coordinator.py, fetch_sub_module takes the smaller of the
        # two.
        Relation(
            at=f"{ZERO}.{name}",
            when=lambda config, entry: config.is_stage_3 and _elements(config, entry) == 0,
            says=lambda _, entry: f"a `{entry.label}` of 0 prefetches nothing",
            fix=f"remove it to use the default of {default}",
        )
        for name, default in (
            ("stage3_max_live_parameters", 10**9),
            ("stage3_prefetch_bucket_size", 5 * 10**7),
        )
    ),
}
