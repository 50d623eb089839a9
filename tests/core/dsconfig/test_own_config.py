"""A person's own ds_config, read as DeepSpeed reads it."""

from typing import Any

import pytest

from zerowiz.core.dsconfig.own_config import UserConfig, read_own_config
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, NvmeBuffers
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.structs import MOST_COUNT, replace
from zerowiz.core.workload import Precision, StateDtype
from zerowiz.errors import UsageError


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


def read_buffers(**keys: Any) -> Buffers:
    buffers = read_own_config(zero(**keys)).buffers
    assert buffers is not None
    return buffers


@pytest.mark.parametrize(
    "key",
    [
        *("reduce_bucket_size", "sub_group_size", "zero_hpz_partition_size"),
        *("stage3_prefetch_bucket_size", "stage3_max_live_parameters"),
        "stage3_param_persistence_threshold",
    ],
)
@pytest.mark.parametrize("size", [-1, -5e8])
def test_a_negative_size_is_refused_as_deepspeed_refuses_it(key: str, size: float) -> None:
    with pytest.raises(UsageError, match=f"`zero_optimization.{key}` is negative: `{size:.0f}`"):
        read_own_config(zero(stage=3, **{key: size}))


def test_an_empty_config_is_deepspeeds_own_defaults() -> None:
    expected = UserConfig(
        stage=0,
        offload=OffloadChoice.NONE,
        buffers=DEEPSPEED_DEFAULTS,
        precision=Precision.FP32,
        state_dtype=StateDtype.FP32,
    )
    assert expected == read_own_config({})


def test_no_file_says_nothing() -> None:
    values = {getattr(UserConfig(), name) for name in UserConfig.__struct_fields__}
    assert {None, (), False} == values


@pytest.mark.parametrize("stage", [-1, 4, "two", "9" * 5000, 1.5, "auto", None, [2]])
def test_what_is_no_stage_is_refused(stage: object) -> None:
    with pytest.raises(UsageError, match="not a ZeRO stage"):
        read_own_config(zero(stage=stage))


CPU, NVME = {"device": "cpu"}, {"device": "nvme"}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
NONE, OPTIMIZER, ALL = OffloadChoice.NONE, OffloadChoice.OPTIMIZER, OffloadChoice.ALL


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        *((zero(stage=stage), "stage", stage) for stage in range(4)),
        # As DeepSpeed reads it; a switch is stage 1, and sections of another shape say nothing.
        *((zero(stage=said), "stage", 2) for said in (2.0, "2")),
        ({"zero_optimization": True}, "stage", 1),
        ({"zero_optimization": False}, "stage", 0),
        ({"zero_optimization": "stage 2"}, "stage", 0),
        *(
            (zero(stage=3, **keys), "offload", expected)
            for keys, expected in (
                ({}, NONE),
                ({"offload_optimizer": {"device": "none"}}, NONE),
                ({"offload_optimizer": None}, NONE),
                ({"offload_optimizer": CPU}, OPTIMIZER),
                ({"offload_optimizer": NVME}, OPTIMIZER),
                ({"offload_param": CPU}, ALL),
                ({"offload_optimizer": CPU, "offload_param": CPU}, ALL),
            )
        ),
        # Parameters leave the GPU at stage 3 alone.
        (zero(stage=2, offload_optimizer=CPU, offload_param=CPU), "offload", OPTIMIZER),
        (zero(stage=2, offload_param=CPU), "offload", NONE),
        # Autocast over weights of 16 bits is no autocast of fp32 weights.
        ({"bf16": {"enabled": False}, **AUTOCAST}, "torch_autocast", Precision.BF16),
        ({"bf16": {"enabled": False}, **AUTOCAST}, "uncounted", ()),
        ({"bf16": {"enabled": True}, **AUTOCAST}, "torch_autocast", None),
        *(
            ({half: {"enabled": True}, **AUTOCAST}, name, expected)
            for half, name, expected in (
                ("bf16", "uncounted", ()),
                ("bf16", "autocasts_half", True),
                ("fp16", "uncounted", ("torch_autocast.enabled",)),
                ("fp16", "autocasts_half", False),
                ("amp", "autocasts_half", False),
            )
        ),
        # The precision, unless the Trainer fills it.
        *(
            (values, "precision", expected)
            for values, expected in (
                ({"bf16": {"enabled": True}}, Precision.BF16),
                ({"fp16": {"enabled": True}}, Precision.FP16),
                ({"fp16": {"enabled": False}, "bf16": {"enabled": True}}, Precision.BF16),
                ({"bf16": {"enabled": False}}, Precision.FP32),
                ({"bf16": {}}, Precision.FP32),
                ({"bf16": [True]}, Precision.FP32),
                ({"bf16": {"enabled": "auto"}}, None),
                ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, None),
                ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}, Precision.FP16),
                ({"bf16": {"enabled": "yes"}}, Precision.BF16),
                ({"bf16": {"enabled": 1}}, Precision.BF16),
                ({"bfloat16": {"enabled": True}}, Precision.BF16),
                ({"fp16": {"enabled": "False"}}, Precision.FP32),
            )
        ),
        # A count is a whole number, or nothing.
        *(
            ({key: value}, name, expected)
            for key, name in (
                ("train_micro_batch_size_per_gpu", "micro_batch"),
                ("gradient_accumulation_steps", "accumulation_steps"),
            )
            for value, expected in (
                (4, 4),
                (4.0, 4),
                (1e6, 1_000_000),
                ("auto", None),
                (None, None),
                (True, None),
                (2.5, None),
                (float("inf"), None),
                (float("nan"), None),
            )
        ),
        # The states are fp32, unless the file says bf16.
        ({"bf16": {"bf16_optimizer_states": True}}, "state_dtype", StateDtype.BF16),
        ({"bf16": {"bf16_optimizer_states": False}}, "state_dtype", StateDtype.FP32),
        ({"bf16": {"enabled": True}}, "state_dtype", StateDtype.FP32),
        # What no line stands for is named.
        (
            {
                "optimizer": {"type": "Lamb"},
                "tensor_parallel": {"autotp_size": 2},
                **zero(stage=3, zero_hpz_partition_size=4, offload_param=NVME),
            },
            "uncounted",
            ("optimizer.type",),
        ),
    ],
)
def test_a_key_is_read_as_deepspeed_reads_it(
    values: dict[str, Any], name: str, expected: object
) -> None:
    assert expected == getattr(read_own_config(values), name)


@pytest.mark.parametrize(
    ("zero_keys", "expected"),
    [
        ({"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}, (False, False)),
        ({"stage": 3, "offload_optimizer": CPU}, (False, False)),
        ({"stage": 3, "offload_param": CPU}, (True, False)),
        ({"stage": 2, "offload_param": CPU}, (False, False)),
        ({"stage": 2, "offload_optimizer": CPU}, (False, False)),
        ({"stage": 1, "offload_optimizer": CPU}, (False, True)),
    ],
)
def test_what_an_offload_leaves_on_the_gpu_is_read(
    zero_keys: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    buffers = read_own_config(zero(**zero_keys)).buffers
    assert buffers is not None
    assert expected == (buffers.keeps_optimizer, buffers.keeps_gradients)


SIZES = {"buffer_count": 9, "buffer_size": 7e6, "max_in_cpu": 0}


@pytest.mark.parametrize(
    ("zero_keys", "expected"),
    [
        ({"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}, None),
        # Below stage 3 what is offloaded to NVMe lies in host memory.
        ({"stage": 2, "offload_optimizer": NVME}, None),
        ({"stage": 3, "offload_optimizer": NVME}, NvmeBuffers(param_count=0)),
        ({"stage": 3, "offload_param": NVME}, NvmeBuffers(optimizer_count=0)),
        (
            {"stage": 3, "offload_optimizer": {**NVME, **SIZES}, "offload_param": CPU},
            NvmeBuffers(optimizer_count=9, param_count=0),
        ),
        (
            {"stage": 3, "offload_optimizer": NVME, "offload_param": {**NVME, **SIZES}},
            NvmeBuffers(param_count=9, param_size=7_000_000, max_in_cpu=0),
        ),
    ],
)
def test_what_passes_through_the_host_to_nvme_is_read(
    zero_keys: dict[str, Any], expected: NvmeBuffers | None
) -> None:
    buffers = read_own_config(zero(**zero_keys)).buffers
    assert buffers is not None
    assert (expected, expected is not None) == (buffers.nvme, buffers.on_nvme)


def test_buffers_of_parameters_on_the_gpu_are_not_counted() -> None:
    assert ("aio.use_gds",) == read_own_config({"aio": {"use_gds": True}}).uncounted


def test_the_trainer_and_accelerate_fill_in_stage_2() -> None:
    assert 2 == read_own_config(zero(stage="auto"), fills_in=True).stage


NAMED = {
    "stage3_prefetch_bucket_size": 7,
    "stage3_param_persistence_threshold": 8,
    "stage3_max_live_parameters": 9,
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        # By either of DeepSpeed's names.
        ({"stage": 3, **NAMED}, {"overlap_comm": True, **NAMED}),
        ({"stage": 3, **{key.removeprefix("stage3_"): NAMED[key] for key in NAMED}}, NAMED),
        ({"stage": 3, "reduce_bucket_size": 5e5}, {"reduce_bucket_size": 500_000}),
        ({"stage": 3, "sub_group_size": 1e1}, {"sub_group_size": 10}),
        # No more than torch has.
        ({"stage": 2, "reduce_bucket_size": 10**400}, {"reduce_bucket_size": MOST_COUNT}),
        ({"stage": 2, "reduce_bucket_size": 1e300}, {"reduce_bucket_size": MOST_COUNT}),
        # What the Trainer fills is taken at its default.
        ({"stage": 2, "reduce_bucket_size": "auto"}, {}),
        # A switch, and communication that overlaps by itself at stage 3 alone.
        *(({"stage": 3, "overlap_comm": said}, {"overlap_comm": True}) for said in ("true", 1)),
        *(({"stage": 3, "overlap_comm": said}, {"overlap_comm": False}) for said in ("no", 0)),
        *(({"stage": stage}, {"overlap_comm": stage == 3}) for stage in range(4)),
        *(({"stage": s, "overlap_comm": True}, {"overlap_comm": True}) for s in range(4)),
    ],
)
def test_buffers_are_read_as_deepspeed_reads_them(
    keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    buffers = read_buffers(**keys)
    defaults = replace(DEEPSPEED_DEFAULTS, overlap_comm=buffers.overlap_comm)
    assert replace(defaults, **expected) == buffers


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (None, None)),
        ({"train_micro_batch_size_per_gpu": 2}, (2, None)),
        ({"train_batch_size": 64}, (16, 1)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, (4, 4)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 8}, (2, 8)),
    ],
)
def test_the_batch_is_completed_as_deepspeed_does(
    values: dict[str, object], expected: tuple[int | None, int | None]
) -> None:
    assert expected == read_own_config(values).batch(4)


def test_a_batch_that_does_not_multiply_out_is_refused() -> None:
    values = {"train_batch_size": 63, "train_micro_batch_size_per_gpu": 4}
    with pytest.raises(UsageError):
        read_own_config(values).batch(4)
