"""Encode what was decided as the contract has it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from zerowiz import __version__
from zerowiz.app.decide.decision import Plan
from zerowiz.app.resolve.request import config_file
from zerowiz.core.plan_json import encode_decision
from zerowiz.core.remedies.remedy import encode_remedy
from zerowiz.core.search.limits import Limit
from zerowiz.ui.sentences import decisions
from zerowiz.words import english

if TYPE_CHECKING:
    from zerowiz.core.catalog.planned_run import PlannedRun


def encode_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    run: "PlannedRun | None" = None,
    limits: Sequence[Limit] | None = None,
) -> dict[str, object]:
    """The contract's object of what was decided."""
    strategy, decision = plan.strategy, plan.decision
    encoded = encode_decision(
        decision,
        plan.search,
        version=__version__,
        reasons=decisions.reasons(decision),
        remedies=[encode_remedy(each) for each in plan.remedies],
        settled=plan.request.settled,
        config_path=None if strategy is None else config_file(plan.options, strategy),
        command=command,
        env=env,
        run=None if run is None else _encode_run(run),
        limits=limits,
    )
    return cast("dict[str, object]", english(encoded))


def _encode_run(run: "PlannedRun") -> dict[str, object]:
    from zerowiz.core.catalog.run_json import encode_run  # noqa: PLC0415 - most plans ask for no run

    return encode_run(run)
