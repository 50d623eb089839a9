"""Say what of a measured run is worth keeping for later plans."""

import json

from zerowiz.core.codec import encode
from zerowiz.core.measure.machine_results import KeptRun
from zerowiz.core.measure.row import Comparison
from zerowiz.core.measure.trial import PlannedTrial
from zerowiz.core.workload import SETTINGS

# What of a row makes two runs the same setting.
_IDENTITY = (
    *("model", "params", "kind", "stage", "offload", "optimizer", "quantized"),
    *("zero_optimization", "memory_cap_bytes", "expandable_segments"),
    *SETTINGS,
)


def keep_run(planned: PlannedTrial, comparison: Comparison, formulas: str) -> KeptRun | None:
    """What is kept of a measured run; None where it says nothing of how fast this machine is.

    A run that failed, or that retried its allocations, does not.

    Args:
        planned: The run, as it was planned.
        comparison: How it ended.
        formulas: Those that predicted it.
    """
    row, step = comparison.row, comparison.step
    retried = row.get("timed_allocator_retries")
    if not comparison.ok or step.measured is None or retried:
        return None
    if planned.strategy is None:
        return None
    terms: dict[str, float] = {}
    for term in () if step.predicted is None else step.predicted.terms:
        terms[term.kind.value] = terms.get(term.kind.value, 0.0) + term.exposed_seconds
    # As it will be read again: two runs of one setting must be equal.
    setting = json.loads(json.dumps(encode({name: row.get(name) for name in _IDENTITY})))
    return KeptRun(
        setting=setting,
        strategy=planned.strategy.name,
        formulas=formulas,
        measured_seconds=step.measured.seconds,
        predicted_seconds=terms,
    )
