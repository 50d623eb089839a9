"""The laws that every prediction and every decision keeps, whatever the job."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from measured.rows import read_model
from random_models import models

from zerowiz.core.decision.evaluate import (
    Verdict,
    evaluate,
    evaluate_all,
    evaluate_with,
    is_hopeless,
)
from zerowiz.core.decision.flowchart import Constraints, Decision, choose_leanest, decide
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.uncertainty import DOUBTS, Assumption, Doubt
from zerowiz.core.dsconfig.write import Handover, render_config, write_config
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
)
from zerowiz.core.memory.allocations import MemoryKind, Phase
from zerowiz.core.memory.buffers import fit_buffers
from zerowiz.core.memory.estimate import Estimate, estimate, floor_bytes
from zerowiz.core.memory.host import HostUse, Saving
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow, rank_sizes, trainable_params
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import (
    DDP,
    FLOWCHART_STRATEGIES,
    STRATEGIES,
    ZERO1,
    ZERO2,
    ZERO2_OFFLOAD,
    ZERO3,
    ZERO3_OFFLOAD,
    ZERO3_OFFLOAD_OPTIMIZER,
)
from zerowiz.core.strategy_types import Offload, OffloadChoice, Part
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    Accounting,
    Attention,
    Integration,
    Loss,
    Method,
    Optimizer,
    Precision,
    Reference,
    StateDtype,
    Trainer,
    Workload,
)
from zerowiz.errors import UsageError

GB = 10**9
NAMES = (
    "gpt2-medium",
    "llama-2-7b",
    "llama-3.2-1b",
    "gemma-2-2b",
    "qwen3-30b-a3b-12l",
    "qwen3-32b",
)
KNOWN = (
    *(read_model(name) for name in NAMES),
    *(model_from_size(f"{params}", params) for params in (10**7, 10**8, 13 * GB, 70 * GB)),
)
MODELS = st.sampled_from(KNOWN) | models()
WORLDS = st.integers(1, 64) | st.integers(1, 5000)
GPU_RATES = GpuModel(
    name="a GPU",
    aliases=(),
    total_bytes=80 * GB,
    usable_bytes=80 * GB,
    compute_capability=(9, 0),
    nvlink_links=18,
    nvlink_bytes_per_s=10**11,
    nvlink_gpus=8,
    pcie_generation=5,
    bf16_flop_per_s=10**15,
    fp16_flop_per_s=10**15,
    fp32_flop_per_s=10**14,
    memory_bytes_per_s=10**12,
    source={},
)

# Which lines of a ledger are model states. The rest are activations, buffers and copies.
STATES: Mapping[str, Part] = {
    "parameters": Part.PARAMETERS,
    "parameters, sharded": Part.PARAMETERS,
    "parameters, pinned": Part.PARAMETERS,
    "parameters as built, pinned": Part.PARAMETERS,
    "frozen parameters": Part.PARAMETERS,
    "frozen parameters, sharded": Part.PARAMETERS,
    "gradients": Part.GRADIENTS,
    "gradients of the share": Part.GRADIENTS,
    "gradients, sharded": Part.GRADIENTS,
    "gradients, pinned": Part.GRADIENTS,
    "fp32 gradients, pinned": Part.GRADIENTS,
    "master weights": Part.OPTIMIZER,
    "master weights, pinned": Part.OPTIMIZER,
    "optimizer states": Part.OPTIMIZER,
}


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    precision = draw(st.sampled_from(Precision))
    halves = precision is Precision.BF16 and draw(st.booleans())
    return Workload(
        micro_batch=draw(st.integers(1, 16)),
        sequence_tokens=draw(st.sampled_from((128, 1024, 4096, 32768))),
        accumulation_steps=draw(st.sampled_from((1, 2, 16))),
        precision=precision,
        optimizer=draw(st.sampled_from(Optimizer)),
        optimizer_state_dtype=StateDtype.BF16 if halves else StateDtype.FP32,
        method=draw(st.sampled_from(Method)),
        lora_rank=draw(st.sampled_from((1, 16, 256))),
        gradient_checkpointing=draw(st.booleans()),
        attention=draw(st.sampled_from(Attention)),
    )


LONE = Machine(
    source=MachineSource.FILE,
    accelerator=Accelerator.CUDA,
    gpus=(Gpu(index=0, name="a"),),
    interconnect=Interconnect(link_class=LinkClass.NONE),
)


def is_counted(model: Model, workload: Workload) -> bool:
    """Whether a job may ask for it; some losses and packed rows are refused."""
    try:
        Job(machine=LONE, model=model, workload=workload)
    except UsageError:
        return False
    return True


@st.composite
def steps(draw: st.DrawFn) -> tuple[Model, Workload]:
    """A model, and a step that is counted for it."""
    model, workload = draw(MODELS), draw(workloads())
    # Learned positions end; a longer sequence is refused before anything is weighed.
    positions = model.architecture.positions
    learned = FAMILIES[model.architecture.family].learned_positions
    tokens = min(workload.sequence_tokens, positions) if learned else workload.sequence_tokens
    adaptable = [tensor.targets for tensor in model.tensors if tensor.targets]
    adapted = draw(st.lists(st.sampled_from(adaptable), max_size=3))
    plain = replace(
        workload,
        sequence_tokens=tokens,
        lora_target_modules=tuple(dict.fromkeys(name for names in adapted for name in names)),
    )
    losses = [loss for loss in Loss if is_counted(model, replace(plain, loss=loss))]
    packed = replace(plain, packing=draw(st.booleans()))
    step = packed if is_counted(model, packed) else plain
    return model, replace(step, loss=draw(st.sampled_from(losses)))


FREE = st.one_of(st.integers(0, 20 * GB), st.integers(0, 200 * GB))
# Around 100 Gb/s, from which on RDMA over Ethernet is called fast.
RATES = st.none() | st.integers(0, 25 * GB)
HOSTS = st.one_of(st.none(), st.integers(0, 2000 * GB))
WISHES = st.builds(
    Constraints,
    offload=st.sampled_from((None, OffloadChoice.AUTO, OffloadChoice.NONE)),
    allow_slow=st.booleans(),
)
# `--stage` with what DeepSpeed has to offload there, or `--offload` alone.
PINNED_WISHES = st.sampled_from(
    (
        *(
            Constraints(stage=stage, offload=o)
            for stage in range(4)
            for o in (None, OffloadChoice.AUTO)
        ),
        Constraints(stage=2, offload=OffloadChoice.OPTIMIZER),
        Constraints(stage=3, offload=OffloadChoice.OPTIMIZER),
        Constraints(stage=3, offload=OffloadChoice.ALL),
        Constraints(offload=OffloadChoice.OPTIMIZER),
        Constraints(offload=OffloadChoice.ALL),
    )
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    gpus = draw(st.integers(1, 8))
    links = [link for link in LinkClass if (link is LinkClass.NONE) is (gpus == 1)]
    return Machine(
        source=MachineSource.FILE,
        accelerator=draw(st.sampled_from(Accelerator)),
        gpus=tuple(
            Gpu(index=index, name="a", free_bytes=size)
            for index, size in enumerate(draw(st.lists(FREE, min_size=gpus, max_size=gpus)))
        ),
        interconnect=Interconnect(link_class=draw(st.sampled_from(links))),
        host=Host(available_bytes=draw(HOSTS)),
        nodes=draw(st.sampled_from((1, 2, 8))),
        network=Network(kind=draw(st.sampled_from(NetworkKind)), bytes_per_s=draw(RATES)),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    model, workload = draw(steps())
    accounting = draw(st.sampled_from(Accounting))
    has_rule = workload.method is Method.FULL
    return Job(
        machine=draw(machines()),
        model=model,
        workload=workload,
        accounting=accounting if has_rule else Accounting.REAL,
        state_dtype=workload.optimizer_state_dtype,
    )


def predict(model: Model, workload: Workload, ranks: int, strategy: StrategyRow) -> Estimate:
    """One rank, with buffers as they would be fitted."""
    return estimate(model, fitted(model, workload, ranks, strategy))


def fitted(model: Model, workload: Workload, ranks: int, strategy: StrategyRow) -> RankSizes:
    buffers, *_ = fit_buffers(model, model.params, strategy)
    return rank_sizes(model, workload, ranks, strategy, buffers)


def hold(
    model: Model, workload: Workload, ranks: int, strategy: StrategyRow
) -> Iterator[tuple[str, MemoryKind, int]]:
    """Part, place and bytes of every line of every moment, not only of those that peak.

    While it is built and sharded a quantized model stands on the GPU whole, also at stage 3.
    """
    rank = fitted(model, workload, ranks, strategy)
    for phase, moments in rank.strategy.moments(rank).items():
        if phase in {Phase.MODEL, Phase.INIT}:
            continue
        yield from ((part, MemoryKind.GPU, size) for moment in moments for part, size, _ in moment)
    on_host = predict(model, workload, ranks, strategy).host
    yield from ((kind, MemoryKind.HOST, size_bytes) for kind, size_bytes, _ in on_host)


def states(
    model: Model, workload: Workload, ranks: int, strategy: StrategyRow, *wheres: MemoryKind
) -> Counter[Part]:
    """Model states by part: what is held of each when most of it is."""
    most: Counter[tuple[str, MemoryKind]] = Counter()
    for part, where, size_bytes in hold(model, workload, ranks, strategy):
        most |= Counter({(part, where): size_bytes})
    total: Counter[Part] = Counter()
    whole = most["gradients", MemoryKind.GPU]
    for (part, where), size_bytes in most.items():
        # ZeRO-1's share is a view of the whole for a moment, not a second copy of the state.
        counted = part in STATES and where in wheres
        if counted and not (part == "gradients of the share" and whole):
            total[STATES[part]] += size_bytes
    return total


def free_set(job: Job, free_bytes: int | None) -> Job:
    gpus = tuple(replace(gpu, free_bytes=free_bytes) for gpu in job.machine.gpus)
    return replace(job, machine=replace(job.machine, gpus=gpus))


@st.composite
def budgets(draw: st.DrawFn, job: Job) -> int:
    """Bytes a GPU around what some strategy needs: elsewhere nothing changes."""
    need_bytes = evaluate(job, draw(st.sampled_from(STRATEGIES))).device_bytes
    return max(0, need_bytes + draw(st.sampled_from((-1, 0, need_bytes // 10))))


@st.composite
def roomy_jobs(draw: st.DrawFn) -> Job:
    """A job on GPUs that some strategies fit and others do not."""
    job = hosted(draw(jobs()), draw(st.sampled_from((None, 100 * GB, 10**6 * GB))))
    return free_set(job, draw(budgets(job)))


def linked(job: Job, link: LinkClass) -> Job:
    return replace(job, machine=replace(job.machine, interconnect=Interconnect(link_class=link)))


def networked(job: Job, network: Network) -> Job:
    return replace(job, machine=replace(job.machine, network=network))


def hosted(job: Job, available_bytes: int | None) -> Job:
    return replace(job, machine=replace(job.machine, host=Host(available_bytes=available_bytes)))


# From the least frugal: what is divided before what is moved, the optimizer before all.
FRUGALITY = (*FLOWCHART_STRATEGIES[:-1], ZERO3_OFFLOAD_OPTIMIZER, ZERO3_OFFLOAD)


def frugality(decision: Decision) -> int | None:
    return FRUGALITY.index(decision.chosen.strategy) if decision.chosen else None


# An fp32 model needs no master copy until ZeRO makes one (stage_1_and_2.py clones the partition),
# so for an optimizer that keeps less than one value a parameter, sharding on few ranks costs more.
STATEFUL = frozenset({Optimizer.ADAMW, Optimizer.LION})
# Lion's fp32 master under ZeRO is as large as its state, and Adafactor's state is one value a
# parameter there, so two ranks only break even, and an odd count is rounded up.
FEWEST_RANKS = {Optimizer.ADAFACTOR: 3, Optimizer.LION: 3}
# bitsandbytes/optim/optimizer.py, min_8bit_size: a smaller vector keeps states of 32 bits.
LEAST_SHARE = 4096


@given(step=steps(), ranks=WORLDS.filter(lambda ranks: ranks > 1))
def test_each_strategy_asks_the_gpu_for_no_more_model_states_than_the_one_above_it(
    step: tuple[Model, Workload], ranks: int
) -> None:
    model, workload = step
    assume(workload.precision is not Precision.FP32 or workload.optimizer in STATEFUL)
    assume(ranks >= FEWEST_RANKS.get(workload.optimizer, 2))
    sizes = [
        states(model, workload, ranks, strategy, MemoryKind.GPU).total()
        for strategy in (DDP, ZERO1, ZERO2, ZERO3)
    ]
    assert sorted(sizes, reverse=True) == sizes


OFFLOADS = [
    (ZERO2, ZERO2_OFFLOAD),
    (ZERO3, ZERO3_OFFLOAD_OPTIMIZER),
    (ZERO3_OFFLOAD_OPTIMIZER, ZERO3_OFFLOAD),
]


@pytest.mark.parametrize(("plain", "offloaded"), OFFLOADS)
@given(step=steps(), ranks=WORLDS)
def test_an_offload_strategy_asks_the_gpu_for_no_more_model_states_than_its_own_stage(
    plain: StrategyRow, offloaded: StrategyRow, step: tuple[Model, Workload], ranks: int
) -> None:
    model, workload = step
    before, after = (states(model, workload, ranks, s, MemoryKind.GPU) for s in (plain, offloaded))
    assert after <= before


@pytest.mark.parametrize(("plain", "offloaded"), OFFLOADS)
@given(step=steps(), ranks=WORLDS)
def test_offload_moves_bytes_and_destroys_none(
    plain: StrategyRow, offloaded: StrategyRow, step: tuple[Model, Workload], ranks: int
) -> None:
    """Of gradients a rank owes its share; a tensor on its border is never whole on the host."""
    model, workload = step
    trainable = trainable_params(model, workload)
    assume(trainable >= LEAST_SHARE * ranks)
    before, after = (states(model, workload, ranks, s, *MemoryKind) for s in (plain, offloaded))
    before[Part.GRADIENTS] = workload.precision.size_bytes * -(-trainable // ranks)
    assert after >= before


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@given(step=steps(), ranks=WORLDS)
def test_a_wider_world_never_raises_a_ranks_share(
    strategy: StrategyRow, step: tuple[Model, Workload], ranks: int
) -> None:
    model, workload = step
    narrow, wide = (
        states(model, workload, count, strategy, MemoryKind.GPU) for count in (ranks, ranks + 1)
    )
    assert wide <= narrow


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize(("setting", "most"), [("micro_batch", 1), ("sequence_tokens", 4096)])
@given(step=steps(), ranks=WORLDS, data=st.data())
def test_more_of_a_batch_never_needs_less(
    strategy: StrategyRow,
    setting: str,
    most: int,
    step: tuple[Model, Workload],
    ranks: int,
    data: st.DataObject,
) -> None:
    model, workload = step
    added = data.draw(st.integers(1, most))
    larger = replace(workload, **{setting: getattr(workload, setting) + added})
    before, after = (predict(model, w, ranks, strategy).peak_bytes for w in (workload, larger))
    assert before <= after


@given(
    step=steps(),
    ranks=WORLDS,
    trainer=st.sampled_from([trainer for trainer in Trainer if trainer.row.compares]),
)
def test_a_reference_never_lowers_the_peak_and_one_computed_before_never_raises_it(
    step: tuple[Model, Workload], ranks: int, trainer: Trainer
) -> None:
    """Where all parameters train; adapters' own reference changes what stage 3 gathers."""
    model, workload = step
    # Nothing that is generated while it trains can be judged before.
    before = () if trainer.row.generates else (Reference.PRECOMPUTED,)
    for strategy in STRATEGIES:
        peaks = [
            predict(model, compared, ranks, strategy).peak_bytes
            for compared in (
                replace(workload, trainer=trainer, method=Method.FULL, reference=each)
                for each in (*before, Reference.NONE, Reference.MODEL)
            )
        ]
        assert peaks == sorted(peaks)


@given(job=roomy_jobs(), constraints=WISHES | PINNED_WISHES, data=st.data())
def test_more_memory_never_picks_a_more_frugal_strategy(
    job: Job, constraints: Constraints, data: st.DataObject
) -> None:
    """None is no strategy: a slow ZeRO-3 that fits is refused where only offload fitted before.

    What is uncertain is taken where nothing surely runs, and gives way to what does. These jobs
    have no times, so the flowchart's last question finds nothing.
    """
    sizes = sorted((data.draw(budgets(job)), data.draw(budgets(job))))
    before, after = (decide(free_set(job, size), constraints) for size in sizes)
    assume(after.chosen is None or before.chosen is None or is_sure(before) is is_sure(after))
    with_less, with_more = frugality(before), frugality(after)
    assert with_less is None or with_more is None or with_more <= with_less


def is_sure(decision: Decision) -> bool:
    return decision.chosen is not None and decision.chosen.is_sure


# From the worst.
VERDICTS = (Verdict.DOES_NOT_FIT, Verdict.UNCERTAIN, Verdict.TIGHT, Verdict.FITS)


@given(job=roomy_jobs(), data=st.data())
def test_more_memory_never_worsens_a_verdict(job: Job, data: st.DataObject) -> None:
    sizes = sorted((data.draw(budgets(job)), data.draw(budgets(job))))
    before, after = (evaluate_all(free_set(job, size)) for size in sizes)
    for with_less, with_more in zip(before, after, strict=True):
        assert VERDICTS.index(with_less.verdict) <= VERDICTS.index(with_more.verdict)


@given(job=roomy_jobs())
def test_what_surely_runs_has_room_for_its_upper_bound(job: Job) -> None:
    for each in evaluate_all(job):
        assert each.device_bytes <= each.high_device_bytes
        if each.is_sure and each.interval is not None:
            assert each.budget_bytes is not None
            assert each.interval.safe_bytes < each.high_device_bytes <= each.budget_bytes
            assert () == each.interval.uncounted


@given(job=roomy_jobs(), strategy=st.sampled_from(STRATEGIES), rate=st.floats(0, 1))
def test_a_wider_interval_never_betters_a_verdict(
    job: Job, strategy: StrategyRow, rate: float
) -> None:
    """Nor does it turn what the expected peak fits into what does not fit."""
    doubt = Doubt(what=Assumption.TRACED, holds=lambda *_: True, rate=rate)
    narrow = evaluate(job, strategy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zerowiz.core.decision.uncertainty.DOUBTS", (*DOUBTS, doubt))
        wide = evaluate(job, strategy)
    assert VERDICTS.index(wide.verdict) <= VERDICTS.index(narrow.verdict)
    assert narrow.runs <= wide.runs


@given(job=roomy_jobs(), constraints=WISHES)
def test_what_is_uncertain_is_chosen_only_where_nothing_surely_runs(
    job: Job, constraints: Constraints
) -> None:
    """But for what the flowchart never takes: a slow ZeRO-3, and ZeRO-1 over a fast link.

    What needs no offload does not give way to it.
    """
    decision = decide(job, constraints)
    if decision.chosen is None or is_sure(decision):
        return
    sure = {each.strategy for each in decision.evaluated if each.is_sure}
    offloads = {ZERO2_OFFLOAD, ZERO3_OFFLOAD}
    gives_way = decision.chosen.strategy in offloads
    open_ = {DDP, ZERO2} | (offloads if gives_way else set())
    if ZERO3 in sure and not job.machine.is_fast and not constraints.allow_slow:
        # A slow ZeRO-3 that fits is refused, before offload is asked of.
        open_ -= offloads if constraints.offload is not OffloadChoice.AUTO else set()
    assert not sure & open_ or job.machine.world_size == 1


# Around what a strategy needs, where its verdict changes.
ROOMS = (0.5, 0.99, 1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.2, 1.5)


@given(job=jobs(), strategy=st.sampled_from(STRATEGIES))
def test_less_memory_never_predicts_a_faster_step(job: Job, strategy: StrategyRow) -> None:
    """With the same buffers: less memory may choose leaner ones."""
    timed = hosted(replace(job, rates=GPU_RATES), 10**6 * GB)
    first = evaluate(timed, strategy)
    near = [
        evaluate_with(free_set(timed, int(room * first.device_bytes)), strategy, first.buffers)
        for room in ROOMS
    ]
    times = [each.step_time for each in near if each.step_time is not None]
    for less, more in pairwise(times):
        assert less.expected_seconds >= more.expected_seconds
        assert less.high_seconds >= more.high_seconds


@given(job=roomy_jobs(), constraints=WISHES | PINNED_WISHES, link=st.sampled_from(LinkClass))
def test_a_slower_link_never_picks_a_strategy_that_sends_more(
    job: Job, constraints: Constraints, link: LinkClass
) -> None:
    """Unless `--offload auto` asks for it: ZeRO-2 with offload can send more than ZeRO-3."""
    assume(constraints.offload is not OffloadChoice.AUTO)
    fast, slow = (
        decide(linked(job, kind), constraints).chosen for kind in (LinkClass.NVLINK_ALL, link)
    )
    assert fast is None or slow is None or slow.wire_bytes_per_step <= fast.wire_bytes_per_step


@given(job=roomy_jobs(), constraints=WISHES | PINNED_WISHES, data=st.data())
def test_the_order_of_the_gpus_never_changes_a_decision(
    job: Job, constraints: Constraints, data: st.DataObject
) -> None:
    shuffled = tuple(data.draw(st.permutations(job.machine.gpus)))
    other = replace(job, machine=replace(job.machine, gpus=shuffled))
    expected, found = decide(job, constraints), decide(other, constraints)
    assert (expected.evaluated, expected.answers) == (found.evaluated, found.answers)
    assert (expected.chosen, expected.reasons) == (found.chosen, found.reasons)


@given(job=roomy_jobs(), strategy=st.sampled_from(STRATEGIES))
def test_unknown_free_memory_never_looks_better_than_any_known_amount(
    job: Job, strategy: StrategyRow
) -> None:
    """One GPU that does not tell is enough; only a person's own budget can stand for it."""
    *others, last = job.machine.gpus
    unknown, worst = (
        replace(
            job,
            machine=replace(job.machine, gpus=(*others, replace(last, free_bytes=free_bytes))),
        )
        for free_bytes in (None, 0)
    )
    assert evaluate(unknown, strategy).runs <= evaluate(worst, strategy).runs


OFFLOADING = [each for each in STRATEGIES if each.offload is not Offload.NONE]
STAYING = [each for each in STRATEGIES if each.offload is Offload.NONE]


@given(job=roomy_jobs(), strategy=st.sampled_from(OFFLOADING))
def test_unknown_host_memory_never_looks_better_to_offload_than_any_known_amount(
    job: Job, strategy: StrategyRow
) -> None:
    unknown, worst = (evaluate(hosted(job, size), strategy).runs for size in (None, 0))
    assert unknown <= worst


@given(job=roomy_jobs(), strategy=st.sampled_from(STAYING))
def test_a_host_that_is_unknown_stands_in_the_way_of_nothing_but_offload(
    job: Job, strategy: StrategyRow
) -> None:
    """Every machine has a host that starts jobs; the plan says how much of it one takes."""
    unknown, ample = (evaluate(hosted(job, size), strategy) for size in (None, 10**18))
    assert ample.verdict is unknown.verdict
    assert (unknown.host_bytes > 0) is (job.accounting is Accounting.REAL)


@given(
    job=roomy_jobs(),
    strategy=st.sampled_from(STRATEGIES),
    sizes=st.tuples(st.integers(0, 3000 * GB), st.integers(0, 3000 * GB)),
    use=st.builds(
        HostUse,
        saving=st.sampled_from(Saving),
        builds_on_host=st.booleans(),
        workers=st.integers(0, 32),
    ),
)
def test_more_host_memory_never_worsens_a_verdict(
    job: Job, strategy: StrategyRow, sizes: tuple[int, int], use: HostUse
) -> None:
    job = replace(job, host_use=use)
    less, more = (evaluate(hosted(job, size), strategy).verdict for size in sorted(sizes))
    assert VERDICTS.index(less) <= VERDICTS.index(more)


@given(job=roomy_jobs(), constraints=WISHES | PINNED_WISHES)
def test_an_unknown_link_is_decided_as_the_worst_known_one(
    job: Job, constraints: Constraints
) -> None:
    unknown, worst = (
        decide(linked(job, link), constraints) for link in (LinkClass.UNKNOWN, LinkClass.PCIE)
    )
    assert (worst.answers, worst.chosen) == (unknown.answers, unknown.chosen)


@given(job=roomy_jobs(), constraints=WISHES | PINNED_WISHES, kind=st.sampled_from(NetworkKind))
def test_an_unknown_network_is_decided_as_the_worst_known_one(
    job: Job, constraints: Constraints, kind: NetworkKind
) -> None:
    """Neither an unknown kind nor the unknown rate of a known one makes a network fast."""
    worst = decide(networked(job, Network(kind=NetworkKind.ETHERNET, bytes_per_s=0)), constraints)
    unknown = decide(networked(job, Network()), constraints)
    assert (worst.answers, worst.chosen) == (unknown.answers, unknown.chosen)
    slowest, unrated = (
        decide(networked(job, Network(kind=kind, bytes_per_s=rate)), constraints)
        for rate in (0, None)
    )
    assert (slowest.answers, slowest.chosen) == (unrated.answers, unrated.chosen)


@given(
    job=roomy_jobs(), strategy=st.sampled_from(STRATEGIES), integration=st.sampled_from(Integration)
)
def test_a_config_renders_to_the_same_valid_json_each_time(
    job: Job, strategy: StrategyRow, integration: Integration
) -> None:
    handover, evaluated = Handover(integration=integration), evaluate(job, strategy)
    first, second = (render_config(write_config(job, evaluated, handover)) for _ in range(2))
    assert first == second == json.dumps(json.loads(first), indent=2) + "\n"


@given(job=roomy_jobs(), constraints=WISHES | PINNED_WISHES)
def test_what_is_chosen_runs(job: Job, constraints: Constraints) -> None:
    chosen = decide(job, constraints).chosen
    assert chosen is None or chosen.runs


@given(job=jobs() | roomy_jobs(), strategy=st.sampled_from(STRATEGIES))
def test_a_strategy_that_is_hopeless_does_not_fit(job: Job, strategy: StrategyRow) -> None:
    assume(is_hopeless(job, strategy))
    assert Verdict.DOES_NOT_FIT is evaluate(job, strategy).verdict


@given(step=steps(), ranks=WORLDS, strategy=st.sampled_from(STRATEGIES))
def test_no_rank_holds_less_than_the_floor(
    step: tuple[Model, Workload], ranks: int, strategy: StrategyRow
) -> None:
    rank = fitted(*step, ranks, strategy)
    assert floor_bytes(rank) <= estimate(step[0], rank).flattened_on_host.peak_bytes


@given(job=jobs() | roomy_jobs(), constraints=WISHES | PINNED_WISHES)
def test_the_leanest_buffers_choose_what_all_buffers_choose(
    job: Job, constraints: Constraints
) -> None:
    chosen, decided = choose_leanest(job, constraints), decide(job, constraints).chosen
    assert (chosen is None) is (decided is None)
    if chosen is not None and decided is not None:
        assert (decided.strategy, decided.verdict) == (chosen.strategy, chosen.verdict)
