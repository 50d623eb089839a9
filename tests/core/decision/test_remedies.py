"""Remedies: each is a change that was weighed again and leads to a rung."""

from typing import Any

import pytest
from measured.rows import read_model
from msgspec import convert, to_builtins

from zerowiz.core.decision.flowchart import Constraints, Decision, OffloadChoice, decide
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.decision.remedies import REMEDIES, Change, find_remedies
from zerowiz.core.machine.host import Host
from zerowiz.core.machine.interconnect_option import with_interconnect
from zerowiz.core.machine.network import Network, NetworkKind, Nic
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator, Machine, widen, with_nodes
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.model.from_size import model_from_size, parse_size
from zerowiz.core.values import replace
from zerowiz.core.workload import Accounting, Precision, StateDtype, Workload
from zerowiz.probe.machine.gpu_table import read_gpu_table

TABLE = read_gpu_table()
GB = 10**9
SLOW, FAST = parse_spec("4xRTX4090", TABLE), parse_spec("2xA100-40GB", TABLE)
EIGHT = parse_spec("8xH100-80GB-SXM", TABLE)
SEVEN = read_model("llama-2-7b")
HUGE, SMALL = (model_from_size(name, parse_size(name) or 0) for name in ("405b", "1.5b"))


def refused(
    machine: Machine = SLOW,
    workload: Workload | None = None,
    constraints: Constraints | None = None,
    **settings: Any,
) -> Decision:
    """A decision that chose nothing."""
    settings = {"model": SEVEN, **settings}
    job = PlanInput(machine=machine, workload=workload or Workload(), **settings)
    decision = decide(job, constraints or Constraints())
    assert decision.chosen is None
    return decision


def apply(decision: Decision, change: Change) -> tuple[PlanInput, Constraints]:
    """What the person gets by typing the options."""
    job, constraints = decision.job, decision.constraints
    for flag, value in change.items():
        if flag == "optimizer_state_dtype":
            job = replace(job, state_dtype=StateDtype(str(value)))
        elif flag == "machine":
            job = replace(job, machine=parse_spec(str(value), TABLE))
        elif flag == "interconnect":
            job = replace(job, machine=with_interconnect(job.machine, str(value)))
        elif flag == "model":
            params = parse_size(str(value))
            assert params is not None
            job = replace(job, model=model_from_size(str(value), params))
        elif flag == "offload":
            constraints = replace(constraints, offload=OffloadChoice(str(value)))
        elif flag == "allow_slow":
            constraints = replace(constraints, allow_slow=True)
        else:
            step = {**to_builtins(job.workload), flag: value}
            job = replace(job, workload=convert(step, Workload))
    return job, constraints


LEAN = Workload(gradient_checkpointing=True)
LONG = Workload(micro_batch=8, sequence_tokens=4096)
SQUEEZED = replace(LEAN, micro_batch=1024, sequence_tokens=65536)
REFUSED = {
    "slow": refused(),
    "slow and batched": refused(workload=LONG),
    "slow zero3": refused(
        replace(SLOW, host=Host(available_bytes=900 * GB)), LEAN, state_dtype=StateDtype.BF16
    ),
    "fast": refused(FAST, LONG),
    "four": refused(parse_spec("4xA100-40GB", TABLE)),
    "four, batched": refused(
        parse_spec("4xA100-40GB", TABLE),
        replace(LEAN, micro_batch=32),
        constraints=Constraints(stage=3),
    ),
    "fp16": refused(FAST, Workload(precision=Precision.FP16)),
    "one": refused(parse_spec("A100-40GB", TABLE)),
    "stage 2": refused(FAST, constraints=Constraints(stage=2)),
    "no offload": refused(SLOW, constraints=Constraints(offload=OffloadChoice.NONE)),
    "nodes": refused(with_nodes(SLOW, 2), LONG),
    "fp32": refused(
        parse_spec("8xA100-40GB", TABLE),
        Workload(precision=Precision.FP32),
        Constraints(stage=2),
    ),
    "unknown network": refused(with_nodes(EIGHT, 16), LEAN, model=HUGE),
    "unknown network, pair": refused(with_nodes(EIGHT, 16), model=HUGE),
    "squeezed": refused(
        parse_spec("A100-40GB", TABLE), SQUEEZED, model=SMALL, state_dtype=StateDtype.BF16
    ),
    "told": refused(parse_spec("2xRTX4090", TABLE), accounting=Accounting.TEXTBOOK),
}


@pytest.mark.parametrize("decision", REFUSED.values(), ids=REFUSED)
def test_typing_a_remedy_leads_to_the_rung_that_it_names(decision: Decision) -> None:
    found = find_remedies(decision)
    assert found
    for remedy in found:
        led = decide(*apply(decision, remedy.change))
        assert led.chosen is not None
        # A lone GPU does not tell how others would be linked, so there the slow link is planned for.
        guessed = len(decision.job.machine.gpus) == 1 and "machine" in remedy.change
        running = {evaluated.strategy.name for evaluated in led.evaluated if evaluated.runs}
        assert remedy.strategy in (running if guessed else {led.chosen.strategy.name})


def test_every_remedy_is_offered_in_some_case() -> None:
    offered: set[str] = set()
    for decision in REFUSED.values():
        changes = [remedy.change for remedy in find_remedies(decision)]
        for attempt in REMEDIES:
            tried = attempt(decision.job, decision.constraints)
            offered |= {attempt.__name__ for change, _, _ in tried if change in changes}
    assert {attempt.__name__ for attempt in REMEDIES} == offered


@pytest.mark.parametrize("decision", REFUSED.values(), ids=REFUSED)
def test_no_remedy_is_told_twice_or_frees_less_than_nothing(decision: Decision) -> None:
    found = find_remedies(decision)
    changes = [tuple(remedy.change.items()) for remedy in found]
    assert len(set(changes)) == len(changes)
    assert [] == [remedy for remedy in found if remedy.frees_bytes < 0]


def flags(decision: Decision) -> list[str]:
    return [flag for remedy in find_remedies(decision) for flag in remedy.change]


def test_what_is_done_already_is_no_remedy() -> None:
    job = PlanInput(machine=SLOW, model=SEVEN, workload=LEAN, state_dtype=StateDtype.BF16)
    decision = decide(job, Constraints(stage=2, offload=OffloadChoice.AUTO, allow_slow=True))
    done = {"gradient_checkpointing", "optimizer_state_dtype", "offload", "allow_slow"}
    assert decision.chosen is None
    assert not done & set(flags(decision))


def test_fp16_is_not_offered_bf16_states() -> None:
    assert "optimizer_state_dtype" not in flags(REFUSED["fp16"])


def test_a_slow_zero3_can_be_allowed_or_offloaded() -> None:
    rungs = {
        flag: remedy.strategy
        for remedy in find_remedies(REFUSED["slow zero3"])
        for flag in remedy.change
    }
    assert "zero3" == rungs["allow_slow"]
    assert "zero3-offload" == rungs["offload"]


INFINIBAND = {"interconnect": "infiniband:400Gb/s"}


def test_an_unknown_network_is_asked_for_before_anything_is_changed() -> None:
    (first, *_) = find_remedies(REFUSED["unknown network"])
    assert (INFINIBAND, "zero3", 0) == (first.change, first.strategy, first.frees_bytes)


def test_two_changes_are_offered_where_none_is_enough_and_before_a_smaller_model() -> None:
    found = [remedy.change for remedy in find_remedies(REFUSED["unknown network, pair"])]
    assert [
        {"gradient_checkpointing": True, **INFINIBAND},
        {"gradient_checkpointing": True, "allow_slow": True},
        {"model": "14b"},
    ] == found


def test_a_batch_and_a_sequence_are_made_smaller_together_where_one_is_not_enough() -> None:
    [first, *_] = find_remedies(REFUSED["squeezed"])
    assert {"micro_batch", "accumulation_steps", "sequence_tokens"} == set(first.change)


def test_what_a_network_is_known_to_be_is_no_question() -> None:
    for text in ("ethernet:10Gb/s", "infiniband"):
        job = REFUSED["unknown network"].job
        known = replace(job, machine=with_interconnect(job.machine, text))
        remedies = find_remedies(decide(known, Constraints(stage=2)))
        assert remedies
        assert not [remedy for remedy in remedies if "interconnect" in remedy.change]


def test_an_adapter_that_cannot_be_used_here_is_not_passed_over() -> None:
    nic = Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND, unusable="port 1 is DOWN")
    job = REFUSED["unknown network"].job
    seen = replace(job, machine=replace(job.machine, network=Network(nics=(nic,))))
    assert not [r for r in find_remedies(decide(seen, Constraints())) if "interconnect" in r.change]


@pytest.mark.parametrize("case", REFUSED)
def test_several_changes_come_together_only_where_one_is_not_enough(case: str) -> None:
    decision = REFUSED[case]
    alone = {
        tuple(remedy.change.items())
        for remedy in find_remedies(decision)
        if len(remedy.change) == 1
    }
    for remedy in find_remedies(decision):
        if len(remedy.change) > 1 and "interconnect" in remedy.change:
            assert not alone & {(each,) for each in remedy.change.items()}


@pytest.mark.parametrize("case", ["four", "fp16", "stage 2"])
def test_the_fewest_gpus_that_help_are_offered(case: str) -> None:
    decision = REFUSED[case]
    (spec,) = [r.change["machine"] for r in find_remedies(decision) if "machine" in r.change]
    count = int(str(spec).partition("x")[0])
    fewer = [n for n in (2, 4, 8) if len(decision.job.machine.gpus) < n < count]
    assert count in {2, 4, 8}
    for narrower in fewer:
        machine = widen(decision.job.machine, narrower)
        assert decide(replace(decision.job, machine=machine), decision.constraints).chosen is None


def test_beside_a_persons_own_config_nothing_is_offered() -> None:
    job = replace(REFUSED["four"].job, own_buffers=DEEPSPEED_DEFAULTS)
    assert () == find_remedies(decide(job, Constraints(stage=2)))


def batches(decision: Decision) -> list[tuple[int, int]]:
    """Micro-batch and accumulation of the remedies that change these two alone."""
    both = {"micro_batch", "accumulation_steps"}
    found = [r.change for r in find_remedies(decision) if both == set(r.change)]
    return [(int(c["micro_batch"]), int(c["accumulation_steps"])) for c in found]


def test_the_largest_batch_that_helps_is_offered() -> None:
    decision = REFUSED["four, batched"]
    ((micro_batch, _),) = batches(decision)
    larger = replace(decision.job.workload, micro_batch=2 * micro_batch)
    assert decide(replace(decision.job, workload=larger), decision.constraints).chosen is None


def test_a_smaller_micro_batch_keeps_the_global_batch() -> None:
    decision = REFUSED["four, batched"]
    workload = decision.job.workload
    ((micro_batch, steps),) = batches(decision)
    assert workload.micro_batch * workload.accumulation_steps == micro_batch * steps


def test_the_longest_sequence_that_helps_is_offered() -> None:
    decision = REFUSED["four"]
    (tokens,) = [
        int(r.change["sequence_tokens"])
        for r in find_remedies(decision)
        if "sequence_tokens" in r.change
    ]
    longer = replace(decision.job.workload, sequence_tokens=2 * tokens)
    assert decide(replace(decision.job, workload=longer), decision.constraints).chosen is None


@pytest.mark.parametrize("nodes", [2, 4])
def test_more_gpus_of_a_cluster_are_not_offered(nodes: int) -> None:
    assert "gpus_per_node" not in flags(refused(with_nodes(SLOW, nodes), LONG))


def test_more_gpus_are_not_offered_to_a_cpu_job() -> None:
    gpus = tuple(replace(gpu, free_bytes=GB) for gpu in SLOW.gpus)
    cpu = replace(SLOW, accelerator=Accelerator.CPU, gpus=gpus)
    assert "gpus_per_node" not in flags(refused(cpu))


def test_a_good_choice_needs_no_remedy() -> None:
    job = PlanInput(
        machine=parse_spec("8xH200", TABLE), model=read_model("llama-3.2-1b"), workload=LEAN
    )
    assert () == find_remedies(decide(job, Constraints()))


def test_what_frees_memory_says_how_much_on_the_same_rung() -> None:
    machine = parse_spec("4xA100-40GB", TABLE)
    decision = refused(machine, Workload(micro_batch=4), Constraints(stage=3))
    remedy = next(r for r in find_remedies(decision) if "gradient_checkpointing" in r.change)
    changed = decide(*apply(decision, remedy.change)).chosen
    assert changed is not None
    before = decision.of(changed.strategy).device_bytes
    assert before - changed.device_bytes == remedy.frees_bytes
