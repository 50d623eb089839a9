"""Which machines of the tables a job fits, and in which order they are shown."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.catalog import Offers, encode_offers, encode_run, find_offers, plan_run
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.job import Job, native_precision
from zerowiz.core.machine.spec import parse_machine, parse_spec
from zerowiz.core.machine.types import Machine, NetworkKind
from zerowiz.core.machine_kinds import (
    NO_PRICES,
    MachineCandidate,
    PriceList,
    list_kinds,
    read_prices,
)
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import RunCost, RunLength, StepTime, find_rates, predict_run
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table, read_instances

TABLE, INSTANCES = read_gpu_table(), read_instances()
SOME = tuple(
    row
    for row in TABLE
    if row.name.split("-")[0] in {"NVIDIA H200", "NVIDIA L4", "Tesla T4", "NVIDIA A100"}
)


def planner(params: int, tried: list[str] | None = None) -> Callable[[MachineCandidate], Decision]:
    model = model_from_size("m", params)

    def decide_on(candidate: MachineCandidate) -> Decision:
        if tried is not None:
            tried.append(candidate.name)
        machine = candidate.machine
        workload = Workload(gradient_checkpointing=True, precision=native_precision(machine))
        job = Job(machine=machine, model=model, workload=workload, rates=find_rates(machine, TABLE))
        return decide(job, Constraints())

    return decide_on


def offers(
    params: int,
    prices: str = "",
    *,
    instances: bool = False,
    nodes: int | None = None,
    gpus: int | None = None,
    length: RunLength | None = None,
) -> Offers:
    rows = INSTANCES if instances else ()
    known = read_prices([prices], TABLE, INSTANCES) if prices else NO_PRICES
    table = TABLE if instances else SOME
    kinds = list_kinds(table, rows, nodes=nodes, gpus=gpus)
    return find_offers(kinds, TABLE, planner(params), known, length)


def names(found: Offers) -> list[str]:
    return [offer.candidate.name for offer in found.offers]


def test_a_name_of_an_offer_is_a_machine_that_can_be_planned_for() -> None:
    for kind in list_kinds(TABLE, INSTANCES):
        for size in kind.sizes:
            candidate = kind.build(size, TABLE)
            named = parse_machine(candidate.name, TABLE, INSTANCES)
            assert named.gpus == candidate.machine.gpus
            assert named.nodes == candidate.machine.nodes == size.nodes
            assert named.world_size == size.world_size


def test_a_network_is_assumed_where_nobody_knows_it_and_only_between_nodes() -> None:
    for kind in list_kinds(TABLE, INSTANCES):
        for size in kind.sizes:
            candidate = kind.build(size, TABLE)
            assert candidate.assumes_network == (size.nodes > 1 and kind.instance is None)
            known = candidate.machine.network.kind is not NetworkKind.UNKNOWN
            assert known or size.nodes == 1


def test_of_each_gpu_there_are_the_fewest_that_fit_and_twice_as_many() -> None:
    found = names(offers(7 * 10**9))
    assert ["1xH200-141GB", "2xH200-141GB"] == [name for name in found if "H200" in name]
    assert ["2xA100-80GB", "4xA100-80GB"] == [n for n in found if n.endswith("A100-80GB")]
    assert ["4xA100-40GB", "8xA100-40GB"] == [n for n in found if n.endswith("A100-40GB")]
    assert not [name for name in found if "T4" in name]


def test_without_prices_fewest_gpus_come_first_and_of_as_many_the_fastest() -> None:
    found = offers(7 * 10**9).offers
    keys = []
    for offer in found:
        assert offer.chosen.step_time is not None
        keys.append((offer.candidate.size.world_size, -offer.chosen.step_time.tokens_per_s))
    assert sorted(keys) == keys
    assert len(set(keys)) > 3


def test_with_prices_the_cheapest_come_first_and_those_without_one_last() -> None:
    asked = RunLength(data_tokens=10**9)
    found = offers(7 * 10**9, "H200=3,A100-80GB=1", length=asked).offers
    costs = [
        None if o.run is None or o.run.cost is None else o.run.cost.expected_cost for o in found
    ]
    known = [cost for cost in costs if cost is not None]
    assert 4 == len(known)
    assert sorted(known) == costs[:4]
    assert {None} == set(costs[4:])


def test_a_price_changes_no_time_of_a_run() -> None:
    asked = RunLength(data_tokens=10**9)

    def hours(prices: str) -> dict[str, float]:
        found = offers(7 * 10**9, prices, length=asked).offers
        return {o.candidate.name: o.run.expected_hours for o in found if o.run is not None}

    without = hours("")
    assert without
    assert without == hours("1") == hours("9")


def test_several_nodes_are_tried_where_one_is_not_enough() -> None:
    found = names(offers(70 * 10**9))
    assert "2x8xA100-80GB" in found
    assert not [name for name in found if name.startswith("1x")]


def test_a_number_of_nodes_or_gpus_that_was_said_is_the_only_one() -> None:
    assert {8} == {offer.candidate.size.gpus for offer in offers(10**9, gpus=8).offers}
    assert {2} == {offer.candidate.size.nodes for offer in offers(10**9, nodes=2).offers}


def test_an_instance_is_there_where_its_gpus_alone_do_not_fit() -> None:
    found = offers(7 * 10**9, instances=True)
    by_name = {offer.candidate.name: offer for offer in found.offers}
    # One A100 is too small; with the memory of its host it is not.
    assert by_name["a2-ultragpu-1g"].chosen.strategy.offload != "none"
    # Eight H100 fit without.
    assert "p5.48xlarge" not in by_name


def test_an_instance_with_a_price_is_there() -> None:
    asked = RunLength(data_tokens=10**9)
    found = offers(7 * 10**9, "p5.48xlarge=12.25", instances=True, length=asked).offers
    assert "p5.48xlarge" == found[0].candidate.name
    assert 98.0 == found[0].price_per_hour


def test_a_price_of_what_is_not_shown_is_named() -> None:
    assert ("T4-16GB",) == offers(7 * 10**9, "T4-16GB=1,H200=3").unlisted_prices


def test_what_a_job_cannot_be_split_over_is_not_called_too_small() -> None:
    decide_on = planner(7 * 10**9)

    def of_one(candidate: MachineCandidate) -> Decision | None:
        return decide_on(candidate) if candidate.size.world_size == 1 else None

    found = find_offers(list_kinds(SOME, ()), TABLE, of_one, NO_PRICES, None)
    assert ["1xH200-141GB"] == names(found)
    assert (0, len(SOME) - 1) == (found.kinds_without, found.kinds_unasked)


def test_what_fits_nowhere_is_counted() -> None:
    found = offers(10**12)
    assert () == found.offers
    assert len(SOME) == found.kinds == found.kinds_without


@pytest.mark.parametrize(
    "params", [7 * 10**9, pytest.param(70 * 10**9, marks=pytest.mark.thorough)]
)
def test_a_machine_that_is_not_tried_does_not_fit(params: int) -> None:
    """What is left out because a larger one is too small is decided the same."""
    tried: list[str] = []
    kinds = list_kinds(TABLE, ())
    found = find_offers(kinds, TABLE, planner(params, tried), NO_PRICES, None)
    fitting: dict[str, list[int]] = {kind.gpu.name: [] for kind in kinds}
    for offer in found.offers:
        fitting[offer.machine.gpus[0].name].append(offer.candidate.size.world_size)
    skipped = 0
    for kind in kinds:
        for size in kind.sizes:
            candidate = kind.build(size, TABLE)
            beyond = fitting[kind.gpu.name] and size.world_size > max(fitting[kind.gpu.name])
            if candidate.name not in tried and not beyond:
                skipped += 1
                assert not any(one.runs for one in planner(params)(candidate).evaluated)
    assert skipped


def test_a_job_that_cannot_be_asked_of_a_machine_is_asked_of_the_next_size() -> None:
    decide_on = planner(10**9)

    def of_pairs(candidate: MachineCandidate) -> Decision | None:
        return None if candidate.size.world_size == 1 else decide_on(candidate)

    found = find_offers(list_kinds(SOME, ()), TABLE, of_pairs, NO_PRICES, None)
    assert {2, 4} <= {offer.candidate.size.world_size for offer in found.offers}
    assert 1 not in {offer.candidate.size.world_size for offer in found.offers}


def test_a_network_that_was_said_is_not_called_assumed() -> None:
    decide_on = planner(70 * 10**9)

    def with_network(candidate: MachineCandidate) -> Decision:
        network = replace(candidate.machine.network, bytes_per_s=10_000_000_000)
        machine = replace(candidate.machine, network=network)
        return decide_on(replace(candidate, machine=machine))

    assumed = {o.assumes_network for o in offers(70 * 10**9, nodes=2).offers}
    said = find_offers(list_kinds(SOME, (), nodes=2), TABLE, with_network, NO_PRICES, None).offers
    assert {True} == assumed
    assert {False} == {offer.assumes_network for offer in said}


# The JSON of a run and of machines, whose shape other programs rest on.

OFFERS_JSON_TABLE = read_gpu_table()
MODEL = model_from_size("7b", 7 * 10**9)
PRICES = read_prices(["2.50"], OFFERS_JSON_TABLE, read_instances())
LENGTH = RunLength(data_tokens=10**9)

INTERVAL = {
    "hours_interval": dict.fromkeys(("low_hours", "expected_hours", "high_hours"), "float"),
    "cost_interval": dict.fromkeys(("low_cost", "expected_cost", "high_cost"), "float"),
}
TIMES = {"steps": "int", "hours": "float", "cost": "float", **INTERVAL}


def decided(machine: Machine, *, timed: bool = True) -> Decision:
    rates = find_rates(machine, OFFERS_JSON_TABLE) if timed else None
    workload = Workload(gradient_checkpointing=True)
    job = Job(machine=machine, model=MODEL, workload=workload, rates=rates)
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
    decision = decided(parse_spec("4xA100-80GB", OFFERS_JSON_TABLE))
    run = plain(encode_run(plan_run(decision, LENGTH, PRICES, None)))
    assert {
        "tokens": "int",
        "price_per_hour": "float",
        "currency": "str",
        "strategies": [{"name": "str", **TIMES}],
    } == shape(run)


def test_what_is_not_known_of_a_run_is_null() -> None:
    decision = decided(parse_spec("4xA100-80GB", OFFERS_JSON_TABLE), timed=False)
    run = plain(encode_run(plan_run(decision, LENGTH, PriceList(), None)))
    assert (None, None) == (run["price_per_hour"], run["currency"])
    assert run["strategies"]
    for strategy in run["strategies"]:
        assert {None} == {strategy[key] for key in TIMES}


def test_a_machine_has_the_keys_of_the_contract() -> None:
    def decide_on(candidate: MachineCandidate) -> Decision:
        return decided(candidate.machine)

    kinds = list_kinds(OFFERS_JSON_TABLE[-4:], ())
    found = find_offers(kinds, OFFERS_JSON_TABLE, decide_on, PRICES, LENGTH)
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


# How long a run takes and what it costs.


def step(expected_seconds: float = 2.0, tokens: int = 8192) -> StepTime:
    return StepTime(
        terms=(),
        expected_seconds=expected_seconds,
        low_seconds=expected_seconds / 2,
        high_seconds=expected_seconds * 3,
        tokens=tokens,
    )


def test_a_run_is_as_many_steps_as_its_tokens_need() -> None:
    found = predict_run(step(), 1800 * 8192, 10.0)
    assert 1800 == found.steps
    assert (1.0, 0.5, 3.0) == (found.expected_hours, found.low_hours, found.high_hours)
    assert RunCost(expected_cost=10.0, low_cost=5.0, high_cost=30.0) == found.cost


def test_the_last_step_may_be_a_part_of_one() -> None:
    assert 2 == predict_run(step(), 8193, None).steps


def test_without_a_price_there_is_no_cost() -> None:
    assert predict_run(step(), 8192, None).cost is None


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (RunLength(data_tokens=1000), 1000),
        (RunLength(data_tokens=1000, epochs=3), 3000),
        (RunLength(data_sequences=10), 20480),
        (RunLength(data_sequences=10, epochs=0.5), 10240),
        (RunLength(data_tokens=3, epochs=0.5), 2),
    ],
)
def test_data_is_tokens_or_sequences_and_epochs_repeat_it(length: RunLength, expected: int) -> None:
    assert expected == length.tokens(2048)


STEPS = st.builds(step, st.floats(1e-3, 1e3, allow_nan=False), st.integers(1, 10**8))
TOKENS = st.integers(1, 10**15)


@given(STEPS, TOKENS, TOKENS, st.floats(0, 1e6))
def test_more_tokens_never_take_less_time_nor_cost_less(
    one: StepTime, tokens: int, more: int, price: float
) -> None:
    shorter, longer = sorted((tokens, tokens + more))
    first, second = predict_run(one, shorter, price), predict_run(one, longer, price)
    assert first.cost is not None
    assert second.cost is not None
    assert first.expected_hours <= second.expected_hours
    assert first.cost.expected_cost <= second.cost.expected_cost


@given(STEPS, TOKENS, st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_price_changes_no_time_and_a_higher_one_never_costs_less(
    one: StepTime, tokens: int, price: float, more: float
) -> None:
    cheap, dear = predict_run(one, tokens, price), predict_run(one, tokens, price + more)
    free = predict_run(one, tokens, None)
    assert cheap.expected_hours == dear.expected_hours == free.expected_hours
    assert cheap.cost is not None
    assert dear.cost is not None
    assert cheap.cost.expected_cost <= dear.cost.expected_cost


@given(STEPS, TOKENS, st.floats(0, 1e6))
def test_the_bounds_of_a_run_surround_what_is_expected(
    one: StepTime, tokens: int, price: float
) -> None:
    found = predict_run(one, tokens, price)
    assert found.cost is not None
    assert found.low_hours <= found.expected_hours <= found.high_hours
    assert found.cost.low_cost <= found.cost.expected_cost <= found.cost.high_cost
