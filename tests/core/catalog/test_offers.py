"""Which machines of the tables a job fits, and in which order they are shown."""

from collections.abc import Callable

import pytest

from zerowiz.core.catalog import Offers, RunLength, find_offers
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.plan_input import PlanInput, native_precision
from zerowiz.core.machine.spec import parse_machine
from zerowiz.core.machine.types import NetworkKind
from zerowiz.core.machine_kinds import (
    NO_PRICES,
    MachineCandidate,
    list_kinds,
    read_prices,
    split_prices,
)
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import find_rates
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
        job = PlanInput(
            machine=machine, model=model, workload=workload, rates=find_rates(machine, TABLE)
        )
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
    known = read_prices(split_prices(prices), TABLE, INSTANCES) if prices else NO_PRICES
    table = TABLE if instances else SOME
    kinds = list_kinds(table, rows, nodes=nodes, gpus=gpus, prices=known)
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
    found = offers(7 * 10**9, "H200=3/gpu-hour,A100-80GB=1/gpu-hour", length=asked).offers
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
    assert without == hours("1/gpu-hour") == hours("9/gpu-hour")


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
    found = offers(7 * 10**9, "p5.48xlarge=98/node-hour", instances=True, length=asked).offers
    assert "p5.48xlarge" == found[0].candidate.name
    assert 98.0 == found[0].price_per_hour


@pytest.mark.parametrize("name", ["8xH200", "6xH200"])
def test_a_number_of_gpus_with_a_price_is_there_too(name: str) -> None:
    found = offers(7 * 10**9, f"{name}=32/node-hour", length=RunLength(data_tokens=10**9))
    first = found.offers[0]
    assert (f"{name}-141GB", 32.0) == (first.candidate.name, first.price_per_hour)
    assert () == found.unlisted_prices
    assert {"1xH200-141GB", "2xH200-141GB"} <= set(names(found))
    assert len(names(found)) == len(set(names(found)))


def test_a_price_of_what_is_not_shown_is_named() -> None:
    prices = "8xT4-16GB=1/gpu-hour,H200=3/gpu-hour,1/gpu-hour,4xH200=9/node-hour"
    assert ("8xT4-16GB",) == offers(7 * 10**9, prices).unlisted_prices
    assert ("8xT4-16GB", "4xH200") == offers(7 * 10**9, prices, gpus=2).unlisted_prices


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
