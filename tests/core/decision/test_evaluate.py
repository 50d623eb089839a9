"""A strategy against a machine: budgets, verdicts, and the runs whose memory was capped."""

from itertools import chain, pairwise

import pytest
from changed_settings import CHANGED
from measured.rows import Row, buffers_of, predict, read_model, read_rows, strategy_of, workload_of

from zerowiz.core.decision.evaluate import (
    Cost,
    StrategyEstimate,
    Verdict,
    buffer_costs,
    evaluate,
    evaluate_all,
    evaluate_with,
    parts,
    parts_by_phase,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.write import Handover, write_config
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
)
from zerowiz.core.memory.allocations import KINDS, AllocationKind, MemoryPart, Phase, moment_bytes
from zerowiz.core.memory.buffers import (
    DEEPSPEED_DEFAULTS,
    Buffers,
    expands_segments,
    margin,
    outside_bytes,
)
from zerowiz.core.memory.host import HostPhase
from zerowiz.core.memory.micro_step import Traced, TracedTensor
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO2, ZERO2_OFFLOAD, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Method, StateDtype, Trainer, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table

# What the sizes in a config cost, against the config itself and the ledger.

JOB = Job(
    machine=parse_spec("4xA100-80GB", read_gpu_table()),
    model=read_model("llama-3.1-8b"),
    workload=Workload(gradient_checkpointing=True),
)
MB = 10**6


def costs(strategy: StrategyRow, job: Job = JOB) -> dict[str, Cost]:
    return {cost.key: cost for cost in buffer_costs(job, evaluate(job, strategy))}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_each_size_that_costs_stands_in_the_config_as_it_is_told(strategy: StrategyRow) -> None:
    config = write_config(JOB, evaluate(JOB, strategy), Handover())
    zero = config["zero_optimization"]
    assert isinstance(zero, dict)
    told = {key: cost.value for key, cost in costs(strategy).items()}
    assert told == {key: zero[key] for key in told}
    assert (strategy != DDP) is bool(told)


SMALL = replace(JOB, model=read_model("qwen2.5-0.5b"))
ADAPTED = replace(JOB, workload=replace(JOB.workload, method=Method.LORA))


@pytest.mark.parametrize(
    ("strategy", "job", "key", "value", "size_bytes"),
    [
        # A second bucket costs as much again.
        (ZERO2, JOB, "reduce_bucket_size", 25 * MB, 2 * 2 * 25 * MB),
        # The gradients of a sub-group in two formats.
        (ZERO3, JOB, "sub_group_size", 100 * MB, (2 + 4) * 100 * MB),
        # No more is kept than there is; what is frozen is gathered too.
        (ZERO3, SMALL, "stage3_max_live_parameters", 1000 * MB, 2 * SMALL.model.params),
        (ZERO3, ADAPTED, "stage3_max_live_parameters", 1000 * MB, 2 * 1000 * MB),
        # A copy in each node is a part of the weights.
        (ZERO3, replace(JOB, hpz=True), "zero_hpz_partition_size", 4, 2 * JOB.model.params // 4),
    ],
)
def test_a_size_costs(
    strategy: StrategyRow, job: Job, key: str, value: int, size_bytes: int
) -> None:
    cost = costs(strategy, job)[key]
    assert value == cost.value
    assert size_bytes == pytest.approx(cost.size_bytes, rel=0.1 if "group" in key else 0)


def test_a_bucket_costs_what_stands_in_the_ledger_and_a_sub_group_nothing_under_offload() -> None:
    (line,) = (
        size_bytes
        for kind, size_bytes, _ in evaluate(JOB, ZERO2).estimate.peaks()[Phase.BACKWARD]
        if kind is AllocationKind.REDUCE_BUCKET
    )
    assert line == costs(ZERO2)["reduce_bucket_size"].size_bytes
    assert "sub_group_size" not in costs(ZERO3_OFFLOAD)


GB, GIB = 10**9, 2**30
SEVEN = model_from_size("7b", 7 * GB)
A100S = parse_spec("4xA100-40GB", read_gpu_table())
CHECKPOINTED = Workload(gradient_checkpointing=True)


def with_free(machine: Machine, free_bytes: int | None) -> Machine:
    return replace(
        machine,
        gpus=tuple(replace(gpu, total_bytes=None, free_bytes=free_bytes) for gpu in machine.gpus),
    )


def with_host(machine: Machine, available_bytes: int | None) -> Machine:
    return replace(machine, host=Host(available_bytes=available_bytes))


def cpu_machine(ranks: int, available_bytes: int) -> Machine:
    share_bytes = available_bytes // ranks
    return Machine(
        source=MachineSource.CPU,
        accelerator=Accelerator.CPU,
        gpus=tuple(Gpu(index=i, name="CPU rank", free_bytes=share_bytes) for i in range(ranks)),
        interconnect=Interconnect(link_class=LinkClass.UNKNOWN),
        host=Host(available_bytes=available_bytes),
    )


ON_A100S = Job(machine=A100S, model=SEVEN, workload=CHECKPOINTED)


def on_host(available_bytes: int | None) -> Job:
    return replace(ON_A100S, machine=with_host(A100S, available_bytes))


def job_with(budget_bytes: int | None = None, free_bytes: int | None = None) -> Job:
    return replace(ON_A100S, machine=with_free(A100S, free_bytes), budget_bytes=budget_bytes)


@pytest.mark.parametrize("model", [SEVEN, read_model("llama-2-7b")], ids=["size", "config"])
@pytest.mark.parametrize(
    ("strategy", "state_dtype", "runs"),
    [
        (ZERO3, StateDtype.FP32, True),
        (ZERO3, StateDtype.BF16, True),
        (ZERO2, None, False),
        (ZERO2, StateDtype.FP32, False),
        (ZERO2, StateDtype.BF16, True),
    ],
)
def test_7b_on_four_gpus_of_40_gb_runs_under_zero3_or_with_bf16_states(
    model: Model, strategy: StrategyRow, state_dtype: StateDtype | None, runs: bool
) -> None:
    job = Job(machine=A100S, model=model, workload=CHECKPOINTED, state_dtype=state_dtype)
    assert runs is evaluate(job, strategy).runs


@pytest.mark.parametrize(
    ("free_bytes", "on_host"),
    [(None, False), (27 * GIB, True), (24 * GIB, True)],
    ids=["a whole card", "a little less than the copy needs", "24 GiB"],
)
def test_the_flat_copy_of_the_weights_never_makes_a_job_too_big(
    free_bytes: int | None, on_host: bool
) -> None:
    """ZeRO-2 with offload, of which the copy is the peak: it is made on the GPU if it fits there."""
    machine = with_host(A100S, 1024 * GIB)
    machine = machine if free_bytes is None else with_free(machine, free_bytes)
    model = read_model("llama-2-7b")
    step = Workload(gradient_checkpointing=True, sequence_tokens=1024)
    evaluated = evaluate(Job(machine=machine, model=model, workload=step), ZERO2_OFFLOAD)
    assert (Verdict.FITS, on_host) == (evaluated.verdict, evaluated.estimate.flattens_on_host)
    flat = [
        allocation.size_bytes
        for allocation in evaluated.host.phases[HostPhase.INIT]
        if allocation.kind is AllocationKind.FLATTENING_COPY
    ]
    assert ([4 * 2 * 2 * model.params] if on_host else []) == flat


def test_one_gpu_with_offload_copies_all_weights_at_the_start() -> None:
    """Its share is the whole: that copy stays on the GPU, wherever the weights are flattened."""
    machine = with_host(parse_spec("1xRTX4090", read_gpu_table()), 1024 * GIB)
    job = Job(machine=machine, model=read_model("llama-2-7b"), workload=CHECKPOINTED)
    evaluated = evaluate(job, ZERO2_OFFLOAD)
    assert Verdict.DOES_NOT_FIT is evaluated.verdict
    assert Phase.INIT is evaluated.estimate.peak_phase


def capped(row: Row) -> StrategyEstimate:
    """The run on cards that hold its cap and what the job takes beside its tensors."""
    outside_bytes = 2_250_000_000
    gpu = Gpu(index=0, name=row["gpu"], free_bytes=row["memory_cap_bytes"] + outside_bytes)
    machine = Machine(
        source=MachineSource.FILE,
        gpus=tuple(replace(gpu, index=i) for i in range(row["gpus"])),
        interconnect=Interconnect(link_class=LinkClass.NVLINK_ALL),
        host=Host(),
    )
    workload = workload_of(row)
    job = Job(
        machine=machine,
        model=read_model(row["model"]),
        workload=workload,
        state_dtype=workload.optimizer_state_dtype,
        own_buffers=buffers_of(row),
    )
    return evaluate(job, strategy_of(row))


CAPPED = [row for row in read_rows() if row["memory_cap_bytes"] is not None]
# Without expandable_segments, which the launch always sets, a run can die above its peak.
JUDGED = [
    row
    for row in CAPPED
    if (row["ok"] and row["memory_cap_bytes"] > 1.09 * row["peak_bytes"])
    or (
        not row["ok"]
        and (row["expandable_segments"] or row["memory_cap_bytes"] < predict(row).peak_bytes)
    )
]


@pytest.mark.parametrize("row", JUDGED, ids=lambda row: row["id"])
def test_a_run_under_its_cap_is_judged_as_it_ended(row: Row) -> None:
    """What lived had a tenth to spare."""
    assert row["ok"] is capped(row).runs


def test_7b_under_caps_of_40_gib_surely_runs_where_it_lived() -> None:
    """Under ZeRO-2 with states in fp32, under ZeRO-3, and under ZeRO-2 with states in bf16."""
    sure = {r["id"]: capped(r).is_sure for r in JUDGED if r["memory_cap_bytes"] == 40 * GIB}
    assert {"d4-004": False, "d4-005": True, "d4-006": True}.items() <= sure.items()


def test_a_run_that_the_allocator_had_to_flush_for_is_tight() -> None:
    """Qwen3-32B under ZeRO-3 took 139.3 GB of each of four H200s, and flushed five times."""
    row = next(row for row in read_rows() if row["id"] == "d4-000")
    assert (5, True) == (row["allocator_retries"], row["ok"])
    job = Job(
        machine=parse_spec(f"{row['gpus']}xH200", read_gpu_table()),
        model=read_model(row["model"]),
        workload=workload_of(row),
        own_buffers=buffers_of(row),
    )
    evaluated = evaluate(job, strategy_of(row))
    assert row["peak_bytes"] == pytest.approx(evaluated.estimate.peak_bytes, rel=0.01)
    assert Verdict.TIGHT is evaluated.verdict


@pytest.mark.parametrize(
    ("spare_bytes", "verdict"),
    [(-1, Verdict.DOES_NOT_FIT), (0, Verdict.UNCERTAIN), (10 * GB, Verdict.FITS)],
)
def test_a_budget_is_met_to_the_byte(spare_bytes: int, verdict: Verdict) -> None:
    need_bytes = evaluate(job_with(), ZERO2).device_bytes
    evaluated = evaluate(job_with(free_bytes=need_bytes + spare_bytes), ZERO2)
    assert (verdict, spare_bytes) == (evaluated.verdict, evaluated.headroom_bytes)


@pytest.mark.parametrize(("spare_bytes", "verdict"), [(-1, Verdict.UNCERTAIN), (0, Verdict.TIGHT)])
def test_what_is_sure_has_room_for_its_upper_bound_to_the_byte(
    spare_bytes: int, verdict: Verdict
) -> None:
    job = replace(job_with(), model=read_model("llama-2-7b"))
    first = evaluate(job, ZERO2)
    machine = with_free(job.machine, first.high_device_bytes + spare_bytes)
    assert verdict is evaluate_with(replace(job, machine=machine), ZERO2, first.buffers).verdict


@pytest.mark.parametrize(
    ("said", "free", "budget"),
    [(None, 30, 30), (20, 30, 20), (50, 30, 30), (20, None, 20), (None, None, None)],
)
def test_a_budget_is_what_was_said_but_never_more_than_is_free(
    said: int | None, free: int | None, budget: int | None
) -> None:
    assert budget == job_with(budget_bytes=said, free_bytes=free).gpu_budget_bytes


def test_a_lone_rank_takes_less_beside_its_tensors_than_one_with_nccl() -> None:
    alone, joined = (
        evaluate(Job(machine=replace(A100S, gpus=gpus), model=SEVEN, workload=Workload()), DDP)
        for gpus in (A100S.gpus[:1], A100S.gpus)
    )
    assert alone.estimate.peak_bytes == joined.estimate.peak_bytes
    assert alone.device_bytes < joined.device_bytes


@pytest.mark.parametrize(("missing", "runs"), [(1, False), (0, True)])
def test_offload_needs_host_memory_for_all_ranks_of_a_node(missing: int, runs: bool) -> None:
    needed = evaluate(ON_A100S, ZERO2_OFFLOAD)
    need_bytes = needed.host.running_bytes
    assert need_bytes > 4 * moment_bytes(needed.estimate.host)
    evaluated = evaluate(on_host(need_bytes - missing), ZERO2_OFFLOAD)
    assert (runs, -missing) == (evaluated.runs, evaluated.host_headroom_bytes)
    assert missing == evaluated.lacking_bytes


def test_more_nodes_do_not_share_their_host_memory() -> None:
    one, two = (
        evaluate(
            Job(machine=replace(A100S, nodes=nodes), model=SEVEN, workload=Workload()),
            ZERO2_OFFLOAD,
        )
        for nodes in (1, 2)
    )
    held, half = (moment_bytes(each.estimate.host) * 4 for each in (one, two))
    assert held // 2 == pytest.approx(half, rel=0.01)
    training = HostPhase.TRAINING
    assert one.host.phase_bytes[training] - held == two.host.phase_bytes[training] - half


def test_a_host_that_nobody_knows_has_nothing_free() -> None:
    unknown, none = (evaluate(on_host(size), ZERO2_OFFLOAD) for size in (None, 0))
    assert (Verdict.DOES_NOT_FIT, None) == (unknown.verdict, unknown.host_headroom_bytes)
    assert none.lacking_bytes == unknown.lacking_bytes > 0


def test_a_strategy_lacks_what_is_missing_on_its_scarcer_side() -> None:
    tight = replace(ON_A100S, machine=with_host(with_free(A100S, GB), GB))
    evaluated = evaluate(tight, ZERO2_OFFLOAD)
    needs = (evaluated.device_bytes, evaluated.host.running_bytes)
    assert max(needs) - GB == evaluated.lacking_bytes


@pytest.mark.parametrize("offloaded", [ZERO2_OFFLOAD, ZERO3_OFFLOAD])
def test_cpu_ranks_gain_nothing_by_offloading_to_the_memory_they_live_in(
    offloaded: StrategyRow,
) -> None:
    """The ranks' own share and what they move to the host come out of one pool."""
    job = Job(machine=cpu_machine(2, 100 * GB), model=SEVEN, workload=Workload())
    evaluated = evaluate(job, offloaded)
    assert 100 * GB - 2 * evaluated.device_bytes == evaluated.host_budget_bytes


def test_a_persons_own_buffers_are_what_is_weighed() -> None:
    job = Job(machine=A100S, model=SEVEN, workload=Workload(), own_buffers=DEEPSPEED_DEFAULTS)
    evaluated = evaluate_all(job)
    assert STRATEGIES == tuple(each.strategy for each in evaluated)
    assert {DEEPSPEED_DEFAULTS} == {each.buffers for each in evaluated}


def test_buffers_fit_the_adapters_that_train() -> None:
    job = replace(ON_A100S, workload=Workload(method=Method.LORA, lora_rank=8))
    assert SEVEN.lora_params(8) == evaluate(job, ZERO3).buffers.reduce_bucket_size


def test_a_sequence_may_not_be_longer_than_the_positions_that_were_learned() -> None:
    gpt2 = read_model("gpt2-medium")
    assert Job(machine=A100S, model=gpt2, workload=Workload(sequence_tokens=1024))
    with pytest.raises(UsageError, match="1024 learned positions") as caught:
        Job(machine=A100S, model=gpt2, workload=Workload(sequence_tokens=1025))
    assert ("use at most `$sequence_tokens 1024`",) == caught.value.hints


def test_the_rule_of_thumb_knows_no_adapters() -> None:
    adapters = Workload(method=Method.LORA)
    with pytest.raises(UsageError, match='has no rule for `method="lora"`'):
        Job(machine=A100S, model=SEVEN, workload=adapters, accounting=Accounting.TEXTBOOK)


@pytest.mark.parametrize(
    ("accounting", "said", "expected"),
    [
        (Accounting.REAL, None, "fp32"),
        (Accounting.TEXTBOOK, None, "bf16"),
        (Accounting.TEXTBOOK, StateDtype.FP32, "fp32"),
        (Accounting.REAL, StateDtype.BF16, "bf16"),
    ],
)
def test_states_are_fp32_unless_said_otherwise_and_of_the_weights_format_by_the_rule_of_thumb(
    accounting: Accounting, said: StateDtype | None, expected: str
) -> None:
    job = Job(
        machine=A100S, model=SEVEN, workload=Workload(), accounting=accounting, state_dtype=said
    )
    assert expected == job.state_format


def test_a_trace_of_another_model_is_not_used() -> None:
    """A remedy may put a smaller model in the place of the one that was traced."""
    tensor = TracedTensor(name="weight", shape=(1000, 1000))
    traced = Traced(
        family="unknown",
        built="Unknown",
        layers=1,
        hidden_size=1000,
        embedding=(),
        tied_embeddings=False,
        tensors=(tensor,),
        runs=(),
        took_milliseconds=1,
    )
    own = Job(machine=A100S, model=traced.model("a"), workload=Workload(), traced=traced)
    assert (traced, None) == (own.own_trace, replace(own, model=SEVEN).own_trace)


# Every byte of a plan belongs to one part.

VLLM = Workload(trainer=Trainer.GRPO, completion_tokens=32, vllm_memory_fraction=0.3)
JOBS = [
    *(replace(ON_A100S, workload=step) for steps in CHANGED.values() for step in steps),
    replace(ON_A100S, accounting=Accounting.TEXTBOOK),
    replace(ON_A100S, workload=VLLM),
    replace(ON_A100S, workload=replace(VLLM, vllm_sleeps=True)),
]


@pytest.mark.parametrize("job", JOBS)
def test_the_parts_add_up_to_what_a_strategy_needs(job: Job) -> None:
    for each in evaluate_all(job):
        found = parts(job, each)
        assert each.device_bytes == sum(found.values())
        assert all(size_bytes > 0 for size_bytes in found.values())
        of_phases = [sum(phase.values()) for phase in parts_by_phase(job, each).values()]
        assert max(of_phases) == each.device_bytes
        # One that sleeps stands beside what rests, not beside the peak.
        if each.vllm is not None and not job.workload.vllm_sleeps:
            assert each.vllm.share_bytes == found[MemoryPart.VLLM]


def test_a_kind_belongs_to_one_part_or_stands_in_host_memory() -> None:
    """Those of the ledger's last section, which no bar of a GPU has."""
    listed = list(chain.from_iterable(KINDS.values()))
    assert len(set(listed)) == len(listed)
    last = list(AllocationKind).index(AllocationKind.MASTER_WEIGHTS_PINNED)
    assert set(list(AllocationKind)[last:]) == set(AllocationKind) - set(listed)


# How near the edge a run may come, and what it takes beside its tensors.


def machine_of(gpus: int, free_bytes: int | None = None) -> Machine:
    return with_free(parse_spec(f"{gpus}xH200", read_gpu_table()), free_bytes)


@pytest.mark.parametrize(
    ("environ", "expands"),
    [
        ({}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments: True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, False),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, False),
        (
            {
                "PYTORCH_ALLOC_CONF": "max_split_size_mb:128",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            },
            False,
        ),
    ],
)
def test_segments_expand_unless_a_person_set_the_allocator_otherwise(
    environ: dict[str, str], expands: bool
) -> None:
    assert expands is expands_segments(environ)


def test_without_expandable_segments_a_job_needs_more_to_start_and_more_to_fit() -> None:
    """Tight is at most a tenth of the budget wide."""
    expandable, fixed = margin(expandable_segments=True), margin(expandable_segments=False)
    assert expandable.slack_fraction < fixed.slack_fraction
    assert expandable.tight_fraction < fixed.tight_fraction
    for near in (expandable, fixed):
        largest_peak = 1 / (1 + near.slack_fraction)
        assert (near.tight_fraction - near.slack_fraction) * largest_peak <= 0.1


@pytest.mark.parametrize("expandable", [True, False])
def test_the_verdict_changes_where_the_margin_says(expandable: bool) -> None:
    near, two = margin(expandable_segments=expandable), machine_of(2)
    job = Job(
        machine=two,
        model=read_model("llama-3.2-1b"),
        workload=Workload(),
        expandable_segments=expandable,
    )
    evaluated = evaluate(replace(job, machine=machine_of(2, 2**60)), ZERO2)
    job = replace(job, own_buffers=evaluated.buffers)
    peak_bytes = evaluated.estimate.peak_bytes
    beside_bytes = outside_bytes(two, evaluated.buffers)
    enough_bytes, plenty_bytes = (
        peak_bytes + int(fraction * peak_bytes) + beside_bytes
        for fraction in (near.slack_fraction, near.tight_fraction)
    )
    assert evaluated.interval is not None
    high_bytes = evaluated.interval.high_bytes
    sure_bytes = high_bytes + int(near.sure_fraction * high_bytes) + beside_bytes
    # Without expandable segments a run that is not sure to live may die at any margin of speed.
    changes = [enough_bytes, sure_bytes, plenty_bytes] if expandable else [enough_bytes, sure_bytes]
    verdicts = [
        evaluate(replace(job, machine=machine_of(2, free_bytes)), ZERO2).verdict
        for change_bytes in changes
        for free_bytes in (change_bytes - 1, change_bytes)
    ]
    steps = ["does_not_fit", "uncertain", *(["tight"] if expandable else []), "fits"]
    assert [step for pair in pairwise(steps) for step in pair] == verdicts


def test_a_second_copy_of_the_parameters_opens_groups_of_its_own() -> None:
    plain, shared = (
        outside_bytes(machine_of(2), Buffers(hpz_partition_size=size)) for size in (1, 2)
    )
    assert plain < shared
    assert outside_bytes(machine_of(1), Buffers()) < plain
