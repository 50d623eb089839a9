"""A person's own ds_config, read as DeepSpeed reads it."""

from typing import Any

import pytest

from zerowiz.core.decision.flowchart import OffloadChoice
from zerowiz.core.decision.job import Uncounted
from zerowiz.core.dsconfig.own_config import UserConfig, read_own_config
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers
from zerowiz.core.structs import MOST_COUNT
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
    assert {None, ()} == values


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_stage_is_read(stage: int) -> None:
    assert stage == read_own_config(zero(stage=stage)).stage


@pytest.mark.parametrize("said", [2, 2.0, "2"])
def test_a_stage_is_read_as_deepspeed_does(said: object) -> None:
    assert 2 == read_own_config(zero(stage=said)).stage


@pytest.mark.parametrize(("said", "stage"), [(True, 1), (False, 0)])
def test_a_switch_for_zero_is_stage_1(said: bool, stage: int) -> None:
    assert stage == read_own_config({"zero_optimization": said}).stage


@pytest.mark.parametrize("stage", [-1, 4, "two", "9" * 5000, 1.5, "auto", None, [2]])
def test_what_is_no_stage_is_refused(stage: object) -> None:
    with pytest.raises(UsageError, match="not a ZeRO stage"):
        read_own_config(zero(stage=stage))


@pytest.mark.parametrize(
    ("keys", "offload"),
    [
        ({}, OffloadChoice.NONE),
        ({"offload_optimizer": {"device": "none"}}, OffloadChoice.NONE),
        ({"offload_optimizer": None}, OffloadChoice.NONE),
        ({"offload_optimizer": {"device": "cpu"}}, OffloadChoice.OPTIMIZER),
        ({"offload_optimizer": {"device": "nvme"}}, OffloadChoice.OPTIMIZER),
        ({"offload_param": {"device": "cpu"}}, OffloadChoice.ALL),
        (
            {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
            OffloadChoice.ALL,
        ),
    ],
)
def test_what_leaves_the_gpu_is_read(keys: dict[str, Any], offload: OffloadChoice) -> None:
    assert offload is read_own_config(zero(stage=3, **keys)).offload


CPU, NVME = {"device": "cpu"}, {"device": "nvme"}


@pytest.mark.parametrize(
    ("keys", "besides"),
    [
        ({"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}, ()),
        ({"stage": 3, "offload_optimizer": CPU}, ()),
        ({"stage": 3, "offload_param": CPU}, (Uncounted.OPTIMIZER_ON_GPU,)),
        ({"stage": 2, "offload_param": CPU}, ()),
        ({"stage": 1, "offload_optimizer": CPU}, (Uncounted.STAGE1_GRADIENTS,)),
        ({"stage": 3, "offload_optimizer": NVME, "offload_param": NVME}, (Uncounted.NVME,)),
        ({"stage": 3, "offload_param": NVME}, (Uncounted.OPTIMIZER_ON_GPU, Uncounted.NVME)),
    ],
)
def test_what_an_offload_holds_that_no_strategy_counts_is_known(
    keys: dict[str, Any], besides: tuple[Uncounted, ...]
) -> None:
    assert besides == read_own_config(zero(**keys)).besides


def test_the_trainer_and_accelerate_fill_in_stage_2() -> None:
    assert 2 == read_own_config(zero(stage="auto"), fills_in=True).stage


@pytest.mark.parametrize(
    ("half", "autocast", "uncounted"),
    [(True, None, ("torch_autocast.enabled",)), (False, Precision.BF16, ())],
)
def test_autocast_over_weights_of_16_bits_is_no_autocast_of_fp32_weights(
    half: bool, autocast: Precision | None, uncounted: tuple[str, ...]
) -> None:
    values = {"bf16": {"enabled": half}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    own = read_own_config(values)
    assert (autocast, uncounted) == (own.torch_autocast, own.uncounted)


def test_parameters_leave_the_gpu_at_stage_3_alone() -> None:
    both = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert OffloadChoice.OPTIMIZER is read_own_config(zero(stage=2, **both)).offload
    params = {"offload_param": {"device": "cpu"}}
    assert OffloadChoice.NONE is read_own_config(zero(stage=2, **params)).offload


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ({"bf16": {"enabled": True}}, Precision.BF16),
        ({"fp16": {"enabled": True}}, Precision.FP16),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": True}}, Precision.BF16),
        ({"bf16": {"enabled": False}}, Precision.FP32),
        ({"bf16": {}}, Precision.FP32),
        ({"bf16": {"enabled": "auto"}}, None),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, None),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}, Precision.FP16),
        ({"bf16": {"enabled": "yes"}}, Precision.BF16),
        ({"bf16": {"enabled": 1}}, Precision.BF16),
        ({"bfloat16": {"enabled": True}}, Precision.BF16),
        ({"fp16": {"enabled": "False"}}, Precision.FP32),
    ],
)
def test_a_precision_is_read_unless_the_trainer_fills_it(
    values: dict[str, Any], precision: Precision | None
) -> None:
    assert precision == read_own_config(values).precision


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4, 4),
        (4.0, 4),
        (1e6, 1_000_000),
        ("auto", None),
        (None, None),
        (True, None),
        (2.5, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_count_is_a_whole_number_or_nothing(value: object, expected: int | None) -> None:
    own = read_own_config(
        {"train_micro_batch_size_per_gpu": value, "gradient_accumulation_steps": value}
    )
    assert (expected, expected) == (own.micro_batch, own.accumulation_steps)


@pytest.mark.parametrize("value", [10**400, 1e300])
def test_a_count_is_one_that_torch_has(value: float) -> None:
    read = read_own_config({"zero_optimization": {"stage": 2, "reduce_bucket_size": value}})
    assert read.buffers is not None
    assert MOST_COUNT == read.buffers.reduce_bucket_size


def test_buffers_are_read_by_either_of_deepspeeds_names() -> None:
    expected = Buffers(
        reduce_bucket_size=500_000,
        overlap_comm=True,
        stage3_prefetch_bucket_size=7,
        stage3_param_persistence_threshold=8,
        stage3_max_live_parameters=9,
        sub_group_size=10,
    )
    common = {"stage": 3, "reduce_bucket_size": 5e5, "sub_group_size": 1e1}
    prefixed = read_buffers(
        stage3_prefetch_bucket_size=7,
        stage3_param_persistence_threshold=8,
        stage3_max_live_parameters=9,
        **common,
    )
    plain = read_buffers(
        prefetch_bucket_size=7, param_persistence_threshold=8, max_live_parameters=9, **common
    )
    assert (expected, expected) == (prefixed, plain)


@pytest.mark.parametrize(
    ("said", "overlaps"), [("true", True), (1, True), ("no", False), (0, False)]
)
def test_a_switch_is_read_as_deepspeed_does(said: object, overlaps: bool) -> None:
    assert overlaps is read_buffers(stage=3, overlap_comm=said).overlap_comm


def test_a_buffer_that_the_trainer_fills_is_taken_at_its_default() -> None:
    assert DEEPSPEED_DEFAULTS == read_buffers(stage=2, reduce_bucket_size="auto")


@pytest.mark.parametrize(("stage", "overlaps"), [(0, False), (1, False), (2, False), (3, True)])
def test_communication_overlaps_by_itself_at_stage_3_alone(stage: int, overlaps: bool) -> None:
    assert overlaps is read_buffers(stage=stage).overlap_comm
    assert read_buffers(stage=stage, overlap_comm=True).overlap_comm


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"bf16_optimizer_states": True}, StateDtype.BF16),
        ({"bf16_optimizer_states": False}, StateDtype.FP32),
        ({"enabled": True}, StateDtype.FP32),
    ],
)
def test_the_states_are_fp32_unless_the_file_says_bf16(
    section: dict[str, Any], expected: StateDtype
) -> None:
    assert expected is read_own_config({"bf16": section}).state_dtype


def test_sections_of_another_shape_say_nothing() -> None:
    own = read_own_config({"zero_optimization": "stage 2", "bf16": [True]})
    assert (0, Precision.FP32) == (own.stage, own.precision)


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


def test_what_no_line_stands_for_is_named() -> None:
    values = {
        "optimizer": {"type": "Lamb"},
        "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {
            "stage": 3,
            "zero_hpz_partition_size": 4,
            "offload_param": {"device": "nvme"},
        },
    }
    expected = (
        "zero_optimization.offload_param.device",
        "optimizer.type",
    )
    assert expected == read_own_config(values).uncounted
