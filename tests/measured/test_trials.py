"""What a case says becomes the config that DeepSpeed gets, and what its ranks report a row."""

import ast
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from changed_settings import CHANGED
from measured import ranks
from measured.rows import read_model, read_rows
from measured.trials import (
    KERNELS,
    NOT_TRAINED,
    PlannedTrial,
    Trial,
    TrialEnd,
    count_timed_steps,
    decode_trial,
    decode_trials,
    encode_trial,
    make_row,
    plan_trial,
    stepper_for,
)

from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Accelerator, LinkClass
from zerowiz.core.memory import losses as predicted_losses
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.workload import (
    Attention,
    Loop,
    Loss,
    Optimizer,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.5, 10), (12.0, 6), (0.01, 40), (0.0, 40), (1.0, 6)]
)
def test_as_many_steps_are_timed_as_say_enough(step_seconds: float, steps: int) -> None:
    assert steps == count_timed_steps(6, 40, step_seconds)


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


def test_an_optimizer_of_the_config_stands_in_it() -> None:
    plan = planned(optimizer="torch AdamW via config (torch_adam)")
    assert "optimizer" in plan.ds_config
    assert "optimizer" not in planned().ds_config


@pytest.mark.parametrize("optimizer", Optimizer)
def test_every_optimizer_has_something_that_steps(optimizer: Optimizer) -> None:
    assert stepper_for(optimizer, Offload.NONE)
    on_host = KERNELS[stepper_for(optimizer, Offload.OPTIMIZER)]
    assert on_host.section or on_host.op in {"CPUAdamBuilder", "CPULionBuilder"}


@each_adapter
def test_a_trial_is_flat_as_json_and_reads_itself_back(said: Mapping[str, object]) -> None:
    one = trial(micro_batch=3, optimizer="FusedAdam", hpz=False, **said)
    content = encode_trial(one)
    assert "workload" not in content
    assert (3, "FusedAdam") == (content["micro_batch"], content["optimizer"])
    assert said.items() <= content.items()
    assert one == decode_trial(content, "case")


# What ranks report becomes one row, and the row is held against the prediction.

KNOWN = {row["id"]: row for row in read_rows()}
# Llama-3.2-1B at stage 1 on 4 GPUs.
MEASURED = KNOWN["b4-001"]


def plan(row: Any, **said: object) -> PlannedTrial:
    trial = decode_trial({**row, **said}, "case")
    return plan_trial(trial, H200S, read_model(row["model"]))


def report(row: Any, **said: object) -> dict[str, object]:
    """What a rank would have said on the way to this row."""
    keys = ("phases", "gpu", "params", "versions", "wrapper", "step_seconds", "context_bytes")
    more = ("context_and_nccl_bytes", "device_used_outside_allocator_bytes", "host_peak_rss_bytes")
    memory = ("peak_reserved_bytes", "allocator_retries", "ok", "oom_phase")
    return {"error": None, **{key: row[key] for key in (*keys, *more, *memory)}, **said}


def end(rank: int, status: int = 0, killed: str | None = None, **said: object) -> TrialEnd:
    return TrialEnd(
        rank=rank, report=report(MEASURED, rank=rank, **said), status=status, killed=killed
    )


def row_of(*ends: TrialEnd) -> dict[str, Any]:
    return dict(make_row(plan(MEASURED), ends, Accelerator.CUDA))


def test_a_row_has_every_field_of_the_measured_file_and_its_values() -> None:
    row = row_of(*(end(rank) for rank in range(4)))
    assert set() == set(MEASURED) - set(row)
    assert {key: row[key] for key in MEASURED} == dict(MEASURED)


def test_running_out_of_memory_on_any_rank_is_told_from_failing() -> None:
    lost = end(0, status=-9, killed="peer", ok=False)
    row = row_of(lost, end(1, status=3, ok=False, oom_phase="step"))
    assert (False, "step", None, None) == (
        row["ok"],
        row["oom_phase"],
        row["error"],
        row["peak_bytes"],
    )


def test_a_kill_for_want_of_host_memory_is_no_failure() -> None:
    row = row_of(end(0, -9, "peer", ok=False), end(1, -9, "host_memory", ok=False))
    assert (False, "host_memory", None) == (row["ok"], row["oom_phase"], row["error"])


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ([end(0, 1, ok=False, error="ValueError in model: no")], "ValueError in model: no"),
        ([end(0, -9, "peer", ok=False), end(1, -6, ok=False)], "rank 1 ended by signal 6"),
        ([end(0, 7, ok=False)], "rank 0 ended by status 7"),
        ([end(0, -9, "deadline", ok=False)], "rank 0 was ended at the deadline"),
        ([end(0, -9, "launcher", ok=False)], "rank 0 was ended with the launcher"),
    ],
)
def test_the_first_cause_is_the_error(ends: list[TrialEnd], error: str) -> None:
    row = row_of(*ends)
    assert (False, None, error) == (row["ok"], row["oom_phase"], row["error"])


def test_what_is_of_cuda_is_null_on_the_cpu_accelerator() -> None:
    row = make_row(plan(MEASURED, memory_cap_bytes=5), [end(0)], Accelerator.CPU)
    assert (None, None, False) == (
        row["memory_cap_bytes"],
        row["nccl_p2p"],
        row["expandable_segments"],
    )


TIMED = (0.9, 0.31, 0.3, 0.3, 0.29)


def timed(rank: int, seconds: float = 9.0, samples: Sequence[float] = TIMED) -> TrialEnd:
    """The end of a rank whose steps ran freely after those that were measured."""
    free = {"timed_step_seconds": samples, "timed_peak_bytes": 5, "timed_allocator_retries": 1}
    said = report(MEASURED, rank=rank, **free)
    return TrialEnd(rank=rank, report=said, status=0, killed=None, seconds=seconds)


def test_a_row_has_the_free_steps_of_every_rank_and_the_steady_one() -> None:
    slower = [2 * each for each in TIMED]
    row = row_of(timed(0), timed(1, 11.0, slower))
    assert (6, TIMED, 0.6) == (
        *(row["timed_steps"], row["timed_step_seconds"], row["steady_step_seconds"]),
    )
    assert pytest.approx(0.02 / 0.3, abs=1e-4) == row["steady_step_spread"]
    assert [TIMED, slower] == [each["timed_step_seconds"] for each in row["rank_times"]]
    assert 11.0 == row["case_seconds"]


# The ranks know what a case may say.


def test_the_trainer_steps_with_every_optimizer_that_is_not_refused() -> None:
    pytest.importorskip("deepspeed")
    from measured.trainer_loop import OPTIMIZERS

    assert {kernel.value for kernel, row in KERNELS.items() if row.by_trainer} == {*OPTIMIZERS}


def test_a_case_has_every_key_that_a_rank_reads() -> None:
    assert set() == {*ranks.Case.__annotations__} - plan(MEASURED).as_case().keys()


def case_of(workload: Workload, **said: object) -> dict[str, object]:
    """What the ranks read of a case with this step."""
    half = workload.optimizer_state_dtype is StateDtype.BF16
    trial = Trial(
        model="llama-3.2-1b",
        stage=2,
        gpus=2,
        workload=workload,
        kernel=stepper_for(workload.optimizer, Offload.NONE),
        bf16={"bf16_optimizer_states": True} if half else {},
        **said,  # type: ignore[arg-type]
    )
    machine = parse_spec("2xH200", read_gpu_table())
    case = plan_trial(trial, machine, read_model(trial.model), None).as_case()
    return {key: case[key] for key in ranks.Case.__annotations__}


@pytest.mark.parametrize("zero", [None, {}], ids=["zerowiz's config", "DeepSpeed's defaults"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_reaches_the_ranks_or_is_refused(
    name: str, zero: dict[str, object] | None
) -> None:
    before, after = CHANGED[name]
    if name not in NOT_TRAINED:
        said: dict[str, object] = {"zero_optimization": zero}
        said |= {"loop": Loop.TRAINER} if name in {"sequence_parallel", "eval_batch"} else {}
        assert case_of(before, **said) != case_of(after, **said)
    else:
        with pytest.raises(UsageError, match=f"`measure` cannot train with .*`{name}`"):
            case_of(after)


class Asked(dict[str, object]):
    """A report that notes which keys it is asked for."""

    def __init__(self, values: dict[str, object]) -> None:
        super().__init__(values)
        self.keys_asked: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        self.keys_asked.add(key)
        return super().get(key, default)


def test_a_row_is_made_of_every_key_that_a_rank_reports_and_of_no_other() -> None:
    reported = ranks.Report.__annotations__
    report = Asked({key: MEASURED.get(key) for key in reported})
    failed = Asked({"ok": False, "error": "ValueError in init: no"})
    ends = [
        TrialEnd(rank=number, report=each, status=number, killed=None)
        for number, each in enumerate((report, failed))
    ]
    make_row(plan(MEASURED), ends, Accelerator.CUDA)
    assert {*reported} == report.keys_asked | failed.keys_asked


def test_ranks_that_share_weights_or_a_gpu_say_so_in_config_and_row() -> None:
    dense, mixture = ({**MEASURED, "model": name} for name in ("llama-2-7b", "mixtral-8x7b-2l"))
    dealt: Any = plan(mixture, expert_parallel=2).ds_config
    assert {"enabled": True, "autoep_size": 2} == dealt["expert_parallel"]
    # With its own optimizer DeepSpeed makes the groups of experts.
    assert {"lr": 1e-5, "torch_adam": True, "fused": True} == dealt["optimizer"]["params"]
    cut = plan(dense, tensor_parallel=2, gpus=2, ranks_on_one_gpu=2)
    assert {"autotp_size": 2} == cut.ds_config["tensor_parallel"]
    alone, shared = (
        make_row(each, [end(0)], Accelerator.CUDA) for each in (plan(dense, gpus=2), cut)
    )
    assert {"tensor_parallel", "ranks_on_one_gpu"} == {*shared} - {*alone}
    assert alone["context_bytes"]
    assert {None} == {shared["context_bytes"], shared["device_used_outside_allocator_bytes"]}


def test_a_phase_is_reported_with_the_keys_of_a_measured_row() -> None:
    readings = MEASURED["phases"].values()
    assert [ranks.Reading.__annotations__.keys()] * len(readings) == [
        reading.keys() for reading in readings
    ]


def tables_of_models() -> dict[str, set[str]]:
    """The keys of each table of `models.py`, which loads torch."""
    nodes = ast.parse(Path(__file__).with_name("models.py").read_text(encoding="utf-8")).body
    return {
        ast.unparse(target): {ast.literal_eval(key) for key in node.value.keys if key is not None}
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }


NAMES: Mapping[str, set[StrEnum]] = {
    "BUILDERS": {kernel for kernel, row in KERNELS.items() if not row.section},
    "LOSSES": {*Loss},
    "ATTENTION": {*Attention},
    "DTYPES": {*Precision},
}


@pytest.mark.parametrize("table", NAMES)
def test_the_ranks_know_every_name_that_a_case_may_hold(table: str) -> None:
    assert NAMES[table] == tables_of_models()[table]


def test_a_model_is_built_as_it_is_traced() -> None:
    pytest.importorskip("deepspeed")
    from measured import models

    from zerowiz.probe.model import trace

    assert predicted_losses.CHUNK_TOKENS == models.CHUNK_TOKENS
    assert trace.IMAGE_SIZE == models.IMAGE_SIZE
    assert models.HEADS == trace.HEADS[: len(models.HEADS)]
