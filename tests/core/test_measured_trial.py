"""What a case says becomes the config that DeepSpeed gets, and the job that is predicted."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from measured.rows import read_config, read_model, read_rows

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator, LinkClass
from zerowiz.core.measured_trial import (
    ComparedStep,
    PlannedTrial,
    SteadyStep,
    Trial,
    config_of_size,
    count_timed_steps,
    decode_trial,
    decode_trials,
    encode_trial,
    ops_of,
    plan_trial,
    steady_step,
    stepper_for,
)
from zerowiz.core.memory.activations import activations
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, fit_buffers
from zerowiz.core.memory.micro_step import Traced, TracedRun, TracedTensor
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.speed.costs import StepTime
from zerowiz.core.strategies import STRATEGIES, ZERO2
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    KERNELS,
    Attention,
    Method,
    Optimizer,
    OptimizerKernel,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table

# What counts of steps that ran freely, and how far a prediction is off.

SLOW = (9.0, 4.0)
PREDICTED = StepTime(terms=(), expected_seconds=1.2, low_seconds=1.0, high_seconds=1.5, tokens=2048)


def test_the_median_of_the_steps_after_the_first_third_counts() -> None:
    steady = steady_step([[*SLOW, 1.3, 1.0, 1.2, 1.1]])
    assert SteadyStep(seconds=1.15, low_seconds=1.0, high_seconds=1.3, steps=4) == steady
    assert steady is not None
    assert pytest.approx(0.3 / 1.15) == steady.spread_fraction


def test_the_slowest_rank_counts() -> None:
    fast, slow = [*SLOW, 1.0, 1.0, 1.0, 1.0], [*SLOW, 1.0, 2.0, 2.0, 3.0]
    found = SteadyStep(seconds=2.0, low_seconds=1.0, high_seconds=3.0, steps=4)
    assert found == steady_step([fast, slow])


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.5, 10), (12.0, 6), (0.01, 40), (0.0, 40), (1.0, 6)]
)
def test_as_many_steps_are_timed_as_say_enough(step_seconds: float, steps: int) -> None:
    assert steps == count_timed_steps(6, 40, step_seconds)


def test_a_number_of_steps_that_was_asked_for_is_that_number() -> None:
    assert [3, 0] == [count_timed_steps(n, n, 0.1) for n in (3, 0)]


@pytest.mark.parametrize("samples", [[], [[]], [[1.0, 1.0]], [[1.0, 1.0, 1.0], [1.0, 1.0]]])
def test_fewer_than_three_steps_on_any_rank_are_no_steady_step(samples: list[list[float]]) -> None:
    assert steady_step(samples) is None


def test_an_error_is_signed_and_needs_both() -> None:
    measured = SteadyStep(seconds=1.0, low_seconds=1.0, high_seconds=1.0, steps=3)
    assert pytest.approx(0.2) == ComparedStep(predicted=PREDICTED, measured=measured).error
    assert ComparedStep(predicted=None, measured=measured).error is None
    assert ComparedStep(predicted=PREDICTED, measured=None).error is None


H200S = parse_spec("4xH200", read_gpu_table())
LLAMA = read_model("llama-3.2-1b")


each_adapter = pytest.mark.parametrize(
    "said",
    [{}, {"lora_rank": 8}, {"lora_rank": 4, "quantized": True}],
    ids=["full", "lora", "qlora"],
)


def trial(**said: object) -> Trial:
    return decode_trial({"model": "llama-3.2-1b", "stage": 2, "gpus": 2, **said}, "case")


def planned(**said: object) -> PlannedTrial:
    return plan_trial(trial(**said), H200S, LLAMA)


def zero_of(plan: PlannedTrial) -> Mapping[str, Any]:
    zero = plan.ds_config["zero_optimization"]
    assert isinstance(zero, dict)
    return zero


def test_what_is_not_said_has_the_defaults_of_a_workload() -> None:
    one = trial()
    assert (Precision.BF16, OptimizerKernel.ADAMW_FUSED, 1, 2048, 3) == (
        one.workload.precision,
        one.kernel,
        one.workload.micro_batch,
        one.workload.sequence_tokens,
        one.steps,
    )
    assert (True, None, None) == (one.expandable_segments, one.zero_optimization, one.ds_config)


def test_a_trial_survives_being_written_and_read() -> None:
    one = trial(
        bf16={"bf16_optimizer_states": True}, zero_optimization={"reduce_bucket_size": 7}, steps=2
    )
    assert one == decode_trial(json.loads(json.dumps(encode_trial(one))), "case")


@pytest.mark.parametrize("row", [r for r in read_rows() if r["kind"] == "engine"][::9])
def test_a_measured_row_is_a_case_to_be_run_again(row: Mapping[str, Any]) -> None:
    one = decode_trial(row, "case")
    assert row["optimizer"] == one.kernel.value
    assert (row["id"], row["gpus"], row["stage"], row["zero_optimization"]) == (
        one.id,
        one.gpus,
        one.stage,
        one.zero_optimization,
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"stage": "two"}, "`case.stage`: expected `int`, got `str`"),
        ({"gpus": 0}, "`case`: `gpus` must be at least 1"),
        ({"bf16": 3}, "`case.bf16`: expected `object`, got `int`"),
    ],
)
def test_an_error_names_the_key(said: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        trial(**said)
    assert message == refused.value.message


@pytest.mark.parametrize("value", [{}, [], "7b"])
def test_cases_are_a_list_of_at_least_one(value: object) -> None:
    with pytest.raises(UsageError):
        decode_trials(value)


def test_cases_without_an_id_get_one_and_those_that_compile_come_last() -> None:
    compiled = {"model": "7b", "stage": 2, "optimizer": "FusedAdam"}
    first, second = decode_trials([compiled, {"model": "7b", "stage": 1, "id": "mine"}])
    assert ("mine", "case-0") == (first.id, second.id)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_the_config_is_that_of_the_strategy_and_the_prediction_too(strategy: Strategy) -> None:
    plan = planned(stage=strategy.stage, offload=strategy.offload.value)
    assert strategy is plan.strategy
    assert strategy.stage == plan.ds_config_stage
    assert plan.job is not None
    assert 2 == plan.job.machine.world_size


def test_a_silent_case_runs_with_the_buffers_that_zerowiz_writes() -> None:
    plan = planned()
    fastest, *_ = fit_buffers(LLAMA, LLAMA.params, ZERO2)
    assert (True, fastest.reduce_bucket_size) == (
        zero_of(plan)["overlap_comm"],
        zero_of(plan)["reduce_bucket_size"],
    )


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ({}, 6, 40),
        ({"stage": 3}, 8, 40),
        ({"offload": "optimizer"}, 8, 40),
        ({"stage": 3, "timed_steps": 4}, 4, 4),
        ({"timed_steps": 0}, 0, 0),
    ],
)
def test_more_steps_run_freely_where_time_is_steady_late(
    said: dict[str, object], least: int, most: int
) -> None:
    case = planned(**said).as_case()
    assert (least, most) == (case["least_timed_steps"], case["most_timed_steps"])


def test_without_peer_to_peer_the_job_is_planned_over_pcie() -> None:
    direct, through_host = planned().job, planned(nccl_p2p=False).job
    assert direct is not None
    assert through_host is not None
    assert LinkClass.NVLINK_ALL is direct.machine.interconnect.link_class
    assert LinkClass.PCIE is through_host.machine.interconnect.link_class
    alone = planned(nccl_p2p=False, gpus=1).job
    assert alone is not None
    assert LinkClass.NONE is alone.machine.interconnect.link_class


def test_named_keys_stand_over_deepspeeds_defaults() -> None:
    plan = planned(zero_optimization={})
    assert {"stage": 2} == zero_of(plan)
    assert plan.job is not None
    assert DEEPSPEED_DEFAULTS == plan.job.own_buffers


def test_a_whole_config_is_taken_as_it_is() -> None:
    own = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    plan = planned(ds_config=own)
    assert own == plan.ds_config
    assert plan.strategy is not None
    assert 3 == plan.strategy.stage


def test_half_states_are_predicted_as_such() -> None:
    half = dict.fromkeys(("bf16_master_weights_and_grads", "bf16_optimizer_states"), True)
    plan = planned(bf16=half)
    assert plan.job is not None
    assert StateDtype.BF16 is plan.job.state_dtype
    assert half.items() <= dict(plan.ds_config["bf16"]).items()  # type: ignore[call-overload]


def test_fp16_starts_at_a_scale_that_skips_no_step() -> None:
    plan = planned(precision="fp16")
    fp16 = plan.ds_config["fp16"]
    assert isinstance(fp16, dict)
    assert (True, 8) == (fp16["enabled"], fp16["initial_scale_power"])


def test_an_optimizer_of_the_config_stands_in_it() -> None:
    plan = planned(optimizer="torch AdamW via config (torch_adam)")
    assert "optimizer" in plan.ds_config
    assert "optimizer" not in planned().ds_config


def test_adapters_are_predicted_as_adapters() -> None:
    plan = planned(lora_rank=8)
    assert plan.job is not None
    assert (Method.LORA, 8) == (plan.job.workload.method, plan.job.workload.lora_rank)


def test_a_model_that_cannot_be_counted_is_run_without_a_prediction() -> None:
    plan = plan_trial(trial(offload="all", stage=3), H200S, "`bert` is not known yet", None)
    assert (None, "`bert` is not known yet") == (plan.job, plan.unpredicted)
    assert {"device": "cpu", "pin_memory": True} == zero_of(plan)["offload_param"]


def test_a_trace_is_what_is_predicted() -> None:
    held_bytes = 10**12
    step = TracedRun(
        micro_batch=1,
        sequence_tokens=2048,
        precision=Precision.BF16,
        attention=Attention.SDPA,
        gradient_checkpointing=False,
        activations=replace(activations(LLAMA.architecture, Workload()), saved_bytes=held_bytes),
    )
    traced = Traced(
        family="unheard_of",
        built="UnheardOfForCausalLM",
        layers=1,
        hidden_size=8,
        embedding=(8, 8),
        tied_embeddings=True,
        tensors=(TracedTensor(name="w", shape=(8, 8), linear=True),),
        runs=(step,),
        took_milliseconds=1,
    )
    model = traced.model("odd")
    plan = plan_trial(trial(zero_optimization={}), H200S, model, traced)
    assert plan.job is not None
    assert traced == plan.job.own_trace
    assert evaluate(plan.job, ZERO2).estimate.peak_bytes > held_bytes


def test_a_strategy_that_zerowiz_has_not_is_run_without_a_prediction() -> None:
    plan = planned(stage=0, offload="optimizer")
    assert plan.strategy is None
    assert plan.unpredicted
    assert {"device": "cpu", "pin_memory": True} == zero_of(plan)["offload_optimizer"]


@pytest.mark.parametrize("optimizer", Optimizer)
def test_every_optimizer_has_something_that_steps(optimizer: Optimizer) -> None:
    assert stepper_for(optimizer, Offload.NONE)
    on_host = KERNELS[stepper_for(optimizer, Offload.OPTIMIZER)]
    assert on_host.section or on_host.op in {"CPUAdamBuilder", "CPULionBuilder"}


def test_each_op_is_compiled_once_and_cpu_ranks_need_one_more() -> None:
    trials = [trial(optimizer="FusedAdam"), trial(optimizer="FusedAdam"), trial()]
    assert ("FusedAdamBuilder",) == ops_of(trials, Accelerator.CUDA)
    assert ("ShareMemCommBuilder", "FusedAdamBuilder") == ops_of(trials, Accelerator.CPU)


@pytest.mark.parametrize("params", [10**7, 7 * 10**9])
def test_a_size_has_a_config_json_of_the_shape_that_stands_for_it(params: int) -> None:
    model = model_from_size("size", params)
    read = model_from_config("size", config_of_size(model))
    assert model.architecture == read.architecture
    assert params == pytest.approx(read.params, rel=0.005)


def test_a_model_with_its_own_config_gets_no_other() -> None:
    assert {} == config_of_size(model_from_config("x", read_config("llama-3.2-1b")))


def test_the_ranks_are_told_the_config_and_the_trial() -> None:
    plan = planned()
    case = json.loads(json.dumps(plan.as_case()))
    assert plan.ds_config == case["ds_config"]
    told = replace(decode_trial(case, "case"), ds_config=None)
    assert plan.trial == told


def test_the_budget_is_weighed_for_the_trials_own_ranks() -> None:
    two, four = planned(gpus=2), planned(gpus=4)
    assert two.job is not None
    assert four.job is not None
    assert (
        evaluate(four.job, ZERO2).estimate.peak_bytes < evaluate(two.job, ZERO2).estimate.peak_bytes
    )


def test_what_the_job_keeps_elsewhere_reaches_the_prediction_and_the_config() -> None:
    plan = planned(
        stage=3,
        offload="all",
        nvme_path="/nvme",
        quantized_weights=True,
        memory_budget_bytes=3 * 2**30,
    )
    assert plan.job is not None
    assert ("/nvme", True, 3 * 2**30) == (
        plan.job.nvme_path,
        plan.job.quantized_weights,
        plan.job.budget_bytes,
    )
    assert "/nvme" == zero_of(plan)["offload_optimizer"]["nvme_path"]
    assert zero_of(plan)["zero_quantized_weights"]
    assert ("AsyncIOBuilder",) == ops_of([plan.trial], Accelerator.CUDA)


def test_hpz_reaches_the_config() -> None:
    assert 2 == zero_of(planned(stage=3, hpz=True))["zero_hpz_partition_size"]
    assert "zero_hpz_partition_size" not in zero_of(planned(stage=3))


def test_a_case_whose_segments_do_not_grow_is_judged_so() -> None:
    assert [True, False] == [
        plan.job is not None and plan.job.expandable_segments
        for plan in (planned(), planned(expandable_segments=False))
    ]


@each_adapter
def test_a_trial_is_flat_as_json_and_reads_itself_back(said: Mapping[str, object]) -> None:
    one = trial(micro_batch=3, optimizer="FusedAdam", hpz=False, **said)
    content = encode_trial(one)
    assert "workload" not in content
    assert (3, "FusedAdam") == (content["micro_batch"], content["optimizer"])
    assert said.items() <= content.items()
    assert one == decode_trial(content, "case")


def test_an_adam_that_copies_lists_of_tensors_is_counted_so() -> None:
    kernels = (OptimizerKernel.ADAMW_FUSED, OptimizerKernel.ADAMW_FOREACH)
    assert [True, False] == [trial(optimizer=k.value).workload.optimizer_fused for k in kernels]
