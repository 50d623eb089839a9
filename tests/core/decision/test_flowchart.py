"""The way through the flowchart: its truth table, one test per row, over verdicts that stand."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import (
    CLEARLY_FRACTION,
    Constraints,
    Decision,
    FlowchartQuestion,
    Reason,
    decide,
    dominates,
    follow_flowchart,
    may_choose,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.remedies import RemedyScope, find_remedies
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Host, LinkClass, Machine
from zerowiz.core.memory.allocations import Allocation, AllocationKind, Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.memory.host import HostNeed, HostPhase
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow, rank_sizes
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import StepTime
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
from zerowiz.core.strategy_types import Offload, OffloadChoice
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table

FITS, TIGHT, NO = Verdict.FITS, Verdict.TIGHT, Verdict.DOES_NOT_FIT
UNCERTAIN = Verdict.UNCERTAIN
BUDGET_BYTES = 100
NEED_BYTES = {FITS: 50, TIGHT: 100, UNCERTAIN: 90, NO: 110}
HIGH_BYTES = {**NEED_BYTES, UNCERTAIN: 105}

TABLE = read_gpu_table()
SEVEN = model_from_size("7b", 7_000_000_000)
FAST, ONE = (parse_spec(spec, TABLE) for spec in ("4xA100-40GB", "A100-40GB"))
SLOW = parse_spec("4xRTX4090", TABLE)


def job_on(machine: Machine) -> Job:
    return Job(machine=machine, model=SEVEN, workload=Workload())


def held_on_host(size_bytes: int) -> HostNeed:
    held = Allocation(AllocationKind.MASTER_WEIGHTS, size_bytes, "")
    return HostNeed(phases={HostPhase.TRAINING: (held,)})


@cache
def sizes_of(strategy: StrategyRow) -> RankSizes:
    return rank_sizes(SEVEN, Workload(), 4, strategy, DEEPSPEED_DEFAULTS)


def evaluated(
    strategy: StrategyRow,
    verdict: Verdict,
    seconds: float | None = None,
    need_bytes: int | None = None,
) -> StrategyEstimate:
    """A strategy with this verdict, its lack on the GPU."""
    need = NEED_BYTES[verdict] if need_bytes is None else need_bytes
    host = 0 if strategy.offload is Offload.NONE else 1
    time = None
    if seconds is not None:
        time = StepTime(
            terms=(), expected_seconds=seconds, low_seconds=seconds, high_seconds=seconds, tokens=1
        )
    allocation = Allocation(AllocationKind.PARAMETERS, need, "")
    return StrategyEstimate(
        estimate=Estimate(
            model=SEVEN,
            rank=sizes_of(strategy),
            moments={Phase.STEP: ((allocation,),)},
            host=(),
        ),
        interval=None,
        verdict=verdict,
        device_bytes=need,
        high_device_bytes=HIGH_BYTES[verdict],
        budget_bytes=BUDGET_BYTES,
        host=held_on_host(host),
        host_budget_bytes=host,
        wire_bytes_per_step=0,
        step_time=time,
    )


def follow(
    verdicts: Mapping[StrategyRow, Verdict],
    machine: Machine = FAST,
    constraints: Constraints | None = None,
) -> Decision:
    """The decision where the strategies that are not named do not fit."""
    estimates = [evaluated(strategy, verdicts.get(strategy, NO)) for strategy in STRATEGIES]
    return follow_flowchart(estimates, job_on(machine), constraints or Constraints())


def chosen(decision: Decision) -> StrategyRow | None:
    return decision.chosen.strategy if decision.chosen else None


def asked(decision: Decision) -> list[FlowchartQuestion]:
    return [answer.question for answer in decision.answers]


Q = FlowchartQuestion
EVERY = dict.fromkeys(STRATEGIES, FITS)
BOTH_OFFLOADS = {ZERO2_OFFLOAD: FITS, ZERO3_OFFLOAD: FITS}
SLOW_ZERO3 = {ZERO3: FITS, **BOTH_OFFLOADS}
AUTO = OffloadChoice.AUTO
# The truth table: what fits where, the wishes, what is taken, why, and what was asked.
TAKEN: Mapping[str, tuple[Any, ...]] = {
    "what fits replicated is not sharded": (
        *(EVERY, FAST, {}, DDP, (Reason.REPLICATED_FITS,), (Q.FITS_ONE_GPU,)),
    ),
    "ZeRO-2 is the recommended middle": (
        *({ZERO1: FITS, ZERO2: FITS, ZERO3: FITS}, FAST, {}, ZERO2, (Reason.MIDDLE_FITS,)),
        (Q.FITS_ONE_GPU, Q.FITS_ZERO2),
    ),
    "over a slow link ZeRO-1 is enough": (
        *({ZERO1: FITS, ZERO2: FITS}, SLOW, {}, ZERO1, (Reason.SLOW_LINK_ZERO1,)),
        (Q.FITS_ONE_GPU, Q.FITS_ZERO1),
    ),
    "over a slow link ZeRO-2, where ZeRO-1 is too large": (
        *({ZERO2: FITS, ZERO3: FITS}, SLOW, {}, ZERO2, (Reason.MIDDLE_FITS,)),
    ),
    "over a slow link an uncertain ZeRO-2 before a ZeRO-3 that fits": (
        *({ZERO2: UNCERTAIN, ZERO3: FITS}, SLOW, {}, ZERO2),
        (Reason.MIDDLE_FITS, Reason.UNCERTAIN),
    ),
    "ZeRO-3 over a fast link": (
        *({ZERO3: FITS, ZERO2_OFFLOAD: FITS}, FAST, {}, ZERO3, (Reason.FAST_LINK_ZERO3,)),
        (Q.FITS_ONE_GPU, Q.FITS_ZERO2, Q.FAST_INTERCONNECT, Q.FITS_ZERO3),
    ),
    "ZeRO-3 is refused over a slow link": (
        *(SLOW_ZERO3, SLOW, {}, None, (Reason.SLOW_LINK_REFUSES_ZERO3,)),
    ),
    "a slow ZeRO-3 that is allowed": (
        *(SLOW_ZERO3, SLOW, {"allow_slow": True}, ZERO3, (Reason.SLOW_ALLOWED,)),
    ),
    "a slow ZeRO-3 that is allowed, before offload": (
        *(SLOW_ZERO3, SLOW, {"allow_slow": True, "offload": AUTO}, ZERO3, (Reason.SLOW_ALLOWED,)),
    ),
    "offload replaces a slow ZeRO-3": (
        *(SLOW_ZERO3, SLOW, {"offload": AUTO}, ZERO2_OFFLOAD, (Reason.OFFLOAD_OVER_SLOW_ZERO3,)),
    ),
    "the larger offload, where the smaller one does not fit": (
        *({ZERO3: FITS, ZERO3_OFFLOAD: FITS}, SLOW, {"offload": AUTO}, ZERO3_OFFLOAD),
        (Reason.OFFLOAD_OVER_SLOW_ZERO3,),
    ),
    **{
        f"{offload.name} on one GPU, at once": (
            *({ZERO1: FITS, ZERO2: FITS, ZERO3: FITS, offload: FITS}, ONE, {}, offload),
            (Reason.ONLY_OFFLOAD_FITS,),
            (Q.FITS_ONE_GPU, *(Q.FITS_OFFLOAD,) * times),
        )
        for offload, times in ((ZERO2_OFFLOAD, 1), (ZERO3_OFFLOAD, 2))
    },
    **{
        f"{offload.name} alone, over a {link} link": (
            *({offload: FITS}, machine, {}, offload, (Reason.ONLY_OFFLOAD_FITS,)),
        )
        for offload in BOTH_OFFLOADS
        for link, machine in (("fast", FAST), ("slow", SLOW))
    },
    "what is uncertain does not give way to offload, on one GPU": (
        *({DDP: UNCERTAIN, ZERO2_OFFLOAD: FITS}, ONE, {}, DDP),
        (Reason.REPLICATED_FITS, Reason.UNCERTAIN),
    ),
    "what is uncertain does not give way to offload": (
        *({ZERO2: UNCERTAIN, ZERO3: UNCERTAIN, ZERO3_OFFLOAD: FITS}, FAST, {}, ZERO2),
        (Reason.MIDDLE_FITS, Reason.UNCERTAIN),
    ),
    "an uncertain stage that was asked for": (
        *({ZERO2: UNCERTAIN, ZERO3: FITS}, FAST, {"stage": 2}, ZERO2),
        (Reason.ASKED_FOR, Reason.UNCERTAIN),
    ),
    "of the offloads of a stage the least frugal that fits": (
        *({ZERO3_OFFLOAD: FITS, ZERO3_OFFLOAD_OPTIMIZER: FITS}, FAST),
        *({"stage": 3, "offload": AUTO}, ZERO3_OFFLOAD_OPTIMIZER, (Reason.ASKED_FOR,)),
    ),
    **{
        f"stage {stage} with offload {offload}": (
            *(EVERY, FAST, {"stage": stage, "offload": offload}, strategy, (Reason.ASKED_FOR,)),
        )
        for stage, offload, strategy in (
            (2, OffloadChoice.OPTIMIZER, ZERO2_OFFLOAD),
            (3, OffloadChoice.OPTIMIZER, ZERO3_OFFLOAD_OPTIMIZER),
            (3, OffloadChoice.ALL, ZERO3_OFFLOAD),
            (3, OffloadChoice.NONE, ZERO3),
            (3, AUTO, ZERO3),
            (None, OffloadChoice.OPTIMIZER, ZERO2_OFFLOAD),
            (None, OffloadChoice.ALL, ZERO3_OFFLOAD),
        )
    },
}


@pytest.mark.parametrize("row", TAKEN.values(), ids=TAKEN.keys())
def test_the_flowchart_takes(row: tuple[Any, ...]) -> None:
    verdicts, machine, wishes, strategy, reasons, *questions = row
    decision = follow(verdicts, machine, Constraints(**wishes))
    assert (strategy, reasons) == (chosen(decision), decision.reasons)
    assert questions in ([], [(*asked(decision),)])


@pytest.mark.parametrize(
    ("stage", "verdicts", "other"),
    [
        (3, {ZERO2: FITS, ZERO3: FITS}, ZERO2),
        (2, {ZERO2: FITS, ZERO3: FITS}, None),
        (2, {ZERO2: UNCERTAIN, ZERO3: FITS}, ZERO3),
        (2, {ZERO3_OFFLOAD: FITS}, ZERO3_OFFLOAD),
        (None, {ZERO2: FITS}, None),
    ],
)
def test_beside_a_stage_that_was_asked_for_stands_what_the_flowchart_would_choose(
    stage: int | None, verdicts: Mapping[StrategyRow, Verdict], other: StrategyRow | None
) -> None:
    found = follow(verdicts, constraints=Constraints(stage=stage)).otherwise
    assert other == (found and found.strategy)


@pytest.mark.parametrize("strategy", [DDP, ZERO2, ZERO3, ZERO2_OFFLOAD, ZERO3_OFFLOAD])
def test_a_tight_strategy_counts_as_a_yes_and_is_named_as_tight(strategy: StrategyRow) -> None:
    decision = follow({strategy: TIGHT})
    assert strategy == chosen(decision)
    assert Reason.TIGHT is decision.reasons[-1]
    assert decision.answers[-1].answer


@pytest.mark.parametrize(
    ("tight", "offered"),
    [(DDP, ZERO1), (ZERO2, ZERO3), (ZERO3, ZERO2_OFFLOAD), (ZERO2_OFFLOAD, ZERO3_OFFLOAD)],
)
def test_beside_a_tight_strategy_the_next_that_fits_is_offered(
    tight: StrategyRow, offered: StrategyRow
) -> None:
    below = FLOWCHART_STRATEGIES[FLOWCHART_STRATEGIES.index(tight) + 1 :]
    (remedy,) = find_remedies(follow({tight: TIGHT, **dict.fromkeys(below, FITS)}))
    assert offered.name == remedy.strategy
    assert {"stage": str(offered.stage), "offload": offered.offload.value} == remedy.change
    assert NEED_BYTES[TIGHT] - NEED_BYTES[FITS] == remedy.frees_bytes


@pytest.mark.parametrize("other", [TIGHT, FITS])
def test_beside_a_tight_strategy_another_is_passed_over_that_is_tight_or_refused(
    other: Verdict,
) -> None:
    verdicts = {ZERO2: TIGHT, ZERO3: other, ZERO2_OFFLOAD: NO, ZERO3_OFFLOAD: FITS}
    scope = RemedyScope(supports=lambda strategy: other is TIGHT or strategy is not ZERO3)
    (remedy,) = find_remedies(follow(verdicts), scope)
    assert "zero3-offload" == remedy.strategy


def test_offload_is_not_offered_beside_a_tight_strategy_to_who_forbids_it() -> None:
    verdicts = {ZERO3: TIGHT, ZERO2_OFFLOAD: FITS, ZERO3_OFFLOAD: FITS}
    assert () == find_remedies(
        follow(verdicts, constraints=Constraints(offload=OffloadChoice.NONE))
    )


@pytest.mark.parametrize("machine", [FAST, SLOW, ONE], ids=["fast", "slow", "one"])
@pytest.mark.parametrize("strategy", [DDP, ZERO2_OFFLOAD, ZERO3_OFFLOAD])
def test_an_uncertain_strategy_counts_as_yes_where_nothing_surely_runs(
    strategy: StrategyRow, machine: Machine
) -> None:
    decision = follow({strategy: UNCERTAIN}, machine)
    assert strategy == chosen(decision)
    assert Reason.UNCERTAIN is decision.reasons[-1]
    last = decision.answers[-1]
    assert (True, NEED_BYTES[UNCERTAIN]) == (last.answer, last.need_bytes)


# The truth table: what is uncertain gives way to what surely runs, wherever the flowchart finds it.
@pytest.mark.parametrize(
    ("verdicts", "machine", "constraints", "strategy", "reasons"),
    [
        ({DDP: UNCERTAIN, ZERO2: FITS}, FAST, None, ZERO2, (Reason.MIDDLE_FITS,)),
        ({DDP: UNCERTAIN, ZERO2: TIGHT}, FAST, None, ZERO2, (Reason.MIDDLE_FITS,)),
        ({ZERO2: UNCERTAIN, ZERO3: FITS}, FAST, None, ZERO3, (Reason.FAST_LINK_ZERO3,)),
        ({ZERO1: UNCERTAIN, ZERO2: FITS}, SLOW, None, ZERO2, (Reason.MIDDLE_FITS,)),
        (
            {ZERO2_OFFLOAD: UNCERTAIN, ZERO3_OFFLOAD: FITS},
            FAST,
            None,
            ZERO3_OFFLOAD,
            (Reason.ONLY_OFFLOAD_FITS,),
        ),
        (
            {ZERO3: UNCERTAIN, ZERO2_OFFLOAD: FITS},
            SLOW,
            None,
            ZERO2_OFFLOAD,
            (Reason.ONLY_OFFLOAD_FITS,),
        ),
        (
            {ZERO2: UNCERTAIN, ZERO3: FITS},
            SLOW,
            Constraints(allow_slow=True),
            ZERO3,
            (Reason.SLOW_ALLOWED,),
        ),
        (
            {ZERO3: UNCERTAIN, ZERO3_OFFLOAD: FITS},
            SLOW,
            Constraints(stage=3, offload=OffloadChoice.AUTO),
            ZERO3_OFFLOAD,
            (Reason.ASKED_FOR,),
        ),
    ],
)
def test_an_uncertain_strategy_is_passed_over_for_one_that_surely_runs(
    verdicts: Mapping[StrategyRow, Verdict],
    machine: Machine,
    constraints: Constraints | None,
    strategy: StrategyRow,
    reasons: tuple[Reason, ...],
) -> None:
    decision = follow(verdicts, machine, constraints)
    assert strategy == chosen(decision)
    assert (*reasons, Reason.UNCERTAIN_PASSED_OVER) == decision.reasons[: len(reasons) + 1]
    passed = [a for a in decision.answers if verdicts.get(by_name(a.strategy)) is UNCERTAIN]
    assert {(False, HIGH_BYTES[UNCERTAIN])} == {(a.answer, a.need_bytes) for a in passed}


LEANER, SURER, SIMPLER = (
    FlowchartQuestion.LEANER_AND_FASTER,
    FlowchartQuestion.SURE_AND_AS_FAST,
    FlowchartQuestion.NO_OFFLOAD_AS_FAST,
)
Timed = Mapping[StrategyRow, tuple[Verdict, float, int]]


def follow_timed(
    estimates: Timed, machine: Machine = FAST, constraints: Constraints | None = None
) -> Decision:
    rows = [evaluated(s, *estimates.get(s, (NO, 1.0, NEED_BYTES[NO]))) for s in STRATEGIES]
    return follow_flowchart(rows, job_on(machine), constraints or Constraints())


# The truth table of the last question: verdict, seconds of a step and bytes of each strategy.
@pytest.mark.parametrize(
    ("estimates", "strategy", "question"),
    [
        pytest.param(
            {DDP: (FITS, 1.0, 90), ZERO1: (FITS, 0.5, 30), ZERO2: (FITS, 0.5, 20)},
            ZERO1,
            LEANER,
            id="the first that nothing dominates",
        ),
        pytest.param(
            {DDP: (FITS, 1.0, 90), ZERO1: (FITS, 0.8, 80), ZERO3: (FITS, 0.6, 50)},
            ZERO3,
            LEANER,
            id="not one that is dominated too",
        ),
        pytest.param(
            {ZERO2: (FITS, 1.0, 60), ZERO1: (FITS, 0.5, 50)}, ZERO1, LEANER, id="an earlier one"
        ),
        pytest.param({DDP: (FITS, 1.0, 90), ZERO1: (FITS, 0.95, 30)}, DDP, None, id="5 %"),
        pytest.param({DDP: (FITS, 1.0, 50), ZERO1: (FITS, 0.5, 50)}, DDP, None, id="no leaner"),
        pytest.param({DDP: (FITS, 1.0, 90), ZERO1: (TIGHT, 0.5, 80)}, DDP, None, id="tight rival"),
        pytest.param(
            {DDP: (FITS, 1.0, 90), ZERO2_OFFLOAD: (FITS, 0.5, 30)}, DDP, None, id="offload"
        ),
        pytest.param(
            {ZERO2_OFFLOAD: (FITS, 1.0, 90), ZERO3_OFFLOAD: (FITS, 0.5, 30)},
            ZERO3_OFFLOAD,
            LEANER,
            id="offload of what offloads",
        ),
        pytest.param(
            {ZERO2_OFFLOAD: (FITS, 1.0, 90), ZERO3_OFFLOAD_OPTIMIZER: (FITS, 0.8, 60)},
            ZERO3_OFFLOAD_OPTIMIZER,
            LEANER,
            id="a kind of offload that no box asks of",
        ),
        pytest.param(
            {ZERO2_OFFLOAD: (UNCERTAIN, 1.0, 95), ZERO3_OFFLOAD_OPTIMIZER: (FITS, 1.0, 60)},
            ZERO3_OFFLOAD_OPTIMIZER,
            SURER,
            id="uncertain offload",
        ),
        pytest.param(
            {ZERO2_OFFLOAD: (FITS, 1.0, 30), ZERO1: (FITS, 1.04, 60)},
            ZERO1,
            SIMPLER,
            id="as fast without offload",
        ),
        pytest.param(
            {ZERO2_OFFLOAD: (FITS, 1.0, 30), ZERO1: (FITS, 1.2, 60)},
            ZERO2_OFFLOAD,
            None,
            id="slower without offload",
        ),
        pytest.param(
            {DDP: (TIGHT, 1.0, 98), ZERO2: (FITS, 1.05, 30)}, ZERO2, SURER, id="tight, as fast"
        ),
        pytest.param(
            {DDP: (TIGHT, 1.0, 98), ZERO1: (FITS, 1.0, 40), ZERO2: (FITS, 1.3, 30)},
            ZERO1,
            SURER,
            id="ZeRO-1 on a fast link",
        ),
        pytest.param(
            {DDP: (TIGHT, 1.0, 98), ZERO2: (FITS, 1.2, 30)}, DDP, None, id="tight, slower"
        ),
        pytest.param(
            {DDP: (TIGHT, 0.687, 98), ZERO2_OFFLOAD: (FITS, 0.687, 30)},
            DDP,
            None,
            id="tight, and offload fits",
        ),
        pytest.param(
            {DDP: (UNCERTAIN, 1.0, 90), ZERO2: (FITS, 1.2, 30)}, DDP, None, id="uncertain, slower"
        ),
        pytest.param(
            {DDP: (UNCERTAIN, 1.0, 90), ZERO2: (FITS, 1.05, 30)},
            ZERO2,
            None,
            id="uncertain, as fast: it counted as no",
        ),
    ],
)
def test_a_better_strategy_is_taken_where_the_flowchart_led_to_a_worse_one(
    estimates: Timed, strategy: StrategyRow, question: FlowchartQuestion | None
) -> None:
    decision = follow_timed(estimates)
    assert strategy == chosen(decision)
    last = decision.answers[-1].question
    assert question == (last if last in {LEANER, SURER, SIMPLER} else None)
    assert (decision.beaten is not None) is (question is not None)


RIGHT = FlowchartQuestion.RIGHT_FOR_SCRIPT


@pytest.mark.parametrize(
    ("estimates", "wrong", "strategy", "question"),
    [
        pytest.param(
            {ZERO2: (FITS, 1.0, 90), ZERO1: (FITS, 1.5, 95)}, {2, 3}, ZERO1, RIGHT, id="slower"
        ),
        pytest.param(
            {ZERO2: (FITS, 1.0, 90), ZERO3: (FITS, 2.0, 30)}, {0, 1, 2}, ZERO3, RIGHT, id="leaner"
        ),
        pytest.param({ZERO2: (FITS, 1.0, 90)}, {2, 3}, ZERO2, None, id="no other"),
        pytest.param(
            {ZERO3: (FITS, 1.0, 90), ZERO2: (UNCERTAIN, 1.0, 90)},
            {3},
            ZERO3,
            None,
            id="uncertain",
        ),
        pytest.param(
            {ZERO2: (FITS, 1.0, 90), ZERO1: (TIGHT, 1.0, 95)}, {2}, ZERO2, None, id="not sure"
        ),
        pytest.param(
            {ZERO3: (FITS, 1.0, 90), ZERO2_OFFLOAD: (FITS, 5.0, 30)}, {3}, ZERO3, None, id="offload"
        ),
        pytest.param(
            {ZERO3_OFFLOAD: (FITS, 1.0, 40), ZERO2_OFFLOAD: (TIGHT, 1.0, 98)},
            {3},
            ZERO2_OFFLOAD,
            None,
            id="no better one of a wrong stage",
        ),
        pytest.param(
            {DDP: (FITS, 1.0, 90), ZERO3: (FITS, 0.5, 30)}, {3}, DDP, None, id="none for its speed"
        ),
    ],
)
def test_a_stage_at_which_the_script_is_right_is_taken_only_if_it_surely_fits(
    estimates: Timed, wrong: set[int], strategy: StrategyRow, question: FlowchartQuestion | None
) -> None:
    decision = follow_timed(estimates, FAST, Constraints(wrong_stages=frozenset(wrong)))
    assert strategy == chosen(decision)
    last = decision.answers[-1].question
    assert question == (last if last is RIGHT else None)
    assert (Reason.RIGHT_FOR_SCRIPT in decision.reasons) is (question is RIGHT)


def test_a_stage_that_was_asked_for_is_kept_whatever_the_script_does() -> None:
    asked = Constraints(stage=2, wrong_stages=frozenset({2, 3}))
    decision = follow_timed({ZERO2: (FITS, 1.0, 90), ZERO1: (FITS, 1.0, 95)}, FAST, asked)
    assert chosen(decision) == ZERO2
    assert decision.otherwise is not None
    assert ZERO1 == decision.otherwise.strategy


# Bytes and seconds of each strategy, near enough to each other that they are compared.
SIZES = st.fixed_dictionaries(
    {
        s: st.tuples(st.integers(30, 110), st.sampled_from((1.0, 1.05, 1.12, 1.5)))
        for s in STRATEGIES
    }
)
MACHINES = st.sampled_from((FAST, SLOW, ONE))
WISHES = tuple(
    Constraints(offload=offload, allow_slow=allow_slow)
    for offload in (None, OffloadChoice.AUTO, OffloadChoice.NONE)
    for allow_slow in (False, True)
)


def within(sizes: Mapping[StrategyRow, tuple[int, float]], budget_bytes: int) -> Timed:
    """What fits this budget, with margins that are the same fraction of each strategy."""

    def verdict(need_bytes: int) -> Verdict:
        margins = ((1.1, FITS), (1.05, TIGHT), (1.0, UNCERTAIN))
        return next((v for margin, v in margins if need_bytes * margin <= budget_bytes), NO)

    return {s: (verdict(need), seconds, need) for s, (need, seconds) in sizes.items()}


@given(sizes=SIZES, machine=MACHINES, constraints=st.sampled_from(WISHES))
def test_no_choice_is_dominated_nor_unsure_where_a_sure_one_is_as_fast(
    sizes: Mapping[StrategyRow, tuple[int, float]], machine: Machine, constraints: Constraints
) -> None:
    """What may be chosen in its place: leaner and clearly faster, or sure and about as fast."""
    decision = follow_timed(within(sizes, BUDGET_BYTES), machine, constraints)
    own = decision.chosen
    if own is None:
        return
    rivals = [decision.of(strategy) for strategy in may_choose(decision.job, constraints)]
    assert [] == [rival for rival in rivals if dominates(rival, own)]
    if own.verdict is not FITS:
        _, own_seconds = sizes[own.strategy]
        offloads = own.strategy.offload is not Offload.NONE
        assert [] == [
            rival
            for rival in rivals
            if rival.verdict is FITS
            and (offloads or rival.strategy.offload is Offload.NONE)
            and sizes[rival.strategy][1] <= own_seconds * (1 + CLEARLY_FRACTION)
        ]


@given(
    sizes=SIZES,
    machine=MACHINES,
    constraints=st.sampled_from(WISHES),
    more_bytes=st.integers(1, 40),
)
def test_with_more_memory_a_more_frugal_strategy_is_surer_or_clearly_faster(
    sizes: Mapping[StrategyRow, tuple[int, float]],
    machine: Machine,
    constraints: Constraints,
    more_bytes: int,
) -> None:
    before, after = (
        follow_timed(within(sizes, size), machine, constraints).chosen
        for size in (BUDGET_BYTES, BUDGET_BYTES + more_bytes)
    )
    if (
        before is None
        or after is None
        or list(Verdict).index(after.verdict) < list(Verdict).index(before.verdict)
    ):
        return
    (needs, seconds), (needed, was_seconds) = (sizes[of.strategy] for of in (after, before))
    # A later strategy that needs more is none: a ZeRO-2 that fits, after a leaner ZeRO-1.
    is_later = STRATEGIES.index(after.strategy) > STRATEGIES.index(before.strategy)
    is_frugal = is_later and needs < needed
    assert not is_frugal or seconds * (1 + CLEARLY_FRACTION) <= was_seconds


@pytest.mark.parametrize(
    ("machine", "constraints", "strategy"),
    [
        (FAST, Constraints(), ZERO3),
        (SLOW, Constraints(), DDP),
        (SLOW, Constraints(allow_slow=True), ZERO3),
        (ONE, Constraints(), ZERO3),
        (FAST, Constraints(stage=0), DDP),
        (FAST, Constraints(stage=0, force=True), DDP),
    ],
)
def test_only_what_may_be_chosen_is_better(
    machine: Machine, constraints: Constraints, strategy: StrategyRow
) -> None:
    estimates = {DDP: (FITS, 1.0, 90), ZERO3: (FITS, 0.5, 30)}
    assert strategy == chosen(follow_timed(estimates, machine, constraints))


def by_name(name: str | None) -> StrategyRow:
    return next((each for each in STRATEGIES if each.name == name), DDP)


def test_beside_an_uncertain_zero2_over_a_slow_link_a_zero3_that_fits_is_offered() -> None:
    (remedy,) = find_remedies(follow({ZERO2: UNCERTAIN, ZERO3: FITS}, SLOW))
    assert ("zero3", FITS) == (remedy.strategy, remedy.verdict)


def test_beside_an_uncertain_choice_what_makes_it_fit_is_offered() -> None:
    """7B of an unknown shape: the Llama fits, and the heaviest model of that size does not."""
    job = Job(machine=parse_spec("8xA100-40GB", TABLE), model=SEVEN, workload=Workload())
    decision = decide(job, Constraints())
    assert decision.chosen is not None
    assert UNCERTAIN is decision.chosen.verdict
    remedies = find_remedies(decision)
    assert {"gradient_checkpointing": True} in [remedy.change for remedy in remedies]
    assert {remedy.verdict for remedy in remedies} <= {FITS, TIGHT}


@pytest.mark.parametrize("machine", [FAST, SLOW, ONE])
def test_offload_none_forbids_it(machine: Machine) -> None:
    offloads = dict.fromkeys((ZERO2_OFFLOAD, ZERO3_OFFLOAD, ZERO3_OFFLOAD_OPTIMIZER), FITS)
    decision = follow(offloads, machine, Constraints(offload=OffloadChoice.NONE))
    assert (None, (Reason.NOTHING_FITS,)) == (chosen(decision), decision.reasons)
    assert FlowchartQuestion.FITS_OFFLOAD not in asked(decision)


@pytest.mark.parametrize("machine", [FAST, SLOW, ONE])
def test_when_nothing_fits_the_closest_strategy_and_its_lack_are_kept(machine: Machine) -> None:
    estimates = [evaluated(strategy, NO) for strategy in STRATEGIES]
    at = FLOWCHART_STRATEGIES.index(ZERO2_OFFLOAD)
    estimates[at] = replace(estimates[at], device_bytes=BUDGET_BYTES + 3)
    decision = follow_flowchart(estimates, job_on(machine), Constraints())
    assert (None, (Reason.NOTHING_FITS,)) == (chosen(decision), decision.reasons)
    assert (ZERO2_OFFLOAD, 3) == (decision.closest.strategy, decision.closest.lacking_bytes)


@pytest.mark.parametrize("machine", [FAST, SLOW, ONE])
@pytest.mark.parametrize("strategy", [DDP, ZERO1, ZERO2, ZERO3])
def test_a_stage_that_was_asked_for_is_taken_on_any_machine(
    strategy: StrategyRow, machine: Machine
) -> None:
    decision = follow(dict.fromkeys(STRATEGIES, FITS), machine, Constraints(stage=strategy.stage))
    assert (strategy, (Reason.ASKED_FOR,)) == (chosen(decision), decision.reasons)
    assert 1 == len(decision.answers)


@pytest.mark.parametrize("strategy", [DDP, ZERO1, ZERO2, ZERO3])
def test_a_stage_that_does_not_fit_is_refused_unless_forced(strategy: StrategyRow) -> None:
    others = {s: FITS for s in STRATEGIES if s.stage != strategy.stage}
    assert chosen(follow(others, constraints=Constraints(stage=strategy.stage))) is None
    forced = follow(others, constraints=Constraints(stage=strategy.stage, force=True))
    assert (strategy, (Reason.FORCED,)) == (chosen(forced), forced.reasons)


@pytest.mark.parametrize(
    ("stage", "offload"),
    [
        (stage, offload)
        for stage in range(4)
        for offload in (OffloadChoice.OPTIMIZER, OffloadChoice.ALL)
        if (stage, offload.value) not in {(s.stage, s.offload.value) for s in STRATEGIES}
    ],
)
def test_an_offload_that_no_strategy_has_is_refused_with_the_stages_that_have_it(
    stage: int, offload: OffloadChoice
) -> None:
    with pytest.raises(
        UsageError, match=f'`stage="{stage}"` cannot be combined with `offload="{offload}"`'
    ) as refused:
        follow({}, constraints=Constraints(stage=stage, offload=offload))
    (hint,) = refused.value.hints
    named = dict(zip(("optimizer", "all"), hint.split(", the parameters at "), strict=True))
    expected = {str(s.stage) for s in STRATEGIES if s.offload.value == offload}
    assert expected == set(re.findall(r"\d", named[offload]))


def test_an_answer_carries_the_numbers_that_settled_it() -> None:
    first = follow({ZERO2: FITS}).answers[0]
    expected = (False, "ddp", NEED_BYTES[NO], BUDGET_BYTES)
    assert expected == (first.answer, first.strategy, first.need_bytes, first.have_bytes)


def test_a_strategy_that_fails_on_the_host_alone_is_answered_with_the_hosts_numbers() -> None:
    """Also when it fills the GPU to the last byte."""
    estimates = [evaluated(strategy, NO) for strategy in STRATEGIES]
    at = FLOWCHART_STRATEGIES.index(ZERO2_OFFLOAD)
    estimates[at] = replace(
        estimates[at], device_bytes=BUDGET_BYTES, host=held_on_host(7), host_budget_bytes=5
    )
    answers = follow_flowchart(estimates, job_on(ONE), Constraints()).answers
    answer = next(a for a in answers if a.strategy == "zero2-offload")
    assert (7, 5) == (answer.need_bytes, answer.have_bytes)


def test_the_losers_are_kept() -> None:
    decision = follow({DDP: FITS})
    assert STRATEGIES == tuple(w.strategy for w in decision.evaluated)
    assert NO is decision.of(ZERO2).verdict


def test_an_unknown_budget_is_named_as_the_reason() -> None:
    unknown = replace(FAST, gpus=tuple(replace(gpu, free_bytes=None) for gpu in FAST.gpus))
    decision = decide(job_on(unknown), Constraints())
    assert (Reason.NOTHING_FITS, Reason.BUDGET_UNKNOWN) == decision.reasons


ANSWERS = tuple(
    dict(zip(FLOWCHART_STRATEGIES, verdicts, strict=True))
    for verdicts in product((FITS, UNCERTAIN, NO), repeat=len(FLOWCHART_STRATEGIES))
)


@pytest.mark.parametrize("machine", [FAST, SLOW, ONE], ids=["fast", "slow", "one"])
@pytest.mark.parametrize("constraints", WISHES)
def test_no_decision_ends_on_a_strategy_that_does_not_fit(
    constraints: Constraints, machine: Machine
) -> None:
    ends = [(verdicts, chosen(follow(verdicts, machine, constraints))) for verdicts in ANSWERS]
    assert [] == [(v, end) for v, end in ends if end is not None and v[end] is NO]


@pytest.mark.parametrize(
    "machine",
    [pytest.param(FAST, marks=pytest.mark.slow), SLOW, ONE],
    ids=["fast", "slow", "one"],
)
@pytest.mark.parametrize("constraints", WISHES)
def test_doubt_changes_no_decision_but_to_one_that_surely_ends(
    constraints: Constraints, machine: Machine
) -> None:
    """Where a way that takes no for what is uncertain ends, that is the end; else as with yes.

    It does not end with offload where the other needs none.
    """
    for verdicts in ANSWERS:
        strictly, kindly = (
            {s: meant if v is UNCERTAIN else v for s, v in verdicts.items()} for meant in (NO, FITS)
        )
        end, strict, kind = (
            chosen(follow(v, machine, constraints)) for v in (verdicts, strictly, kindly)
        )
        plain = Offload.NONE
        gives_way = strict and (
            strict.offload is plain or kind is None or kind.offload is not plain
        )
        assert (strict if gives_way else kind) == end


@pytest.mark.parametrize("machine", [FAST, SLOW, ONE], ids=["fast", "slow", "one"])
@pytest.mark.parametrize("constraints", WISHES)
def test_no_decision_asks_the_same_thing_twice(constraints: Constraints, machine: Machine) -> None:
    for verdicts in ANSWERS:
        steps = [(a.question, a.strategy) for a in follow(verdicts, machine, constraints).answers]
        assert len(set(steps)) == len(steps)


def test_several_nodes_count_as_a_slow_link_until_somebody_knows_better() -> None:
    two = replace(
        FAST, nodes=2, interconnect=replace(FAST.interconnect, link_class=LinkClass.UNKNOWN)
    )
    assert chosen(follow({ZERO3: FITS}, two)) is None


def test_the_flowchart_over_real_numbers_finds_7b_on_four_gpus_of_40_gb_a_zero3_job() -> None:
    job = Job(machine=FAST, model=SEVEN, workload=Workload(gradient_checkpointing=True))
    assert ZERO3 == chosen(decide(job, Constraints()))


def test_the_same_job_offloads_where_the_link_is_slow_and_the_cards_are_small() -> None:
    machine = replace(SLOW, host=Host(available_bytes=500 * 10**9))
    job = Job(machine=machine, model=SEVEN, workload=Workload(gradient_checkpointing=True))
    assert ZERO3_OFFLOAD == chosen(decide(job, Constraints(offload=OffloadChoice.AUTO)))
