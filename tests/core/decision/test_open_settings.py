"""What a search keeps, whatever the job; and that it finds what trying everything finds."""

from collections.abc import Iterator
from operator import attrgetter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from measured.rows import read_model
from random_models import models

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate, evaluate_with
from zerowiz.core.decision.flowchart import (
    CLEARLY_FRACTION,
    SAME_FRACTION,
    Constraints,
    Reason,
    decide,
)
from zerowiz.core.decision.job import Job, Objective, OpenSettings
from zerowiz.core.decision.open_settings import (
    ROOM_FRACTION,
    Candidate,
    Evaluator,
    Search,
    find_limits,
    find_pareto,
    is_worth,
    search,
    split_batch,
    take_fastest,
    without_needlessly_tight,
    worst_losses,
)
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Host
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategies import STRATEGIES, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.strategy_types import Offload, OffloadChoice
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Loss, Method, Optimizer, Workload
from zerowiz.probe.files import read_gpu_table

# The largest steps that fit: one more does not.

TABLE = read_gpu_table()


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.2-1b", "gpt2-medium"])
def test_the_limits_fit_and_what_is_larger_does_not(name: str) -> None:
    model = read_model(name)
    positions = model.architecture.positions
    job = Job(
        machine=parse_spec("4xA100-40GB", TABLE),
        model=model,
        workload=Workload(sequence_tokens=1024, accumulation_steps=2),
    )
    limits = find_limits(job)
    assert [s.name for s in STRATEGIES for _ in range(2)] == [e.strategy.name for e in limits]
    for limit in limits:
        step = replace(job.workload, gradient_checkpointing=limit.gradient_checkpointing)
        longer = limit.sequence_tokens + 128
        assert limit.sequence_tokens <= positions
        assert limit.by_positions is (longer > positions)
        beyond = [] if limit.by_positions else [("sequence_tokens", longer, False)]
        for size, number, fits in (
            ("micro_batch", limit.micro_batch, True),
            ("micro_batch", limit.micro_batch + 1, False),
            ("sequence_tokens", limit.sequence_tokens, True),
            *beyond,
        ):
            if number:
                workload = replace(step, **{size: number})  # type: ignore[arg-type]
                assert fits is evaluate(replace(job, workload=workload), limit.strategy).is_sure
    for plain, recomputed in zip(limits[::2], limits[1::2], strict=True):
        assert plain.micro_batch <= recomputed.micro_batch
        assert plain.sequence_tokens <= recomputed.sequence_tokens
    # Nobody knows the memory of this host.
    offloaded = next(each for each in limits if each.strategy == ZERO3_OFFLOAD)
    assert (0, 0) == (offloaded.micro_batch, offloaded.sequence_tokens)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (model_from_size("1b", 10**9), 1024),
        (read_model("llama-2-7b"), 2 * read_model("llama-2-7b").architecture.positions),
    ],
)
def test_positions_of_a_stand_in_or_short_of_the_job_end_no_sequence(
    model: Model, tokens: int
) -> None:
    step = Workload(sequence_tokens=tokens, gradient_checkpointing=True)
    limits = find_limits(Job(machine=parse_spec("8xH200", TABLE), model=model, workload=step))
    assert not any(limit.by_positions for limit in limits)
    (zero3,) = (e for e in limits if e.strategy == ZERO3 and e.gradient_checkpointing)
    assert zero3.sequence_tokens >= max(tokens, model.architecture.positions + 1)


GIB = 2**30
# A search is a hundred estimates.
LAW = settings(max_examples=settings().max_examples // 3)
KNOWN = (
    *(read_model(name) for name in ("llama-3.2-1b", "qwen2.5-0.5b", "llama-2-7b", "gpt2-medium")),
    model_from_size("3b", 3 * 10**9),
)
OPEN = OpenSettings(split=True, checkpointing=(True,))
# A step may be as much slower than the fastest: one of the same speed with more headroom, and then
# one that neither recomputes nor comes near the limit of memory.
SLOWER = (1 + SAME_FRACTION) ** 2 * (1 + CLEARLY_FRACTION) ** 2


def job_on(
    spec: str,
    model: Model,
    workload: Workload,
    *,
    host_bytes: int | None = None,
    call_seconds: float | None = None,
) -> Job:
    host = Host(available_bytes=host_bytes, python_call_seconds=call_seconds)
    machine = replace(parse_spec(spec, TABLE), host=host)
    return Job(machine=machine, model=model, workload=workload, rates=find_rates(machine, TABLE))


@st.composite
def jobs(draw: st.DrawFn, *, call_seconds: float | None = 1e-7) -> Job:
    model = draw(st.sampled_from(KNOWN) | models())
    positions = model.architecture.positions
    learned = FAMILIES[model.architecture.family].learned_positions
    tokens = draw(st.sampled_from((128, 1024, 4096)))
    job = job_on(
        draw(st.sampled_from(("H100-80GB", "2xH200", "4xA100-40GB", "8xRTX4090", "4x8xH100-80GB"))),
        model,
        Workload(
            micro_batch=draw(st.sampled_from((1, 2, 3))),
            accumulation_steps=draw(st.sampled_from((1, 2, 4, 6, 8))),
            sequence_tokens=min(tokens, positions) if learned else tokens,
            optimizer=draw(st.sampled_from((Optimizer.ADAMW, Optimizer.ADAFACTOR))),
            method=draw(st.sampled_from((Method.FULL, Method.LORA))),
            gradient_checkpointing=draw(st.booleans()),
        ),
        host_bytes=draw(st.sampled_from((None, 64 * GIB, 2048 * GIB))),
        call_seconds=call_seconds,
    )
    # Around what some strategy needs: elsewhere nothing changes.
    recomputing = draw(st.booleans())
    workload = replace(
        draw(st.sampled_from(split_batch(job.workload))), gradient_checkpointing=recomputing
    )
    strategy = draw(st.sampled_from(STRATEGIES))
    need_bytes = evaluate(replace(job, workload=workload), strategy).high_device_bytes
    return free_set(job, int(need_bytes * draw(st.sampled_from((0.99, 1.01, 1.15, 2)))))


def free_set(job: Job, free_bytes: int) -> Job:
    gpus = tuple(
        replace(gpu, total_bytes=free_bytes, free_bytes=free_bytes) for gpu in job.machine.gpus
    )
    return replace(job, machine=replace(job.machine, gpus=gpus))


FREEDOMS = st.builds(
    OpenSettings,
    split=st.booleans(),
    checkpointing=st.sampled_from(((), (True,), (False,))),
)
WISHES = st.sampled_from(
    (
        Constraints(),
        Constraints(allow_slow=True),
        Constraints(offload=OffloadChoice.NONE),
        Constraints(stage=3),
        Constraints(stage=2, offload=OffloadChoice.OPTIMIZER),
    )
)


def seconds(found: Search) -> float:
    assert found.choice is not None
    assert found.choice.seconds is not None
    return found.choice.seconds


def every_one(job: Job, freedom: OpenSettings) -> Iterator[Candidate]:
    """All candidates, each evaluated."""
    w = job.workload
    for recomputes in dict.fromkeys((w.gradient_checkpointing, *freedom.checkpointing)):
        varied = replace(w, gradient_checkpointing=recomputes)
        for workload in split_batch(varied) if freedom.split else (varied,):
            for strategy in STRATEGIES:
                yield Evaluator(job).candidate(workload, strategy)


@LAW
@given(micro_batch=st.integers(1, 60), steps=st.integers(1, 60))
def test_a_batch_is_split_in_every_way_that_keeps_it(micro_batch: int, steps: int) -> None:
    sequences = micro_batch * steps
    found = split_batch(Workload(micro_batch=micro_batch, accumulation_steps=steps))
    sizes = [each.micro_batch for each in found]
    assert [n for n in range(1, sequences + 1) if sequences % n == 0] == sizes
    assert {sequences} == {each.micro_batch * each.accumulation_steps for each in found}


@LAW
@given(job=jobs(), freedom=FREEDOMS, wish=WISHES, objective=st.sampled_from(Objective))
def test_a_choice_changes_nothing_but_what_is_open(
    job: Job, freedom: OpenSettings, wish: Constraints, objective: Objective
) -> None:
    found = search(job, wish, freedom, objective)
    assert (found.choice is None) is (found.decision.chosen is None)
    before, after = job.workload, found.decision.job.workload
    sequences = before.micro_batch * before.accumulation_steps
    assert sequences == after.micro_batch * after.accumulation_steps
    kept = after
    if freedom.split:
        kept = replace(
            kept, micro_batch=before.micro_batch, accumulation_steps=before.accumulation_steps
        )
    if freedom.checkpointing:
        kept = replace(kept, gradient_checkpointing=before.gradient_checkpointing)
    assert before == kept
    if found.choice is not None:
        assert found.decision.chosen == found.choice.evaluated
        assert after == found.choice.workload


@LAW
@given(job=jobs(), wish=WISHES)
def test_where_nothing_is_open_the_flowchart_decides_as_without_a_search(
    job: Job, wish: Constraints
) -> None:
    found = search(job, wish, OpenSettings()).decision
    # Only a search names what is faster.
    assert decide(job, wish) == replace(found, faster=None)


def fastest_split(job: Job, strategy: StrategyRow) -> float:
    """The seconds of its fastest split that fits well, else of its fastest that fits."""
    splits = [
        each for each in every_one(job, OpenSettings(split=True)) if each.strategy == strategy
    ]
    fastest = take_fastest(without_needlessly_tight(splits))
    assert fastest is not None
    assert fastest.seconds is not None
    return fastest.seconds


def is_slower(job: Job, taken: StrategyEstimate, than: StrategyEstimate) -> bool:
    """Whether every split of one strategy takes longer than another, as it is and split."""
    assert than.step_time is not None
    as_it_is_seconds = than.step_time.expected_seconds * (1 + SAME_FRACTION)
    other_seconds = fastest_split(job, than.strategy)
    return fastest_split(job, taken.strategy) > max(as_it_is_seconds, other_seconds)


BETTER = {Reason.LEANER_AND_FASTER, Reason.SURE_AND_AS_FAST, Reason.NO_OFFLOAD_AS_FAST}


@LAW
@given(job=jobs(), freedom=FREEDOMS, wish=WISHES)
def test_the_flowchart_keeps_the_strategy_that_it_takes_for_the_job_as_it_is(
    job: Job, freedom: OpenSettings, wish: Constraints
) -> None:
    result = search(job, wish, freedom)
    found = result.choice
    assume(found is not None)
    assert found is not None
    # Where splits are open, the last questions compare the fastest of each strategy.
    assume(BETTER.isdisjoint(result.decision.reasons))
    recomputes = found.workload.gradient_checkpointing
    as_it_is = replace(job.workload, gradient_checkpointing=recomputes)
    as_it_is_job = replace(job, workload=as_it_is)
    decided = decide(as_it_is_job, wish)
    # There they compare them as they are.
    assume(BETTER.isdisjoint(decided.reasons))
    chosen = decided.chosen
    # What no GPU can hold is offloaded: not with the smallest micro-batch either, but where every
    # split without offload would be slower.
    if chosen is None or not chosen.is_sure or chosen.strategy.offload is not Offload.NONE:
        smallest, *_ = split_batch(as_it_is) if freedom.split else (as_it_is,)
        least = decide(replace(job, workload=smallest), wish).chosen
        if chosen is None or not chosen.is_sure:
            chosen = least or chosen
        elif least and least.is_sure and least.strategy.offload is Offload.NONE:
            chosen = chosen if is_slower(as_it_is_job, least, chosen) else least
    assert chosen is not None
    assert chosen.strategy == found.strategy


@LAW
@given(job=jobs(), wish=WISHES)
def test_a_split_is_no_slower_than_the_job_as_it_is(job: Job, wish: Constraints) -> None:
    before = decide(job, wish).chosen
    assume(before is not None and before.verdict is Verdict.FITS)
    assert before is not None
    assert before.step_time is not None
    found = search(job, wish, OpenSettings(split=True))
    # An earlier box of the flowchart that surely fits with another split is taken, also where a
    # later one is faster with more memory: `clearly_faster` names that one.
    assume(found.choice is not None and found.choice.strategy == before.strategy)
    # What comes near the memory limit gives way to a split that is nearly as fast.
    assert seconds(found) <= before.step_time.expected_seconds * SLOWER


@LAW
@given(job=jobs(), freedom=FREEDOMS)
def test_the_fastest_is_as_fast_as_the_fastest_of_all_that_fit(
    job: Job, freedom: OpenSettings
) -> None:
    surely = [each for each in every_one(job, freedom) if each.evaluated.is_sure]
    found = search(job, Constraints(), freedom, Objective.FASTEST)
    if not surely:
        assert found.choice is None or found.choice.evaluated.verdict is Verdict.UNCERTAIN
        return
    taken = take_fastest(without_needlessly_tight(surely))
    assert taken is not None
    assert taken.seconds is not None
    assert seconds(found) <= taken.seconds * (1 + SAME_FRACTION)
    fitting = [each.seconds or 0 for each in surely if each.evaluated.verdict is Verdict.FITS]
    assert seconds(found) <= min(fitting, default=taken.seconds) * SLOWER


@LAW
@given(job=jobs(call_seconds=None), freedom=FREEDOMS)
def test_where_nobody_read_the_host_the_choice_loses_little_on_a_slow_and_on_a_fast_one(
    job: Job, freedom: OpenSettings
) -> None:
    surely = [each for each in every_one(job, freedom) if each.evaluated.is_sure]
    assume(surely)
    assert all((each.slow_host_seconds or 0) >= (each.seconds or 0) for each in surely)
    choice = search(job, Constraints(), freedom, Objective.FASTEST).choice
    assert choice is not None
    loss, *losses = worst_losses([choice, *surely])
    assert loss <= min(losses) * SLOWER


@LAW
@given(job=jobs(), freedom=FREEDOMS)
def test_the_smallest_is_no_larger_than_any_other_that_surely_runs(
    job: Job, freedom: OpenSettings
) -> None:
    surely = [each for each in every_one(job, freedom) if each.evaluated.is_sure]
    assume(surely)
    found = search(job, Constraints(), freedom, Objective.SMALLEST)
    assert found.choice is not None
    least_bytes = min(each.evaluated.device_bytes for each in surely)
    assert found.choice.evaluated.device_bytes <= least_bytes
    assert found.choice.evaluated == found.decision.of(found.choice.strategy)


@LAW
@given(job=jobs(), freedom=FREEDOMS, factor=st.sampled_from((1.02, 1.3, 4)))
def test_with_more_memory_the_fastest_is_no_slower(
    job: Job, freedom: OpenSettings, factor: float
) -> None:
    before = search(job, Constraints(), freedom, Objective.FASTEST)
    assume(before.choice is not None and before.choice.evaluated.is_sure)
    budget_bytes = job.gpu_budget_bytes
    assert budget_bytes is not None
    roomier = free_set(job, int(budget_bytes * factor))
    after = search(roomier, Constraints(), freedom, Objective.FASTEST)
    assert seconds(after) <= seconds(before) * SLOWER


@LAW
@given(job=jobs(), strategy=st.sampled_from(STRATEGIES))
def test_memory_rises_with_the_micro_batch_where_micro_steps_accumulate(
    job: Job, strategy: StrategyRow
) -> None:
    buffers, *_ = job.buffers(strategy)
    steps = [each for each in split_batch(job.workload) if each.accumulation_steps > 1]
    sizes = [
        evaluate_with(replace(job, workload=each), strategy, buffers).device_bytes for each in steps
    ]
    assert sorted(sizes) == sizes


@LAW
@given(job=jobs(), freedom=FREEDOMS, objective=st.sampled_from(Objective))
def test_each_point_of_the_front_but_the_choice_has_more_headroom_than_all_that_are_faster(
    job: Job, freedom: OpenSettings, objective: Objective
) -> None:
    found = search(job, Constraints(), freedom, objective)
    times = [each.seconds or 0 for each in found.pareto]
    assert sorted(times) == times
    front = find_pareto(found.candidates)
    rooms = [each.headroom_bytes for each in front]
    assert sorted(set(rooms)) == rooms
    assert [*front] == [each for each in found.pareto if each in front]
    assert all(each in front or each == found.choice for each in found.pareto)
    if found.choice is not None and found.objective is objective and found.candidates:
        assert found.choice in found.pareto or not found.choice.evaluated.is_sure
    labels = [(each.strategy.name, each.workload) for each in found.pareto]
    assert len(set(labels)) == len(labels)
    for each in found.candidates:
        assert any(
            (point.seconds or 0) <= (each.seconds or 0)
            and point.headroom_bytes >= each.headroom_bytes
            for point in found.pareto
        )


def simplicity(candidate: Candidate) -> tuple[bool, int]:
    offloads = candidate.strategy.offload is not Offload.NONE
    return offloads, STRATEGIES.index(candidate.strategy)


@LAW
@given(job=jobs(), freedom=FREEDOMS)
def test_what_is_faster_than_the_choice_is_the_same_or_not_worth_its_cost(
    job: Job, freedom: OpenSettings
) -> None:
    found = search(job, Constraints(), freedom, Objective.FASTEST)
    assume(found.objective is Objective.FASTEST)
    choice = found.choice
    assert choice is not None
    faster = [each for each in found.candidates if (each.seconds or 0) < seconds(found)]
    for each in faster:
        alike = (
            each.evaluated.verdict is choice.evaluated.verdict
            and each.workload.gradient_checkpointing is choice.workload.gradient_checkpointing
        )
        comes_near = not alike and each.evaluated.verdict is Verdict.TIGHT
        worth_fraction = CLEARLY_FRACTION if comes_near else SAME_FRACTION
        assert seconds(found) <= (each.seconds or 0) * (1 + worth_fraction)
        assert not alike or simplicity(choice) <= simplicity(each)
        if alike and each.strategy == choice.strategy:
            assert seconds(found) <= (each.seconds or 0) * (1 + ROOM_FRACTION)
            assert each.headroom_bytes <= choice.headroom_bytes
    least = min((each.seconds or 0 for each in faster), default=None)
    if least is None:
        expected = Reason.FASTEST
    elif seconds(found) <= least * (1 + SAME_FRACTION):
        expected = Reason.AS_GOOD_AS_FASTEST
    else:
        expected = Reason.FASTER_NOT_WORTH
    assert found.decision.reasons[0] is expected


LLAMA = read_model("llama-2-7b")
SMALL = read_model("llama-3.2-1b")
STEP = Workload(sequence_tokens=2048, accumulation_steps=16)


SPLIT, NO_OFFLOAD = OpenSettings(split=True), Constraints(offload=OffloadChoice.NONE)
H100S = job_on("8xH100-80GB", SMALL, STEP)
LONG = job_on("2xH100-80GB", LLAMA, replace(STEP, sequence_tokens=16384))
# The expected peak fits, its upper bound does not.
LEANEST = evaluate(free_set(H100S, GIB), ZERO3)
BETWEEN = free_set(H100S, (LEANEST.device_bytes + LEANEST.high_device_bytes) // 2)
# ZeRO-1 keeps all gradients from one micro-step to the next.
FULL = free_set(
    job_on(
        *("2xH200", SMALL),
        Workload(micro_batch=1, accumulation_steps=2, sequence_tokens=128),
    ),
    17_544_048_206,
)
TOO_LARGE = job_on(
    *("RTX4090", model_from_size("70b", 70 * 10**9)),
    Workload(micro_batch=2, accumulation_steps=8),
)
# Seven strategies with their buffers, five splits, with and without checkpointing.
TRIED = 5 * 2 * sum(len(TOO_LARGE.buffers(strategy)) for strategy in STRATEGIES)


def offloading(micro_batch: int, free_gib: int) -> Job:
    step = Workload(micro_batch=micro_batch, accumulation_steps=4, sequence_tokens=1024)
    job = job_on("2xH100-80GB", read_model("qwen2.5-0.5b"), step, host_bytes=2048 * GIB)
    return free_set(job, free_gib * GIB)


CHOSEN: dict[str, tuple[Job, Constraints, OpenSettings, Objective, dict[str, object]]] = {
    # Offload is left for a smaller micro-batch where that is no slower.
    "offload, nothing open": (
        *(offloading(4, 16), Constraints(), OpenSettings(), Objective.FLOWCHART),
        {"choice.strategy": ZERO2_OFFLOAD},
    ),
    "offload, left for a smaller micro-batch": (
        *(offloading(4, 16), Constraints(), SPLIT, Objective.FLOWCHART),
        {"choice.strategy": ZERO1, "choice.workload.micro_batch": 2},
    ),
    "offload, left for a step within 5 % of it": (
        *(offloading(2, 11), Constraints(), SPLIT, Objective.FLOWCHART),
        {"choice.strategy": ZERO2, "choice.workload.micro_batch": 1},
    ),
    "one micro-step, where no split with accumulation runs": (
        *(FULL, Constraints(), SPLIT, Objective.FASTEST),
        {"choice.strategy": ZERO1, "choice.workload.micro_batch": 2},
    ),
    "recomputed where that is not open": (
        *(LONG, NO_OFFLOAD, SPLIT, Objective.FLOWCHART),
        {"choice": None},
    ),
    "recomputed where it is needed": (
        *(LONG, NO_OFFLOAD, OPEN, Objective.FLOWCHART),
        {"choice.workload.gradient_checkpointing": True},
    ),
    "recomputed where it is not needed": (
        job_on("8xH200", SMALL, replace(STEP, accumulation_steps=1)),
        *(Constraints(), OPEN, Objective.FLOWCHART),
        {"choice.workload.gradient_checkpointing": False},
    ),
    "the reason of the fastest": (
        *(job_on("8xH200", LLAMA, STEP), Constraints(), OPEN, Objective.FASTEST),
        {"decision.reasons": (Reason.AS_GOOD_AS_FASTEST,)},
    ),
    "the reason of the smallest": (
        *(job_on("8xH200", LLAMA, STEP), Constraints(), OPEN, Objective.SMALLEST),
        {"decision.reasons": (Reason.SMALLEST,)},
    ),
    **{
        f"nothing fits, {objective}": (
            *(TOO_LARGE, Constraints(), OPEN, objective),
            {
                "choice": None,
                "decision.job.workload": TOO_LARGE.workload,
                "candidates": (),
                "count": TRIED,
            },
        )
        for objective in Objective
    },
    # What is uncertain is taken only where nothing fits.
    **{
        f"uncertain, {objective}": (
            *(BETWEEN, Constraints(stage=3), OpenSettings(), objective),
            {"choice.evaluated.verdict": Verdict.UNCERTAIN, "objective": Objective.FLOWCHART},
        )
        for objective in (Objective.FASTEST, Objective.SMALLEST)
    },
    **{
        f"uncertain, and sure where it recomputes, {objective}": (
            *(BETWEEN, Constraints(stage=3), OPEN, objective),
            {"choice.evaluated.is_sure": True},
        )
        for objective in (Objective.FASTEST, Objective.SMALLEST)
    },
}


@pytest.mark.parametrize(
    ("job", "constraints", "freedom", "objective", "expected"), CHOSEN.values(), ids=CHOSEN
)
def test_a_search_finds(
    job: Job,
    constraints: Constraints,
    freedom: OpenSettings,
    objective: Objective,
    expected: dict[str, object],
) -> None:
    found = search(job, constraints, freedom, objective)
    assert expected == {path: attrgetter(path)(found) for path in expected}


@pytest.mark.parametrize("objective", Objective)
def test_without_rates_the_largest_micro_batch_that_fits_is_taken(objective: Objective) -> None:
    job = replace(job_on("8xH100-80GB", SMALL, STEP), rates=None)
    found = search(job, Constraints(), OPEN, objective)
    assert found.choice is not None
    if objective is Objective.SMALLEST:
        assert 1 == found.choice.workload.micro_batch
        return
    assert Objective.FLOWCHART is found.objective
    assert Verdict.FITS is found.choice.evaluated.verdict
    assert not found.choice.workload.gradient_checkpointing
    fitting = [
        each.workload.micro_batch
        for each in every_one(job, OpenSettings(split=True))
        if each.strategy == found.choice.strategy and each.evaluated.verdict is Verdict.FITS
    ]
    assert max(fitting) == found.choice.workload.micro_batch
    assert () == found.pareto


def test_kernels_that_can_be_delivered_are_taken_by_a_search_and_not_by_the_flowchart() -> None:
    freedom = replace(OPEN, attention=(Attention.FLASH,), losses=(Loss.LIGER,))
    plain = search(H100S, Constraints(), OPEN, Objective.SMALLEST)
    kernels = search(H100S, Constraints(), freedom, Objective.SMALLEST)
    assert kernels.choice is not None
    assert plain.choice is not None
    assert Loss.LIGER is kernels.choice.workload.loss
    assert kernels.choice.evaluated.device_bytes <= plain.choice.evaluated.device_bytes
    assert 4 * plain.count == kernels.count
    followed = search(H100S, Constraints(), freedom)
    assert (Loss.PLAIN, plain.count) == (followed.decision.job.workload.loss, followed.count)


def test_a_loss_that_is_not_counted_for_a_model_is_no_candidate() -> None:
    job = job_on("2xH200", read_model("gpt2-medium"), replace(STEP, sequence_tokens=1024))
    with_liger = replace(OPEN, losses=(Loss.LIGER,))
    plain, liger = (
        search(job, Constraints(), each, Objective.FASTEST) for each in (OPEN, with_liger)
    )
    assert plain.count == liger.count


def test_a_strategy_that_deepspeed_does_not_train_so_is_not_taken() -> None:
    first = search(H100S, Constraints(), OPEN, Objective.FASTEST).choice
    assert first is not None
    name = first.strategy.name
    found = search(H100S, Constraints(), OPEN, Objective.FASTEST, lambda each: each.name != name)
    assert found.choice is not None
    assert name != found.choice.strategy.name


@pytest.mark.parametrize("objective", Objective)
def test_what_was_asked_for_stays(objective: Objective) -> None:
    job = job_on("8xH100-80GB", SMALL, STEP, host_bytes=2048 * GIB)
    pinned = search(job, Constraints(stage=3), OPEN, objective)
    assert {ZERO3.name} == {each.strategy.name for each in pinned.candidates}
    assert pinned.clearly_faster is None
    here = search(job, Constraints(offload=OffloadChoice.NONE), OPEN, objective)
    assert {Offload.NONE} == {each.strategy.offload for each in here.candidates}


def test_a_plan_says_where_another_strategy_is_clearly_faster() -> None:
    # Few experts of many compute; ZeRO-2 reduces the gradients of all at every micro-step.
    job = job_on("8xH100-80GB", read_model("qwen3-30b-a3b-12l"), STEP)
    found = search(job, Constraints(), OpenSettings())
    faster = found.clearly_faster
    assert found.choice is not None
    assert faster is not None
    assert faster.strategy != found.choice.strategy
    assert seconds(found) >= 1.1 * (faster.seconds or 0)
    assert faster == search(job, Constraints(), OpenSettings(), Objective.FASTEST).choice


@pytest.mark.parametrize(
    ("seconds", "than_seconds", "expected"),
    [(1.0, 1.11, True), (1.0, 1.09, False), (0.905, 1.0, True)],
)
def test_a_step_that_is_ten_percent_faster_is_clearly_faster(
    seconds: float, than_seconds: float, expected: bool
) -> None:
    made = Candidate(workload=STEP, evaluated=evaluate(H100S, ZERO3))
    assert expected is is_worth(timed(made, seconds), timed(made, than_seconds), 0.1)


def timed(candidate: Candidate, expected_seconds: float) -> Candidate:
    time = candidate.evaluated.step_time
    assert time is not None
    time = replace(time, expected_seconds=expected_seconds)
    return replace(candidate, evaluated=replace(candidate.evaluated, step_time=time))


def test_each_open_setting_has_its_names() -> None:
    opened = {
        OpenSettings(split=True): ("micro_batch", "accumulation_steps"),
        OpenSettings(checkpointing=(True,)): ("gradient_checkpointing",),
        OpenSettings(attention=(Attention.FLASH,)): ("attention",),
        OpenSettings(losses=(Loss.PLAIN,)): ("loss",),
        OpenSettings(shared=(2,)): ("accumulation_steps", "sequence_parallel"),
    }
    assert len(OpenSettings.__struct_fields__) == len(opened)
    for freedom, names in opened.items():
        assert names == freedom.names
        assert all(hasattr(STEP, name) for name in names)
