"""The JSON of `plan --json`, whose shape other programs rest on."""

import json
from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import getitem
from typing import Any

import pytest

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision, FlowchartQuestion, decide
from zerowiz.core.decision.job import Job, Objective, OpenSettings
from zerowiz.core.decision.open_settings import Search, find_limits, search
from zerowiz.core.decision.remedies import find_remedies
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.machine.names import decode_machine, parse_spec
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import ModelSource
from zerowiz.core.plan_json import encode_decision
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Method, Workload
from zerowiz.probe.files import read_gpu_table

TABLE = read_gpu_table()
JOB = Job(
    machine=parse_spec("4xA100-40GB", TABLE),
    model=model_from_size("7b", 7 * 10**9),
    workload=Workload(micro_batch=2, accumulation_steps=8, gradient_checkpointing=True),
)


def encode(decision: Decision, found: Search | None = None, /, **more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "version": "1.2.3",
        "reasons": ["because"],
        "remedies": [each.encode() for each in find_remedies(decision)],
        "settled": (),
        "config_path": None,
        "command": None,
        "env": None,
        **more,
    }
    plan: dict[str, Any] = json.loads(json.dumps(encode_decision(decision, found, **settings)))
    return plan


@cache
def planned() -> dict[str, Any]:
    return encode(decide(JOB, Constraints()))


@cache
def refused() -> dict[str, Any]:
    return encode(decide(replace(JOB, machine=parse_spec("4xRTX4090", TABLE)), Constraints()))


def shape(value: object) -> object:
    """Keys and types, of a list its first item."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value).__name__


def test_the_keys_and_their_types_are_those_of_the_contract() -> None:
    strategy = {
        "name": "str",
        "stage": "int",
        "offload": "str",
        "verdict": "str",
        "settled_by": "NoneType",
        "ran_out": "NoneType",
        "gpu": {
            "peak_bytes": "int",
            "interval": {
                **dict.fromkeys(("low_bytes", "expected_bytes", "high_bytes"), "int"),
                "assumptions": ["str"],
                "heaviest_bytes": "NoneType",
                "uncounted": [],
                "never_measured_together": [],
            },
            "device_bytes": "int",
            "high_device_bytes": "int",
            "vllm_bytes": "NoneType",
            "budget_bytes": "int",
            "headroom_bytes": "int",
            "peak_phase": "str",
            "phases": dict.fromkeys(("model", "init", "forward", "backward", "step"), "int"),
            "first_iteration": dict.fromkeys(("forward", "backward", "step"), "int"),
            "lines": [{"part": "str", "phase": "str", "bytes": "int", "formula": "str"}],
        },
        "buffers": [],
        "host": {
            "peak_bytes": "int",
            "budget_bytes": "NoneType",
            "peak_phase": "str",
            "phases": dict.fromkeys(("load", "init", "training", "saving"), "int"),
            "lines": [{"part": "str", "phase": "str", "bytes": "int", "formula": "str"}],
        },
        "step_seconds": "NoneType",
        "step_seconds_interval": "NoneType",
        "step_terms": "NoneType",
        "tokens_per_s": "NoneType",
        "wire_bytes_per_step": "int",
    }
    choice = {
        "strategy": "str",
        "offload": "str",
        "micro_batch": "int",
        "accumulation_steps": "int",
        "gradient_checkpointing": "bool",
        "attention": "str",
        "loss": "str",
        "verdict": "str",
        "headroom_bytes": "int",
        "step_seconds": "NoneType",
        "step_seconds_interval": "NoneType",
        "tokens_per_s": "NoneType",
    }
    expected = {
        "schema_version": "int",
        "zerowiz_version": "str",
        "machine": shape(planned()["machine"]),
        "model": {"name": "str", "params": "int", "trainable_params": "int", "source": "str"},
        "workload": {
            "micro_batch": "int",
            "sequence_tokens": "int",
            "accumulation_steps": "int",
            "global_batch": "int",
            "precision": "str",
            "torch_autocast": "NoneType",
            "optimizer": "str",
            "optimizer_state_dtype": "str",
            "method": "str",
            "lora_rank": "NoneType",
            "lora_target_modules": "NoneType",
            "gradient_checkpointing": "bool",
            "attention": "str",
            "loss": "str",
            "packing": "bool",
            "trainer": "str",
            "reference": "NoneType",
            "completion_tokens": "NoneType",
            "generation_batch": "NoneType",
            "vllm_memory_fraction": "NoneType",
            "vllm_sleeps": "NoneType",
            "eval_batch": "int",
            "sequence_parallel": "int",
            "accounting": "str",
        },
        "flowchart": [
            {
                "question": "str",
                "answer": "bool",
                "strategy": "str",
                "need_bytes": "int",
                "have_bytes": "int",
            }
        ],
        "strategies": [strategy],
        "chosen": "str",
        "choice": choice,
        "candidates": "NoneType",
        "limits": "NoneType",
        "reasons": ["str"],
        "remedies": [
            {
                "change": {"--loss": "str"},
                "strategy": "str",
                "verdict": "str",
                "frees_bytes": "int",
                "device_bytes": "int",
                "budget_bytes": "int",
                "step_seconds": "NoneType",
                "time_fraction": "NoneType",
                "costs": [],
                "more_host_bytes": "NoneType",
                "global_batch": "NoneType",
                "edit": "NoneType",
            }
        ],
        "settled": [],
        "config_path": "NoneType",
        "command": "NoneType",
        "env": "NoneType",
    }
    assert expected == shape(planned())
    assert 1 == planned()["schema_version"]


def test_the_sizes_of_a_strategy_have_keys_values_and_bytes() -> None:
    sharded = [each["buffers"] for each in planned()["strategies"] if each["stage"] > 0]
    size = {"key": "str", "value": "int", "bytes": "int"}
    assert [[size]] * len(sharded) == [shape(buffers) for buffers in sharded]
    # The machine can be planned for again.
    assert JOB.machine == decode_machine(planned()["machine"])


def test_names_are_those_of_the_vocabularies() -> None:
    strategies = planned()["strategies"]
    assert [strategy.name for strategy in STRATEGIES] == [each["name"] for each in strategies]
    assert {each["verdict"] for each in strategies} <= {verdict.value for verdict in Verdict}
    assert {step["question"] for step in planned()["flowchart"]} <= {
        q.value for q in FlowchartQuestion
    }
    assert planned()["chosen"] in {each["name"] for each in strategies}
    assert ModelSource.SIZE == planned()["model"]["source"]


@pytest.mark.parametrize("at", range(len(STRATEGIES)), ids=lambda at: STRATEGIES[at].name)
def test_the_totals_are_the_sums_of_the_lines(at: int) -> None:
    gpu = planned()["strategies"][at]["gpu"]
    sums = {
        phase.value: sum(line["bytes"] for line in gpu["lines"] if line["phase"] == phase)
        for phase in Phase
        if phase not in {Phase.GENERATE, Phase.EVALUATE}
    }
    assert sums == gpu["phases"]
    assert max(sums.values()) == gpu["peak_bytes"] == sums[gpu["peak_phase"]]
    assert gpu["budget_bytes"] - gpu["device_bytes"] == gpu["headroom_bytes"]


def test_when_nothing_is_chosen_that_is_null_and_the_remedies_are_there() -> None:
    assert refused()["chosen"] is None
    expected = {"change": {"--method": "lora"}, "strategy": "ddp", "verdict": "uncertain"}
    (lora,) = [r for r in refused()["remedies"] if r["change"] == expected["change"]]
    assert expected.items() <= lora.items()
    assert ["method"] == lora["costs"]
    assert lora["device_bytes"] <= lora["budget_bytes"]
    assert lora["frees_bytes"] > 0


UNKNOWN = tuple(replace(gpu, free_bytes=None) for gpu in JOB.machine.gpus)
LORA = replace(JOB.workload, method=Method.LORA, lora_rank=8)
LAUNCHED = {"config_path": "c.json", "command": ("deepspeed", "t.py"), "env": {"A": "b"}}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (planned, {("workload", "global_batch"): 2 * 8 * 4}),
        (refused, {("choice",): None}),
        (
            lambda: encode(
                decide(replace(JOB, machine=replace(JOB.machine, gpus=UNKNOWN)), Constraints())
            ),
            {("strategies", 0, "gpu", key): None for key in ("budget_bytes", "headroom_bytes")},
        ),
        (
            lambda: encode(decide(replace(JOB, workload=LORA), Constraints())),
            {
                ("model", "trainable_params"): JOB.model.lora_params(8),
                ("workload", "lora_rank"): 8,
                ("workload", "lora_target_modules"): "all-linear",
            },
        ),
        (
            lambda: encode(decide(JOB, Constraints()), **LAUNCHED),
            {
                (key,): value
                for key, value in {**LAUNCHED, "command": ["deepspeed", "t.py"]}.items()
            },
        ),
    ],
    ids=["split", "refused", "unknown memory", "adapters", "launched"],
)
def test_a_plan_says(
    plan: Callable[[], Any], expected: Mapping[tuple[str | int, ...], object]
) -> None:
    planned = plan()
    assert expected == {keys: reduce(getitem, keys, planned) for keys in expected}


def test_a_question_without_a_strategy_has_no_numbers() -> None:
    (step,) = [s for s in planned()["flowchart"] if s["question"] == "fast_interconnect"]
    assert (None, None, None) == (step["strategy"], step["need_bytes"], step["have_bytes"])


def test_interval_and_first_iteration_are_unknown_by_the_rule_of_thumb() -> None:
    by_rule = encode(decide(replace(JOB, accounting=Accounting.TEXTBOOK), Constraints()))
    assert "textbook" == by_rule["workload"]["accounting"]
    for known, unknown in zip(planned()["strategies"], by_rule["strategies"], strict=True):
        interval = known["gpu"]["interval"]
        assert known["gpu"]["peak_bytes"] == interval["expected_bytes"]
        assert {Assumption.STAND_IN} <= {*interval["assumptions"]} <= {*Assumption}
        assert known["gpu"]["first_iteration"] is not None
        assert (None, None) == (unknown["gpu"]["interval"], unknown["gpu"]["first_iteration"])


def test_a_choice_has_its_time_and_stands_among_its_candidates() -> None:
    job = replace(JOB, rates=find_rates(JOB.machine, TABLE))
    found = search(job, Constraints(), OpenSettings(split=True), Objective.FASTEST)
    plan = encode(found.decision, found)
    choice, candidates = plan["choice"], plan["candidates"]
    assert 16 == choice["micro_batch"] * choice["accumulation_steps"]
    assert plan["chosen"] == choice["strategy"]
    interval = choice["step_seconds_interval"]
    assert interval["low_seconds"] < choice["step_seconds"] < interval["high_seconds"]
    assert found.count == candidates["count"]
    assert "fastest" == candidates["objective"]
    assert [each.strategy.name for each in found.pareto] == [
        each["strategy"] for each in candidates["pareto"]
    ]
    assert {*choice} == {*candidates["pareto"][0]}
    assert candidates["clearly_faster"] is None


def test_limits_are_of_each_strategy_without_and_with_checkpointing() -> None:
    limits = encode(decide(JOB, Constraints()), limits=find_limits(JOB))["limits"]
    assert [
        {
            "strategy": "str",
            "gradient_checkpointing": "bool",
            "micro_batch": "int",
            "sequence_tokens": "int",
            "by_positions": "bool",
        }
    ] == shape(limits)
    assert [False, True] * len(STRATEGIES) == [each["gradient_checkpointing"] for each in limits]
