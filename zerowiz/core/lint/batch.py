"""Find batch sizes that do not multiply to each other, and `auto` that nobody fills."""

import math
from collections.abc import Iterator, Mapping

from zerowiz.core.dsconfig.merge import BATCH_KEYS, ZERO
from zerowiz.core.dsconfig.schema import Kind
from zerowiz.core.findings import Finding, Rule, Severity
from zerowiz.core.lint.config import AUTO, Config, Entry, Relation, put
from zerowiz.core.lint.keys import OUT_OF_RANGE
from zerowiz.core.workload import Integration

# Find an "auto" that is never filled.

# accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin.__post_init__ and set_mixed_precision;
# accelerator.py, Accelerator._prepare_deepspeed. `steps_per_print` is overwritten there.
_ACCELERATE = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("gradient_clipping", "steps_per_print", "fp16.enabled", "bf16.enabled"),
        *(f"{ZERO}.stage", f"{ZERO}.stage3_gather_16bit_weights_on_model_save"),
        *(f"{ZERO}.offload_{part}.device" for part in ("optimizer", "param")),
        *(f"{ZERO}.offload_{part}.nvme_path" for part in ("optimizer", "param")),
        *(f"{ZERO}.reduce_bucket_size", f"{ZERO}.stage3_prefetch_bucket_size"),
        f"{ZERO}.stage3_param_persistence_threshold",
        *("optimizer.params.lr", "optimizer.params.weight_decay"),
        *("scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"),
        *("scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps"),
    }
)
# transformers 5.23, integrations/deepspeed.py, HfTrainerDeepSpeedConfig; then Accelerate.
_TRAINER = _ACCELERATE | {"optimizer.params.betas", "optimizer.params.eps"}
FILLED = {
    Integration.HF: _TRAINER,
    Integration.DEEPSPEED: frozenset[str](),
    Integration.ACCELERATE: _ACCELERATE,
    Integration.LIGHTNING: frozenset[str](),
    None: _TRAINER,
}
"""The keys whose `"auto"` is replaced, by who hands the config over."""
# What DeepSpeed's default turns into another training (runtime/config_utils.py drops every "auto"
# of a strict section). runtime/engine.py compares the clipping with 0 in the first step.
_ANOTHER_TRAINING = frozenset(
    {
        *("bf16.enabled", "fp16.enabled", f"{ZERO}.stage", "gradient_clipping"),
        *("optimizer.type", "scheduler.type", "prescale_gradients", "log_level"),
        *("sequence_parallel_size", "steps_per_print"),
        *("data_types.grad_accum_dtype", "data_types.param_dtype"),
        *(f"{ZERO}.offload_{part}.device" for part in ("optimizer", "param")),
    }
)
_PARAMS = ("optimizer.params.", "scheduler.params.")
# A word that is true, and one that DeepSpeed warns of.
_TAKES_WORDS = frozenset({"optimizer.params.torch_adam", "scheduler.params.warmup_type"})

AUTO_NOT_FILLED = Rule(
    code="ZW301",
    name="auto-not-filled",
    severity=Severity.ERROR,
    why="the Trainer and Accelerate fail on an `auto` that they cannot replace; DeepSpeed alone"
    " uses its default or fails",
)
AUTO_OUT_OF_PLACE = Rule(
    code="ZW302",
    name="auto-out-of-place",
    severity=Severity.ERROR,
    why="only `auto` as the whole value of a key is replaced",
)


def check_auto(config: Config) -> Iterator[Finding]:
    """Every "auto", and what was meant as one."""
    for entry in config.entries:
        finding = None
        if entry.value == AUTO:
            finding = _of_auto(config, entry)
        elif isinstance(entry.value, str) and entry.value.lower() == AUTO:
            if entry.path in _TRAINER or (entry.key and "string" not in entry.key.types):
                finding = entry.found(
                    AUTO_OUT_OF_PLACE,
                    f"`{entry.value}` must be written in lower case: `auto`",
                    "write `auto`",
                    edits=() if config.by_deepspeed else put(entry, AUTO),
                )
        # fill_match compares the whole value: betas of ["auto", "auto"] reach the optimizer.
        elif (
            isinstance(entry.value, list) and AUTO in entry.value and entry.path.startswith(_PARAMS)
        ):
            finding = entry.found(
                AUTO_OUT_OF_PLACE,
                f"nothing replaces an `auto` inside the array of `{entry.label}`",
                'write `"auto"` for the whole array',
            )
        if finding is not None:
            yield config.if_built(finding)


def _of_auto(config: Config, entry: Entry) -> Finding | None:
    key = entry.key
    if key and key.unknown and not key.removed:
        fails = config.by_accelerate or Kind.AUTO not in key.takes
        return entry.found(
            AUTO_OUT_OF_PLACE,
            f"`{entry.label}` is a section: `auto` works for single keys only",
            "remove it, or write its keys",
            severity=Severity.ERROR if fails else Severity.WARNING,
        )
    by_deepspeed = config.by_deepspeed
    severity = _harm_by_deepspeed(entry) if by_deepspeed else _harm_by_accelerate(config, entry)
    if severity is None:
        return None
    return entry.found(
        AUTO_NOT_FILLED,
        f"nothing replaces `auto` of `{entry.label}` when DeepSpeed reads the config itself"
        if by_deepspeed
        else f"neither the Trainer nor Accelerate replaces `auto` of `{entry.label}`",
        "write a value" if by_deepspeed else "remove it to use the default, or write a value",
        severity=severity,
    )


def _is_own_default(entry: Entry) -> bool:
    """Whether `auto` is DeepSpeed's own word here."""
    return entry.key is not None and entry.key.default == f'"{AUTO}"'


def _harm_by_accelerate(config: Config, entry: Entry) -> Severity | None:
    """Accelerate refuses whatever is left (DeepSpeedPlugin.fill_match)."""
    # accelerator.py, _prepare_deepspeed allows every optimizer that is not the config's.
    is_set = entry.path == "zero_allow_untested_optimizer" and "optimizer" not in config.last
    if is_set or entry.path in FILLED[config.context.integration]:
        return None
    if config.by_accelerate:
        return Severity.ERROR
    return None if _is_own_default(entry) or entry.key is None else Severity.WARNING


def _harm_by_deepspeed(entry: Entry) -> Severity | None:
    key = entry.key
    if key is None and entry.path in _TAKES_WORDS:
        return Severity.WARNING
    if key is None:
        return Severity.ERROR if entry.path.startswith(_PARAMS) else None
    if _is_own_default(entry) or key.removed:
        return None
    if Kind.AUTO not in key.takes or key.path in _ANOTHER_TRAINING:
        return Severity.ERROR
    is_dropped = entry.in_strict_section or "string" not in key.types
    return Severity.WARNING if is_dropped else None


# Hold the batch sizes against each other.

# runtime/config.py, DeepSpeedConfig.__init__ and engine.py: these make the ranks that share a
# batch fewer than all of them. The first one counts in a dict, as Accelerate hands it over; of a
# file that DeepSpeed reads itself it does not.
_SEQUENCE_RANKS = "sequence_parallel_size"
_FEWER_RANKS = (_SEQUENCE_RANKS, "data_parallel_size", "tensor_parallel", "pipeline")


def _sequence_ranks(config: Config) -> int:
    """The ranks that share a sequence; 1 where no number says it."""
    ranks = config.number(_SEQUENCE_RANKS)
    return 1 if ranks is None else ranks


def _inequality(config: Config) -> str:
    """What runtime/config.py, _set_batch_related_parameters and _batch_assertion find.

    Nothing where a number is open, or is none: other rules report that.
    """
    train, micro, steps = (config.number(key) for key in BATCH_KEYS)
    if train is None or any(
        config.get(key) is not None and (config.number(key) or 0) <= 0 for key in BATCH_KEYS
    ):
        return ""
    if config.by_accelerate and steps is None:
        # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
        steps = 1
    factors = [factor for factor in (micro, steps) if factor is not None]
    divisor, product = math.prod(factors), "".join(f"{factor} * " for factor in factors)
    if train % divisor:
        return f"{train} is not a multiple of {product.removesuffix(' * ')}"
    world_size = config.context.world_size
    fewer = _FEWER_RANKS[1:] if config.by_accelerate else _FEWER_RANKS
    if world_size is None or any(config.get(key) is not None for key in fewer):
        return ""
    ranks = world_size / max(1, _sequence_ranks(config))
    is_whole = micro is not None and steps is not None
    holds = train == divisor * ranks if is_whole else not train % (divisor * ranks)
    wanted = "is not" if is_whole else "is not a multiple of"
    return "" if holds else f"{train} {wanted} {product}{ranks:g} ranks"


RELATIONS: Mapping[Rule, tuple[Relation, ...]] = {
    AUTO_NOT_FILLED: (
        # accelerate/utils/dataclasses.py, DeepSpeedPlugin.deepspeed_config_process.
        Relation(
            at=BATCH_KEYS[0],
            when=lambda config, entry: (
                config.context.integration is Integration.ACCELERATE
                and entry.value == AUTO
                and BATCH_KEYS[1] not in config.last
            ),
            says="Accelerate replaces `auto` of `train_batch_size` only beside"
            " `train_micro_batch_size_per_gpu`",
            fix='write `"train_micro_batch_size_per_gpu": "auto"` beside it',
        ),
    ),
    OUT_OF_RANGE: (
        # runtime/config.py, DeepSpeedConfig.__init__ divides the ranks by it.
        Relation(
            at=_SEQUENCE_RANKS,
            when=lambda config, _: _sequence_ranks(config) < 1,
            says=lambda config, _: (
                f"`{_SEQUENCE_RANKS}` must be at least 1, not {_sequence_ranks(config)}"
            ),
            because="DeepSpeed divides the number of ranks by it",
            fix="write 1, or remove it",
        ),
    ),
    Rule(
        code="ZW402",
        name="batch-missing",
        severity=Severity.ERROR,
        why="DeepSpeed rejects a config without train_batch_size and"
        " train_micro_batch_size_per_gpu",
    ): (
        Relation(
            at="",
            when=lambda config, _: all(config.get(key) is None for key in BATCH_KEYS[:2]),
            says="neither `train_batch_size` nor `train_micro_batch_size_per_gpu` is set",
            fix=lambda config, _: (
                "write `train_micro_batch_size_per_gpu`"
                + ("" if config.by_deepspeed else ', as `"auto"` for the Trainer')
            ),
            severity=lambda config, _: (
                Severity.WARNING if config.context.integration is None else Severity.ERROR
            ),
        ),
    ),
    Rule(
        code="ZW401",
        name="batch-equation",
        severity=Severity.ERROR,
        why="DeepSpeed requires train_batch_size = train_micro_batch_size_per_gpu *"
        " gradient_accumulation_steps * number of ranks",
    ): (
        Relation(
            at=BATCH_KEYS[0],
            when=lambda config, _: _inequality(config),
            says=lambda config, _: f"the `train_batch_size` of {_inequality(config)}",
            fix=lambda config, _: (
                "remove `train_batch_size`: DeepSpeed computes it"
                if config.get(BATCH_KEYS[1]) is not None
                else "write a multiple, or `train_micro_batch_size_per_gpu` in its place"
            ),
        ),
        # On CPU ranks the process group is not there yet when from_pretrained shards the weights
        # (runtime/zero/partition_parameters.py, Init): DeepSpeed counts one rank.
        Relation(
            at=BATCH_KEYS[0],
            when=lambda config, entry: (
                config.context.on_cpu
                and (config.context.world_size or 1) > 1
                and config.context.integration is Integration.HF
                and config.is_stage_3
                and entry.value == AUTO
            ),
            says="at stage 3 on CPU ranks, the `train_batch_size` that the Trainer fills is not"
            " that of one rank",
            fix="remove `train_batch_size`: DeepSpeed computes it",
        ),
    ),
}
