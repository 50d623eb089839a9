"""Which machines of the tables a job fits, in which order they are shown, and what they cost."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from core.test_plan_json import shape

from zerowiz.core.catalog import Offers, encode_offers, find_offers
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.job import Job, native_precision
from zerowiz.core.machine.names import parse_machine
from zerowiz.core.machine.types import Machine, NetworkKind
from zerowiz.core.machine_kinds import (
    MachineCandidate,
    PriceList,
    list_kinds,
    read_prices,
)
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table, read_instances

TABLE, INSTANCES = read_gpu_table(), read_instances()
SOME = tuple(
    row
    for row in TABLE
    if row.name.split("-")[0] in {"NVIDIA H200", "NVIDIA L4", "Tesla T4", "NVIDIA A100"}
)


def decided(machine: Machine, model: Model, *, timed: bool = True) -> Decision:
    workload = Workload(gradient_checkpointing=True, precision=native_precision(machine))
    rates = find_rates(machine, TABLE) if timed else None
    job = Job(machine=machine, model=model, workload=workload, rates=rates)
    return decide(job, Constraints())


def planner(params: int, tried: list[str] | None = None) -> Callable[[MachineCandidate], Decision]:
    model = model_from_size("m", params)
    names = [] if tried is None else tried

    def decide_on(candidate: MachineCandidate) -> Decision:
        names.append(candidate.name)
        return decided(candidate.machine, model)

    return decide_on


def offers(
    params: int,
    prices: str = "",
    *,
    instances: bool = False,
    nodes: int | None = None,
    gpus: int | None = None,
) -> Offers:
    rows = INSTANCES if instances else ()
    known = read_prices([prices], TABLE, INSTANCES) if prices else PriceList()
    table = TABLE if instances else SOME
    kinds = list_kinds(table, rows, nodes=nodes, gpus=gpus)
    return find_offers(kinds, TABLE, planner(params), known)


def only(takes: Callable[[int], bool], params: int) -> Offers:
    """Of a job that can be asked only of machines with so many ranks."""
    decide_on = planner(params)

    def of_some(candidate: MachineCandidate) -> Decision | None:
        return decide_on(candidate) if takes(candidate.size.world_size) else None

    return find_offers(list_kinds(SOME, ()), TABLE, of_some, PriceList())


def names(found: Offers) -> list[str]:
    return [offer.candidate.name for offer in found.offers]


def test_a_name_of_an_offer_is_a_machine_that_can_be_planned_for() -> None:
    """Its network is assumed where nobody knows it, and only between nodes."""
    for kind in list_kinds(TABLE, INSTANCES):
        for size in kind.sizes:
            candidate = kind.build(size, TABLE)
            named = parse_machine(candidate.name, TABLE, INSTANCES)
            assert named.gpus == candidate.machine.gpus
            assert named.nodes == candidate.machine.nodes == size.nodes
            assert named.world_size == size.world_size
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
    found = offers(7 * 10**9, "H200=3,A100-80GB=1").offers
    costs = [offer.cost for offer in found]
    known = [cost for cost in costs if cost is not None]
    assert 4 == len(known)
    assert sorted(known) == costs[:4]
    assert len(found) > 4
    # Dollars for a billion tokens.
    first, time = found[0], found[0].chosen.step_time
    assert time is not None
    hours = 10**9 / time.tokens * time.expected_seconds / 3600
    assert pytest.approx(hours * (first.price_per_hour or 0)) == first.cost


def test_several_nodes_are_tried_where_one_is_not_enough() -> None:
    found = names(offers(70 * 10**9))
    assert "2x8xA100-80GB" in found
    assert not [name for name in found if name.startswith("1x")]
    # A number that was said is the only one.
    assert {8} == {offer.candidate.size.gpus for offer in offers(10**9, gpus=8).offers}
    assert {2} == {offer.candidate.size.nodes for offer in offers(10**9, nodes=2).offers}


def test_an_instance_is_there_where_its_gpus_alone_do_not_fit_or_it_has_a_price() -> None:
    found = offers(7 * 10**9, instances=True)
    by_name = {offer.candidate.name: offer for offer in found.offers}
    # One A100 is too small; with the memory of its host it is not. Eight H100 fit without.
    assert by_name["a2-ultragpu-1g"].chosen.strategy.offload != "none"
    assert "p5.48xlarge" not in by_name
    first, *_ = offers(7 * 10**9, "p5.48xlarge=12.25", instances=True).offers
    assert ("p5.48xlarge", 98.0) == (first.candidate.name, first.price_per_hour)
    assert ("T4-16GB",) == offers(7 * 10**9, "T4-16GB=1,H200=3").unlisted_prices


def test_what_a_job_cannot_be_split_over_is_not_called_too_small() -> None:
    found = only(lambda ranks: ranks == 1, 7 * 10**9)
    assert ["1xH200-141GB"] == names(found)
    assert (0, len(SOME) - 1) == (found.kinds_without, found.kinds_unasked)
    # What fits nowhere is.
    nowhere = offers(10**12)
    assert ((), len(SOME), len(SOME)) == (nowhere.offers, nowhere.kinds, nowhere.kinds_without)


@pytest.mark.parametrize(
    "params", [7 * 10**9, pytest.param(70 * 10**9, marks=pytest.mark.thorough)]
)
def test_a_machine_that_is_not_tried_does_not_fit(params: int) -> None:
    """What is left out because a larger one is too small is decided the same."""
    tried: list[str] = []
    kinds = list_kinds(TABLE, ())
    found = find_offers(kinds, TABLE, planner(params, tried), PriceList())
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
    found = only(lambda ranks: ranks > 1, 10**9)
    sizes = {offer.candidate.size.world_size for offer in found.offers}
    assert {2, 4} <= sizes
    assert 1 not in sizes


def test_a_network_that_was_said_is_not_called_assumed() -> None:
    decide_on = planner(70 * 10**9)

    def with_network(candidate: MachineCandidate) -> Decision:
        network = replace(candidate.machine.network, bytes_per_s=10_000_000_000)
        machine = replace(candidate.machine, network=network)
        return decide_on(replace(candidate, machine=machine))

    kinds = list_kinds(SOME, (), nodes=2)
    for decided_by, assumed in ((decide_on, True), (with_network, False)):
        found = find_offers(kinds, TABLE, decided_by, PriceList())
        assert {assumed} == {offer.assumes_network for offer in found.offers}


# The JSON of machines, whose shape other programs rest on.

MODEL = model_from_size("7b", 7 * 10**9)
PRICES = read_prices(["2.50"], TABLE, INSTANCES)


def plain(value: dict[str, object]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


def test_a_machine_has_the_keys_of_the_contract() -> None:
    kinds = list_kinds(TABLE[-4:], ())
    found = find_offers(kinds, TABLE, lambda each: decided(each.machine, MODEL), PRICES)
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
        **dict.fromkeys(("price_per_hour", "cost"), "float"),
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


# Prices as people write them, and the price of a machine.


def prices(*texts: str) -> PriceList:
    return read_prices(texts, TABLE, INSTANCES)


@pytest.mark.parametrize(
    ("texts", "of", "instance", "expected"),
    [
        (["2.50"], "8xH200", None, 20.0),
        ([" 2.50 "], "4x8xH200", None, 80.0),
        (["H200=2.50", "4"], "8xH200", None, 20.0),
        (["4", "H200 = 2.50"], "8xH200", None, 20.0),
        (["H200=3", "2"], "8xA100-80GB", None, 16.0),
        (["H200=3,A100=2"], "8xA100-80GB", None, 16.0),
        (["H200=3"], "8xA100-80GB", None, None),
        (["p5.48xlarge=12.25"], "2xp5.48xlarge", "p5.48xlarge", 196.0),
        (["P5.48XLARGE=12.25"], "p5.48xlarge", "p5.48xlarge", 98.0),
        (["p5.48xlarge=12.25"], "8xH100-80GB", None, None),
        (["H100-80GB=2,p5.48xlarge=12.25"], "p5.48xlarge", "p5.48xlarge", 98.0),
        (["H100-80GB=2"], "p5.48xlarge", "p5.48xlarge", 16.0),
    ],
)
def test_the_most_special_price_of_a_machine_counts(
    texts: list[str], of: str, instance: str | None, expected: float | None
) -> None:
    machine = parse_machine(of, TABLE, INSTANCES)
    assert expected == prices(*texts).per_hour(machine, instance)


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "1e9", "=2", "H200=", "H200=cheap", "prices.toml"),
        # As they were written before, and as half of the world writes 2.50.
        *("2.50/gpu-hour", "32/node-hour", "$2.50", "2.50EUR", "2,50", "H200=2,50"),
    ],
)
def test_what_is_no_price_is_refused_with_how_one_is_written(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        prices(text)
    assert f"`$price {text}` is not a price" == refused.value.message
    (hint,) = refused.value.hints
    assert "dollars per GPU hour: `$price 2.50`" in hint
    assert prices(*hint.split("`$price ")[2].rstrip("`").split(","))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["Z9000=2"], "`Z9000` is not a GPU or an instance"),
        (["8xH200=2"], "`8xH200` is a machine, and a price is of one GPU"),
        (["H200=1,H200=2"], "a second price of the same"),
        (["1", "2"], "a second price of the same"),
    ],
)
def test_a_price_that_has_no_meaning_is_refused(texts: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        prices(*texts)
