"""Remedies: each is a change that was evaluated again, and leads to what it says."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured.rows import read_model
from msgspec import convert, to_builtins

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.remedies import (
    CHEAP,
    Expense,
    Kind,
    Remedy,
    RemedyScope,
    find_edits,
    find_remedies,
    quantize,
    raise_budget,
    shorten,
    state_network,
    train_adapters,
    worth_offering,
)
from zerowiz.core.machine.job_gpus import choose_gpus
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import (
    Accelerator,
    Host,
    Machine,
    Network,
    NetworkKind,
    Nic,
    pick_gpus,
    with_host_memory,
    with_interconnect,
)
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.model.from_name import model_from_size, parse_size
from zerowiz.core.settings import Change
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.structs import replace
from zerowiz.core.units import parse_budget, parse_host_memory
from zerowiz.core.workload import (
    Accounting,
    Attention,
    Loss,
    Method,
    Optimizer,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table, read_known_models
from zerowiz.ui.sentences import lack, nothing_fits

TABLE = read_gpu_table()
SCOPE = RemedyScope(gpus=TABLE, models=read_known_models)
GB = 10**9
SLOW, FAST = parse_spec("4xRTX4090", TABLE), parse_spec("2xA100-40GB", TABLE)
FOUR, EIGHT = parse_spec("4xA100-40GB", TABLE), parse_spec("8xH100-80GB-SXM", TABLE)
SEVEN, LLAMA3 = read_model("llama-2-7b"), read_model("llama-3.1-8b")
HUGE, SMALL = (model_from_size(name, parse_size(name) or 0) for name in ("405b", "1.5b"))


def planned(machine: Machine, workload: Workload, **values: Any) -> Job:
    """A job on GPUs of the table."""
    rates = find_rates(machine, TABLE)
    return Job(machine=machine, workload=workload, rates=rates, **values)


def refused(
    machine: Machine = SLOW,
    workload: Workload | None = None,
    constraints: Constraints | None = None,
    **values: Any,
) -> Decision:
    """A decision that chose nothing."""
    values = {"model": SEVEN, **values}
    decision = decide(
        planned(machine, workload or Workload(), **values), constraints or Constraints()
    )
    assert decision.chosen is None
    return decision


def _on_machine(job: Job, name: str, value: str) -> Job:
    machine = job.machine
    if name == "machine":
        machine = parse_spec(value, TABLE)
    elif name == "interconnect":
        machine = with_interconnect(machine, value)
    elif name == "gpus":
        machine = pick_gpus(machine, choose_gpus(machine.gpus, asked=value))
    elif name == "host_memory":
        machine = with_host_memory(machine, parse_host_memory(value))
    return replace(job, machine=machine, rates=find_rates(machine, TABLE))


def _allowed(constraints: Constraints, name: str, value: object) -> Constraints:
    if name == "stage":
        return replace(constraints, stage=None if value == "auto" else int(str(value)))
    if name == "offload":
        return replace(constraints, offload=OffloadChoice(str(value)))
    return replace(constraints, allow_slow=True)


def apply(decision: Decision, change: Change) -> tuple[Job, Constraints]:
    """What the person gets by typing the options."""
    job, constraints = decision.job, decision.constraints
    for name in sorted(change, key=lambda each: each != "machine"):
        value = change[name]
        if name in {"machine", "gpus", "interconnect", "host_memory"}:
            job = _on_machine(job, name, str(value))
        elif name in {"stage", "offload", "allow_slow"}:
            constraints = _allowed(constraints, name, value)
        elif name == "model":
            job = replace(job, model=named(str(value)))
        elif name == "memory_budget":
            job = replace(job, budget_bytes=parse_budget(str(value), job.machine.total_bytes))
        elif name == "optimizer_state_dtype":
            job = replace(job, state_dtype=StateDtype(str(value)))
        else:
            step = {**to_builtins(job.workload), name: value}
            job = replace(job, workload=convert(step, Workload))
    return job, constraints


def named(text: str) -> Any:
    """The model that a remedy names."""
    params = parse_size(text)
    if params is not None:
        return model_from_size(text, params)
    return next(row for row in read_known_models() if row.id == text).build()


def with_free(machine: Machine, free_bytes: Mapping[int, int]) -> Machine:
    """The machine on some GPUs of which others hold all but so much."""
    gpus = (
        replace(gpu, free_bytes=free_bytes.get(gpu.index, gpu.free_bytes)) for gpu in machine.gpus
    )
    return replace(machine, gpus=tuple(gpus))


LEAN = Workload(gradient_checkpointing=True)
LONG = Workload(micro_batch=8, sequence_tokens=4096)
CASES: Mapping[str, Callable[[], Decision]] = {
    "slow": refused,
    "slow and batched": partial(refused, workload=LONG),
    "slow zero3": partial(
        refused,
        replace(SLOW, host=Host(available_bytes=900 * GB)),
        LEAN,
        state_dtype=StateDtype.BF16,
    ),
    "fast": partial(refused, FAST, LONG),
    "four": partial(refused, FOUR),
    "four, batched": partial(
        refused, FOUR, replace(LEAN, micro_batch=32), constraints=Constraints(stage=3)
    ),
    "fp16": partial(refused, FAST, Workload(precision=Precision.FP16)),
    "one": partial(refused, parse_spec("A100-40GB", TABLE)),
    "one, and stage 3 fits": partial(
        refused, parse_spec("A100-80GB", TABLE), replace(LEAN, optimizer=Optimizer.ADAMW_8BIT)
    ),
    "stage 2": partial(refused, FAST, constraints=Constraints(stage=2)),
    "stage 2, and stage 3 fits": partial(refused, FOUR, LEAN, constraints=Constraints(stage=2)),
    "stage and offload": partial(
        refused,
        with_host_memory(FAST, 900 * GB),
        LEAN,
        Constraints(stage=0, offload=OffloadChoice.NONE),
    ),
    "no offload": partial(refused, SLOW, constraints=Constraints(offload=OffloadChoice.NONE)),
    "nodes": partial(refused, replace(SLOW, nodes=2), LONG),
    "fp32": partial(
        refused,
        parse_spec("8xA100-40GB", TABLE),
        Workload(precision=Precision.FP32),
        Constraints(stage=2),
    ),
    "eager": partial(
        refused,
        parse_spec("8xA100-40GB", TABLE),
        replace(LEAN, attention=Attention.EAGER, sequence_tokens=16384),
        model=LLAMA3,
    ),
    "many logits": partial(
        refused, EIGHT, replace(LEAN, sequence_tokens=65536, micro_batch=1), model=LLAMA3
    ),
    "long enough to share": partial(refused, EIGHT, Workload(sequence_tokens=10**6)),
    # Of a number of tokens that no GPUs can share.
    "very long": partial(refused, EIGHT, Workload(sequence_tokens=10**6 + 1)),
    "very long, small": partial(
        refused, parse_spec("2xRTX4090", TABLE), Workload(sequence_tokens=10**6 + 1)
    ),
    "unknown network": partial(refused, replace(EIGHT, nodes=16), LEAN, model=HUGE),
    "unknown network, pair": partial(refused, replace(EIGHT, nodes=16), model=HUGE),
    "a family": partial(refused, FAST, model=LLAMA3),
    "little host": partial(refused, with_host_memory(FAST, 64 * GB), LEAN),
    "adapters": partial(
        refused,
        parse_spec("T4", TABLE),
        Workload(precision=Precision.FP16, method=Method.LORA, gradient_checkpointing=True),
    ),
    "evaluated": partial(
        refused,
        parse_spec("2xRTX3090", TABLE),
        Workload(micro_batch=2, sequence_tokens=1024, eval_batch=16),
        Constraints(stage=2),
        model=read_model("llama-3.2-1b"),
    ),
    "budget": partial(refused, parse_spec("8xH200", TABLE), LEAN, budget_bytes=5 * GB),
    "squeezed": partial(
        refused,
        parse_spec("A100-40GB", TABLE),
        replace(LEAN, micro_batch=64, sequence_tokens=65536),
        model=SMALL,
        state_dtype=StateDtype.BF16,
    ),
    "one busy GPU": partial(refused, with_free(EIGHT, {3: 8 * GB}), LEAN),
    "one full GPU": partial(refused, with_free(EIGHT, {3: 0}), LEAN),
    "rule of thumb": partial(
        refused, parse_spec("2xRTX4090", TABLE), accounting=Accounting.TEXTBOOK
    ),
    "hopeless": partial(
        refused, parse_spec("T4", TABLE), Workload(precision=Precision.FP16), model=HUGE
    ),
}


class _Refused(dict[str, Decision]):
    """The decision of each case, once a test asks for it."""

    def __missing__(self, case: str) -> Decision:
        decision = self[case] = CASES[case]()
        return decision


REFUSED = _Refused()


class _Found(dict[str, Sequence[Remedy]]):
    """The remedies of each case, once a test asks for them."""

    def __missing__(self, case: str) -> Sequence[Remedy]:
        found = self[case] = find_remedies(REFUSED[case], SCOPE)
        return found


FOUND = _Found()


def leads_where_it_says(decision: Decision, remedy: Remedy) -> None:
    chosen = decide(*apply(decision, remedy.change)).chosen
    assert chosen is not None
    assert chosen.runs
    assert (remedy.strategy, remedy.verdict) == (chosen.strategy.name, chosen.verdict)
    assert (remedy.device_bytes, remedy.budget_bytes) == (chosen.device_bytes, chosen.budget_bytes)
    assert remedy.step_seconds == (chosen.step_time and chosen.step_time.expected_seconds)


@pytest.mark.parametrize("case", CASES)
def test_typing_a_remedy_leads_to_what_it_says(case: str) -> None:
    assert FOUND[case]
    for remedy in FOUND[case]:
        leads_where_it_says(REFUSED[case], remedy)


def test_where_the_host_lacks_memory_no_machine_of_an_unknown_host_is_offered() -> None:
    container = with_host_memory(parse_spec("8xH100-80GB", TABLE), 8 * GB)
    decision = refused(container, model=named("1.3b"))
    # By what it needs of its GPUs the job fits; and what it lacks has a number.
    assert [["host_memory"]] == [[*remedy.change] for remedy in find_remedies(decision, SCOPE)]
    limited = replace(container, host=replace(container.host, available_by="cgroup v2"))
    said = lack(decision.evaluated[0], limited)
    assert "lacks 6.2 GiB of host memory while it trains (cgroup v2 leaves 7.5 GiB)" == said


def test_a_job_that_only_its_evaluation_keeps_out_is_offered_a_smaller_one_first() -> None:
    first = FOUND["evaluated"][0]
    assert {"eval_batch"} == first.change.keys()
    larger = {"eval_batch": 2 * int(first.change["eval_batch"])}
    assert decide(*apply(REFUSED["evaluated"], larger)).chosen is None
    assert "; evaluation (16 per GPU) decides the peak; training holds" in nothing_fits(
        REFUSED["evaluated"]
    )


def test_where_one_evaluated_sequence_is_too_much_none_is_an_edit_of_the_script() -> None:
    step = replace(LEAN, sequence_tokens=32768, loss=Loss.LIGER, eval_batch=1)
    decision = refused(parse_spec("A100-40GB", TABLE), step, model=read_model("llama-3.2-1b"))
    fixed = replace(SCOPE, takes=lambda change: change.get("eval_batch") != 0)
    assert {"eval_batch": 0} not in [remedy.change for remedy in find_remedies(decision, fixed)]
    (edit, *_) = find_edits(decision, fixed)
    assert {"eval_batch": 0} == edit.change
    leads_where_it_says(decision, edit)


def test_the_longest_sequences_that_a_leaner_step_fits_come_before_shorter_ones() -> None:
    shorter = [each for each in FOUND["very long"] if "sequence_tokens" in each.change]
    changed = [{*each.change} for each in shorter]
    lean = {"sequence_tokens", "gradient_checkpointing", "loss"}
    assert [lean, {"sequence_tokens"}] == changed
    longest, shortest = (each.sequence_tokens for each in shorter)
    assert longest >= 8 * shortest
    longer = {**shorter[0].change, "sequence_tokens": 2 * longest}
    assert decide(*apply(REFUSED["very long"], longer)).chosen is None


def test_where_nothing_else_does_shorter_sequences_are_offered_with_adapters() -> None:
    (remedy,) = FOUND["very long, small"]
    assert {"sequence_tokens", "gradient_checkpointing", "loss", "method"} == remedy.change.keys()
    assert "lora" == remedy.change["method"]


MACHINES = ("A10", "2xRTX4090", "4xA100-40GB", "8xL4", "8xH100-80GB-SXM", "2x8xV100-32GB")
MODELS = (SEVEN, LLAMA3, SMALL, HUGE, read_model("qwen3-32b"), read_model("opt-1.3b"))


@settings(max_examples=settings().max_examples // 3)
@given(
    machine=st.sampled_from(MACHINES),
    model=st.sampled_from(MODELS),
    step=st.builds(
        Workload,
        micro_batch=st.sampled_from((1, 4, 12)),
        sequence_tokens=st.sampled_from((512, 2048)),
        precision=st.sampled_from((Precision.FP16, Precision.FP32)),
        gradient_checkpointing=st.booleans(),
        method=st.sampled_from((Method.FULL, Method.LORA)),
    ),
    constraints=st.builds(
        Constraints,
        stage=st.sampled_from((None, 0, 2, 3)),
        offload=st.sampled_from((None, OffloadChoice.NONE)),
    ),
)
def test_any_remedy_of_any_job_leads_to_what_it_says(
    machine: str, model: Any, step: Workload, constraints: Constraints
) -> None:
    job = planned(parse_spec(machine, TABLE), step, model=model)
    decision = decide(job, constraints)
    found = find_remedies(decision, SCOPE)
    assert found or decision.chosen is not None
    for remedy in found:
        if decision.chosen is None:
            leads_where_it_says(decision, remedy)
            has_no_needless_part(decision, remedy)
    cheapest_first(found)


def ranks(remedy: Remedy) -> list[int]:
    """What a remedy costs besides time, the dearest first."""
    return sorted((list(Expense).index(cost) for cost in remedy.costs), reverse=True)


def is_slow(remedy: Remedy) -> bool:
    """Whether it is no first choice: a step that takes many times as long."""
    return (remedy.time_fraction or 0) >= 5


def cheapest_first(found: Sequence[Remedy]) -> None:
    """A smaller evaluation is the first, another model the last, what is slow before it.

    The others stand by quality, of which longer sequences have more, then by time.
    """
    steps = [each.change.keys() != {"eval_batch"} for each in found]
    assert steps == sorted(steps)
    found = [each for each, is_step in zip(found, steps, strict=True) if is_step]
    models = ["model" in each.change for each in found]
    assert models == sorted(models)
    others = [each for each in found if "model" not in each.change]
    dear = [is_slow(each) or Expense.GPUS in each.costs for each in others]
    assert dear == sorted(dear)
    others = [each for each in others if not is_slow(each)]
    prices = [
        (ranks(each), -each.sequence_tokens, each.verdict is Verdict.UNCERTAIN) for each in others
    ]
    assert prices == sorted(prices)
    times = [each.time_fraction or 0.0 for each in others]
    for (price, time), (next_price, next_time) in pairwise(zip(prices, times, strict=True)):
        # Of those that are as fast, the milder may be the first.
        assert price < next_price or time <= 1.02 * next_time


def test_every_kind_of_change_is_offered_in_some_case() -> None:
    offered: set[Kind] = set()
    kinds = (*CHEAP, state_network, shorten, train_adapters, quantize, raise_budget)
    for name in CASES:
        decision = REFUSED[name]
        changes = [remedy.change for remedy in FOUND[name]]
        for kind in kinds:
            tried = kind(decision.job, decision.constraints)
            if any(each.change.items() <= change.items() for each in tried for change in changes):
                offered.add(kind)
    assert set(kinds) == offered
    assert set(Expense) == {cost for case in CASES for each in FOUND[case] for cost in each.costs}


@pytest.mark.parametrize("case", CASES)
def test_no_remedy_is_dominated_and_the_cheapest_comes_first(case: str) -> None:
    found = FOUND[case]
    assert list(found) == list(worth_offering(found))
    assert len({tuple(remedy.change.items()) for remedy in found}) == len(found)
    cheapest_first(found)
    for each in found:
        cheaper = [
            other
            for other in found
            if other.change.items() < each.change.items()
            and other.verdict is each.verdict
            and (other.time_fraction or 0) <= (each.time_fraction or 0)
        ]
        assert [] == [one for one in cheaper if "interconnect" not in one.change]


# Two options that are one change: the same global batch, a machine with the network of its time, the
# memory of a host with the offload that needs it, and any strategy instead of one.
ONE_CHANGE = (
    {"micro_batch", "accumulation_steps"},
    {"machine", "interconnect"},
    {"offload", "host_memory"},
    {"stage", "offload"},
    {"sequence_parallel", "accumulation_steps"},
)


def has_no_needless_part(decision: Decision, remedy: Remedy) -> None:
    for name in remedy.change:
        part = next((pair for pair in ONE_CHANGE if {name} < pair <= remedy.change.keys()), {name})
        rest = {other: value for other, value in remedy.change.items() if other not in part}
        if not rest:
            continue
        try:
            chosen = decide(*apply(decision, rest)).chosen
        except UsageError:
            # The job cannot be so: states in bf16 need weights in bf16.
            continue
        worse = chosen is None or not chosen.runs or (remedy.is_sure and not chosen.is_sure)
        assert worse, (remedy.change, part)


@pytest.mark.parametrize("case", CASES)
def test_no_part_of_a_remedy_can_be_left_out(case: str) -> None:
    for remedy in FOUND[case]:
        has_no_needless_part(REFUSED[case], remedy)


def long(tokens: int, gpus: int = 8, model: Any = LLAMA3) -> Decision:
    """A job on H100s with sequences of that length."""
    machine = parse_spec(f"{gpus}xH100-80GB-SXM", TABLE)
    return refused(machine, Workload(sequence_tokens=tokens), model=model)


def test_a_long_sequence_takes_checkpointing_and_a_leaner_loss_or_gpus_that_share_it() -> None:
    """The second is hardly faster, and needs no library."""
    liger, shared = find_remedies(long(131_072), SCOPE)
    assert {"loss": "liger", "gradient_checkpointing": True} == liger.change
    assert ("zero3", Verdict.TIGHT) == (liger.strategy, liger.verdict)
    assert {"gradient_checkpointing": True, **SHARED} == shared.change
    assert ("zero2", Verdict.FITS) == (shared.strategy, shared.verdict)


SHARED: Change = {"sequence_parallel": 8, "accumulation_steps": 8}


def test_a_longer_one_takes_gpus_that_share_each_sequence_and_is_not_cut() -> None:
    (remedy,) = FOUND["long enough to share"]
    assert SHARED.items() <= remedy.change.items()
    assert Verdict.FITS is remedy.verdict


@pytest.mark.parametrize(
    ("model", "gpus", "tokens"),
    [
        *(("llama-3.1-8b", *row) for row in ((2, 2**14), (4, 2**17), (8, 2**14), (8, 2**19))),
        *(("qwen2.5-14b", *row) for row in ((4, 2**14), (8, 2**17))),
    ],
)
def test_no_sequence_is_cut_that_gpus_can_share(model: str, gpus: int, tokens: int) -> None:
    decision = long(tokens, gpus, read_model(model))
    lean: Change = {"gradient_checkpointing": True, "loss": "liger", "sequence_parallel": gpus}
    chosen = decide(*apply(decision, {**lean, "accumulation_steps": gpus})).chosen
    assert chosen is not None
    assert chosen.is_sure
    assert not any("sequence_tokens" in r.change for r in find_remedies(decision, SCOPE))


def find(case: str, *names: str) -> list[Change]:
    """The changes that set just these."""
    return [remedy.change for remedy in FOUND[case] if set(names) == set(remedy.change)]


@pytest.mark.parametrize("name", ["one busy GPU", "one full GPU"])
def test_one_busy_gpu_of_eight_is_left_out(name: str) -> None:
    first = FOUND[name][0]
    assert ({"gpus": "0,1,2,4,5,6,7"}, "zero2") == (first.change, first.strategy)


def test_as_many_busy_gpus_are_left_out_as_it_takes() -> None:
    """The mildest that is enough keeps the GPU that is hardly used."""
    machine = with_free(EIGHT, {0: 8 * GB, 2: 9 * GB, 5: 60 * GB})
    [first, *_] = find_remedies(refused(machine, LEAN), SCOPE)
    assert {"gpus": "1,3,4,5,6,7"} == first.change


def test_gpus_of_which_all_are_busy_stay() -> None:
    machine = with_free(EIGHT, dict.fromkeys(range(8), 8 * GB))
    assert not any("gpus" in each.change for each in find_remedies(refused(machine, LEAN), SCOPE))


def test_a_stage_that_was_set_is_dropped_where_it_is_what_blocks() -> None:
    assert {"stage": "auto"} == FOUND["stage 2, and stage 3 fits"][0].change
    assert "zero3" == FOUND["stage 2, and stage 3 fits"][0].strategy
    assert [{"stage": "auto", "offload": "auto"}] == find("stage and offload", "stage", "offload")


def test_stage_3_is_offered_to_one_gpu_that_it_fits() -> None:
    assert ({"stage": "3"}, "zero3") == (
        FOUND["one, and stage 3 fits"][0].change,
        FOUND["one, and stage 3 fits"][0].strategy,
    )


def test_lora_stands_before_qlora_with_what_it_needs_besides() -> None:
    card = refused(parse_spec("RTX4090", TABLE), model=model_from_size("7b", 7 * 10**9))
    lora, qlora, *others = [r for r in find_remedies(card, SCOPE) if "method" in r.change]
    assert ["gradient_checkpointing", "method"] == sorted(lora.change)
    assert ("lora", "qlora", []) == (lora.change["method"], qlora.change["method"], others)
    assert {Expense.METHOD, Expense.PRECISION} == qlora.costs


def test_no_cpu_rank_is_offered_weights_in_4_bits() -> None:
    gpus = tuple(replace(gpu, free_bytes=6 * GB) for gpu in SLOW.gpus)
    cpu = replace(SLOW, accelerator=Accelerator.CPU, gpus=gpus)
    found = find_remedies(refused(cpu, Workload(), model=SMALL), SCOPE)
    assert {"lora"} == {r.change["method"] for r in found if "method" in r.change}


def test_a_model_that_is_hardly_smaller_is_no_remedy() -> None:
    eight = model_from_size("8b", 8 * 10**9)
    long = replace(LEAN, sequence_tokens=16384, gradient_checkpointing=False)
    found = find_remedies(refused(EIGHT, long, Constraints(stage=2), model=eight), SCOPE)
    assert ["3b"] == [remedy.change["model"] for remedy in found if "model" in remedy.change]


def test_long_sequences_are_offered_a_loss_that_holds_no_logits() -> None:
    assert {"loss": "liger"} == FOUND["many logits"][0].change
    assert (FOUND["many logits"][0].time_fraction or 2) < 1


def test_host_memory_to_add_is_a_number() -> None:
    (host,) = [r for r in FOUND["little host"] if "host_memory" in r.change]
    gib = int(str(host.change["host_memory"]).removesuffix("GiB"))
    assert gib * 2**30 - 64 * GB == host.more_host_bytes
    job = REFUSED["little host"].job
    less = replace(job, machine=with_host_memory(job.machine, (gib - 1) * 2**30))
    chosen = decide(less, Constraints()).chosen
    assert host.is_sure
    assert chosen is None or not chosen.is_sure


def test_a_smaller_model_is_a_sibling_by_name_and_the_last() -> None:
    assert {"model": "meta-llama/Llama-3.2-3B"} == FOUND["a family"][-1].change
    # Llama-2 has no smaller one.
    assert {"model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"} == FOUND["one"][-1].change


def test_of_a_size_the_next_size_is_offered() -> None:
    size = refused(FOUR, model=model_from_size("7b", 7 * 10**9))
    assert {"model": "3b"} == find_remedies(size, SCOPE)[-1].change


def test_one_machine_is_named_of_as_many_larger_gpus_or_of_more() -> None:
    machines = [remedy.change["machine"] for remedy in FOUND["four"] if "machine" in remedy.change]
    assert ["4xA100-80GB"] == machines
    for found in (FOUND[case] for case in CASES):
        for name in ("machine", "model"):
            assert sum(name in remedy.change for remedy in found) <= 1


def test_what_fits_nowhere_names_the_smallest_machine_that_does() -> None:
    (machine,) = [r for r in FOUND["hopeless"] if "machine" in r.change]
    assert Expense.GPUS in machine.costs
    job, constraints = apply(REFUSED["hopeless"], machine.change)
    fewer = replace(job, machine=replace(job.machine, nodes=max(1, job.machine.nodes // 2)))
    assert job.machine.nodes > 1
    assert decide(fewer, constraints).chosen is None


def test_what_does_not_reach_the_ranks_is_an_edit_of_the_script() -> None:
    scope = replace(SCOPE, takes=lambda change: "gradient_checkpointing" not in change)
    decision = REFUSED["four"]
    assert not any("gradient_checkpointing" in r.change for r in find_remedies(decision, scope))
    (edit, *_) = find_edits(decision, scope)
    assert {"gradient_checkpointing": True} == edit.change
    leads_where_it_says(decision, edit)


def test_a_smaller_micro_batch_stands_beside_a_loss_that_takes_a_library() -> None:
    step = Workload(micro_batch=4, gradient_checkpointing=True, method=Method.LORA)
    decision = refused(parse_spec("1xRTX4090", TABLE), step, model=LLAMA3)
    fixed = replace(SCOPE, takes=lambda change: not {"loss", "micro_batch"} & change.keys())
    for changes in (find_remedies(decision, SCOPE), find_edits(decision, fixed)):
        named = {name: remedy for remedy in changes for name in remedy.change}
        split, loss = named["micro_batch"], named["loss"]
        assert "loss" not in split.change
        assert (loss.time_fraction or 0) < (split.time_fraction or 0)
        leads_where_it_says(decision, split)


def test_a_budget_that_was_set_can_be_raised_to_what_is_needed() -> None:
    (budget,) = [r for r in FOUND["budget"] if "memory_budget" in r.change]
    assert budget.is_sure
    assert budget.budget_bytes is not None
    assert 0 <= budget.budget_bytes - budget.device_bytes


def flags(decision: Decision) -> list[str]:
    return [flag for remedy in find_remedies(decision, SCOPE) for flag in remedy.change]


def test_what_is_done_already_is_no_remedy() -> None:
    job = planned(SLOW, LEAN, model=SEVEN, state_dtype=StateDtype.BF16)
    decision = decide(job, Constraints(stage=2, offload=OffloadChoice.AUTO, allow_slow=True))
    done = {"gradient_checkpointing", "optimizer_state_dtype", "offload", "allow_slow"}
    assert decision.chosen is None
    assert not done & set(flags(decision))


def test_fp16_is_not_offered_bf16_states() -> None:
    assert "optimizer_state_dtype" not in flags(REFUSED["fp16"])


def test_a_slow_zero3_can_be_allowed() -> None:
    (slow,) = [r for r in FOUND["slow zero3"] if "allow_slow" in r.change]
    assert ({"allow_slow": True}, "zero3") == (slow.change, slow.strategy)


INFINIBAND = {"interconnect": "infiniband:400Gb/s"}


def test_an_unknown_network_is_asked_for_before_anything_is_changed() -> None:
    (first, *_) = FOUND["unknown network"]
    assert (INFINIBAND, "zero3", 0) == (first.change, first.strategy, first.frees_bytes)


def test_a_slow_link_is_passed_in_each_way_together_with_what_else_is_needed() -> None:
    changes = [remedy.change for remedy in FOUND["unknown network, pair"]]
    assert {"gradient_checkpointing": True, **INFINIBAND} in changes
    assert {"gradient_checkpointing": True, "allow_slow": True} in changes


def test_what_a_network_is_known_to_be_is_no_question() -> None:
    for text in ("ethernet:10Gb/s", "infiniband"):
        job = REFUSED["unknown network"].job
        known = replace(job, machine=with_interconnect(job.machine, text))
        remedies = find_remedies(decide(known, Constraints(stage=2)), RemedyScope())
        assert not [remedy for remedy in remedies if "interconnect" in remedy.change]


def test_an_adapter_that_cannot_be_used_here_is_not_passed_over() -> None:
    nic = Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND, unusable="port 1 is DOWN")
    job = REFUSED["unknown network"].job
    seen = replace(job, machine=replace(job.machine, network=Network(nics=(nic,))))
    found = find_remedies(decide(seen, Constraints()), RemedyScope())
    assert not [remedy for remedy in found if "interconnect" in remedy.change]


def test_beside_a_persons_own_config_nothing_is_offered() -> None:
    job = replace(REFUSED["four"].job, own_buffers=DEEPSPEED_DEFAULTS)
    assert () == find_remedies(decide(job, Constraints(stage=2)), SCOPE)


def test_the_largest_batch_that_helps_is_offered_and_keeps_the_global_batch() -> None:
    decision = REFUSED["four, batched"]
    (change,) = find("four, batched", "micro_batch", "accumulation_steps")
    micro_batch, steps = int(change["micro_batch"]), int(change["accumulation_steps"])
    workload = decision.job.workload
    assert workload.micro_batch * workload.accumulation_steps == micro_batch * steps
    larger = replace(workload, micro_batch=2 * micro_batch)
    assert decide(replace(decision.job, workload=larger), decision.constraints).chosen is None


@pytest.mark.parametrize("case", CASES)
def test_the_longest_sequence_that_helps_is_offered(case: str) -> None:
    decision = REFUSED[case]
    for remedy in FOUND[case]:
        if "sequence_tokens" in remedy.change:
            tokens = int(remedy.change["sequence_tokens"])
            longer = {**remedy.change, "sequence_tokens": 2 * tokens}
            chosen = decide(*apply(decision, longer)).chosen
            assert chosen is None or (remedy.is_sure and not chosen.is_sure)


def test_no_other_machine_is_offered_to_a_cpu_job_that_can_do_without() -> None:
    gpus = tuple(replace(gpu, free_bytes=6 * GB) for gpu in SLOW.gpus)
    cpu = replace(SLOW, accelerator=Accelerator.CPU, gpus=gpus)
    assert "machine" not in flags(refused(cpu, Workload(precision=Precision.BF16), model=SMALL))


def test_a_good_choice_needs_no_remedy() -> None:
    job = Job(machine=parse_spec("8xH200", TABLE), model=read_model("llama-3.2-1b"), workload=LEAN)
    assert () == find_remedies(decide(job, Constraints()), SCOPE)


def test_what_frees_memory_says_how_much_on_the_same_strategy() -> None:
    decision = refused(FOUR, Workload(micro_batch=4), Constraints(stage=3))
    remedy = next(r for r in find_remedies(decision, SCOPE) if "gradient_checkpointing" in r.change)
    changed = decide(*apply(decision, remedy.change)).chosen
    assert changed is not None
    before = decision.of(changed.strategy).device_bytes
    assert before - changed.device_bytes == remedy.frees_bytes


def test_slower_compares_with_the_job_as_it_is_if_memory_were_no_matter() -> None:
    decision = REFUSED["four"]
    (remedy,) = [r for r in FOUND["four"] if {"gradient_checkpointing": True} == r.change]
    times = [e.step_time.roomy_seconds for e in decision.evaluated if e.step_time]
    assert remedy.step_seconds is not None
    assert remedy.time_fraction is not None
    assert remedy.time_fraction == pytest.approx(remedy.step_seconds / min(times))
    assert remedy.time_fraction > 1
    assert Loss.PLAIN is decision.job.workload.loss


def test_an_fp32_job_is_offered_bf16_even_where_other_changes_are_enough() -> None:
    workload = Workload(micro_batch=4, precision=Precision.FP32)
    found = find_remedies(refused(FOUR, workload), SCOPE)
    slow = next(each for each in found if "precision" not in each.change)
    fast = next(each for each in found if "precision" in each.change)
    assert slow.time_fraction is not None
    assert fast.time_fraction is not None
    assert fast.time_fraction < slow.time_fraction / 3
