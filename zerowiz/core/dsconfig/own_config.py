"""Read the facts that a plan needs out of a person's own ds_config."""

import re
from collections.abc import Iterator, Mapping
from functools import partial

from msgspec import Struct

from zerowiz.core.dsconfig.merge import (
    BATCH_KEYS,
    BETAS,
    LEARNED_BY,
    SHARDED_PARAMETERS,
    ZERO,
    says_precision,
    section_of,
    truth_of,
    value_at,
    whole_of,
)
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, NvmeBuffers
from zerowiz.core.settings import OF_ADAM
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.structs import MOST_COUNT, replace
from zerowiz.core.workload import PRECISIONS, SWITCHED, Precision, StateDtype, Uncounted
from zerowiz.errors import UsageError

# Theory. DeepSpeed's sections are pydantic models that convert what they can: "2" is a number to
# them, and 1 or the word `yes`, which hjson takes without quotes, is true.


AUTOCAST_KEY = "torch_autocast.enabled"


class UserConfig(Struct, frozen=True, kw_only=True):
    """The settings of the file; None where a key is not set or is "auto", or there is no file."""

    stage: int | None = None
    offload: OffloadChoice | None = None
    buffers: Buffers | None = None
    sequence_parallel: int | None = None
    """Of an Accelerate file, or of the variables that Accelerate reads."""
    tensor_parallel: int | None = None
    """The ranks that cut linear layers between them."""
    expert_parallel: int | None = None
    """The ranks among which experts are dealt out."""
    train_batch_size: int | None = None
    micro_batch: int | None = None
    accumulation_steps: int | None = None
    precision: Precision | None = None
    fallback_precision: Precision | None = None
    """What its reader fills in where neither the script nor an option says it."""
    torch_autocast: Precision | None = None
    autocasts_half: bool = False
    """Whether autocast to the format of its weights runs over weights of 16 bits."""
    state_dtype: StateDtype | None = None
    learning: tuple[tuple[str, object], ...] = ()
    """What it says of how the model learns, each with its name in LEARNING."""
    uncounted: tuple[str, ...] = ()
    """Its keys that change memory in ways that the ledger does not count."""
    besides: tuple[Uncounted, ...] = ()
    """What it makes a rank hold besides what the ledger counts."""
    base: Mapping[str, object] | None = None
    """All that it says, where another config is built on it."""

    @property
    def leaves_batch_open(self) -> bool:
        """Whether it says no part of the batch: its reader fills them in."""
        return (self.train_batch_size, self.micro_batch, self.accumulation_steps) == (None,) * 3

    def batch(self, ranks: int) -> tuple[int | None, int | None]:
        """Micro-batch and accumulation on this many ranks, as DeepSpeed completes the three.

        Source: runtime/config.py, _set_batch_related_parameters (0.19.8).

        Raises:
            UsageError: The three do not multiply out.
        """
        whole, micro, steps = self.train_batch_size, self.micro_batch, self.accumulation_steps
        # Each of those that train the same sequences counts there.
        ranks *= self.tensor_parallel or 1
        if whole is None:
            return micro, steps
        if micro is None:
            micro = whole // (ranks * (steps or 1))
        if steps is None:
            steps = whole // (ranks * max(1, micro))
        if micro * steps * ranks != whole:
            raise UsageError(
                f"`train_batch_size` {whole} is not {micro} x {steps} x {ranks} ranks",
                "remove `train_batch_size`: DeepSpeed computes it from the other two",
            )
        return micro, steps


def _count(values: Mapping[str, object], *keys: str) -> int | None:
    """An integral number under the first of these names; DeepSpeed takes 5e8 as well."""
    counts = (_whole(values.get(key)) for key in keys)
    return next((count for count in counts if count is not None), None)


def _whole(value: object) -> int | None:
    # As many digits as Python turns into a number without a look at the limit.
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        return int(value)
    whole = whole_of(value)
    return None if whole is None else max(-MOST_COUNT, min(whole, MOST_COUNT))


def _truth(values: Mapping[str, object], key: str, *, default: bool = False) -> bool:
    """A switch; one that is not set, or that the Trainer fills in, is at its default."""
    truth = truth_of(values.get(key))
    return default if truth is None else truth


def _size(section: Mapping[str, object], default: int, *keys: str) -> int:
    value = _count(section, *keys)
    if value is not None and value < 0:
        # runtime/zero/config.py: pydantic refuses these as well (0.19.8).
        raise UsageError(
            f"`zero_optimization.{keys[0]}` is negative: `{value}`",
            "write 0 or more, or remove it: DeepSpeed has a default",
        )
    return default if value is None else value


def _buffers(zero: Mapping[str, object], stage: int) -> Buffers:
    d, size = DEEPSPEED_DEFAULTS, partial(_size, zero)
    threshold, live = "param_persistence_threshold", "max_live_parameters"
    moves_optimizer = _leaves(zero, "offload_optimizer")
    # Below stage 3, DeepSpeed offloads to host memory only.
    nvme = _nvme(zero) if stage == SHARDED_PARAMETERS else None
    return Buffers(
        reduce_bucket_size=size(d.reduce_bucket_size, "reduce_bucket_size"),
        # runtime/zero/config.py: it is on by default at this stage alone.
        overlap_comm=_truth(zero, "overlap_comm", default=stage == SHARDED_PARAMETERS),
        contiguous_gradients=_truth(zero, "contiguous_gradients", default=True),
        stage3_prefetch_bucket_size=size(
            d.stage3_prefetch_bucket_size, "stage3_prefetch_bucket_size", "prefetch_bucket_size"
        ),
        stage3_param_persistence_threshold=size(
            d.stage3_param_persistence_threshold, f"stage3_{threshold}", threshold
        ),
        stage3_max_live_parameters=size(d.stage3_max_live_parameters, f"stage3_{live}", live),
        sub_group_size=size(d.sub_group_size, "sub_group_size"),
        hpz_partition_size=max(1, size(d.hpz_partition_size, "zero_hpz_partition_size")),
        on_nvme=nvme is not None,
        nvme=nvme,
        # runtime/zero/stage3.py, _create_fp32_partitions: without `offload_optimizer`, master
        # weights and moments are on the GPU, wherever the parameters are.
        keeps_optimizer=_offload(zero, stage) is OffloadChoice.ALL and not moves_optimizer,
        # runtime/zero/stage_1_and_2.py, process_gradients.
        keeps_gradients=stage == 1 and moves_optimizer,
    )


_OFFLOADS = ("offload_optimizer", "offload_param")
_NVME = "nvme"


def _nvme(zero: Mapping[str, object]) -> NvmeBuffers | None:
    """The buffers of what it offloads to NVMe; None where nothing is."""
    optimizer, param = (section_of(zero, key) for key in _OFFLOADS)
    swaps_optimizer, swaps_params = (value_at(zero, f"{key}.device") == _NVME for key in _OFFLOADS)
    if not (swaps_optimizer or swaps_params):
        return None
    d, count = NvmeBuffers(), "buffer_count"
    return NvmeBuffers(
        optimizer_count=_size(optimizer, d.optimizer_count, count) if swaps_optimizer else 0,
        param_count=_size(param, d.param_count, count) if swaps_params else 0,
        param_size=_size(param, d.param_size, "buffer_size"),
        max_in_cpu=_size(param, d.max_in_cpu, "max_in_cpu"),
    )


def _leaves(zero: Mapping[str, object], key: str) -> bool:
    return value_at(zero, f"{key}.device") in {"cpu", _NVME}


def _offload(zero: Mapping[str, object], stage: int) -> OffloadChoice:
    # runtime/engine.py, _configure_zero_optimizer hands offload_param to stage 3 alone.
    if _leaves(zero, "offload_param") and stage == SHARDED_PARAMETERS:
        return OffloadChoice.ALL
    return OffloadChoice.OPTIMIZER if _leaves(zero, "offload_optimizer") else OffloadChoice.NONE


def _uncounted(values: Mapping[str, object]) -> tuple[str, ...]:
    """The keys that the ledger counts, with a value for which it has no line."""
    optimizer = section_of(values, "optimizer").get("type", "adamw")
    autocast, precision = _torch_autocast(values), _precision(values)
    changes_memory = {
        # swap_tensor/partitioned_param_swapper.py: then the parameters' buffers are on the GPU.
        "aio.use_gds": _truth(section_of(values, "aio"), "use_gds"),
        AUTOCAST_KEY: precision in SWITCHED and autocast not in {None, precision},
        "optimizer.type": str(optimizer).lower() not in {"adam", "adamw"},
    }
    return tuple(key for key, holds in changes_memory.items() if holds)


def _precision(values: Mapping[str, object]) -> Precision | None:
    sections = {p: section_of(values, p.value) for p in Precision}
    # runtime/precision_config.py, get_bfloat16_config.
    sections[Precision.BF16] = sections[Precision.BF16] or section_of(values, "bfloat16")
    for precision, section in sections.items():
        if _truth(section, "enabled"):
            return precision
    is_open = any(section.get("enabled") == "auto" for section in sections.values())
    return None if is_open else Precision.FP32


# Without a dtype it is the accelerator's.
_AUTOCASTS = {dtype: name for name in SWITCHED for dtype in PRECISIONS[name].dtype_names}


def _torch_autocast(values: Mapping[str, object]) -> Precision | None:
    section = section_of(values, "torch_autocast")
    if not _truth(section, "enabled"):
        return None
    return _AUTOCASTS.get(str(section.get("dtype")).removeprefix("torch."), Precision.BF16)


def read_base(values: Mapping[str, object], *, fills_in: bool = False) -> UserConfig:
    """Parse the content of a ds_config that another is built on: without ZeRO and the rest of it.

    The Trainer and Accelerate compute the whole batch themselves.

    Args:
        values: The content.
        fills_in: Whether the Trainer or Accelerate reads it.

    Raises:
        UsageError: A size is negative.
    """
    left = {*(BATCH_KEYS[:1] if fills_in else ()), ZERO}
    read = read_own_config({k: v for k, v in values.items() if k not in left}, fills_in=fills_in)
    is_open = not says_precision(values)
    steps = read.accumulation_steps
    if read.micro_batch is not None and read.train_batch_size is None and not fills_in:
        # DeepSpeed takes 1 then.
        steps = steps or 1
    return replace(
        read,
        stage=None,
        offload=None,
        buffers=None,
        accumulation_steps=steps,
        precision=None if is_open else read.precision,
        # DeepSpeed by itself trains in fp32 then; a Trainer has arguments that say it.
        fallback_precision=Precision.FP32 if is_open and not fills_in else None,
        state_dtype=None if read.state_dtype is StateDtype.FP32 else read.state_dtype,
        base=values,
    )


def _learning(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The values of optimizer, scheduler and clipping that have a name of their own here."""
    numbers = [(name, value_at(values, key)) for key, name in LEARNED_BY.items()]
    betas = value_at(values, BETAS)
    if isinstance(betas, list):
        numbers += zip(OF_ADAM, betas, strict=False)
    yield from ((name, v) for name, v in numbers if isinstance(v, int | float))
    scheduler = section_of(values, "scheduler")
    if "type" in scheduler:
        yield "schedule", scheduler["type"]


def read_own_config(values: Mapping[str, object], *, fills_in: bool = False) -> UserConfig:
    """Parse the content of a ds_config.

    Args:
        values: The content.
        fills_in: Whether the Trainer or Accelerate reads it, which fill in `"auto"`.

    Raises:
        UsageError: Its stage is none of DeepSpeed's, or a size is negative.
    """
    zero = section_of(values, "zero_optimization")
    # runtime/zero/config.py, read_zero_config_deprecated: true is stage 1.
    written = zero.get("stage", int(values.get("zero_optimization") is True))
    # accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin: the Trainer and Accelerate fill in 2.
    stage = 2 if written == "auto" and fills_in else _whole(written)
    if stage not in {0, 1, 2, 3}:
        raise UsageError(
            f"`zero_optimization.stage` is `{written}`, not a ZeRO stage",
            "write 0, 1, 2 or 3",
        )
    half = _truth(section_of(values, "bf16"), "bf16_optimizer_states")
    experts = section_of(values, "expert_parallel")
    autocast, precision = _torch_autocast(values), _precision(values)
    # runtime/engine.py, _configure_distributed_model: then the weights are of 16 bits all the same.
    of_half = precision in SWITCHED
    return UserConfig(
        stage=stage,
        offload=_offload(zero, stage),
        buffers=_buffers(zero, stage),
        train_batch_size=_count(values, "train_batch_size"),
        uncounted=_uncounted(values),
        tensor_parallel=_count(section_of(values, "tensor_parallel"), "autotp_size"),
        expert_parallel=_count(experts, "autoep_size") if _truth(experts, "enabled") else None,
        micro_batch=_count(values, "train_micro_batch_size_per_gpu"),
        accumulation_steps=_count(values, "gradient_accumulation_steps"),
        precision=precision,
        torch_autocast=None if of_half else autocast,
        autocasts_half=of_half and precision is autocast,
        state_dtype=StateDtype.BF16 if half else StateDtype.FP32,
        learning=tuple(_learning(values)),
    )
