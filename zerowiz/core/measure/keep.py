"""Say what of a measured run is worth keeping for later plans."""

import json
from typing import cast

from zerowiz.core.codec import encode
from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.measure.machine_results import KeptRun, MachineResults
from zerowiz.core.measure.row import Comparison, as_capped
from zerowiz.core.measure.trial import PlannedTrial
from zerowiz.core.speed.terms import TermKind
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import SETTINGS

# What of a row makes two runs the same setting.
_IDENTITY = (
    *("model", "params", "kind", "stage", "offload", "optimizer", "quantized"),
    *("zero_optimization", "memory_cap_bytes", "expandable_segments"),
    *SETTINGS,
)


def keep_run(
    planned: PlannedTrial, comparison: Comparison, formulas: str, before: MachineResults
) -> KeptRun | None:
    """What is kept of a measured run; None where it says nothing of how fast this machine is.

    A run that failed, or that retried its allocations, does not.

    Args:
        planned: The run, as it was planned.
        comparison: How it ended.
        formulas: Those that predicted it.
        before: What is kept of the machine: its host's speed is the mean of all readings.
    """
    row, step = comparison.row, comparison.step
    retried = row.get("timed_allocator_retries")
    if not comparison.ok or step.measured is None or retried:
        return None
    if planned.strategy is None or planned.job is None:
        return None
    read = cast("float | None", row.get("python_call_seconds"))
    job = as_capped(planned.job, row)
    call_seconds = before.mean_call_seconds(read) or job.machine.host.python_call_seconds
    host = replace(job.machine.host, python_call_seconds=call_seconds)
    job = replace(job, machine=replace(job.machine, host=host))
    predicted = evaluate(job, planned.strategy).step_time
    terms: dict[str, float] = {}
    for term in () if predicted is None else predicted.terms:
        # The run flushed nothing, however near it came to its limit.
        if term.kind is not TermKind.ALLOCATOR:
            terms[term.kind.value] = terms.get(term.kind.value, 0.0) + term.exposed_seconds
    # As it will be read again: two runs of one setting must be equal.
    setting = json.loads(json.dumps(encode({name: row.get(name) for name in _IDENTITY})))
    return KeptRun(
        setting=setting,
        strategy=planned.strategy.name,
        formulas=formulas,
        measured_seconds=step.measured.seconds,
        predicted_seconds=terms,
        python_call_seconds=read,
    )
