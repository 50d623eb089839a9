"""A strategy against a machine: budgets, verdicts, and the runs whose memory was capped."""

from collections.abc import Sequence
from itertools import chain

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
    parts,
    parts_by_phase,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.write import Handover, write_config
from zerowiz.core.machine.spec import parse_spec
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
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.host import HostPhase
from zerowiz.core.memory.micro_step import Traced, TracedTensor
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO2, ZERO2_OFFLOAD, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Method, StateDtype, Trainer, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table

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


def test_a_second_bucket_costs_as_much_again() -> None:
    assert 2 * 2 * 25 * MB == costs(ZERO2)["reduce_bucket_size"].size_bytes
    (line,) = (
        size_bytes
        for kind, size_bytes, _ in evaluate(JOB, ZERO2).estimate.peaks()[Phase.BACKWARD]
        if kind is AllocationKind.REDUCE_BUCKET
    )
    assert line == costs(ZERO2)["reduce_bucket_size"].size_bytes


def test_a_sub_group_costs_its_gradients_in_two_formats_and_nothing_under_offload() -> None:
    assert (2 + 4) * 100 * MB == pytest.approx(costs(ZERO3)["sub_group_size"].size_bytes, rel=0.1)
    assert "sub_group_size" not in costs(ZERO3_OFFLOAD)


def test_no_more_is_kept_than_there_is() -> None:
    small = replace(JOB, model=read_model("qwen2.5-0.5b"))
    live = costs(ZERO3, small)["stage3_max_live_parameters"]
    assert (1000 * MB, 2 * small.model.params) == (live.value, live.size_bytes)


def test_frozen_parameters_are_gathered_too() -> None:
    adapted = replace(JOB, workload=replace(JOB.workload, method=Method.LORA))
    assert 2 * 1000 * MB == costs(ZERO3, adapted)["stage3_max_live_parameters"].size_bytes


def test_a_copy_in_each_node_costs_a_part_of_the_weights() -> None:
    copying = replace(JOB, hpz=True)
    copy = costs(ZERO3, copying)["zero_hpz_partition_size"]
    assert (4, 2 * JOB.model.params // 4) == (copy.value, copy.size_bytes)


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


def job_with(budget_bytes: int | None = None, free_bytes: int | None = None) -> Job:
    return Job(
        machine=with_free(A100S, free_bytes),
        model=SEVEN,
        workload=CHECKPOINTED,
        budget_bytes=budget_bytes,
    )


@pytest.mark.parametrize("model", [SEVEN, read_model("llama-2-7b")], ids=["size", "config"])
@pytest.mark.parametrize("state_dtype", StateDtype)
def test_7b_on_four_gpus_of_40_gb_runs_under_zero3_whatever_its_states(
    model: Model, state_dtype: StateDtype
) -> None:
    job = Job(machine=A100S, model=model, workload=CHECKPOINTED, state_dtype=state_dtype)
    assert evaluate(job, ZERO3).runs


@pytest.mark.parametrize("model", [SEVEN, read_model("llama-2-7b")], ids=["size", "config"])
@pytest.mark.parametrize(
    ("state_dtype", "runs"), [(None, False), (StateDtype.FP32, False), (StateDtype.BF16, True)]
)
def test_7b_on_four_gpus_of_40_gb_runs_under_zero2_with_bf16_states_alone(
    model: Model, state_dtype: StateDtype | None, runs: bool
) -> None:
    job = Job(machine=A100S, model=model, workload=CHECKPOINTED, state_dtype=state_dtype)
    assert runs is evaluate(job, ZERO2).runs


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


@pytest.mark.parametrize(
    "row",
    # Without expandable_segments, which the launch always sets, a run can die above its peak.
    [
        row
        for row in CAPPED
        if not row["ok"]
        and (row["expandable_segments"] or row["memory_cap_bytes"] < predict(row).peak_bytes)
    ],
    ids=lambda row: row["id"],
)
def test_a_run_that_died_under_its_cap_is_not_said_to_fit(row: Row) -> None:
    assert Verdict.DOES_NOT_FIT is capped(row).verdict


@pytest.mark.parametrize(
    "row",
    [row for row in CAPPED if row["ok"] and row["memory_cap_bytes"] > 1.09 * row["peak_bytes"]],
    ids=lambda row: row["id"],
)
def test_a_run_with_a_tenth_to_spare_is_said_to_run(row: Row) -> None:
    assert capped(row).runs


RUNS = (Verdict.FITS, Verdict.TIGHT)


@pytest.mark.parametrize(
    ("identity", "verdicts"),
    [
        ("d4-004", [Verdict.DOES_NOT_FIT]),  # ZeRO-2, states in fp32
        ("d4-005", RUNS),  # ZeRO-3, states in fp32
        ("d4-006", [Verdict.FITS]),  # ZeRO-2, states in bf16
    ],
)
def test_7b_under_caps_of_40_gib_is_judged_as_it_ended(
    identity: str, verdicts: Sequence[Verdict]
) -> None:
    row = next(row for row in CAPPED if row["id"] == identity)
    assert ("llama-2-7b", 4, 40 * GIB) == (row["model"], row["gpus"], row["memory_cap_bytes"])
    assert (verdicts != [Verdict.DOES_NOT_FIT]) is row["ok"]
    assert capped(row).verdict in verdicts


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
    job = replace(job, own_buffers=evaluate(job, ZERO2).buffers)
    high_bytes = evaluate(job, ZERO2).high_device_bytes
    machine = with_free(job.machine, high_bytes + spare_bytes)
    assert verdict is evaluate(replace(job, machine=machine), ZERO2).verdict


@pytest.mark.parametrize(
    ("said", "free", "budget"),
    [(None, 30, 30), (20, 30, 20), (50, 30, 30), (20, None, 20), (None, None, None)],
)
def test_a_budget_is_what_was_said_but_never_more_than_is_free(
    said: int | None, free: int | None, budget: int | None
) -> None:
    assert budget == job_with(budget_bytes=said, free_bytes=free).gpu_budget_bytes


def test_without_a_known_budget_nothing_is_said_to_fit() -> None:
    verdicts = {evaluated.verdict for evaluated in evaluate_all(job_with())}
    assert {Verdict.DOES_NOT_FIT} == verdicts
    assert evaluate(job_with(), ZERO2).headroom_bytes is None


def test_the_tightest_gpu_decides() -> None:
    tight = replace(A100S.gpus[2], free_bytes=GB)
    machine = replace(A100S, gpus=(*A100S.gpus[:2], tight, A100S.gpus[3]))
    job = Job(machine=machine, model=SEVEN, workload=CHECKPOINTED)
    assert GB == evaluate(job, ZERO2).budget_bytes


def test_a_lone_rank_takes_less_beside_its_tensors_than_one_with_nccl() -> None:
    alone, joined = (
        evaluate(Job(machine=replace(A100S, gpus=gpus), model=SEVEN, workload=Workload()), DDP)
        for gpus in (A100S.gpus[:1], A100S.gpus)
    )
    assert alone.estimate.peak_bytes == joined.estimate.peak_bytes
    assert alone.device_bytes < joined.device_bytes


@pytest.mark.parametrize(("missing", "runs"), [(1, False), (0, True)])
def test_offload_needs_host_memory_for_all_ranks_of_a_node(missing: int, runs: bool) -> None:
    job = Job(machine=A100S, model=SEVEN, workload=CHECKPOINTED)
    needed = evaluate(job, ZERO2_OFFLOAD)
    need_bytes = needed.host.running_bytes
    assert need_bytes > 4 * moment_bytes(needed.estimate.host_peak)
    offered = replace(job, machine=with_host(A100S, need_bytes - missing))
    evaluated = evaluate(offered, ZERO2_OFFLOAD)
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
    held, half = (moment_bytes(each.estimate.host_peak) * 4 for each in (one, two))
    assert held // 2 == pytest.approx(half, rel=0.01)
    training = HostPhase.TRAINING
    assert one.host.phase_bytes[training] - held == two.host.phase_bytes[training] - half


def test_offload_is_not_judged_by_a_host_nobody_looked_at() -> None:
    evaluated = evaluate(Job(machine=A100S, model=SEVEN, workload=CHECKPOINTED), ZERO2_OFFLOAD)
    assert evaluated.host_headroom_bytes is None
    assert Verdict.DOES_NOT_FIT is evaluated.verdict


@pytest.mark.parametrize("offloaded", [ZERO2_OFFLOAD, ZERO3_OFFLOAD])
def test_cpu_ranks_gain_nothing_by_offloading_to_the_memory_they_live_in(
    offloaded: StrategyRow,
) -> None:
    """The ranks' own share and what they move to the host come out of one pool."""
    job = Job(machine=cpu_machine(2, 100 * GB), model=SEVEN, workload=Workload())
    evaluated = evaluate(job, offloaded)
    assert 100 * GB - 2 * evaluated.device_bytes == evaluated.host_budget_bytes


def test_a_strategy_lacks_what_is_missing_on_its_scarcer_side() -> None:
    job = Job(machine=with_host(with_free(A100S, GB), GB), model=SEVEN, workload=Workload())
    evaluated = evaluate(job, ZERO2_OFFLOAD)
    needs = (evaluated.device_bytes, evaluated.host.running_bytes)
    assert max(needs) - GB == evaluated.lacking_bytes


def test_a_host_that_nobody_knows_has_nothing_free() -> None:
    unknown = evaluate(Job(machine=A100S, model=SEVEN, workload=CHECKPOINTED), ZERO2_OFFLOAD)
    none = evaluate(
        Job(machine=with_host(A100S, 0), model=SEVEN, workload=CHECKPOINTED), ZERO2_OFFLOAD
    )
    assert none.lacking_bytes == unknown.lacking_bytes > 0


def test_every_strategy_is_weighed_in_order() -> None:
    evaluated = evaluate_all(Job(machine=A100S, model=SEVEN, workload=Workload()))
    assert STRATEGIES == tuple(w.strategy for w in evaluated)


def test_a_persons_own_buffers_are_what_is_weighed() -> None:
    job = Job(machine=A100S, model=SEVEN, workload=Workload(), own_buffers=DEEPSPEED_DEFAULTS)
    for strategy in STRATEGIES:
        assert DEEPSPEED_DEFAULTS == evaluate(job, strategy).buffers
        assert DEEPSPEED_DEFAULTS not in replace(job, own_buffers=None).buffers(strategy)


def test_buffers_fit_the_adapters_that_train() -> None:
    workload = Workload(method=Method.LORA, lora_rank=8)
    job = Job(machine=A100S, model=SEVEN, workload=workload)
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

MEMORY_PARTS_JOB = Job(
    machine=parse_spec("4xA100-40GB", read_gpu_table()),
    model=model_from_size("7b", 7 * 10**9),
    workload=Workload(gradient_checkpointing=True),
)
VLLM = Workload(trainer=Trainer.GRPO, completion_tokens=32, vllm_memory_fraction=0.3)
JOBS = [
    *(replace(MEMORY_PARTS_JOB, workload=step) for steps in CHANGED.values() for step in steps),
    replace(MEMORY_PARTS_JOB, accounting=Accounting.TEXTBOOK),
    replace(MEMORY_PARTS_JOB, workload=VLLM),
    replace(MEMORY_PARTS_JOB, workload=replace(VLLM, vllm_sleeps=True)),
]


@pytest.mark.parametrize("job", JOBS)
def test_the_parts_add_up_to_what_a_strategy_needs(job: Job) -> None:
    for each in evaluate_all(job):
        found = parts(job, each)
        assert each.device_bytes == sum(found.values())
        assert all(size_bytes > 0 for size_bytes in found.values())
        assert max(sum(phase.values()) for phase in parts_by_phase(job, each).values()) == sum(
            found.values()
        )


def test_a_kind_belongs_to_one_part() -> None:
    listed = list(chain.from_iterable(KINDS.values()))
    assert len(set(listed)) == len(listed)


def test_a_kind_without_a_part_stands_in_host_memory() -> None:
    """Those of the ledger's last section, which no bar of a GPU has."""
    alone = set(AllocationKind) - set(chain.from_iterable(KINDS.values()))
    last = list(AllocationKind).index(AllocationKind.MASTER_WEIGHTS_PINNED)
    assert set(list(AllocationKind)[last:]) == alone


def test_a_vllm_is_a_part_of_its_own() -> None:
    job = replace(MEMORY_PARTS_JOB, workload=VLLM)
    for each in evaluate_all(job):
        assert each.vllm is not None
        assert each.vllm.share_bytes == parts(job, each)[MemoryPart.VLLM]
