"""The JSON of `plan --json`, whose shape other programs rest on."""

import json
from typing import Any

import pytest

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision, FlowchartQuestion, decide
from zerowiz.core.decision.job import Job, Objective, OpenSettings
from zerowiz.core.decision.open_settings import Search, find_limits, search
from zerowiz.core.decision.remedies import find_remedies
from zerowiz.core.decision.remedy_table import encode_remedy
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.machine.spec import decode_machine, parse_spec
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import ModelSource
from zerowiz.core.plan_json import encode_decision
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Method, Workload
from zerowiz.probe.package_data import read_gpu_table

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
        "remedies": [encode_remedy(each) for each in find_remedies(decision)],
        "settled": (),
        "config_path": None,
        "command": None,
        "env": None,
        **more,
    }
    plan: dict[str, Any] = json.loads(json.dumps(encode_decision(decision, found, **settings)))
    return plan


PLAN = encode(decide(JOB, Constraints()))
REFUSED = encode(decide(replace(JOB, machine=parse_spec("4xRTX4090", TABLE)), Constraints()))


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
        "machine": shape(PLAN["machine"]),
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
                "edit": "NoneType",
            }
        ],
        "settled": [],
        "config_path": "NoneType",
        "command": "NoneType",
        "env": "NoneType",
        "run": "NoneType",
    }
    assert expected == shape(PLAN)
    assert 1 == PLAN["schema_version"]


def test_the_sizes_of_a_strategy_have_keys_values_and_bytes() -> None:
    sharded = [each["buffers"] for each in PLAN["strategies"] if each["stage"] > 0]
    size = {"key": "str", "value": "int", "bytes": "int"}
    assert [[size]] * len(sharded) == [shape(buffers) for buffers in sharded]


def test_the_machine_in_a_plan_can_be_planned_for_again() -> None:
    assert JOB.machine == decode_machine(PLAN["machine"])


def test_names_are_those_of_the_vocabularies() -> None:
    strategies = PLAN["strategies"]
    assert [strategy.name for strategy in STRATEGIES] == [each["name"] for each in strategies]
    assert {each["verdict"] for each in strategies} <= {verdict.value for verdict in Verdict}
    assert {step["question"] for step in PLAN["flowchart"]} <= {q.value for q in FlowchartQuestion}
    assert PLAN["chosen"] in {each["name"] for each in strategies}
    assert ModelSource.SIZE == PLAN["model"]["source"]


@pytest.mark.parametrize("at", range(len(STRATEGIES)), ids=lambda at: STRATEGIES[at].name)
def test_the_totals_are_the_sums_of_the_lines(at: int) -> None:
    gpu = PLAN["strategies"][at]["gpu"]
    sums = {
        phase.value: sum(line["bytes"] for line in gpu["lines"] if line["phase"] == phase)
        for phase in Phase
        if phase not in {Phase.GENERATE, Phase.EVALUATE}
    }
    assert sums == gpu["phases"]
    assert max(sums.values()) == gpu["peak_bytes"] == sums[gpu["peak_phase"]]
    assert gpu["budget_bytes"] - gpu["device_bytes"] == gpu["headroom_bytes"]


def test_the_global_batch_counts_every_rank() -> None:
    assert 2 * 8 * 4 == PLAN["workload"]["global_batch"]


def test_when_nothing_is_chosen_that_is_null_and_the_remedies_are_there() -> None:
    assert REFUSED["chosen"] is None
    expected = {"change": {"--method": "lora"}, "strategy": "ddp", "verdict": "uncertain"}
    (lora,) = [r for r in REFUSED["remedies"] if r["change"] == expected["change"]]
    assert expected.items() <= lora.items()
    assert ["method"] == lora["costs"]
    assert lora["device_bytes"] <= lora["budget_bytes"]
    assert lora["frees_bytes"] > 0


def test_an_unknown_budget_is_null() -> None:
    gpus = tuple(replace(gpu, free_bytes=None) for gpu in JOB.machine.gpus)
    job = replace(JOB, machine=replace(JOB.machine, gpus=gpus))
    gpu = encode(decide(job, Constraints()))["strategies"][0]["gpu"]
    assert (None, None) == (gpu["budget_bytes"], gpu["headroom_bytes"])


def test_a_question_without_a_strategy_has_no_numbers() -> None:
    (step,) = [s for s in PLAN["flowchart"] if s["question"] == "fast_interconnect"]
    assert (None, None, None) == (step["strategy"], step["need_bytes"], step["have_bytes"])


def test_lora_says_what_trains() -> None:
    job = replace(JOB, workload=replace(JOB.workload, method=Method.LORA, lora_rank=8))
    plan = encode(decide(job, Constraints()))
    assert JOB.model.lora_params(8) == plan["model"]["trainable_params"]
    said = {key: plan["workload"][key] for key in ("lora_rank", "lora_target_modules")}
    assert {"lora_rank": 8, "lora_target_modules": "all-linear"} == said


def test_a_launch_adds_its_file_command_and_environment() -> None:
    more = {"config_path": "c.json", "command": ("deepspeed", "t.py"), "env": {"A": "b"}}
    plan = encode(decide(JOB, Constraints()), **more)
    expected = {**more, "command": ["deepspeed", "t.py"]}
    assert expected == {key: plan[key] for key in more}


def test_the_accounting_is_named() -> None:
    job = replace(JOB, accounting=Accounting.TEXTBOOK)
    assert "textbook" == encode(decide(job, Constraints()))["workload"]["accounting"]


def test_the_first_iteration_is_said_and_unknown_by_the_rule_of_thumb() -> None:
    by_rule = encode(decide(replace(JOB, accounting=Accounting.TEXTBOOK), Constraints()))
    for plan, known in ((PLAN, True), (by_rule, False)):
        firsts = [strategy["gpu"]["first_iteration"] for strategy in plan["strategies"]]
        assert [known] * len(firsts) == [first is not None for first in firsts]


def test_the_interval_is_said_and_unknown_by_the_rule_of_thumb() -> None:
    for strategy in PLAN["strategies"]:
        interval = strategy["gpu"]["interval"]
        assert strategy["gpu"]["peak_bytes"] == interval["expected_bytes"]
        assert {Assumption.STAND_IN} <= {*interval["assumptions"]} <= {*Assumption}
    by_rule = encode(decide(replace(JOB, accounting=Accounting.TEXTBOOK), Constraints()))
    assert {None} == {strategy["gpu"]["interval"] for strategy in by_rule["strategies"]}


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


def test_where_nothing_fits_there_is_no_choice() -> None:
    assert REFUSED["choice"] is None


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
