"""The JSON of a run and of machines, whose shape other programs rest on."""

import json
from typing import Any

from zerowiz.core.catalog import RunLength, encode_offers, encode_run, find_offers, plan_run
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine_kinds import (
    MachineCandidate,
    PriceList,
    list_kinds,
    read_prices,
    split_prices,
)
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table, read_instances

TABLE = read_gpu_table()
MODEL = model_from_size("7b", 7 * 10**9)
PRICES = read_prices(split_prices("$2.50/gpu-hour"), TABLE, read_instances())
LENGTH = RunLength(data_tokens=10**9)

INTERVAL = {
    "hours_interval": dict.fromkeys(("low_hours", "expected_hours", "high_hours"), "float"),
    "cost_interval": dict.fromkeys(("low_cost", "expected_cost", "high_cost"), "float"),
}
TIMES = {"steps": "int", "hours": "float", "cost": "float", **INTERVAL}


def decided(machine: Machine, *, timed: bool = True) -> Decision:
    rates = find_rates(machine, TABLE) if timed else None
    workload = Workload(gradient_checkpointing=True)
    job = PlanInput(machine=machine, model=MODEL, workload=workload, rates=rates)
    return decide(job, Constraints())


def shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value).__name__


def plain(value: dict[str, object]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


def test_a_run_has_the_keys_of_the_contract() -> None:
    decision = decided(parse_spec("4xA100-80GB", TABLE))
    run = plain(encode_run(plan_run(decision, LENGTH, PRICES, None)))
    assert {
        "tokens": "int",
        "price_per_hour": "float",
        "currency": "str",
        "strategies": [{"name": "str", **TIMES}],
    } == shape(run)


def test_what_is_not_known_of_a_run_is_null() -> None:
    decision = decided(parse_spec("4xA100-80GB", TABLE), timed=False)
    run = plain(encode_run(plan_run(decision, LENGTH, PriceList(), None)))
    assert (None, None) == (run["price_per_hour"], run["currency"])
    assert run["strategies"]
    for strategy in run["strategies"]:
        assert {None} == {strategy[key] for key in TIMES}


def test_a_machine_has_the_keys_of_the_contract() -> None:
    def decide_on(candidate: MachineCandidate) -> Decision:
        return decided(candidate.machine)

    kinds = list_kinds(TABLE[-4:], ())
    found = find_offers(kinds, TABLE, decide_on, PRICES, LENGTH)
    content = plain(encode_offers(found, MODEL, PRICES, version="1.2.3"))
    machine = content["machines"][0]
    assert machine.pop("step_terms")
    assert {
        **dict.fromkeys(("machine", "gpu", "strategy", "verdict", "precision"), "str"),
        **dict.fromkeys(("gpus_per_node", "nodes", "peak_bytes", "device_bytes"), "int"),
        **dict.fromkeys(("micro_batch", "accumulation_steps"), "int"),
        "gradient_checkpointing": "bool",
        "instance": "NoneType",
        "network": {"kind": "str", "bytes_per_s": "NoneType", "assumed": "bool"},
        "headroom_bytes": "int",
        "step_seconds": "float",
        "step_seconds_interval": {
            **dict.fromkeys(("low_seconds", "expected_seconds", "high_seconds"), "float"),
            "calibrated": "bool",
        },
        "tokens_per_s": "float",
        "price_per_hour": "float",
        "run": {"tokens": "int", **TIMES},
    } == shape(machine)
    del content["machines"]
    assert {
        "schema_version": 1,
        "zerowiz_version": "1.2.3",
        "model": {"name": "7b", "params": 7 * 10**9, "source": "size"},
        "currency": "$",
        "gpus_tried": 4,
        "gpus_that_do_not_fit": found.kinds_without,
        "gpus_without_a_plan": found.kinds_unasked,
        "prices_without_a_machine": [],
    } == content
