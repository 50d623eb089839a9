"""Compute what would make a strategy fit: every remedy is a change that was evaluated again."""

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision, OffloadChoice, Reason, decide
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.types import Accelerator, widen
from zerowiz.core.model.from_size import model_from_size
from zerowiz.core.strategy import Offload
from zerowiz.core.values import replace
from zerowiz.core.workload import Accounting, Method, Precision, StateDtype
from zerowiz.errors import UsageError

Change = Mapping[str, int | str | bool]
Attempted = tuple[Change, PlanInput, Constraints]


class Remedy(Struct, frozen=True, kw_only=True):
    """A change of options, the strategy it leads to, and what it frees on each GPU."""

    change: Change
    strategy: str
    frees_bytes: int


def _bf16(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.precision is Precision.FP32 and job.machine.takes_bf16:
        workload = replace(job.workload, precision=Precision.BF16)
        yield {"precision": "bf16"}, replace(job, workload=workload), constraints


def _checkpointing(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if not job.workload.gradient_checkpointing:
        workload = replace(job.workload, gradient_checkpointing=True)
        yield {"gradient_checkpointing": True}, replace(job, workload=workload), constraints


def _bf16_states(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.precision is Precision.BF16 and job.state_dtype is not StateDtype.BF16:
        yield (
            {"optimizer_state_dtype": "bf16"},
            replace(job, state_dtype=StateDtype.BF16),
            constraints,
        )


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _micro_batch(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    """A part of the micro-batch at a time, in as many more micro-steps: the same global batch."""
    batch, steps = job.workload.micro_batch, job.workload.accumulation_steps
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            change = {"micro_batch": batch // parts, "accumulation_steps": steps * parts}
            workload = replace(
                job.workload, micro_batch=batch // parts, accumulation_steps=steps * parts
            )
            yield change, replace(job, workload=workload), constraints


def _sequence(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    for tokens in _halves(job.workload.sequence_tokens, 256):
        workload = replace(job.workload, sequence_tokens=tokens)
        yield {"sequence_tokens": tokens}, replace(job, workload=workload), constraints


def _lean(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    """Checkpointing and bf16 states together, then with ever smaller micro-batches."""
    change: Change = {}
    for remedy in (_checkpointing, _bf16_states):
        for more, leaner, _ in remedy(job, constraints):
            change, job = {**change, **more}, leaner
    if len(change) > 1:
        yield change, job, constraints
    if change:
        for more, smaller, _ in _micro_batch(job, constraints):
            yield {**change, **more}, smaller, constraints


def _offload(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if constraints.offload is not OffloadChoice.AUTO:
        yield {"offload": "auto"}, job, replace(constraints, offload=OffloadChoice.AUTO)


def _allow_slow(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if not constraints.allow_slow:
        yield {"allow_slow": True}, job, replace(constraints, allow_slow=True)


# What nodes are built with.
_GPUS_OF_A_NODE = (2, 4, 8)


def _more_gpus(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    machine = job.machine
    if machine.nodes > 1 or machine.accelerator is Accelerator.CPU:
        return
    for count in _GPUS_OF_A_NODE:
        if count > len(machine.gpus):
            wider = replace(job, machine=widen(machine, count))
            name = machine.gpus[-1].name.removeprefix("NVIDIA ")
            yield {"machine": f"{count}x{name}"}, wider, constraints


def _adapters(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.method is not Method.FULL or job.accounting is Accounting.TEXTBOOK:
        return
    for method in (Method.LORA, Method.QLORA):
        adapted = replace(job, workload=replace(job.workload, method=method))
        yield {"method": method.value}, adapted, constraints
        for more, leaner, _ in _checkpointing(adapted, constraints):
            yield {"method": method.value, **more}, leaner, constraints


# Sizes that people train, from the largest.
_SIZES = ("70b", "32b", "14b", "7b", "3b", "1.5b", "1b", "500m", "100m")
_SIZE_PARAMS = (70e9, 32e9, 14e9, 7e9, 3e9, 1.5e9, 1e9, 5e8, 1e8)


def _smaller_model(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    for name, params in zip(_SIZES, _SIZE_PARAMS, strict=True):
        if params < job.model.params:
            model = model_from_size(name, int(params))
            yield {"model": name}, replace(job, model=model), constraints


# The cheapest first: what costs time, then what costs the batch, then hardware, then the model.
REMEDIES: tuple[Callable[[PlanInput, Constraints], Iterator[Attempted]], ...] = (
    _bf16,
    _checkpointing,
    _bf16_states,
    _lean,
    _micro_batch,
    _sequence,
    _more_gpus,
    _offload,
    _allow_slow,
    _adapters,
    _smaller_model,
)


def make_remedy(decision: Decision, change: Change, chosen: StrategyEstimate) -> Remedy:
    """The change that leads from a decision to this strategy.

    Compared with the same strategy before, so that another one does not count as freed memory.
    """
    is_real = decision.job.accounting is Accounting.REAL
    before = decision.of(chosen.strategy) if is_real else decision.closest
    return Remedy(
        change=change,
        strategy=chosen.strategy.name,
        frees_bytes=max(0, before.device_bytes - chosen.device_bytes),
    )


def _first_that_fits(decision: Decision, trials: Iterator[Attempted]) -> Remedy | None:
    for change, changed_job, constraints in trials:
        try:
            chosen = decide(changed_job, constraints).chosen
        except UsageError:
            continue
        if chosen is None or chosen.verdict is Verdict.DOES_NOT_FIT:
            continue
        return make_remedy(decision, change, chosen)
    return None


def find_remedies(decision: Decision) -> tuple[Remedy, ...]:
    """The changes that would lead to a strategy, the cheapest first; none where one fits well.

    A tight choice is given the next strategy that fits without being tight.
    """
    if decision.job.own_buffers is not None:
        # The user's own config sets all this itself; no option can be added to it.
        return ()
    if decision.chosen is None:
        found = (
            _first_that_fits(decision, remedy(decision.job, decision.constraints))
            for remedy in REMEDIES
        )
        return tuple(remedy for remedy in found if remedy is not None)
    if Reason.TIGHT not in decision.reasons:
        return ()
    forbidden = decision.constraints.offload is OffloadChoice.NONE
    below = decision.evaluated[decision.evaluated.index(decision.chosen) + 1 :]
    roomier = [
        w
        for w in below
        if w.verdict is Verdict.FITS and not (forbidden and w.strategy.offload is not Offload.NONE)
    ]
    return tuple(
        Remedy(
            change={"stage": str(w.strategy.stage), "offload": w.strategy.offload.value},
            strategy=w.strategy.name,
            frees_bytes=max(0, decision.chosen.device_bytes - w.device_bytes),
        )
        for w in roomier[:1]
    )
