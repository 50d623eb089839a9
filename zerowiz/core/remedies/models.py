"""Smaller models for a job: of the same series by name, or of a size where a size was said."""

from collections.abc import Callable, Sequence
from functools import partial

from zerowiz.core.decision.flowchart import Constraints
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.model.from_size import model_from_size, parse_size
from zerowiz.core.model.known import KnownModel, find_siblings
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.remedies.remedy import Attempt, Lazy
from zerowiz.core.values import replace
from zerowiz.errors import UsageError

# Sizes that people train, from the largest.
_SIZES = ("70b", "32b", "14b", "7b", "3b", "1.5b", "1b", "500m", "100m")
# Of a model's parameters; one that is hardly smaller is no remedy.
_AT_MOST = 0.8


def smaller_models(
    job: PlanInput,
    constraints: Constraints,
    table: Sequence[KnownModel],
    at_least_params: float = 0,
) -> list[Lazy]:
    """The job with each smaller model, the largest first; a model is built when it is asked for."""
    params = range(int(at_least_params), int(_AT_MOST * job.model.params))
    if job.model.source is ModelSource.SIZE:
        return [
            partial(_with_model, name, partial(model_from_size, name, size), job, constraints)
            for name, size in ((name, parse_size(name)) for name in _SIZES)
            if size is not None and size in params
        ]
    return [
        partial(_with_model, row.id, row.build, job, constraints)
        for row in find_siblings(job.model, table)
        if row.params in params
    ]


def _with_model(
    name: str, build: Callable[[], Model], job: PlanInput, constraints: Constraints
) -> Attempt | None:
    """The job with another model; None where that cannot take the step."""
    try:
        changed = replace(job, model=build(), traced=None)
    except UsageError:
        return None
    return Attempt(change={"model": name}, job=changed, constraints=constraints)
