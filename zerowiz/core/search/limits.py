"""Find the largest step that surely runs: how large a micro-batch, how long a sequence."""

from bisect import bisect_left
from collections.abc import Callable

from msgspec import Struct

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import Workload

# Beyond any job: what fits so much is not limited by memory.
_MOST_SEQUENCES = 2**16
_MOST_TOKENS = 2**27
# Kernels are made for sequences that are multiples of it.
_TOKENS = 128


class Limit(Struct, frozen=True, kw_only=True):
    """The largest steps of one strategy; 0 where not even the smallest surely runs."""

    strategy: StrategyRow
    gradient_checkpointing: bool
    micro_batch: int
    """With as many tokens a sequence as the job has."""
    sequence_tokens: int
    """With the micro-batch of the job; no more than the model has positions, where they bind."""
    by_positions: bool
    """Whether the model's positions end before memory does."""


def find_limits(job: PlanInput) -> tuple[Limit, ...]:
    """The limits of every strategy, without and with checkpointing of activations."""
    return tuple(
        _limit(job, strategy, replace(job.workload, gradient_checkpointing=recomputes))
        for strategy in STRATEGIES
        for recomputes in (False, True)
    )


def _limit(job: PlanInput, strategy: StrategyRow, step: Workload) -> Limit:

    def runs(workload: Workload) -> bool:
        return evaluate(replace(job, workload=workload), strategy).is_sure

    batch = _largest(lambda n: runs(replace(step, micro_batch=n)), _MOST_SEQUENCES)
    positions = _positions(job)
    tokens = _TOKENS * _largest(
        lambda n: runs(replace(step, sequence_tokens=n * _TOKENS)), positions // _TOKENS
    )
    return Limit(
        strategy=strategy,
        gradient_checkpointing=step.gradient_checkpointing,
        micro_batch=batch,
        sequence_tokens=tokens,
        by_positions=tokens > positions - _TOKENS,
    )


def _positions(job: PlanInput) -> int:
    """No more tokens than the model was made for.

    The stand-in for a size has positions of its own. Where none are learned a job may go beyond.
    """
    longest = job.model.made_for_tokens
    if longest is None or job.workload.sequence_tokens > longest:
        return _MOST_TOKENS
    return longest


def _largest(runs: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that runs, where each smaller one does too; 0 if none does."""
    low, high = 0, 1
    while high <= most and runs(high):
        low, high = high, 2 * high
    between = range(low + 1, min(high, most + 1))
    return low + bisect_left(between, x=True, key=lambda count: not runs(count))
